//! `rao-log show`: runs, trees, transcripts, events and credit.

use clap::Args;
use rao_engine::{Node, Tree};
use rao_policy::TemplateValues;
use rao_store::event::{Answer, Body, Event, Kind, Outcome, StopReason};
use rao_store::{Address, EventSource, Filter, NodePath, RolloutId, RunId, Seq, Stream, Target, resolve_target};
use serde_json::{Value, json};

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::credit;
use crate::shared::curves;
use crate::shared::exit::Failure;
use crate::shared::forks;
use crate::shared::json as readable;
use crate::shared::open;
use crate::shared::out::{Out, one_line, plural, utc};
use crate::shared::recording::stored_presets;
use crate::shared::table::Table;
use crate::tail;

/// Events shown on either side of the one asked for.
const NEIGHBOURS: u64 = 4;
/// Characters of a goal in a tree.
const GOAL: usize = 44;

/// Show a run's rollouts, a rollout's tree, a node's transcript, or an event among its neighbours.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// RUN, RUN/ROLLOUT, RUN/ROLLOUT#SEQ, or RUN/training [default: latest].
    #[arg(value_name = "WHAT", default_value = "latest", hide_default_value = true)]
    what: String,
    /// The transcript of this node of the rollout, such as 0.1.
    #[arg(long, value_name = "NODE", conflicts_with = "credit")]
    node: Option<NodePath>,
    /// Of a node's transcript only the events of these kinds, such as call_issued,call_answered.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = tail::kind, requires = "node")]
    kind: Vec<Kind>,
    /// Own success, child mean, lambda, reward, baseline, advantage, depth, count, weight and tokens of each node.
    #[arg(long)]
    credit: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ShowArgs, out: &mut Out) -> Result<(), Failure> {
    let source = open::reader(&args.log.log)?;
    let json = args.json.json;
    match resolve_target(&source, &args.what)? {
        Target::Run(run) if args.credit => run_credit(out, &source, run, json),
        Target::Rollout(run, rollout) if args.credit => rollout_credit(out, &source, run, rollout, json),
        Target::Rollout(run, rollout) => match &args.node {
            Some(node) => transcript(out, &source, (run, rollout), (node, &args.kind), json),
            None => rollout_tree(out, &source, run, rollout, json),
        },
        _ if args.credit || args.node.is_some() => {
            let message = format!("--credit and --node need a rollout, and `{}` is none", args.what);
            Err(Failure::usage(message).help("write RUN/ROLLOUT, such as latest/0"))
        }
        Target::Run(run) => rollouts(out, &source, run, json),
        Target::Training(run) => curves::training(out, &source, run, json),
        Target::Event(address) => event(out, &source, address, json),
    }
}

struct Line {
    rollout: RolloutId,
    task: String,
    difficulty: String,
    end: Option<rao_store::event::RolloutFinished>,
    events: u64,
    content: String,
}

fn rollouts(out: &mut Out, source: &dyn EventSource, run: RunId, json: bool) -> Result<(), Failure> {
    let (started, host) = open::manifest(source, run)?;
    let lines = rollout_lines(source, run)?;
    if json {
        let rollouts: Vec<Value> = lines.iter().map(Line::to_json).collect();
        out.json(&json!({
            "run": run.to_string(),
            "manifest": readable::body(&Body::from(started)),
            "host": readable::body(&Body::from(host)),
            "rollouts": rollouts,
        }));
        return Ok(());
    }
    let policy = &started.policy;
    let weights = policy.weights.map_or(String::new(), |digest| format!(", weights {}", digest.short()));
    out.line(format_args!("run {}", open::short(source, run)));
    out.line(format_args!("policy {} ({}{weights}), tokenizer {}", policy.name, policy.kind, policy.tokenizer.short()));
    if let Some(base) = forks::base_of(source, run) {
        out.line(format_args!("forked from {}", forks::place(source, &base)));
    }
    let presets = stored_presets(&host).unwrap_or_else(|| "?".into());
    let (tasks, group) = (plural(u64::from(started.tasks), "task"), started.group_size);
    out.line(format_args!("{}/{presets}, {tasks} x {group} rollouts, seed {}", started.env, started.seed));
    if let Some(values) = template_values(&started.engine_config) {
        out.line(format_args!("chat_template_kwargs {values}"));
    }
    out.line("");
    let mut table = Table::new(&[
        ">rollout",
        "task",
        "difficulty",
        ">success",
        ">nodes",
        ">depth",
        ">steps",
        ">tokens",
        ">events",
        "content",
    ]);
    for line in &lines {
        table.row(line.cells());
    }
    table.print(out);
    forks::print(out, source, &forks::all(source), run, None);
    Ok(())
}

/// The values that the run gave to variables of its model's chat template, if it gave any. Settings of another version are
/// shown in part.
fn template_values(engine_config: &str) -> Option<TemplateValues> {
    let config: Value = serde_json::from_str(engine_config).ok()?;
    serde_json::from_value(config.get("chat_template_kwargs")?.clone()).ok()
}

fn rollout_lines(source: &dyn EventSource, run: RunId) -> Result<Vec<Line>, Failure> {
    let mut lines = Vec::new();
    for rollout in open::rollouts(source, run) {
        let stream = Stream::Rollout(run, rollout);
        let head = source.head(stream);
        let (events, content) = head.map_or((0, String::new()), |head| (head.count, head.content.to_string()));
        let mut line = Line { rollout, task: String::new(), difficulty: String::new(), end: None, events, content };
        for event in source.events(stream, Seq(0), &Filter::kinds([Kind::RolloutStarted, Kind::RolloutFinished])) {
            match event?.body {
                Body::RolloutStarted(started) => (line.task, line.difficulty) = (started.task_id, started.difficulty),
                Body::RolloutFinished(end) => line.end = Some(end),
                _ => {}
            }
        }
        lines.push(line);
    }
    Ok(lines)
}

impl Line {
    fn cells(&self) -> [String; 10] {
        let end = |get: fn(&rao_store::event::RolloutFinished) -> String| self.end.as_ref().map_or("-".into(), get);
        [
            self.rollout.to_string(),
            self.task.clone(),
            self.difficulty.clone(),
            end(|end| end.success.to_string()),
            end(|end| end.nodes.to_string()),
            end(|end| end.max_depth.to_string()),
            end(|end| end.steps.to_string()),
            end(|end| end.tokens.to_string()),
            self.events.to_string(),
            self.content.chars().take(12).collect(),
        ]
    }

    fn to_json(&self) -> Value {
        let end = self.end.as_ref();
        json!({
            "rollout": self.rollout.0,
            "task": self.task,
            "difficulty": self.difficulty,
            "finished": end.is_some(),
            "success": end.map(|end| end.success),
            "nodes": end.map(|end| end.nodes),
            "max_depth": end.map(|end| end.max_depth.0),
            "steps": end.map(|end| end.steps),
            "tokens": end.map(|end| end.tokens),
            "events": self.events,
            "content_digest": self.content,
        })
    }
}

fn rollout_tree(
    out: &mut Out,
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    json: bool,
) -> Result<(), Failure> {
    let tree = open::tree(&open::events(source, run, rollout)?)?;
    let all = forks::all(source);
    if json {
        let head = source.head(Stream::Rollout(run, rollout));
        out.json(&json!({
            "run": run.to_string(),
            "rollout": rollout.0,
            "events": tree.events,
            "content_digest": head.map(|head| head.content.to_string()),
            "started": tree.started.clone().map(|started| readable::body(&Body::from(started))),
            "finished": tree.finished.clone().map(|end| readable::body(&Body::from(end))),
            "nodes": tree.nodes().map(node_json).collect::<Vec<Value>>(),
            "forks": forks::to_json(&all, run, rollout),
        }));
        return Ok(());
    }
    print_tree(out, source, run, rollout, &tree);
    forks::print(out, source, &all, run, Some(rollout));
    Ok(())
}

/// Draws an execution tree.
pub(crate) fn print_tree(out: &mut Out, source: &dyn EventSource, run: RunId, rollout: RolloutId, tree: &Tree) {
    let place = format!("{}/{rollout}", open::short(source, run));
    if let Some(started) = &tree.started {
        let (task, difficulty) = (&started.task_id, &started.difficulty);
        out.line(format_args!(
            "rollout {place}: task {task} ({difficulty}), group {} member {}, {}",
            started.group,
            started.member,
            plural(tree.events, "event")
        ));
        if let Some(base) = &started.fork_base {
            out.line(format_args!(
                "forked from {}: #0 to #{} are its events, #{} is the fork's own beginning",
                forks::place(source, base),
                base.seq,
                tree.given().saturating_sub(1)
            ));
        }
    }
    let mut table =
        Table::new(&["node", "goal", "outcome", ">steps", ">tokens", ">context", ">success", ">reward", ">event"]);
    if let Some(root) = tree.root() {
        add_node(&mut table, tree, root, "", "");
    }
    table.print(out);
    if tree.finished.is_none() {
        out.line("this rollout has not ended; `rao-log record --resume RUN` finishes it");
    }
}

/// One line for a node and, below it, its children. `lead` stands before the node itself, `below` before its children.
fn add_node(table: &mut Table, tree: &Tree, node: &Node, lead: &str, below: &str) {
    table.row([
        format!("{lead}{}", node.path),
        one_line(&node.goal, GOAL),
        node.outcome.map_or("running", outcome).to_owned(),
        format!("{}/{}", node.steps.len(), node.budget),
        node.generated().to_string(),
        node.tokens.len().to_string(),
        node.success().map_or("-".into(), |success| success.to_string()),
        node.reward.as_ref().map_or("-".into(), |(_, reward)| reward.reward.to_string()),
        format!("#{}", node.spawned),
    ]);
    let children: Vec<&Node> = node.children.iter().filter_map(|path| tree.node(path)).collect();
    for (place, child) in children.iter().enumerate() {
        let is_last = place + 1 == children.len();
        let (branch, rest) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        add_node(table, tree, child, &format!("{below}{branch}"), &format!("{below}{rest}"));
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Finished => "finished",
        Outcome::OutOfSteps => "out_of_steps",
        Outcome::ContextOverflow => "context_overflow",
        Outcome::Stuck => "stuck",
        Outcome::Cancelled => "cancelled",
    }
}

fn node_json(node: &Node) -> Value {
    json!({
        "node": node.path.to_string(),
        "goal": node.goal,
        "targets": serde_json::from_str::<Value>(&node.targets).unwrap_or_default(),
        "depth": node.depth.0,
        "budget": node.budget,
        "steps": node.steps.len(),
        "tokens": node.generated(),
        "context": node.tokens.len(),
        "outcome": node.outcome.map(outcome),
        "value": node.finish,
        "success": node.success(),
        "reward": node.reward.as_ref().map(|(_, reward)| reward.reward),
        "spawned": node.spawned.0,
        "children": node.children.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn transcript(
    out: &mut Out,
    source: &dyn EventSource,
    (run, rollout): (RunId, RolloutId),
    (path, kinds): (&NodePath, &[Kind]),
    json: bool,
) -> Result<(), Failure> {
    let events = open::events(source, run, rollout)?;
    let tree = open::tree(&events)?;
    let Some(node) = tree.node(path) else {
        let known: Vec<String> = tree.nodes().map(|node| node.path.to_string()).collect();
        let message = format!("rollout {rollout} of run {} has no node {path}", open::short(source, run));
        return Err(Failure::usage(message).help(format!("its nodes are {}", one_line(&known.join(", "), 200))));
    };
    let is_wanted = |event: &&Event| kinds.is_empty() || kinds.contains(&event.body.kind());
    let own = events.iter().filter(|event| readable::node(&event.body).as_ref() == Some(path)).filter(is_wanted);
    if json {
        let events: Vec<Value> = own.map(event_json).collect();
        out.json(&json!({ "node": node_json(node), "events": events }));
        return Ok(());
    }
    let place = open::short(source, run);
    out.line(format_args!("node {path} of {place}/{rollout}: {}", one_line(&node.goal, 120)));
    for event in own {
        transcript_event(out, event, !kinds.is_empty());
    }
    Ok(())
}

/// An event of a transcript. What a transcript leaves out is named only where it was asked for.
fn transcript_event(out: &mut Out, event: &Event, asked_for: bool) {
    let seq = event.seq;
    match &event.body {
        Body::ContextExtended(more) => {
            let role = match more.role {
                rao_store::event::Role::Prompt => "prompt",
                rao_store::event::Role::Observation => "observation",
            };
            heading(
                out,
                seq,
                &format!("{role}, {} at position {}", plural(more.tokens.len() as u64, "token"), more.at),
            );
            indented(out, &more.text);
        }
        Body::ActionSampled(action) => {
            let mean = mean_logprob(&action.logprobs);
            let stop = stop_name(action.stop);
            let tokens = plural(action.tokens.len() as u64, "token");
            heading(out, seq, &format!("action of step {}, {tokens}{mean}, ended by {stop}", action.step));
            indented(out, &action.text);
        }
        Body::CallIssued(call) => {
            out.line(format_args!("  #{seq} call {}: {}{}", call.call, call.name, arguments(&call.args)))
        }
        Body::CallAnswered(answered) => {
            for (call, answer) in &answered.answers {
                let text = match answer {
                    Answer::Value(json) => json.clone(),
                    Answer::Raised { kind, message } => format!("raised {kind}: {message}"),
                };
                out.line(format_args!("  #{seq} answer {call}: {}", one_line(&text, 160)));
            }
        }
        Body::SpawnRefused(refused) => {
            out.line(format_args!("  #{seq} call {} refused: {}", refused.call, one_line(&refused.text, 160)));
        }
        Body::CellFinished(cell) => {
            let ending = match (&cell.error, cell.rejected, cell.limit) {
                (_, true, _) => "rejected before it ran".to_owned(),
                (_, _, Some(limit)) => format!("ended by its limit ({limit:?})"),
                (Some(error), ..) => format!("error: {}", one_line(error, 160)),
                (None, ..) => "done".to_owned(),
            };
            out.line(format_args!("  #{seq} cell {}: {ending}", cell.step));
        }
        Body::NodeFinished(end) => {
            let value = end.value.as_ref().map_or(String::new(), |value| format!(" with {}", one_line(value, 160)));
            out.line("");
            out.line(format_args!("#{seq} {}{value}", outcome(end.outcome)));
        }
        Body::Verdict(verdict) => {
            out.line(format_args!(
                "#{seq} verdict of {}: {} ({})",
                verdict.source,
                verdict.score,
                one_line(&verdict.evidence, 160)
            ));
        }
        Body::RewardAssigned(reward) => out.line(format_args!(
            "#{seq} reward {} = {} + {} * {} ({})",
            reward.reward,
            reward.own,
            reward.lambda,
            reward.child_mean,
            if reward.children == 1 { "1 child".to_owned() } else { format!("{} children", reward.children) }
        )),
        _ if asked_for => out.line(format_args!("  {}", brief(event))),
        _ => {}
    }
}

fn heading(out: &mut Out, seq: Seq, text: &str) {
    out.line("");
    out.line(format_args!("#{seq} {text}"));
}

fn indented(out: &mut Out, text: &str) {
    for line in text.lines() {
        out.line(format_args!("    {line}"));
    }
}

#[expect(clippy::cast_precision_loss, reason = "a completion has few tokens")]
fn mean_logprob(logprobs: &[rao_store::LogProb]) -> String {
    if logprobs.is_empty() {
        return String::new();
    }
    let sum: f64 = logprobs.iter().map(|logprob| f64::from(logprob.0)).sum();
    format!(" (mean logprob {:.3})", sum / logprobs.len() as f64)
}

fn stop_name(stop: StopReason) -> &'static str {
    match stop {
        StopReason::CellEnd => "the end of its cell",
        StopReason::EndOfTurn => "the end of its turn",
        StopReason::MaxTokens => "the token limit",
        StopReason::Window => "the context window",
        StopReason::Scripted => "the script",
        StopReason::Server => "its server",
        StopReason::Asked => "a stop that was asked for",
    }
}

/// Stored arguments as Python wrote them, as far as JSON shows that.
fn arguments(json: &str) -> String {
    match rao_envs::Args::from_json_text(json) {
        Ok(args) => args.repr(),
        Err(_) => json.to_owned(),
    }
}

pub(crate) fn event_json(event: &Event) -> Value {
    json!({
        "address": event.address().to_string(),
        "seq": event.seq.0,
        "at_us": event.at_us,
        "kind": event.body.kind().name(),
        "body": readable::body(&event.body),
    })
}

fn event(out: &mut Out, source: &dyn EventSource, address: Address, json: bool) -> Result<(), Failure> {
    let found = source.event(address)?;
    if json {
        out.json(&event_json(&found));
        return Ok(());
    }
    let first = Seq(address.seq.0.saturating_sub(NEIGHBOURS));
    let window = address.seq.0 - first.0 + NEIGHBOURS + 1;
    let window = usize::try_from(window).unwrap_or(usize::MAX);
    for event in source.events(address.stream, first, &Filter::all()).take(window) {
        // A damaged neighbour is shown as what it is; the event itself was read above.
        match event {
            Ok(event) if event.seq == address.seq => print_event(out, &found),
            Ok(event) => out.line(format_args!("  {}", brief(&event))),
            Err(error) => out.line(format_args!("  {error}")),
        }
    }
    Ok(())
}

fn print_event(out: &mut Out, event: &Event) {
    out.line(format_args!("> {} at {} UTC", brief(event), utc(event.at_us)));
    let pretty = serde_json::to_string_pretty(&shortened(readable::body(&event.body))).unwrap_or_default();
    for line in pretty.lines() {
        out.line(format_args!("    {line}"));
    }
}

/// Long lists of numbers as one string, so that an event fits a screen.
fn shortened(value: Value) -> Value {
    match value {
        Value::Array(items) if items.len() > 8 && items.iter().all(Value::is_number) => {
            let shown: Vec<String> = items.iter().take(8).map(Value::to_string).collect();
            Value::String(format!("[{}, ... {} in all]", shown.join(", "), items.len()))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(shortened).collect()),
        Value::Object(fields) => {
            Value::Object(fields.into_iter().map(|(name, value)| (name, shortened(value))).collect())
        }
        other => other,
    }
}

fn brief(event: &Event) -> String {
    let node = readable::node(&event.body).map_or(String::new(), |node| format!(" node {node}"));
    format!("#{} {}{node}", event.seq, event.body.kind().name())
}

fn run_credit(out: &mut Out, source: &dyn EventSource, run: RunId, json: bool) -> Result<(), Failure> {
    // The forks of a run are a group of their own.
    let settings = rao_replay::trainer::Settings { forks: true, ..Default::default() };
    let batch = rao_replay::trainer::credit_table(source, &[run], &settings)?;
    let rows = credit::of_batch(&batch);
    if json {
        let rows: Vec<Value> = rows.iter().map(credit::CreditRow::to_json).collect();
        out.json(&json!({ "run": run.to_string(), "credit": rows }));
        return Ok(());
    }
    out.line(format_args!("credit with run {} as the batch; left out: {}", open::short(source, run), batch.left_out));
    credit::print(out, &rows, None);
    Ok(())
}

fn rollout_credit(
    out: &mut Out,
    source: &dyn EventSource,
    run: RunId,
    rollout: RolloutId,
    json: bool,
) -> Result<(), Failure> {
    let tree = open::tree(&open::events(source, run, rollout)?)?;
    let (origin, rows) = credit::of_rollout(source, run, rollout, &tree)?;
    if json {
        let rows: Vec<Value> = rows.iter().map(credit::CreditRow::to_json).collect();
        out.json(&json!({ "run": run.to_string(), "rollout": rollout.0, "origin": origin, "credit": rows }));
        return Ok(());
    }
    out.line(&origin);
    credit::print(out, &rows, None);
    Ok(())
}

//! `rao-log rejudge`: new verdicts beside the old.

use clap::Args;
use rao_envs::judge::{Role, Spec};
use rao_replay::rejudge::{Agreement, Rejudged, rejudge};
use rao_store::event::{Body, Kind, Note};
use rao_store::{EventSource, Expected, LogError, RunRole, Seq, Stream, resolve_run};
use serde_json::{Value, json};

use crate::shared::args::{DataArgs, JsonArgs, LogArgs};
use crate::shared::exit::{Code, Failure};
use crate::shared::out::{Out, plural};
use crate::shared::table::Table;
use crate::shared::{judges, open, recording};

/// Judge the nodes of a run again, and show how far the new verdicts agree with those that counted. The new ones are
/// written behind the run's end: its rewards and its content digest stay. What the same judge was asked before is not asked
/// again.
#[derive(Args, Debug)]
pub(crate) struct RejudgeArgs {
    /// The run.
    #[arg(value_name = "RUN", default_value = "latest")]
    run: String,
    /// Who judges roots that the environment does not judge itself [default: the environment's].
    #[arg(long, value_name = "JUDGE")]
    judge: Option<Spec>,
    /// Who judges children that the environment does not judge itself [default: that of --judge].
    #[arg(long, value_name = "JUDGE")]
    child_judge: Option<Spec>,
    /// Judge and compare, but write nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &RejudgeArgs, out: &mut Out) -> Result<(), Failure> {
    let log = open::existing(&args.log.log)?;
    let run = resolve_run(&*log, &args.run, RunRole::Recorded)?;
    let stream = Stream::Run(run);
    let ended = log.headers(stream, Seq(0)).any(|header| header.is_ok_and(|header| header.kind == Kind::RunFinished));
    if !ended {
        let reason = "only finished runs are judged again".to_owned();
        let failure = Failure::from(LogError::Incomplete { run, reason });
        return Err(failure.help(format!("finish it with `rao-log record --resume {}`", open::short(&*log, run))));
    }
    let (started, _) = open::manifest(&*log, run)?;
    let env = open::recorded_environment(&started, &args.data)?;
    let child = args.child_judge.as_ref().or(args.judge.as_ref());
    let Some(panel) = judges::panel(&*env, args.judge.as_ref(), child)? else {
        let message = format!("{} judges every node itself: there is no one to ask again", env.name());
        return Err(Failure::usage(message).help("`rao-log replay --check tools` runs its verifier again"));
    };
    recording::stop_on_ctrl_c();
    let judged = rejudge(&*log, run, &*env, &panel, &recording::stopped)?;
    let asked = judged.nodes.iter().filter(|node| node.asked).count() as u64;
    if !args.dry_run && asked > 0 {
        let text = format!("{} were added by rejudge", plural(asked, "verdict"));
        let mut bodies: Vec<Body> = vec![Note { text }.into()];
        bodies.extend(judged.nodes.iter().filter(|node| node.asked).map(|node| node.event().into()));
        log.append(stream, Expected::Any, bodies)?;
    }
    if judged.is_cut_off {
        let kept = match args.dry_run {
            true => "nothing was written (--dry-run)".to_owned(),
            false => format!("{} that came before are in the log", plural(asked, "verdict")),
        };
        open::close(log)?;
        let failure = Failure::new(Code::Other, format!("stopped before every node was judged; {kept}"));
        return Err(failure.help("run the same command again: what is in the log is not asked again"));
    }
    let rows = [("roots", Some(Role::Root)), ("children", Some(Role::Child)), ("all", None)]
        .map(|(name, role)| (name, Agreement::of(&pairs(&judged.nodes, role))));
    if args.json.json {
        out.json(&json!({
            "run": run.to_string(),
            "judged": judged.nodes.len(),
            "asked": asked,
            "by_environment": judged.by_environment,
            "by_root": judged.by_root,
            "incomplete": judged.incomplete,
            "agreement": rows.iter().map(to_json).collect::<Vec<Value>>(),
            "verdicts": judged.nodes.iter().map(node_json).collect::<Vec<Value>>(),
        }));
        return open::close(log);
    }
    let mut table = Table::new(&["nodes", ">count", ">before", ">now", ">agree", ">kappa"]);
    for (name, row) in rows.iter().filter(|(_, row)| row.nodes > 0) {
        table.row([
            (*name).to_owned(),
            row.nodes.to_string(),
            format!("{:.3}", row.means.0),
            format!("{:.3}", row.means.1),
            format!("{:.3}", row.share),
            row.kappa.map_or("-".into(), |kappa| format!("{kappa:.3}")),
        ]);
    }
    table.print(out);
    let known = judged.nodes.len() as u64 - asked;
    let wrote = if args.dry_run { "nothing written (--dry-run)" } else { "new verdicts stand behind the run's end" };
    out.line(format_args!("{} asked, {known} on record; {wrote}", plural(asked, "question")));
    let (own, root) = (plural(judged.by_environment, "node"), judged.by_root);
    out.line(format_args!("the environment judged {own} itself, {root} had the root's success"));
    open::close(log)
}

fn pairs(nodes: &[Rejudged], role: Option<Role>) -> Vec<(f64, f64)> {
    let chosen = nodes.iter().filter(|node| role.is_none_or(|role| node.role() == role));
    chosen.map(|node| (node.before, node.verdict.score)).collect()
}

fn to_json((name, row): &(&str, Agreement)) -> Value {
    json!({
        "nodes": name,
        "count": row.nodes,
        "before": row.means.0,
        "now": row.means.1,
        "agree": row.share,
        "kappa": row.kappa,
    })
}

fn node_json(node: &Rejudged) -> Value {
    json!({
        "rollout": node.rollout.0,
        "node": node.node.to_string(),
        "before": node.before,
        "now": node.verdict.score,
        "source": node.verdict.source,
        "asked": node.asked,
    })
}

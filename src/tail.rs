//! `rao-log tail`: events as they are written.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use rao_store::event::{Event, Kind};
use rao_store::{Address, EventSource, Filter, Follower, Header, LogError, NodePath, Target, Wanted, resolve_target};
use serde_json::json;

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::out::{Out, note, one_line, plural, utc};
use crate::shared::{cursor, json as readable, open, recording};

/// How long to wait before looking again.
const PAUSE: Duration = Duration::from_millis(200);

/// Print events, stream by stream, and with `--follow` those that are still to come.
#[derive(Args, Debug)]
pub(crate) struct TailArgs {
    /// A run, or one stream of it: RUN, RUN/ROLLOUT or RUN/training [default: the whole log].
    #[arg(value_name = "RUN[/ROLLOUT]")]
    target: Option<String>,
    /// Go on until Ctrl-C.
    #[arg(long)]
    follow: bool,
    /// Begin behind these events, one for each stream at most: the last ones that were seen.
    #[arg(long, value_name = "EVENTS", value_delimiter = ',')]
    from: Vec<String>,
    /// Note in this file what was printed, and begin behind it the next time. A tail that is killed, or whose reader
    /// goes away, may print its last events once more, and never leaves one out.
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    cursor: Option<PathBuf>,
    /// Only events of these kinds, such as action_sampled,reward_assigned.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kind)]
    kind: Vec<Kind>,
    /// Only events of this node, such as 0.1.
    #[arg(long, value_name = "NODE")]
    node: Option<NodePath>,
    /// Only time, address, kind and size: no event is read.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        default_value = "false", action = clap::ArgAction::Set, hide_default_value = true, hide_possible_values = true,
        conflicts_with = "node")]
    headers: bool,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Reads a kind's name.
pub(crate) fn kind(text: &str) -> Result<Kind, String> {
    let all = || Kind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
    Kind::ALL.iter().copied().find(|kind| kind.name() == text).ok_or_else(|| format!("choose among {}", all()))
}

/// Runs the command.
pub(crate) fn run(args: &TailArgs, out: &mut Out) -> Result<(), Failure> {
    let source = open::reader(&args.log.log)?;
    let wanted = match args.target.as_deref().map(|text| resolve_target(&source, text)).transpose()? {
        None => Wanted::Log,
        Some(Target::Run(run)) => Wanted::Run(run),
        Some(target @ (Target::Rollout(..) | Target::Training(_))) => Wanted::Stream(target.stream()),
        Some(Target::Event(_)) => {
            let failure = Failure::usage("tail follows a run or a stream, not an event");
            return Err(failure.help("to begin behind an event, name it with --from"));
        }
    };
    let kinds: BTreeSet<Kind> = args.kind.iter().copied().collect();
    let mut filter = if kinds.is_empty() { Filter::all() } else { Filter::kinds(kinds) };
    filter.node.clone_from(&args.node);
    let (mut follower, _) = Follower::open(&args.log.log, wanted, filter)?;
    let seen = match &args.cursor {
        Some(file) => cursor::read(&source, file)?,
        None => places(&source, &args.from)?,
    };
    seen.into_iter().for_each(|address| follower.resume_behind(address));
    drop(source);
    if args.follow {
        recording::stop_on_ctrl_c();
    }
    let mut damage = None;
    loop {
        let polled = poll(args, &mut follower, out, &mut damage)?;
        // What was not printed because nobody reads any more was not seen.
        if let Some(file) = args.cursor.as_ref().filter(|_| !out.is_closed()) {
            cursor::write(file, &follower.positions())?;
        }
        if polled.is_break() || !args.follow || recording::stopped() {
            break;
        }
        thread::sleep(PAUSE);
    }
    if args.follow && args.cursor.is_none() {
        let seen: Vec<String> = follower.positions().iter().map(Address::to_string).collect();
        if seen.len() == 1 {
            note(format_args!("note: go on with --from {}", seen.join(",")));
        }
    }
    damage.map_or(Ok(()), |error| Err(error.into()))
}

/// Prints what is new.
fn poll(
    args: &TailArgs,
    follower: &mut Follower,
    out: &mut Out,
    damage: &mut Option<LogError>,
) -> Result<ControlFlow<()>, Failure> {
    let mut damaged = |error: LogError| {
        note(format_args!("note: {error}"));
        *damage = Some(error);
    };
    let flow = |out: &Out| {
        if out.is_closed() || recording::stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let polled = if args.headers {
        follower.poll_headers(&mut |header| {
            header.map_or_else(&mut damaged, |header| print_header(out, &header, args.json.json));
            flow(out)
        })
    } else {
        follower.poll(&mut |event| {
            event.map_or_else(&mut damaged, |event| print(out, &event, args.json.json));
            flow(out)
        })
    };
    Ok(polled?)
}

fn places(source: &dyn EventSource, names: &[String]) -> Result<Vec<Address>, Failure> {
    let mut seen = BTreeSet::new();
    let mut places = Vec::new();
    for name in names {
        let Target::Event(address) = resolve_target(source, name)? else {
            return Err(Failure::usage(format!("`{name}` names no event")).help("write RUN/ROLLOUT#SEQ"));
        };
        if !seen.insert(address.stream) {
            return Err(Failure::usage(format!("--from names {} twice", address.stream)).help("name its last event"));
        }
        places.push(address);
    }
    Ok(places)
}

fn print_header(out: &mut Out, header: &Header, as_json: bool) {
    let address = Address { stream: header.stream, seq: header.seq };
    let (kind, bytes) = (header.kind.name(), header.body_len);
    if as_json {
        out.json(&json!({ "event": address.to_string(), "kind": kind, "at_us": header.at_us, "bytes": bytes }));
    } else {
        out.line(format_args!("{} {address} {kind} {}", utc(header.at_us), plural(bytes.into(), "byte")));
    }
}

fn print(out: &mut Out, event: &Event, as_json: bool) {
    let (address, kind) = (event.address(), event.body.kind().name());
    let body = readable::body(&event.body);
    if as_json {
        out.json(&json!({ "event": address.to_string(), "kind": kind, "at_us": event.at_us, "body": body }));
    } else {
        let body = one_line(&body.to_string(), 100);
        out.line(format_args!("{} {address} {kind} {body}", utc(event.at_us)));
    }
}

//! `rao-log tail`: events as they are written.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use clap::Args;
use rao_store::event::{Event, Kind};
use rao_store::{Address, EventSource, Filter, Follower, LogError, Target, Wanted, resolve_target};
use serde_json::json;

use crate::shared::args::{JsonArgs, LogArgs};
use crate::shared::exit::Failure;
use crate::shared::out::{Out, note, one_line, utc};
use crate::shared::{json as readable, open, recording};

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
    /// Only events of these kinds, such as action_sampled,reward_assigned.
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kind)]
    kind: Vec<Kind>,
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
    let filter = if kinds.is_empty() { Filter::all() } else { Filter::kinds(kinds) };
    let (mut follower, _) = Follower::open(&args.log.log, wanted, filter)?;
    for address in places(&source, &args.from)? {
        follower.resume_behind(address);
    }
    drop(source);
    if args.follow {
        recording::stop_on_ctrl_c();
    }
    let mut damage = None;
    loop {
        let mut give = |event: Result<Event, LogError>| {
            match event {
                Ok(event) => print(out, &event, args.json.json),
                Err(error) => {
                    note(format_args!("note: {error}"));
                    damage = Some(error);
                }
            }
            if out.is_closed() || recording::stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        if follower.poll(&mut give)?.is_break() || !args.follow || recording::stopped() {
            break;
        }
        thread::sleep(PAUSE);
    }
    if args.follow {
        let seen: Vec<String> = follower.positions().iter().map(Address::to_string).collect();
        if seen.len() == 1 {
            note(format_args!("note: go on with --from {}", seen.join(",")));
        }
    }
    damage.map_or(Ok(()), |error| Err(error.into()))
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

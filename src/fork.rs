//! `rao-log fork`: go on live from an event of a recorded rollout.

use std::time::Instant;

use clap::Args;
use rao_engine::fork;

use crate::record::{log_flag, report, to_json};
use crate::shared::args::{DataArgs, JsonArgs, LogArgs, PolicyArgs, ThreadArgs, WidthArgs};
use crate::shared::exit::Failure;
use crate::shared::out::Out;
use crate::shared::repls::PythonArgs;
use crate::shared::{forks, open, recording};

/// Go on live from an event of a recorded rollout, as new rollouts in a run of their own. Every event up to it stays as
/// it was; what follows is new, with another policy or seed if they are given.
#[derive(Args, Debug)]
pub(crate) struct ForkArgs {
    /// The last event that the forks share with the rollout: RUN/ROLLOUT#SEQ.
    #[arg(long, value_name = "EVENT")]
    from: String,
    /// How many forks. They are a group: each is the others' baseline when they are trained on.
    #[arg(long, short, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    n: u32,
    /// Seed of everything random after the event [default: the rollout's own, with which the first fork goes on as the
    /// rollout did if the policy is the same]. Further forks derive theirs from it.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    python: PythonArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    width: WidthArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
pub(crate) fn run(args: &ForkArgs, out: &mut Out) -> Result<(), Failure> {
    args.threads.apply();
    let begin = Instant::now();
    let source = open::checked_reader(&args.log.log)?;
    let place = forks::named(&source, &args.from)?;
    let width = usize::from(args.width.width);
    let means = forks::Means { data: &args.data, policy: &args.policy, python: &args.python, width };
    // Everything is checked before the log is touched.
    let mut forking = forks::setup(&source, place, args.n, args.seed, means)?;
    drop(source);
    let log = open::writer(&args.log.log)?;
    let run = open::new_run();
    let (setup, base) = (&mut forking.setup, &forking.base);
    fork::begin(&log, run, base, forking.manifest, setup.host.clone(), &setup.plan)?;
    let recorded = recording::run(&log, setup, Some(run))?;
    let seconds = begin.elapsed().as_secs_f64();
    if args.json.json {
        let mut json = to_json(&recorded, seconds);
        if let Some(fields) = json.as_object_mut() {
            fields.insert("fork_base".into(), forks::address(&base.place).into());
            fields.insert("shared".into(), base.shared().into());
        }
        out.json(&json);
    } else {
        out.line(format_args!("base      {}", forks::place(&*log, &base.place)));
        report(out, &*log, &recorded, seconds);
        let (id, log_flag) = (open::short(&*log, run), log_flag(&args.log));
        out.line(format_args!("shared    {} events of each are the base's", base.shared()));
        out.line("");
        out.line(format_args!("next: rao-log show {id}/0{log_flag}    the first fork's tree"));
        let base = format!("{}/{}", open::short(&*log, base.place.run), base.place.rollout);
        out.line(format_args!("      rao-log diff {base} {id}/0{log_flag}    where it parts from its base"));
    }
    open::close(log)
}

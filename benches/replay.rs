//! What replaying costs, printed as figures: `cargo bench --bench replay --ignore-rust-version`.
//!
//! Recordings run once; criterion repeats the replays. The figures are of this machine at this moment.

#![expect(clippy::unwrap_used, reason = "a bench stops by panicking")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rao_engine::record::{Plan, record};
use rao_engine::repl::on_host_thread;
use rao_engine::{Actor, EngineConfig, Scripted};
use rao_envs::Script;
use rao_envs::judge::Panel;
use rao_policy::mini_chat;
use rao_replay::check::{Check, Means, Request, replay_rollout};
use rao_store::{EventSource, Log, Options, Reader, RolloutId, RunId, Seq, Stream};
use rao_testkit::{Played, env, host, repl, tiny};

const RUN: RunId = RunId([1; 16]);
/// Steps of the long rollout; with the calls of each, it has at least 10,000 events.
const STEPS: u32 = 6;

fn config() -> EngineConfig {
    EngineConfig { max_tokens: 256, loop_guard: false, lambda: 0.0, ..rao_testkit::config() }
}

fn record_in(dir: &Path, tasks: usize, actor: &mut dyn Actor) -> Duration {
    let (env, panel) = (env(), Panel::default());
    let tasks = tiny(&*env, tasks, 1);
    let plan = Plan { env, tasks, group_size: 1, config: config(), seed: 1, only: None, width: 64, panel };
    let log = Arc::new(Log::open(dir, Options::new(Arc::new(|| 0))).unwrap().0);
    let began = Instant::now();
    record(&log, RUN, &plan, host(), actor, &repl(), &mut |_| ControlFlow::Continue(())).unwrap();
    log.flush().unwrap();
    began.elapsed()
}

/// Replays all rollouts and counts the events that were compared.
fn replay_all(reader: &Reader, check: Check) -> u64 {
    let mut means = Means { env: Some(env()), repl: repl(), actor: None };
    let mut compared = 0;
    for stream in reader.streams(RUN) {
        if let Stream::Rollout(run, rollout) = stream {
            let checked = replay_rollout(reader, run, rollout, &Request { check, from: Seq(0) }, &mut means).unwrap();
            assert!(checked.divergence.is_none());
            compared += checked.compared;
        }
    }
    compared
}

/// Makes many tool calls in each of its cells.
fn busy() -> Played {
    Played::new(|ask| match ask.step {
        0..STEPS => "for i in range(900):\n    view_inventory()".to_owned(),
        _ => "finish('done')".to_owned(),
    })
}

fn replay(c: &mut Criterion) {
    // As the program does: interpreters are stepped on the thread that drives rollouts.
    on_host_thread(|| measure(&mut Criterion::default().configure_from_args()));
    c.final_summary();
}

fn measure(c: &mut Criterion) {
    let mut group = c.benchmark_group("replay");
    group.sample_size(10).measurement_time(Duration::from_secs(4));

    let noisy = tempfile::tempdir().unwrap();
    record_in(noisy.path(), 300, &mut Scripted::new(Script::Noisy, Arc::new(mini_chat().unwrap())));
    let (reader, _) = Reader::open(noisy.path()).unwrap();
    group.throughput(Throughput::Elements(replay_all(&reader, Check::Fold)));
    for check in [Check::Fold, Check::Cells, Check::Tools] {
        let name = format!("300 noisy rollouts, {} (events)", check.name());
        group.bench_function(name, |b| b.iter(|| replay_all(&reader, check)));
    }

    let mini = tempfile::tempdir().unwrap();
    let recording = record_in(mini.path(), 8, &mut *rao_testkit::mini(&config()));
    let (reader, _) = Reader::open(mini.path()).unwrap();
    let timed = |_| {
        let began = Instant::now();
        replay_all(&reader, Check::Tools);
        began.elapsed()
    };
    let replaying = (0..3).map(timed).min().unwrap();
    println!(
        "8 rollouts of mini: recorded in {recording:.2?}, `tools` in {replaying:.2?} (best of 3): {:.0} times faster",
        recording.as_secs_f64() / replaying.as_secs_f64()
    );

    let long = tempfile::tempdir().unwrap();
    record_in(long.path(), 1, &mut busy());
    let (reader, _) = Reader::open(long.path()).unwrap();
    let events = reader.head(Stream::Rollout(RUN, RolloutId(0))).unwrap().count;
    assert!(events >= 10_000, "{events}");
    group.throughput(Throughput::Elements(events));
    // Before the end nothing is left to run; in the middle of the last cell the session is rebuilt from all before it.
    for (what, from) in [("last event", events - 1), ("the last busy cell", events - 100)] {
        let name = format!("open the log, jump to {what} of {events}");
        group.bench_function(name, |b| {
            b.iter(|| {
                let (reader, _) = Reader::open(long.path()).unwrap();
                let mut means = Means { env: Some(env()), repl: repl(), actor: None };
                let request = Request { check: Check::Tools, from: Seq(from) };
                let checked = replay_rollout(&reader, RUN, RolloutId(0), &request, &mut means).unwrap();
                assert_eq!((checked.divergence, checked.skipped), (None, from));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, replay);
criterion_main!(benches);

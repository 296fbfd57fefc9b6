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
use rao_engine::repl::{CellLimits, Monty, ReplEngine};
use rao_engine::{Action, Actor, Ask, BudgetModel, EngineConfig, EngineError, Sampled, Scheduler, Scripted};
use rao_envs::judge::Panel;
use rao_envs::textcraft::{TextCraft, TextCraftConfig};
use rao_envs::{Environment, PromptStyle, Script, Selection, Split};
use rao_policy::{Chat, Sampler, mini_chat};
use rao_replay::check::{Check, Means, Request, replay_rollout};
use rao_store::event::{HostFacts, LogProbKind, PolicyIdentity, SamplerSettings, StopReason};
use rao_store::{EventSource, Log, Options, Reader, RolloutId, RunId, Seq, Stream, TokenId};

const RUN: RunId = RunId([1; 16]);
/// Steps of the long rollout; with the calls of each, it has at least 10,000 events.
const STEPS: u32 = 6;

fn config() -> EngineConfig {
    EngineConfig {
        recursive: true,
        max_depth: 3,
        max_steps: 8,
        budget: BudgetModel::PerAgent,
        max_nodes: 64,
        context: 8192,
        max_tokens: 256,
        temperature: 1.0,
        prompt: PromptStyle::Brief,
        loop_guard: false,
        lambda: 0.0,
        cell: CellLimits::default(),
        scheduler: Scheduler::Rounds,
        ancestors: false,
        judges: None,
        top_p: 1.0,
        decoding: rao_engine::Decoding::default(),
    }
}

fn env() -> Arc<dyn Environment> {
    Arc::new(TextCraft::new(TextCraftConfig::default()).unwrap())
}

fn record_in(dir: &Path, tasks: usize, actor: &mut dyn Actor) -> Duration {
    let (env, presets) = (env(), vec!["tiny".to_owned()]);
    let tasks = env.tasks(&Selection { presets, split: Split::Train, count: Some(tasks), seed: 1 }).unwrap();
    let plan =
        Plan { env, tasks, group_size: 1, config: config(), seed: 1, only: None, width: 64, panel: Panel::default() };
    let log = Arc::new(Log::open(dir, Options::new(Arc::new(|| 0))).unwrap().0);
    let repl: Arc<dyn ReplEngine> = Arc::new(Monty::new());
    let host = HostFacts { program: "bench".into(), facts: Vec::new() };
    let began = Instant::now();
    record(&log, RUN, &plan, host, actor, &repl, &mut |_| ControlFlow::Continue(())).unwrap();
    log.flush().unwrap();
    began.elapsed()
}

/// Replays all rollouts and counts the events that were compared.
fn replay_all(reader: &Reader, check: Check) -> u64 {
    let mut means = Means { env: Some(env()), repl: Arc::new(Monty::new()), actor: None };
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
struct Busy(Arc<Chat>);

impl Actor for Busy {
    fn identity(&self) -> PolicyIdentity {
        Scripted::new(Script::Oracle, Arc::clone(&self.0)).identity()
    }

    fn chat(&self) -> &Arc<Chat> {
        &self.0
    }

    fn act(&mut self, batch: &[Ask<'_>]) -> Result<Vec<Action>, EngineError> {
        let act = |ask: &Ask<'_>| {
            let cell = if ask.step < STEPS { "for i in range(900):\n    view_inventory()" } else { "finish('done')" };
            let text = format!("<python>{cell}</python>");
            Action {
                tokens: self.0.encode_action(&text).unwrap().into_iter().map(TokenId).collect(),
                text,
                logprobs: Vec::new(),
                logprob_kind: LogProbKind::Absent,
                sampler: SamplerSettings::whole(0.0, 0),
                stop: StopReason::Scripted,
            }
        };
        Ok(batch.iter().map(act).collect())
    }

    fn release(&mut self, _row: u64) {}
}

fn replay(c: &mut Criterion) {
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
    let policy = rao_policy::mini().unwrap();
    let chat = Arc::new(policy.chat().clone());
    let sampler = Sampler::whole(1.0, config().max_tokens);
    let mut actor = Sampled::new(Box::new(policy), chat, sampler, config().context);
    let recording = record_in(mini.path(), 8, &mut actor);
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
    record_in(long.path(), 1, &mut Busy(Arc::new(Chat::bytes().unwrap())));
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
                let mut means = Means { env: Some(env()), repl: Arc::new(Monty::new()), actor: None };
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

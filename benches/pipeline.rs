//! What recording, folding and training cost, printed as figures: `cargo bench --bench pipeline --ignore-rust-version`.
//!
//! Recording runs once (1,000 rollouts of the noisy policy in one process); criterion repeats the tree rebuild and the
//! training step on that log. The figures are of this machine at this moment; compare only within one run.

#![expect(clippy::unwrap_used, reason = "a bench stops by panicking")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use rao_engine::record::{Plan, record};
use rao_engine::{EngineConfig, Scripted, Tree};
use rao_envs::Script;
use rao_envs::judge::Panel;
use rao_policy::mini_chat;
use rao_replay::objective::loss_of;
use rao_replay::trainer::{Flow, NoSink, Resources, Settings, SftFilter, StepReport, Trainer};
use rao_store::{EventSource, Filter, Log, Options, Reader, RunId, Seq, Stream};
use rao_testkit::{env, host, repl, tiny};

const RUN: RunId = RunId([1; 16]);
const ROLLOUTS: usize = 1_000;
const STEPS: u64 = 8;

fn config() -> EngineConfig {
    EngineConfig { max_tokens: 256, lambda: 0.0, ..rao_testkit::config() }
}

fn record_noisy(dir: &Path) -> (u64, Duration) {
    let (env, panel) = (env(), Panel::default());
    let tasks = tiny(&*env, ROLLOUTS / 4, 1);
    let plan = Plan { env, tasks, group_size: 4, config: config(), seed: 1, only: None, width: 64, panel };
    let log = Arc::new(Log::open(dir, Options::new(Arc::new(|| 0))).unwrap().0);
    let mut actor = Scripted::new(Script::Noisy, Arc::new(mini_chat().unwrap()));
    let began = Instant::now();
    let recorded = record(&log, RUN, &plan, host(), &mut actor, &repl(), &mut |_| ControlFlow::Continue(())).unwrap();
    log.flush().unwrap();
    (recorded.events, began.elapsed())
}

fn fold_all(reader: &Reader) -> u64 {
    let mut events = 0;
    for stream in reader.streams(RUN) {
        if !matches!(stream, Stream::Rollout(..)) {
            continue;
        }
        let mut tree = Tree::new();
        for event in reader.events(stream, Seq(0), &Filter::all()) {
            tree.apply(&event.unwrap()).unwrap();
        }
        events += tree.events;
    }
    events
}

fn bytes_under(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().map(Result::unwrap);
    entries
        .map(|entry| if entry.path().is_dir() { bytes_under(&entry.path()) } else { entry.metadata().unwrap().len() })
        .sum()
}

/// The process's greatest resident size, in MB, where the system tells it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kb| kb / 1024)
}

fn trainer(steps: u64) -> Trainer {
    let policy = rao_policy::mini().unwrap();
    let tokenizer = policy.chat().to_json().to_vec();
    let mut settings = Settings { sft_filter: SftFilter::All, steps, batch_trajectories: 16, ..Settings::default() };
    settings.objective.loss = loss_of("sft").unwrap();
    Trainer::new(policy.into_decoder().unwrap(), tokenizer, settings, Resources::default()).unwrap()
}

fn pipeline(c: &mut Criterion) {
    let dir = tempfile::tempdir().unwrap();
    let (events, took) = record_noisy(dir.path());
    println!(
        "record: {ROLLOUTS} noisy rollouts, {events} events in {took:.2?}: {:.0} events/s",
        events as f64 / took.as_secs_f64()
    );
    for part in ["journal", "events"] {
        let bytes = bytes_under(&dir.path().join(part));
        println!("record: {part}/ holds {:.0} bytes per event", bytes as f64 / events as f64);
    }
    if let Some(peak) = peak_memory() {
        println!("record: peak memory {peak} MB");
    }

    let (reader, _) = Reader::open(dir.path()).unwrap();
    let mut group = c.benchmark_group("pipeline");
    group.sample_size(10).measurement_time(Duration::from_secs(5));
    group.throughput(Throughput::Elements(events));
    group.bench_function("rebuild every tree (events)", |b| b.iter(|| assert_eq!(fold_all(&reader), events)));

    // From the end of the first step to the end of the last: without the fold and the checks that every training begins
    // with, which stand in no relation to its tokens.
    let timed = |trainer: &mut Trainer| {
        let (mut tokens, mut marks) = (0, Vec::new());
        let watch = &mut |_: &Trainer, step: &StepReport| {
            tokens += if marks.is_empty() { 0 } else { step.model_tokens };
            marks.push(Instant::now());
            Ok(Flow::Continue)
        };
        trainer.train(&reader, &[RUN], &mut NoSink, watch).unwrap();
        (tokens, marks.last().unwrap().duration_since(*marks.first().unwrap()))
    };
    let (tokens, _) = timed(&mut trainer(STEPS));
    group.throughput(Throughput::Elements(tokens));
    group.bench_function("supervised steps (model tokens)", |b| {
        b.iter_custom(|times| (0..times).map(|_| timed(&mut trainer(STEPS)).1).sum());
    });
    group.finish();
}

criterion_group!(benches, pipeline);
criterion_main!(benches);

//! How long 64 tasks with one event in flight each wait for its acknowledgement.
//!
//! rao-log brings its own committer. The others get one of the same kind: a thread that takes whatever waits and makes
//! one durable commit of it.

use std::time::{Duration, Instant};

use rao_store::{Expected, Log};

use crate::events::{Events, stream};
use crate::rivals::{self, Item, Rival};
use crate::settings::Settings;
use crate::{Outcome, median};

const TASKS: u32 = 64;
const EVENTS: usize = 256;

type Waiting = (Item, crossbeam::channel::Sender<()>);

pub fn run(settings: &Settings) -> Outcome<()> {
    let chosen: Vec<usize> =
        (0..rivals::ALL.len()).filter(|number| !rivals::ALL[*number].0.starts_with("JSON")).collect();
    let mut figures = vec![[Vec::new(), Vec::new(), Vec::new()]; rivals::ALL.len()];
    for round in 0..settings.rounds {
        for offset in 0..chosen.len() {
            let number = chosen[(round + offset) % chosen.len()];
            let (name, open) = rivals::ALL[number];
            let dir = settings.fresh_dir("ack")?;
            let started = Instant::now();
            let mut times = if name == "rao-log" {
                let (log, _) = Log::open(&dir.join("log"), rivals::options())?;
                tasks(|task, seq, item| own(&log, task, seq, item))
            } else {
                committed(open(&dir)?)?
            };
            let rate = times.len() as f64 / started.elapsed().as_secs_f64();
            times.sort();
            let [p50, p99, rates] = &mut figures[number];
            p50.push(times[times.len() / 2].as_secs_f64() * 1e3);
            p99.push(times[times.len() * 99 / 100].as_secs_f64() * 1e3);
            rates.push(rate);
        }
    }
    println!("\n{TASKS} tasks, one event in flight each, {EVENTS} events a task, {} rounds: medians", settings.rounds);
    println!("{:<24} {:>12} {:>8} {:>12} {:>12}", "", "p50 ms", "x plain", "p99 ms", "events/s");
    for number in chosen {
        let [p50, p99, rates] = &figures[number];
        println!(
            "{:<24} {:>12.2} {:>8.2} {:>12.2} {:>12.0}",
            rivals::ALL[number].0,
            median(p50),
            crate::append::ratio(p50, &figures[0][0]),
            median(p99),
            median(rates)
        );
    }
    Ok(())
}

fn own(log: &Log, task: u32, seq: u64, item: Item) {
    let stream = stream(2, 0);
    let rao_store::Stream::Rollout(run, _) = stream else { return };
    let stream = rao_store::Stream::Rollout(run, rao_store::RolloutId(task));
    let done = log.append(stream, Expected::Exactly(rao_store::Seq(seq)), vec![item.body]);
    assert!(done.is_ok(), "{:?}", done.err());
}

/// Runs all tasks; every event's time from hand-over to acknowledgement.
fn tasks(commit: impl Fn(u32, u64, Item) + Sync) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let commit = &commit;
        let threads: Vec<_> = (0..TASKS)
            .map(|task| {
                scope.spawn(move || {
                    let bodies: Vec<_> = Events::new(u64::from(task)).take(EVENTS).collect();
                    let time = |(seq, body)| {
                        let started = Instant::now();
                        commit(task, seq as u64, Item { stream: task, seq: seq as u64, body });
                        started.elapsed()
                    };
                    bodies.into_iter().enumerate().map(time).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    })
}

/// The tasks over a store that has no committer of its own.
fn committed(mut store: Box<dyn Rival>) -> Outcome<Vec<Duration>> {
    let (sender, receiver) = crossbeam::channel::bounded::<Waiting>(1024);
    std::thread::scope(|scope| {
        let committer = scope.spawn(move || -> Outcome<()> {
            while let Ok(first) = receiver.recv() {
                let (mut items, mut waiting) = (vec![first.0], vec![first.1]);
                for (item, reply) in receiver.try_iter() {
                    items.push(item);
                    waiting.push(reply);
                }
                store.commit(items)?;
                for reply in waiting {
                    let _ = reply.send(());
                }
            }
            Ok(())
        });
        let times = tasks(|_, _, item| {
            let (reply, done) = crossbeam::channel::bounded(1);
            assert!(sender.send((item, reply)).is_ok() && done.recv().is_ok(), "the committer failed");
        });
        drop(sender);
        committer.join().map_err(|_| "the committer panicked")??;
        Ok(times)
    })
}

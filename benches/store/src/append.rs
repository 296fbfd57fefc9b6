//! Durable appends of 256 events a commit, and an ordered scan of what was appended.

use std::fs;
use std::time::Instant;

use crate::events::{Events, STREAMS};
use crate::rivals::{self, Item, Open};
use crate::settings::Settings;
use crate::{Outcome, median};

/// Events of a commit.
pub const PER_COMMIT: usize = 256;

/// One store's figures, one of each for every round.
#[derive(Clone, Default)]
struct Figures {
    /// Events a second, acknowledged.
    acknowledged: Vec<f64>,
    /// Events a second until nothing goes on behind the acknowledgements.
    caught_up: Vec<f64>,
    scanned: Vec<f64>,
    /// Microseconds of processor time for each event appended, all threads.
    cpu: Vec<f64>,
}

pub fn run(settings: &Settings) -> Outcome<()> {
    let mut figures = vec![Figures::default(); rivals::ALL.len()];
    for round in 0..settings.rounds {
        for offset in 0..rivals::ALL.len() {
            // Each round begins with another store, so that no store always follows the same one.
            let number = (round + offset) % rivals::ALL.len();
            let (name, open) = rivals::ALL[number];
            measure(settings, round, open, &mut figures[number]).map_err(|error| format!("{name}: {error}"))?;
        }
    }
    print(settings, &figures);
    Ok(())
}

fn measure(settings: &Settings, round: usize, open: Open, figures: &mut Figures) -> Outcome<()> {
    let dir = settings.fresh_dir("append")?;
    let mut store = open(&dir)?;
    let batches = batches(round as u64, settings.events / PER_COMMIT);
    let events = settings.events as f64;
    let (started, cpu) = (Instant::now(), cpu_seconds()?);
    for batch in batches {
        store.commit(batch)?;
    }
    figures.acknowledged.push(events / started.elapsed().as_secs_f64());
    store.catch_up()?;
    figures.caught_up.push(events / started.elapsed().as_secs_f64());
    figures.cpu.push((cpu_seconds()? - cpu) / events * 1e6);
    let started = Instant::now();
    let count = store.scan()?;
    if count != settings.events as u64 {
        return Err(format!("it gave {count} of {} events back", settings.events).into());
    }
    figures.scanned.push(events / started.elapsed().as_secs_f64());
    Ok(())
}

fn print(settings: &Settings, figures: &[Figures]) {
    println!("\n{} events, {PER_COMMIT} a durable commit, {} rounds: medians", settings.events, settings.rounds);
    println!(
        "{:<24} {:>12} {:>8} {:>8} {:>12} {:>8} {:>12} {:>8} {:>8}",
        "", "append ev/s", "x plain", "x redb", "caught up", "x plain", "scan ev/s", "x plain", "CPU us"
    );
    let redb = rivals::ALL.iter().position(|(name, _)| name.starts_with("redb")).unwrap_or(0);
    for (own, (name, _)) in figures.iter().zip(rivals::ALL) {
        println!(
            "{name:<24} {:>12.0} {:>8.2} {:>8.2} {:>12.0} {:>8.2} {:>12.0} {:>8.2} {:>8.1}",
            median(&own.acknowledged),
            ratio(&own.acknowledged, &figures[0].acknowledged),
            ratio(&own.acknowledged, &figures[redb].acknowledged),
            median(&own.caught_up),
            ratio(&own.caught_up, &figures[0].caught_up),
            median(&own.scanned),
            ratio(&own.scanned, &figures[0].scanned),
            median(&own.cpu),
        );
    }
}

/// Processor time of this process so far. The system counts it in hundredths of a second.
fn cpu_seconds() -> Outcome<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks =
        |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).ok_or("no times in /proc/self/stat");
    Ok((ticks(11)? + ticks(12)?) / 100.0)
}

/// The median of the ratios within rounds: what both met in a round cancels.
pub fn ratio(figures: &[f64], base: &[f64]) -> f64 {
    median(&figures.iter().zip(base).map(|(figure, base)| figure / base).collect::<Vec<_>>())
}

/// Commits of one stream each, in turn.
pub fn batches(seed: u64, commits: usize) -> Vec<Vec<Item>> {
    let mut events = Events::new(seed);
    let mut next = vec![0u64; STREAMS as usize];
    (0..commits)
        .map(|commit| {
            let stream = commit as u32 % STREAMS;
            let next = &mut next[stream as usize];
            let items = events.by_ref().take(PER_COMMIT).map(|body| {
                *next += 1;
                Item { stream, seq: *next - 1, body }
            });
            items.collect()
        })
        .collect()
}

//! Durable appends of 256 events a commit, and an ordered scan of what was appended.

use std::time::Instant;

use crate::events::{Events, STREAMS};
use crate::rivals::{self, Item};
use crate::settings::Settings;
use crate::{Outcome, median};

/// Events of a commit.
pub const PER_COMMIT: usize = 256;

pub fn run(settings: &Settings) -> Outcome<()> {
    let commits = settings.events / PER_COMMIT;
    let mut appended = vec![Vec::new(); rivals::ALL.len()];
    let mut scanned = vec![Vec::new(); rivals::ALL.len()];
    for round in 0..settings.rounds {
        for offset in 0..rivals::ALL.len() {
            // Each round begins with another store, so that no store always follows the same one.
            let number = (round + offset) % rivals::ALL.len();
            let (name, open) = rivals::ALL[number];
            let dir = settings.fresh_dir("append")?;
            let mut store = open(&dir)?;
            let batches = batches(round as u64, commits);
            let started = Instant::now();
            for batch in batches {
                store.commit(batch)?;
            }
            appended[number].push(settings.events as f64 / started.elapsed().as_secs_f64());
            let started = Instant::now();
            let count = store.scan()?;
            if count != settings.events as u64 {
                return Err(format!("{name} gave {count} of {} events back", settings.events).into());
            }
            scanned[number].push(count as f64 / started.elapsed().as_secs_f64());
        }
    }
    println!("\n{} events, {PER_COMMIT} a durable commit, {} rounds: medians", settings.events, settings.rounds);
    println!("{:<24} {:>12} {:>8} {:>8} {:>14} {:>8}", "", "append ev/s", "x plain", "x redb", "scan ev/s", "x plain");
    let redb = rivals::ALL.iter().position(|(name, _)| name.starts_with("redb")).unwrap_or(0);
    for (number, (name, _)) in rivals::ALL.iter().enumerate() {
        println!(
            "{name:<24} {:>12.0} {:>8.2} {:>8.2} {:>14.0} {:>8.2}",
            median(&appended[number]),
            ratio(&appended[number], &appended[0]),
            ratio(&appended[number], &appended[redb]),
            median(&scanned[number]),
            ratio(&scanned[number], &scanned[0]),
        );
    }
    Ok(())
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

//! Opening a large log again, after it was closed.

use std::fs;
use std::time::Instant;

use rao_store::{EventSource, Expected, Log, Reader};

use crate::events::{Events, stream};
use crate::settings::Settings;
use crate::{Outcome, rivals};

const PER_COMMIT: usize = 4096;

pub fn run(settings: &Settings) -> Outcome<()> {
    let dir = settings.fresh_dir("reopen")?.join("log");
    let (log, _) = Log::open(&dir, rivals::options())?;
    let mut events = Events::new(3);
    let (mut count, target) = (0usize, (settings.gigabytes * 1e9) as u64);
    for commit in 0.. {
        let bodies: Vec<_> = events.by_ref().take(PER_COMMIT).collect();
        count += bodies.len();
        log.append(stream(3, commit), Expected::Any, bodies)?;
        if commit % 16 == 15 && journal_bytes(&dir)? >= target {
            break;
        }
    }
    log.close()?;
    let bytes = journal_bytes(&dir)?;
    println!("\nopening a log of {count} events, {:.2} GB of journal (page cache warm)", bytes as f64 / 1e9);
    for round in 0..3 {
        let started = Instant::now();
        let (log, _) = Log::open(&dir, rivals::options())?;
        let writer = started.elapsed();
        log.close()?;
        let started = Instant::now();
        let (reader, _) = Reader::open(&dir)?;
        let readable = reader.runs().len();
        println!(
            "round {round}: for writing {:.2} s, for reading {:.2} s ({readable} run)",
            writer.as_secs_f64(),
            started.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn journal_bytes(dir: &std::path::Path) -> Outcome<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir.join("journal"))? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}

//! Bytes: a sealed run beside its journal, and beside the same run as compressed JSON lines.

use std::fs;
use std::io::Write;

use rao_store::archive::write_archive;
use rao_store::event::Body;
use rao_store::files::RealFiles;
use rao_store::{Expected, Log};

use crate::Outcome;
use crate::append::{PER_COMMIT, batches};
use crate::events::stream;
use crate::rivals::{self, files};
use crate::settings::Settings;

pub fn run(settings: &Settings) -> Outcome<()> {
    println!("\nsealed size, {} events", settings.events);
    measure(settings, "token events (actions and contexts)", |body| {
        matches!(body, Body::ActionSampled(_) | Body::ContextExtended(_))
    })?;
    measure(settings, "whole steps", |_| true)
}

fn measure(settings: &Settings, what: &str, keep: impl Fn(&Body) -> bool) -> Outcome<()> {
    let dir = settings.fresh_dir("size")?;
    let (log, _) = Log::open(&dir.join("log"), rivals::options())?;
    let mut json = Vec::new();
    for mut batch in batches(1, settings.events / PER_COMMIT) {
        batch.retain(|item| keep(&item.body));
        for item in &batch {
            json.extend(files::line(item)?);
        }
        let number = batch.first().map_or(0, |item| item.stream) as usize;
        let bodies: Vec<Body> = batch.into_iter().map(|item| item.body).collect();
        if !bodies.is_empty() {
            log.append(stream(1, number), Expected::Any, bodies)?;
        }
    }
    let rao_store::Stream::Rollout(run, _) = stream(1, 0) else { return Ok(()) };
    let summary = write_archive(&RealFiles, &dir.join("one.raolog"), &log, run)?;
    let mut compressed = zstd::Encoder::new(Vec::new(), 3)?;
    compressed.write_all(&json)?;
    let (archive, jsonl) = (summary.bytes as f64, compressed.finish()?.len() as f64);
    println!(
        "{what:<40} sealed {:>6.3} x raw frames, {:>6.3} x zstd-3 JSON lines ({} of {} bytes, {} JSON bytes)",
        archive / summary.raw_bytes as f64,
        archive / jsonl,
        summary.bytes,
        summary.raw_bytes,
        json.len()
    );
    log.close()?;
    Ok(fs::remove_dir_all(&dir)?)
}

//! Measures how long opening a log takes. It makes one of about MEGABYTES with events like those of a recording (3 KB on
//! average), opens it in every way, and removes it. Usage: `reopen [MEGABYTES] [DIR]`.
//!
//! The page cache holds the log that was just made; `COLD=1` drops it before each opening, as far as the system lets us
//! (it needs root).

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rao_store::event::{
    ActionSampled, Body, ContextExtended, LogProbKind, RewardAssigned, Role, SamplerSettings, StopReason,
};
use rao_store::{
    Expected, Log, LogProb, NodePath, Options, PolicyVersion, Reader, RolloutId, RunId, Stream, TokenId, verify,
};

const PER_COMMIT: u64 = 256;

fn body(i: u64) -> Body {
    let spread = i.wrapping_mul(2_654_435_761) % 1_000;
    let node = NodePath::root().child((i % 3) as u32);
    match i % 10 {
        0..=3 => ActionSampled {
            node,
            step: (i % 8) as u32,
            text: "x".repeat(200 + spread as usize),
            at: 17,
            tokens: (0..20 + spread as u32 / 3).map(TokenId).collect(),
            logprobs: (0..20 + spread as u32 / 3).map(|i| LogProb(i as f32 / -64.0)).collect(),
            logprob_kind: LogProbKind::Model,
            sampler: SamplerSettings::whole(1.0, 512),
            stop: StopReason::CellEnd,
            policy_version: PolicyVersion(1),
        }
        .into(),
        4..=7 => ContextExtended {
            node,
            step: (i % 8) as u32,
            role: Role::Observation,
            text: "observation ".repeat(spread as usize / 3),
            at: 5,
            tokens: (0..spread as u32).map(TokenId).collect(),
        }
        .into(),
        _ => RewardAssigned { node, own: 1.0, children: 0, child_mean: 0.0, lambda: 0.5, reward: 1.0 }.into(),
    }
}

fn chill() {
    if std::env::var_os("COLD").is_some() {
        // Without the right to, the figures are warm ones, and the line says so.
        let dropped = fs::write("/proc/sys/vm/drop_caches", "1");
        println!("  page cache dropped: {}", dropped.is_ok());
    }
}

fn size(dir: &Path) -> std::io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        bytes += if entry.file_type()?.is_dir() { size(&entry.path())? } else { entry.metadata()?.len() };
    }
    Ok(bytes)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let megabytes: u64 = args.next().map_or(Ok(1024), |text| text.parse())?;
    let dir = args.next().map_or_else(std::env::temp_dir, Into::into).join("rao-log-reopen");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    let (log, _) = Log::open(&dir, Options::new(Arc::new(|| 0)))?;
    let begun = Instant::now();
    let mut events = 0;
    while size(&dir.join("journal"))? < megabytes << 20 {
        for _ in 0..64 {
            let commit = events / PER_COMMIT;
            let stream = Stream::Rollout(RunId([1 + (commit % 8) as u8; 16]), RolloutId((commit % 64) as u32));
            log.append(stream, Expected::Any, (events..events + PER_COMMIT).map(body).collect())?;
            events += PER_COMMIT;
        }
    }
    log.close()?;
    let (journal, sled) = (size(&dir.join("journal"))?, size(&dir.join("events"))?);
    println!(
        "made in {:.1} s: {events} events, {journal} bytes of journal, {sled} of sled",
        begun.elapsed().as_secs_f64()
    );
    for _ in 0..3 {
        chill();
        let begun = Instant::now();
        let (reader, report) = Reader::open(&dir)?;
        println!("reader opens in {:.2} s ({} findings)", begun.elapsed().as_secs_f64(), report.findings.len());
        drop(reader);
        chill();
        let begun = Instant::now();
        let (log, report) = Log::open(&dir, Options::new(Arc::new(|| 0)))?;
        println!("writer opens in {:.2} s ({} lines)", begun.elapsed().as_secs_f64(), report.lines.len());
        drop(log);
        chill();
        let mut options = Options::new(Arc::new(|| 0));
        options.ordered_store = false;
        fs::rename(dir.join("events"), dir.join("away"))?;
        let begun = Instant::now();
        drop(Log::open(&dir, options)?.0);
        println!("writer without sled opens in {:.2} s", begun.elapsed().as_secs_f64());
        fs::rename(dir.join("away"), dir.join("events"))?;
    }
    let begun = Instant::now();
    let found = verify(&dir)?;
    println!("verify takes {:.2} s ({} findings)", begun.elapsed().as_secs_f64(), found.findings.len());
    fs::remove_dir_all(&dir)?;
    Ok(())
}

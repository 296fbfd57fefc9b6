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

/// CPU time of this process so far, in seconds: what a busy machine leaves of a measurement.
fn cpu() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let ticks: f64 = fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum();
    ticks / 100.0
}

/// Runs and times something.
fn timed<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (begun, before) = (Instant::now(), cpu());
    let done = work();
    println!("{what}: {:.2} s, {:.2} s of CPU", begun.elapsed().as_secs_f64(), cpu() - before);
    done
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
    println!("{events} events, {journal} bytes of journal, {sled} of sled");
    for _ in 0..2 {
        chill();
        drop(timed("reader opens", || Reader::open(&dir))?);
        chill();
        drop(timed("writer opens", || Log::open(&dir, Options::new(Arc::new(|| 0))))?);
        let mut options = Options::new(Arc::new(|| 0));
        options.ordered_store = false;
        fs::rename(dir.join("events"), dir.join("away"))?;
        drop(timed("writer without sled opens", || Log::open(&dir, options))?);
        fs::rename(dir.join("away"), dir.join("events"))?;
    }
    let manifest = fs::read(dir.join("MANIFEST"))?;
    fs::remove_file(dir.join("MANIFEST"))?;
    drop(timed("reader without a manifest opens, computing every digest", || Reader::open(&dir))?);
    fs::write(dir.join("MANIFEST"), manifest)?;
    println!("{} findings", timed("verify", || verify(&dir))?.findings.len());
    fs::remove_dir_all(&dir)?;
    Ok(())
}

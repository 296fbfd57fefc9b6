//! Measures a sealed archive: its size beside the journal's bytes, and the memory and speed of a scan of it.
//! Usage: `seal_size LOG RUN` for a recorded run, or `seal_size STEPS` for made-up steps with model-like
//! log-probabilities. Memory is this process's peak, read from `/proc`.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rao_store::archive::{ArchiveReader, ArchiveSummary, write_archive};
use rao_store::event::{ActionSampled, Body, ContextExtended, LogProbKind, Role, SamplerSettings, StopReason};
use rao_store::files::RealFiles;
use rao_store::{
    EventSource, Expected, Filter, Log, LogProb, NodePath, Options, PolicyVersion, Reader, RolloutId, RunId, Seq,
    Stream, TokenId, resolve_target,
};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = std::env::current_dir()?.join("measure-seal");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir(&dir)?;
    let path = dir.join("one.raolog");
    let summary = match args.as_slice() {
        [log, run] => {
            let (reader, _) = Reader::open(Path::new(log))?;
            write_archive(&RealFiles, &path, &reader, resolve_target(&reader, run)?.run())?
        }
        [steps] => made_up(&dir, &path, steps.parse()?)?,
        // A scan alone, in a process of its own, so that its memory is its own.
        [scan, file, _] if scan == "scan" => return scan_file(Path::new(file)),
        _ => return Err("name LOG and RUN, or a number of steps".into()),
    };
    println!(
        "archive: {} of {} bytes ({:.3}), {} events, {} streams",
        summary.bytes,
        summary.raw_bytes,
        summary.bytes as f64 / summary.raw_bytes as f64,
        summary.events,
        summary.streams
    );
    let program = std::env::current_exe()?;
    std::process::Command::new(program).arg("scan").arg(&path).arg("-").current_dir("/").status()?;
    fs::remove_dir_all(&dir)?;
    Ok(())
}

fn scan_file(path: &Path) -> Outcome<()> {
    let started = Instant::now();
    let archive = ArchiveReader::open(path)?;
    let mut events = 0u64;
    for stream in archive.streams(archive.run()) {
        for event in archive.events(stream, Seq(0), &Filter::all()) {
            event?;
            events += 1;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let status = fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("VmHWM unknown");
    println!(
        "scan: {events} events in {seconds:.2} s ({:.0} MB/s of frames), {peak}",
        archive.summary().raw_bytes as f64 / seconds / 1e6
    );
    Ok(())
}

/// Rollouts of 20 steps over a vocabulary with the frequencies of words, and log-probabilities of that shape.
fn made_up(dir: &Path, path: &Path, steps: u32) -> Outcome<ArchiveSummary> {
    let mut options = Options::new(Arc::new(|| 1_700_000_000_000_000));
    options.ordered_store = false;
    let (log, _) = Log::open(&dir.join("log"), options)?;
    let run = RunId([7; 16]);
    let mut state = 1u64;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let words =
        ["craft", " the", " item", "\n", "print", "(", ")", " await", "launch_subagent", " recipe", " of", " t7"];
    // Zipf over 50,000 ids.
    let mut turn = |with_logprobs: bool| {
        let mut tokens = Vec::new();
        let mut text = String::new();
        let mut logprobs = Vec::new();
        for _ in 0..40 + (uniform() * 200.0) as u32 {
            let id = (50_000f64.powf(uniform())) as u32;
            tokens.push(TokenId(id));
            text.push_str(words.get(id as usize % words.len()).copied().unwrap_or(" "));
            if with_logprobs {
                let logit = -(uniform().ln().abs() as f32) * 0.7;
                logprobs.push(LogProb(logit - (1.0 + (-logit.abs()).exp()).ln()));
            }
        }
        (tokens, text, logprobs)
    };
    let mut bodies = Vec::new();
    for step in 0..steps {
        let (tokens, text, logprobs) = turn(true);
        let node = NodePath::root();
        let action = ActionSampled {
            node: node.clone(),
            step: step % 20,
            text,
            at: 100,
            tokens,
            logprobs,
            logprob_kind: LogProbKind::Model,
            sampler: SamplerSettings::whole(1.0, 512),
            stop: StopReason::CellEnd,
            policy_version: PolicyVersion(1),
        };
        let (tokens, text, _) = turn(false);
        let observation = ContextExtended { node, step: step % 20 + 1, role: Role::Observation, text, at: 300, tokens };
        bodies.extend([Body::from(action), observation.into()]);
        if step % 20 == 19 || step + 1 == steps {
            let stream = Stream::Rollout(run, RolloutId(step / 20));
            log.append(stream, Expected::Any, std::mem::take(&mut bodies))?;
        }
    }
    let started = Instant::now();
    let summary = write_archive(&RealFiles, path, &log, run)?;
    println!("written in {:.1} s", started.elapsed().as_secs_f64());
    Ok(summary)
}

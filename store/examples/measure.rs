//! Measures the store on events like those of a recording, beside a plain checksummed file with the same bytes and
//! the same sync points. Usage: `measure [EVENTS] [PAYLOAD_BYTES] [INLINE_BYTES]`.

use std::fs::{self, File};
use std::io::Write;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use rao_store::event::{Body, ContextExtended, Role};
use rao_store::{
    EventSource, Expected, Filter, Log, NodePath, Options, Reader, RolloutId, RunId, Seq, Stream, TokenId,
};

const PER_COMMIT: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |default: usize| args.next().map_or(Ok(default), |text| text.parse());
    let (events, payload, inline_bytes) = (number(200_000)?, number(200)?, number(512)?);
    let dir = std::env::current_dir()?.join("measure-store");
    if dir.exists() {
        fs::remove_dir_all(&dir)?;
    }
    fs::create_dir(&dir)?;
    let body = |i: usize| -> Body {
        ContextExtended {
            node: NodePath::root(),
            step: 1,
            role: Role::Observation,
            text: "x".repeat(payload / 2 + i % 7),
            at: 3,
            tokens: vec![TokenId(7); payload / 8],
        }
        .into()
    };
    let stream = |commit: usize| Stream::Rollout(RunId([1; 16]), RolloutId((commit % 16) as u32));

    let bytes = body(0).encode()?;
    let mut plain = File::create(dir.join("plain"))?;
    let started = Instant::now();
    for _ in 0..events / PER_COMMIT {
        let mut buffer = Vec::new();
        for i in 0..PER_COMMIT {
            let bytes = body(i).encode()?;
            buffer.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            buffer.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
            buffer.extend_from_slice(&bytes);
        }
        plain.write_all(&buffer)?;
        plain.sync_data()?;
    }
    let plain = events as f64 / started.elapsed().as_secs_f64();
    println!("plain checksummed file: {plain:.0} events/s, {} body bytes", bytes.len());

    let mut options = Options::new(Arc::new(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64)
    }));
    options.inline_bytes = inline_bytes;
    let log_dir = dir.join("log");
    let (log, _) = Log::open(&log_dir, options.clone())?;
    let started = Instant::now();
    for commit in 0..events / PER_COMMIT {
        log.append(stream(commit), Expected::Any, (0..PER_COMMIT).map(body).collect())?;
    }
    let acknowledged = events as f64 / started.elapsed().as_secs_f64();
    log.flush()?;
    let applied = events as f64 / started.elapsed().as_secs_f64();
    println!(
        "log: {acknowledged:.0} events/s acknowledged ({:.2} x plain), {applied:.0} with sled caught up ({:.2} x)",
        acknowledged / plain,
        applied / plain
    );
    let started = Instant::now();
    let count =
        (0..16).map(|r| log.events(stream(r), Seq(0), &Filter::all()).filter(Result::is_ok).count()).sum::<usize>();
    println!("log scan through sled: {:.0} events/s", count as f64 / started.elapsed().as_secs_f64());
    log.close()?;
    let size = |name: &str| -> Result<u64, std::io::Error> {
        fs::read_dir(log_dir.join(name))?.map(|entry| Ok(entry?.metadata()?.len())).sum()
    };
    println!(
        "bytes per event: {:.0} in the journal, {:.0} in sled",
        size("journal")? as f64 / events as f64,
        size("events")? as f64 / events as f64
    );
    let started = Instant::now();
    let (reader, report) = Reader::open(&log_dir)?;
    println!("reader opens in {:.0} ms ({} findings)", started.elapsed().as_secs_f64() * 1e3, report.findings.len());
    let started = Instant::now();
    let count =
        (0..16).map(|r| reader.events(stream(r), Seq(0), &Filter::all()).filter(Result::is_ok).count()).sum::<usize>();
    println!("reader scan: {:.0} events/s", count as f64 / started.elapsed().as_secs_f64());
    let started = Instant::now();
    let (log, _) = Log::open(&log_dir, options)?;
    println!("writer opens in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    drop(log);

    // 64 threads with one event in flight each.
    let waiting = |log: &Log| {
        let mut times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..64u32)
                .map(|r| {
                    scope.spawn(move || {
                        let stream = Stream::Rollout(RunId([2; 16]), RolloutId(r));
                        (0..100)
                            .map(|i| {
                                let started = Instant::now();
                                let _ = log.append(stream, Expected::Any, vec![body(i)]);
                                started.elapsed()
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect::<Vec<_>>()
        });
        times.sort();
        (times.get(times.len() / 2).copied(), times.get(times.len() * 99 / 100).copied())
    };
    let (log, _) = Log::open(&dir.join("waiting"), Options::new(Arc::new(|| 0)))?;
    let started = Instant::now();
    let times = waiting(&log);
    println!("64 threads: {:.0} events/s, p50 and p99 {times:?}", 6400.0 / started.elapsed().as_secs_f64());
    drop(log);
    fs::remove_dir_all(&dir)?;
    Ok(())
}

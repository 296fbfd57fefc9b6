//! A scan of an archive holds a bounded part of it, whatever its size; a log is open in a byte or so for each event.
#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;

use rao_store::archive::{ArchiveReader, write_archive};
use rao_store::event::{ContextExtended, Role};
use rao_store::files::RealFiles;
use rao_store::{EventSource, Expected, Filter, Log, NodePath, Reader, Seq, TokenId};

use crate::common::{note, plain_options, rollout, run};

const CHILD: &str = "RAO_STORE_TEST_ARCHIVE";
const READING: &str = "RAO_STORE_TEST_READING";
const WRITING: &str = "RAO_STORE_TEST_WRITING";
const MEGABYTES: usize = 160;

/// Not a test of its own: the process whose memory is looked at. It reads every event of the archive.
#[test]
fn scanning_process() {
    let Some(path) = std::env::var_os(CHILD) else { return };
    let archive = ArchiveReader::open(Path::new(&path)).unwrap();
    let (mut events, mut bytes) = (0, 0);
    for stream in archive.streams(archive.run()) {
        for frame in archive.frames(stream, Seq(0), &Filter::all()) {
            bytes += frame.unwrap().bytes().len();
            events += 1;
        }
        events += archive.headers(stream, Seq(0)).map(Result::unwrap).count();
    }
    println!("scanned {events} {bytes} {}", peak_kib());
}

/// Not a test of its own: the process whose memory is looked at. It opens a log and reads it all.
#[test]
fn opening_process() {
    let (reading, writing) = (std::env::var_os(READING), std::env::var_os(WRITING));
    let source: Box<dyn EventSource> = match (reading, writing) {
        (Some(dir), _) => Box::new(Reader::open(Path::new(&dir)).unwrap().0),
        (None, Some(dir)) => Box::new(Log::open(Path::new(&dir), plain_options()).unwrap().0),
        (None, None) => return,
    };
    let mut events = 0;
    for run in source.runs() {
        for stream in source.streams(run) {
            events += source.frames(stream, Seq(0), &Filter::all()).map(Result::unwrap).count();
        }
    }
    println!("scanned {events} {events} {}", peak_kib());
}

/// The most memory that this process had, in KiB.
fn peak_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Frame bytes that a scan of an archive gave, and the peak of its memory.
fn scan(path: &Path) -> (usize, usize) {
    process("scanning_process", CHILD, path)
}

/// What a process of this file said of the path that it was given.
fn process(test: &str, variable: &str, path: &Path) -> (usize, usize) {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("memory::{test}"), "--nocapture", "--test-threads=1"])
        .env(variable, path)
        .output()
        .unwrap();
    let said = String::from_utf8(child.stdout).unwrap();
    let line = said.lines().find_map(|line| line.split_once("scanned ")).unwrap().1;
    let words: Vec<usize> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    (words[1], words[2])
}

#[test]
fn the_scan_of_an_archive_stays_below_64_mib() {
    let dir = tempfile::tempdir().unwrap();
    let (log, _) = Log::open(&dir.path().join("log"), plain_options()).unwrap();
    let small = dir.path().join("small.raolog");
    log.append(rollout(1, 0), Expected::Any, vec![note("one")]).unwrap();
    write_archive(&RealFiles, &small, &log, run(1)).unwrap();
    for i in 0..MEGABYTES * 4 {
        // 256 KiB in 16 events of 40 streams.
        let more = |j: usize| ContextExtended {
            node: NodePath::root(),
            step: j as u32,
            role: Role::Observation,
            text: format!("{i} {j} ").repeat(1_000),
            at: 0,
            tokens: (0..3_000).map(|k| TokenId((i * k + j) as u32 % 50_000)).collect(),
        };
        log.append(rollout(1, (i % 40) as u32), Expected::Any, (0..16).map(|j| more(j).into()).collect()).unwrap();
    }
    let large = dir.path().join("large.raolog");
    write_archive(&RealFiles, &large, &log, run(1)).unwrap();
    log.close().unwrap();
    let (_, at_rest) = scan(&small);
    let (bytes, peak) = scan(&large);
    assert!(bytes > MEGABYTES << 20, "{bytes} bytes");
    assert!(peak < 64 << 10, "{peak} KiB for {bytes} bytes of events");
    assert!(peak < at_rest + (32 << 10), "{peak} KiB, {at_rest} with nothing to read");
}

#[test]
fn an_open_log_takes_a_byte_or_so_for_each_event() {
    const ROUNDS: u32 = 600;
    let dir = tempfile::tempdir().unwrap();
    let (small, large) = (dir.path().join("small"), dir.path().join("large"));
    for (dir, rounds) in [(&small, 2), (&large, ROUNDS)] {
        let (log, _) = Log::open(dir, plain_options()).unwrap();
        for _ in 0..rounds {
            // Rounds of 16 events of 64 rollouts.
            let append = |r| log.submit(rollout(1, r), Expected::Any, (0..16).map(|i| note(format!("{i}"))).collect());
            let tickets: Vec<_> = (0..64).map(append).collect();
            tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok()));
        }
        log.close().unwrap();
    }
    for variable in [READING, WRITING] {
        let (few, before) = process("opening_process", variable, &small);
        let (events, after) = process("opening_process", variable, &large);
        let more = (after.saturating_sub(before) << 10) as f64 / (events - few) as f64;
        assert!(events == 64 * 16 * ROUNDS as usize && more < 4.0, "{more} bytes an event, {before} and {after} KiB");
    }
}

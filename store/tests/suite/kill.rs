//! A recording process is killed again and again: nothing that it said was acknowledged is lost.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use rao_store::{EventSource, Expected, Filter, Log, Seq, verify};

use crate::common::{options, plain_options, rollout, varied};

const CHILD: &str = "RAO_STORE_TEST_CHILD_DIR";
/// Set for a process that leaves the ordered store behind.
const PLAIN: &str = "RAO_STORE_TEST_CHILD_PLAIN";
const ROUNDS: u64 = 8;
const STREAMS: u32 = 3;

/// Not a test of its own: the process that gets killed. It appends until then and prints what was acknowledged.
#[test]
fn recording_process() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let mut options = options();
    options.rotate_bytes = 20_000;
    options.checkpoint_bytes = 7_000;
    options.ordered_store = std::env::var_os(PLAIN).is_none();
    let log = Arc::new(Log::open(Path::new(&dir), options).unwrap().0);
    let threads: Vec<_> = (0..STREAMS)
        .map(|r| {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                let stream = rollout(1, r);
                let mut next = log.head(stream).map_or(0, |head| head.count);
                loop {
                    let bodies = (next..next + 1 + next % 5).map(varied).collect();
                    let ack = log.append(stream, Expected::Exactly(Seq(next)), bodies).unwrap();
                    next = ack.last.0 + 1;
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "acknowledged {r} {next}").unwrap();
                    out.flush().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_killed_process_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged: BTreeMap<u32, u64> = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap());
        if round % 4 > 1 {
            child.env(PLAIN, "1");
        }
        let mut child = child
            .args(["--exact", "kill::recording_process", "--nocapture", "--test-threads=1"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for (i, line) in lines.map_while(Result::ok).filter(|line| line.starts_with("acknowledged ")).enumerate() {
            let mut words = line.split(' ').skip(1);
            // The last line may be cut short by the kill.
            let (Some(Ok(r)), Some(Ok(next))) = (words.next().map(str::parse), words.next().map(str::parse)) else {
                break;
            };
            acknowledged.insert(r, next);
            if i as u64 == 5 + round * 7 {
                child.kill().unwrap();
            }
        }
        child.wait().unwrap();
        assert_eq!(acknowledged.len(), STREAMS as usize);
        assert!(!verify(dir.path()).unwrap().is_damaged());
        // So a killed writer of either kind is followed by one of either kind.
        let with = if round % 2 == 0 { options() } else { plain_options() };
        let (log, report) = Log::open(dir.path(), with).unwrap();
        assert!(!report.is_damaged() && report.set_aside.is_none(), "{report:?}");
        for (r, count) in &acknowledged {
            let stream = rollout(1, *r);
            let events: Vec<_> = log.events(stream, Seq(0), &Filter::all()).map(Result::unwrap).collect();
            assert!(events.len() as u64 >= *count, "round {round}: {} of {count} events", events.len());
            assert!(events.iter().enumerate().all(|(i, event)| event.body == varied(i as u64)));
        }
        log.close().unwrap();
        assert_eq!(verify(dir.path()).unwrap().findings, Vec::new());
    }
}

//! Damaged, half-written and interrupted logs.

use std::path::{Path, PathBuf};

use crate::common::{Place, text};
use rao_store::event::{Body, Kind};
use rao_store::{EventSource, Filter, Reader, Seq, Stream};

fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found
}

/// Flips a bit in the middle of the first reward event of the first rollout, in the journal.
fn flip_a_reward(place: &Place) -> String {
    let (reader, _) = Reader::open(&place.log()).unwrap();
    let run = reader.runs()[0];
    let stream = Stream::Rollout(run, rao_store::RolloutId(0));
    let filter = Filter::kinds([Kind::RewardAssigned]);
    let event = reader.events(stream, Seq(0), &filter).next().unwrap().unwrap();
    assert!(matches!(event.body, Body::RewardAssigned(_)));
    let body = event.body.encode().unwrap();
    let mut flipped = 0;
    for file in files(&place.log()).iter().filter(|file| file.starts_with(place.log().join("journal"))) {
        let mut bytes = std::fs::read(file).unwrap();
        if let Some(at) = bytes.windows(body.len()).position(|window| window == body) {
            bytes[at + body.len() / 2] ^= 1;
            std::fs::write(file, bytes).unwrap();
            flipped += 1;
        }
    }
    assert_eq!(flipped, 1, "the event stands once in the journal");
    format!("{stream}#{}", event.seq)
}

#[test]
fn one_flipped_bit_in_a_reward_is_named_and_stops_training() {
    let place = Place::new();
    place.record_oracle(&[]);
    let address = flip_a_reward(&place);
    let output = place.rao(&["verify"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains(&address), "{said}");
    assert!(said.contains("reward_assigned"), "{said}");
    place.fails(&["train", "--loss", "sft"], 4);
    place.fails(&["train", "--dry-run"], 4);
    // What is intact can still be read.
    assert!(place.out(&["show", "latest/1"]).contains("finished"));
}

#[test]
fn a_torn_tail_loses_nothing_and_is_no_damage() {
    let place = Place::new();
    let recorded = place.record_oracle(&[]);
    let journal = files(&place.log().join("journal")).into_iter().max().unwrap();
    let bytes = std::fs::read(&journal).unwrap();
    // Something that begins like an append, after the last one.
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut torn = bytes.clone();
    torn.truncate(end);
    torn.extend_from_slice(&bytes[..40]);
    std::fs::write(&journal, torn).unwrap();
    let verified = place.json(&["verify"]);
    assert_eq!(verified["intact"], true, "{verified}");
    let list = place.json(&["list"]);
    assert_eq!(list["runs"][0]["content_digest"], recorded["content_digest"]);
    place.record_oracle(&[]);
    assert_eq!(place.json(&["verify"])["intact"], true);
}

#[test]
fn an_interrupted_run_is_resumed_to_the_same_content() {
    let place = Place::new();
    let whole = place.record("noisy", &[]);
    // The same run, cut off in the middle: its events are copied into a new log, all but the last rollout's second half.
    let cut = Place::new();
    copy_half(&place, &cut);
    let replayed = cut.rao(&["replay", "--check", "tools"]).output().unwrap();
    assert_eq!(replayed.status.code(), Some(5), "{replayed:?}");
    let list = cut.json(&["list"]);
    assert_eq!((list["runs"][0]["rollouts"].as_u64(), list["runs"][0]["planned"].as_u64()), (Some(2), Some(4)));
    let resumed = cut.json(&["record", "--resume", "latest", "--tokenizer", "bytes"]);
    assert_eq!(text(&resumed, "content_digest"), text(&whole, "content_digest"));
    assert_eq!(cut.json(&["verify"])["intact"], true);
}

/// Copies the run without its end, its last rollout, and half of the one before.
fn copy_half(from: &Place, to: &Place) {
    let (reader, _) = Reader::open(&from.log()).unwrap();
    let (log, _) = rao_store::Log::open(&to.log(), rao_store::Options::new(std::sync::Arc::new(|| 0))).unwrap();
    let run = reader.runs()[0];
    for stream in reader.streams(run) {
        let mut bodies: Vec<Body> =
            reader.events(stream, Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect();
        match stream {
            Stream::Run(_) => bodies.retain(|body| body.kind() != Kind::RunFinished),
            Stream::Rollout(_, rollout) if rollout.0 == 2 => bodies.truncate(bodies.len() / 2),
            Stream::Rollout(_, rollout) if rollout.0 == 3 => continue,
            _ => {}
        }
        log.append(stream, rao_store::Expected::Any, bodies).unwrap();
    }
    log.close().unwrap();
}

/// Starts a recording that takes a while, waits until some of it is in the log, and sends it a signal.
fn interrupt(place: &Place, signal: &str) -> std::process::Output {
    use std::process::{Command, Stdio};
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("rao-log"));
    command.current_dir(place.path()).args(["record", "--policy", "noisy", "--tokenizer", "bytes"]);
    command.args(["--tasks", "150", "--group", "4", "--width", "2"]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RAO_LOG_") {
            command.env_remove(name);
        }
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = std::time::Instant::now();
    loop {
        let rollouts = match Reader::open(&place.log()) {
            Ok((reader, _)) => reader.runs().first().map_or(0, |run| reader.streams(*run).len()),
            Err(_) => 0,
        };
        if rollouts > 4 {
            break;
        }
        assert!(begin.elapsed().as_secs() < 60, "nothing was recorded");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
    child.wait_with_output().unwrap()
}

fn resume_and_compare(place: &Place) {
    let before = place.json(&["list"]);
    let finished = before["runs"][0]["rollouts"].as_u64().unwrap();
    assert!(finished < 600, "it was interrupted in time");
    let resumed = place.json(&["record", "--resume", "latest", "--tokenizer", "bytes"]);
    assert_eq!(resumed["rollouts"], 600);
    assert_eq!(place.json(&["verify"])["intact"], true);
    let whole = Place::new();
    let flags = ["record", "--policy", "noisy", "--tokenizer", "bytes", "--tasks", "150", "--group", "4"];
    assert_eq!(text(&whole.json(&flags), "content_digest"), text(&resumed, "content_digest"));
}

#[cfg(unix)]
#[test]
fn a_killed_recording_loses_nothing_and_is_resumed() {
    let place = Place::new();
    let output = interrupt(&place, "-KILL");
    assert_eq!(output.status.code(), None);
    resume_and_compare(&place);
}

#[cfg(unix)]
#[test]
fn ctrl_c_stops_between_rounds_and_says_how_to_go_on() {
    let place = Place::new();
    let output = interrupt(&place, "-INT");
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("rao-log record --resume"), "{error}");
    resume_and_compare(&place);
}

/// The short form of `scripts/crash-sweep.sh`: killed at random moments, resumed to the same content.
#[cfg(target_os = "linux")]
#[test]
fn runs_killed_at_random_moments_resume_to_the_same_content() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/crash-sweep.sh");
    let mut command = std::process::Command::new("bash");
    command.arg(script).args(["5", "noisy"]).env("TASKS", "15").env("RAO", assert_cmd::cargo::cargo_bin!("rao-log"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RAO_LOG_") {
            command.env_remove(name);
        }
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("5 rounds of noisy"), "{output:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_under_the_report_is_named() {
    let place = Place::new();
    place.record_oracle(&[]);
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = std::process::Command::new(assert_cmd::cargo::cargo_bin!("rao-log"))
        .current_dir(place.path())
        .env_remove("RAO_LOG_DATA")
        .arg("list")
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot write to standard output"), "{output:?}");
}

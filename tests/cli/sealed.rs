//! Sealing, moving and following runs with the program.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{Place, text};

/// What the reading commands say of the latest run.
fn reads(place: &Place) -> Vec<String> {
    let commands: [&[&str]; 6] = [
        &["list"],
        &["show", "latest"],
        &["show", "latest/1"],
        &["show", "latest/1#9"],
        &["replay", "latest", "--check", "tools"],
        &["train", "--dry-run", "--json"],
    ];
    commands.iter().map(|flags| place.out(flags)).collect()
}

#[test]
fn every_command_reads_a_sealed_run_as_before() {
    let place = Place::new();
    let recorded = place.record_oracle(&[]);
    let run = text(&recorded, "run").to_owned();
    let before = reads(&place);
    let plan = place.json(&["seal", "latest", "--dry-run"]);
    assert_eq!(plan["would_seal"][0]["run"], run.as_str());
    assert!(!place.log().join("sealed").exists());
    let sealed = place.json(&["seal", "latest", "--out", "copy.raolog"]);
    let archive = &sealed["sealed"][0];
    assert_eq!(archive["freed"], archive["journal_bytes"]);
    assert_eq!(archive["events"], plan["would_seal"][0]["events"]);
    let (bytes, raw) = (archive["bytes"].as_u64().unwrap(), archive["journal_bytes"].as_u64().unwrap());
    assert!(bytes * 3 < raw, "{bytes} bytes for {raw}");
    assert_eq!(reads(&place), before);
    let found = place.json(&["verify"]);
    assert_eq!((&found["intact"], &found["archives"], &found["bytes"]), (&true.into(), &1.into(), &0.into()));
    assert!(place.out(&["verify"]).contains("sealed   1 archive among them"));
    let error = place.fails(&["seal", "latest"], 2);
    assert!(error.contains("is sealed"), "{error}");
    // The log goes on.
    place.record_oracle(&["--seed", "1"]);
    assert_eq!(place.json(&["list"])["runs"].as_array().unwrap().len(), 2);

    // The copy is checked on its own and moves into another log.
    let checked = place.json(&["verify", "copy.raolog"]);
    assert_eq!((&checked["intact"], &checked["events"]), (&true.into(), &archive["events"]));
    assert!(place.out(&["verify", "copy.raolog"]).ends_with("intact\n"));
    assert_eq!(place.json(&["import", "copy.raolog", "--log", "other"])["added"], true);
    assert_eq!(place.json(&["import", "copy.raolog", "--log", "other"])["added"], false);
    assert_eq!(place.out(&["show", &format!("{run}/1"), "--log", "other"]), before[2]);
    place.out(&["export", &run, "again.raolog", "--log", "other"]);
    let path = |name: &str| place.path().join(name);
    assert_eq!(std::fs::read(path("again.raolog")).unwrap(), std::fs::read(path("copy.raolog")).unwrap());
    place.fails(&["export", &run, "again.raolog"], 2);
}

#[test]
fn a_damaged_archive_is_refused_with_code_4() {
    let place = Place::new();
    place.record_oracle(&[]);
    place.out(&["export", "latest", "run.raolog"]);
    let path = place.path().join("run.raolog");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[500] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = place.fails(&["verify", "run.raolog"], 4);
    assert!(error.contains("run.raolog: the archive is damaged"), "{error}");
    let error = place.fails(&["import", "run.raolog", "--log", "other"], 4);
    assert!(error.contains("not imported"), "{error}");
    place.fails(&["list", "--log", "other"], 2);
}

#[test]
fn a_run_without_an_end_is_not_sealed() {
    let place = Place::new();
    place.record_oracle(&["--only", "0"]);
    // `--only` ends the run; a run that lacks its end is one that was interrupted.
    let (reader, _) = rao_store::Reader::open(&place.log()).unwrap();
    drop(reader);
    let journal = place.log().join("journal/0000000000.log");
    let bytes = std::fs::read(&journal).unwrap();
    // Without the manifest a shorter journal is what a crash leaves.
    std::fs::write(&journal, &bytes[..bytes.len() - 20]).unwrap();
    std::fs::remove_file(place.log().join("MANIFEST")).unwrap();
    let error = place.fails(&["seal", "latest"], 5);
    assert!(error.contains("no run_finished event") && error.contains("--resume"), "{error}");
    place.out(&["record", "--resume", "latest", "--tokenizer", "bytes"]);
    place.out(&["seal", "latest"]);
    assert!(place.out(&["verify"]).ends_with("intact\n"));
}

#[test]
fn tail_goes_on_exactly_where_it_stopped() {
    let place = Place::new();
    place.record_oracle(&[]);
    let lines = |flags: &[&str]| -> Vec<String> { place.out(flags).lines().map(str::to_owned).collect() };
    let all = lines(&["tail", "latest/0", "--json"]);
    let name = |line: &String| text(&serde_json::from_str(line).unwrap(), "event").to_owned();
    let names: Vec<String> = all.iter().map(name).collect();
    assert!(names.len() > 20);
    for (place, name) in names.iter().enumerate() {
        assert!(name.ends_with(&format!("/0#{place}")), "{name}");
    }
    let rest = lines(&["tail", "latest/0", "--json", "--from", &names[11]]);
    assert_eq!(rest, all[12..]);
    assert_eq!(lines(&["tail", "--json"]).len() as u64, place.json(&["verify"])["events"].as_u64().unwrap());
    let kinds = lines(&["tail", "latest/0", "--kind", "reward_assigned,action_sampled"]);
    assert!(!kinds.is_empty() && kinds.iter().all(|line| line.contains("reward_assigned") || line.contains("action_")));
    place.out(&["seal", "latest"]);
    assert_eq!(lines(&["tail", "latest/0", "--json", "--from", &names[11]]), all[12..]);
    assert!(place.fails(&["tail", "--kind", "nothing"], 2).contains("choose among run_started"));
    place.fails(&["tail", "latest/0#3"], 2);
}

#[test]
fn tail_follows_a_recording() {
    let place = Place::new();
    place.record_oracle(&[]);
    let before = place.out(&["tail", "--json"]).lines().count();
    let program = assert_cmd::cargo::cargo_bin!("rao-log");
    let mut child = std::process::Command::new(program)
        .args(["tail", "--follow", "--json"])
        .current_dir(place.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (send, lines) = std::sync::mpsc::channel();
    std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line)));
    let mut seen = Vec::new();
    let until = |seen: &mut Vec<String>, count: usize| {
        let begun = Instant::now();
        while seen.len() < count && begun.elapsed() < Duration::from_secs(30) {
            seen.extend(lines.recv_timeout(Duration::from_millis(100)));
        }
        assert_eq!(seen.len(), count);
    };
    until(&mut seen, before);
    // What is sealed and what is recorded meanwhile is given once.
    place.out(&["seal", "latest"]);
    place.record_oracle(&["--seed", "5"]);
    let after = place.out(&["tail", "--json"]).lines().count();
    until(&mut seen, after);
    child.kill().unwrap();
    child.wait().unwrap();
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), after);
}

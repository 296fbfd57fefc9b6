//! What a log survives, seen from outside: kills, full disks, and the durability modes.

use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Place, text};

const RECORD: [&str; 9] = ["record", "--policy", "noisy", "--tokenizer", "bytes", "--tasks", "60", "--group", "4"];

/// The program through a shell, without the caller's settings; `$1` and so on are the flags.
fn shell(place: &Place, script: &str, flags: &[&str]) -> Output {
    let mut command = Command::new("bash");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RAO_LOG_") {
            command.env_remove(name);
        }
    }
    command.current_dir(place.path()).env("NO_COLOR", "1").env("RAO", assert_cmd::cargo::cargo_bin!("rao-log"));
    command.args(["-c", script, "bash"]).args(flags).output().unwrap()
}

/// The content digest of the recording, made without trouble.
fn whole() -> String {
    let place = Place::new();
    text(&place.json(&RECORD), "content_digest").to_owned()
}

#[test]
fn the_mode_stands_in_the_manifest_and_a_resumed_run_keeps_it() {
    let place = Place::new();
    for mode in ["durable", "relaxed:5", "end"] {
        let recorded = place.record_oracle(&["--durability", mode]);
        let shown = place.json(&["show", text(&recorded, "run")]);
        assert_eq!(text(&shown["manifest"], "durability"), mode);
        let again =
            place.rao(&["record", "--resume", "latest", "--tokenizer", "bytes", "--durability", "end", "--json"]);
        let output = { again }.output().unwrap();
        let note = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{note}");
        assert_eq!(
            note.contains(&format!("was begun with --durability {mode}, and goes on so")),
            mode != "end",
            "{note}"
        );
        assert_eq!(place.json(&["replay", "latest", "--check", "tools"])["divergence"], serde_json::Value::Null);
    }
    assert_eq!(place.json(&["verify"])["intact"], true);
    let error = place.fails(&["record", "--durability", "sometimes"], 2);
    assert!(error.contains("write durable, end, or relaxed:MS"), "{error}");
}

/// The short form of `scripts/kill-sweep.sh`.
#[cfg(target_os = "linux")]
#[test]
fn killed_recordings_lose_nothing_acknowledged() {
    let place = Place::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/kill-sweep.sh");
    let run = |rounds: &str, mode: &str| {
        let script = script.display().to_string();
        let output = shell(&place, "TASKS=12 exec bash \"$@\"", &[&script, rounds, mode]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{output:?}");
        assert!(said.contains(&format!("{rounds} rounds, killed ")), "{said}");
        let words: Vec<&str> = said.split(' ').collect();
        let acknowledged: u64 = words[words.iter().position(|word| *word == "events").unwrap() - 1].parse().unwrap();
        assert!(acknowledged > 100, "{said}");
    };
    run("15", "durable");
    run("5", "relaxed:20");
}

/// A file may not grow beyond a limit: writes end in the middle of a commit.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow_fails_the_recording_and_nothing_else() {
    let place = Place::new();
    place.record_oracle(&[]);
    let before = place.json(&["verify"])["events"].as_u64().unwrap();
    let limited = "trap '' XFSZ; ulimit -f 900; exec \"$RAO\" \"$@\"";
    let output = shell(&place, limited, &RECORD);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("journal/0000000000.log") && error.contains("ulimit -f"), "{error}");
    assert!(error.contains("--resume"), "{error}");
    let found = place.json(&["verify"]);
    assert_eq!(found["intact"], true, "{found}");
    assert!(found["events"].as_u64().unwrap() > before + 100, "{found}");
    let resumed = place.json(&["record", "--resume", "latest", "--tokenizer", "bytes"]);
    assert_eq!(text(&resumed, "content_digest"), whole());
    assert_eq!(place.json(&["verify"])["intact"], true);
}

/// A file system that is really full, where the system lets us make one.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_fails_the_recording_and_nothing_else() {
    let place = Place::new();
    std::fs::create_dir(place.path().join("small")).unwrap();
    let probe = shell(&place, "unshare -rm mount -t tmpfs -o size=1m tmpfs small", &[]);
    if !probe.status.success() {
        println!("skipped: no file system can be made here ({})", String::from_utf8_lossy(&probe.stderr).trim());
        return;
    }
    let script = r#"
        set -eu
        mount -t tmpfs -o size=4m tmpfs small
        head -c 2200000 /dev/zero >small/ballast
        code=0
        "$RAO" "$@" --log small/log >/dev/null 2>small.error || code=$?
        echo "code $code"
        "$RAO" verify --log small/log --json
        rm small/ballast
        mount -o remount,size=64m small
        "$RAO" record --resume latest --tokenizer bytes --log small/log --json
        "$RAO" verify --log small/log | tail -1
    "#;
    let output = shell(&place, &format!("unshare -rm bash -c '{script}' bash \"$@\""), &RECORD);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let error = std::fs::read_to_string(place.path().join("small.error")).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "code 1", "{error}");
    assert!(error.contains("No space left on device") && error.contains("free some space"), "{error}");
    let found: serde_json::Value = serde_json::from_str(lines[1]).unwrap();
    assert_eq!(found["intact"], true, "{found}");
    assert!(found["events"].as_u64().unwrap() > 100, "{found}");
    let resumed: serde_json::Value = serde_json::from_str(lines[2]).unwrap();
    assert_eq!(text(&resumed, "content_digest"), whole());
    assert_eq!(lines[3], "intact");
}

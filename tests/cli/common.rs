//! What the whole-program tests share: the program in a folder of its own, without the caller's settings.

use std::path::{Path, PathBuf};

use assert_cmd::Command;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A working directory with a log in it.
pub(crate) struct Place {
    pub(crate) dir: TempDir,
}

impl Place {
    /// Writes a mailbox of that many numbered notes, and a question about one of them, into the folder `mine`. Gives the notes
    /// as they stand in their file.
    pub(crate) fn own_mail(&self, notes: u32, asked: u32) -> Vec<String> {
        let row = |number: u32| {
            json!({
                "message_id": format!("<{number}>"), "subject": format!("Note {number}"), "from": "ann@x.example",
                "to": ["bo@x.example"], "date": format!("2031-01-{number:02} 08:00:00"), "body": format!("Bring item {number}."),
            })
            .to_string()
        };
        let rows: Vec<String> = (1..=notes).map(row).collect();
        let question = json!({
            "id": 1, "question": format!("What does note {asked} ask for?"), "answer": format!("item {asked}"),
            "message_ids": [format!("<{asked}>")], "inbox_address": "bo@x.example", "query_date": "2031-02-01",
        });
        std::fs::create_dir(self.path().join("mine")).unwrap();
        std::fs::write(self.path().join("mine/emails.jsonl"), rows.join("\n")).unwrap();
        std::fs::write(self.path().join("mine/questions-train.jsonl"), question.to_string()).unwrap();
        rows
    }

    pub(crate) fn new() -> Self {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path().join("rao-log-data")
    }

    /// The program, with the flags given.
    pub(crate) fn rao(&self, flags: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("rao-log"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RAO_LOG_") {
                command.env_remove(name);
            }
        }
        command.env("NO_COLOR", "1").env("COLUMNS", "100").current_dir(self.path()).args(flags);
        command
    }

    /// Standard output of a command that must succeed.
    pub(crate) fn out(&self, flags: &[&str]) -> String {
        let output = self.rao(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{flags:?} ended with {:?}:\n{error}", output.status.code());
        String::from_utf8(output.stdout).unwrap()
    }

    /// The JSON that a command prints.
    pub(crate) fn json(&self, flags: &[&str]) -> Value {
        let mut all = flags.to_vec();
        all.push("--json");
        serde_json::from_str(&self.out(&all)).unwrap()
    }

    /// Standard error of a command that must end with `code`.
    pub(crate) fn fails(&self, flags: &[&str], code: i32) -> String {
        let output = self.rao(flags).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{flags:?}:\n{error}");
        error
    }

    /// Records a few rollouts of the oracle with a tokenizer that needs no model.
    pub(crate) fn record_oracle(&self, more: &[&str]) -> Value {
        self.record("oracle", more)
    }

    pub(crate) fn record(&self, policy: &str, more: &[&str]) -> Value {
        let mut flags = vec!["record", "--policy", policy, "--tokenizer", "bytes"];
        flags.extend(["--tasks", "2", "--group", "2"]);
        flags.extend(more);
        self.json(&flags)
    }

    /// Replays the latest run, recorded with the tokenizer `bytes`, at every depth, and sees that every event was compared.
    pub(crate) fn replays_every_event(&self, recorded: &Value) {
        let events = recorded["events"].as_u64().unwrap();
        for check in ["fold", "cells", "tools", "tokens"] {
            let replayed = self.json(&["replay", "--check", check]);
            assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
            let rows = replayed["rollouts"].as_array().unwrap();
            let compared: u64 = rows.iter().map(|row| row["compared"].as_u64().unwrap()).sum();
            assert_eq!(compared, events, "{check}");
        }
    }

    /// Makes a small untrained model in the folder `model`, with a tokenizer from the latest run.
    pub(crate) fn init_model(&self) {
        self.init_layers("1");
    }

    pub(crate) fn init_layers(&self, layers: &str) {
        let shape = ["--hidden", "16", "--layers", layers, "--heads", "2", "--kv-heads", "1", "--ffn", "32"];
        let mut flags = vec!["init", "model", "--from", "latest", "--vocab", "320"];
        flags.extend(shape);
        self.out(&flags);
    }
}

/// A field of an object.
pub(crate) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no text `{name}` in {value}"))
}

/// Replaces what differs from run to run: ids, digests, times, durations.
pub(crate) fn redact(text: &str, place: &Place) -> String {
    let text = text.replace(&place.path().display().to_string(), "<dir>");
    let mut out = String::new();
    for line in text.lines() {
        let mut rest = line;
        while !rest.is_empty() {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            let (word, tail) = rest.split_at(end);
            let is_hex = word.len() >= 10 && word.chars().all(|c| c.is_ascii_hexdigit());
            out.push_str(if is_hex { "<hex>" } else { word });
            let mut tail_chars = tail.chars();
            if let Some(separator) = tail_chars.next() {
                out.push(separator);
            }
            rest = tail_chars.as_str();
        }
        out.push('\n');
    }
    redact_times(&out)
}

/// `2026-01-31 12:34:56`, `0.4 s`, and sizes in bytes, which depend on the machine's noted facts.
fn redact_times(text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let is_date = word.len() == 10 && word.matches('-').count() == 2 && word.starts_with("20");
        let is_clock =
            word.len() >= 8 && word.matches(':').count() == 2 && word.starts_with(|c: char| c.is_ascii_digit());
        match (is_date, is_clock) {
            (true, _) => "<date>",
            (_, true) => "<time>",
            _ => word,
        }
    });
    let text: Vec<&str> = words.collect();
    let mut seconds = Vec::new();
    for (place, word) in text.iter().enumerate() {
        let next = text.get(place + 1).copied().unwrap_or_default();
        let before_unit = next == "s" || next.starts_with("s\n") || next == "bytes";
        seconds.push(if before_unit && word.parse::<f64>().is_ok() { "<n>" } else { word });
    }
    seconds.join(" ")
}

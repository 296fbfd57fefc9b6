//! Every environment, whole: `record`, all four replay checks, `eval` and `train`, with a policy that knows the
//! environment and with the model in the program, which knows only one of them; and where delegation pays.

use serde_json::Value;

use crate::common::{Place, text};

/// An environment and the flags that name it.
struct World<'a> {
    place: Place,
    named: Vec<&'a str>,
    /// What replays need, for worlds made from files.
    data: Vec<&'a str>,
}

impl<'a> World<'a> {
    fn new(named: &[&'a str]) -> Self {
        World { place: Place::new(), named: named.to_vec(), data: Vec::new() }
    }

    fn on_data(mut self, data: &'a str) -> Self {
        self.data = vec!["--data", data];
        self.named.extend(["--data", data]);
        self
    }

    fn run(&self, command: &str, more: &[&str]) -> Value {
        self.place.json(&[&[command], self.named.as_slice(), more].concat())
    }

    /// Records and replays, every event at every depth.
    fn record(&self, more: &[&str]) -> Value {
        let run = self.run("record", more);
        for check in ["fold", "cells", "tools", "tokens"] {
            let replayed = self.place.json(&[&["replay", "--check", check], self.data.as_slice()].concat());
            assert!(replayed["divergence"].is_null(), "{check}: {replayed}");
            let rows = replayed["rollouts"].as_array().unwrap();
            let sum = |name: &str| rows.iter().map(|row| row[name].as_u64().unwrap()).sum::<u64>();
            assert_eq!(sum("compared"), run["events"].as_u64().unwrap(), "{check}");
            assert_eq!(sum("policy_calls"), if check == "tokens" { run["steps"].as_u64().unwrap() } else { 0 });
        }
        run
    }

    /// Greedy success of the oracle by difficulty, seen whole in what `eval` prints for machines.
    fn rates(&self, more: &[&str]) -> Vec<f64> {
        let evaluated = self.run("eval", &[&["--policy", "oracle"], more].concat());
        assert_eq!(text(&evaluated, "policy"), "oracle");
        let number = |row: &Value, name: &str| row[name].as_f64().unwrap_or_else(|| panic!("no `{name}` in {row}"));
        let rows = evaluated["difficulties"].as_array().unwrap().iter().map(|row| {
            let (rate, low, high) = (number(row, "rate"), number(row, "low"), number(row, "high"));
            assert!((0.0..=1.0).contains(&low) && low <= rate && rate <= high && high <= 1.0, "{row}");
            assert_eq!(rate, number(row, "successes") / number(row, "tasks"), "{row}");
            for name in ["mean_score", "mean_depth", "mean_nodes", "mean_steps", "mean_tokens"] {
                assert!(number(row, name) >= 0.0);
            }
            assert!(!text(row, "difficulty").is_empty());
            rate
        });
        rows.collect()
    }

    /// The loop of the page "Making and training a policy", in small.
    fn is_recorded_replayed_evaluated_and_trained_on(&self) {
        let taught = self.record(&["--policy", "oracle", "--tasks", "2", "--group", "1"]);
        assert_eq!((taught["solved"].as_u64(), taught["success"].as_f64()), (Some(2), Some(1.0)), "{taught}");
        let flags = ["--policy", "mini", "--tasks", "2", "--group", "2", "--seed", "3", "--max-steps", "3"];
        let own = self.record(&[flags.as_slice(), &["--max-tokens", "48", "--context", "4096"]].concat());
        assert_eq!(own["rollouts"], 4, "{own}");

        let trained = self.place.json(&["train", text(&own, "run"), "--out", "reinforced"]);
        assert_eq!((trained["steps"].as_u64(), &trained["on_policy"]), (Some(1), &true.into()), "{trained}");
        let first = &trained["first"];
        assert_eq!((&first["tokens"], &first["equal"]), (&own["tokens"], &own["tokens"]), "every sample is on policy");
        assert_eq!(first["mean_ratio"], 1.0);
        let sft = ["--loss", "sft", "--model", "mini", "--steps", "1", "--out", "taught"];
        let trained = self.place.json(&[&["train", text(&taught, "run")], sft.as_slice()].concat());
        assert_eq!((&trained["steps"], &trained["first"]["tokens"]), (&1.into(), &taught["tokens"]), "{trained}");
        assert!(trained["first"]["loss"].as_f64().unwrap() > 0.0, "{trained}");
        assert!(trained["first"]["gradient_norm"].as_f64().unwrap() > 0.0, "{trained}");

        assert_eq!(self.rates(&["--tasks", "3"]), [1.0]);
        let flags = ["--policy", "local:taught", "--tasks", "1", "--max-steps", "1", "--max-tokens", "8"];
        let evaluated = self.run("eval", &[flags.as_slice(), &["--context", "4096"]].concat());
        assert_eq!(evaluated["difficulties"][0]["tasks"], 1, "what was trained acts: {evaluated}");
        let verified = self.place.json(&["verify"]);
        assert_eq!(verified["intact"], true, "{verified}");
    }

    /// The same questions in the same small window, with and without subagents; and that a large window does without.
    fn delegation_pays(&self, tasks: &[&str], small: &str, large: &str) {
        let rate = |more: &[&str]| {
            let rates = self.rates(&[tasks, &["--tokenizer", "bytes", "--prompt", "brief"], more].concat());
            rates.iter().sum::<f64>() / rates.len() as f64
        };
        let (recursive, flat) = (rate(&["--context", small]), rate(&["--context", small, "--flat"]));
        println!("{:?} in {small} bytes: recursive {recursive}, flat {flat}", self.named);
        assert_eq!(recursive, 1.0);
        assert!(flat < 0.5, "{flat}");
        assert_eq!(rate(&["--context", large, "--flat"]), 1.0, "it is the window that the flat agent lacks");
    }
}

#[test]
fn textcraft_whole() {
    let world = World::new(&["--env", "textcraft"]);
    world.is_recorded_replayed_evaluated_and_trained_on();
    let mini = world.run("eval", &["--policy", "mini", "--tasks", "20"]);
    assert!(mini["difficulties"][0]["rate"].as_f64().unwrap() >= 0.3, "mini knows this environment: {mini}");
    world.delegation_pays(&["--preset", "hard", "--tasks", "4"], "8192", "65536");
}

#[test]
fn oolong_whole() {
    let world = World::new(&["--env", "oolong"]);
    world.is_recorded_replayed_evaluated_and_trained_on();
    // 32,000 characters, windows of 16,384 tokens of a byte each.
    world.delegation_pays(&["--preset", "8k", "--tasks", "6"], "16384", "65536");
}

#[test]
fn deepdive_whole() {
    let world = World::new(&["--env", "deepdive"]);
    world.is_recorded_replayed_evaluated_and_trained_on();
    world.delegation_pays(&["--preset", "6hop,9hop", "--tasks", "8"], "5000", "65536");
}

#[test]
fn mail_whole() {
    let world = World::new(&["--env", "mail"]);
    world.is_recorded_replayed_evaluated_and_trained_on();
    world.delegation_pays(&["--preset", "hard", "--tasks", "8"], "12000", "131072");
}

#[test]
fn minecraft_whole() {
    let Some(data) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return;
    };
    let data = std::path::Path::new(&data).join("minecraft-recipes").display().to_string();
    World::new(&["--env", "textcraft"]).on_data(&data).is_recorded_replayed_evaluated_and_trained_on();
}

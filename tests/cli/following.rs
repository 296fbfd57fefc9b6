//! What `tail` shows, and where it goes on.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::common::{Place, text};

fn lines(place: &Place, flags: &[&str]) -> Vec<Value> {
    place.out(flags).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn events_of_one_node_are_those_that_name_it() {
    let place = Place::new();
    place.record("noisy", &["--seed", "3"]);
    for sealed in [false, true] {
        if sealed {
            place.out(&["seal", "latest"]);
        }
        let all = lines(&place, &["tail", "latest/0", "--json"]);
        let nodes: BTreeSet<String> =
            all.iter().filter_map(|event| event["body"]["node"].as_str().map(str::to_owned)).collect();
        assert!(nodes.len() > 1, "{nodes:?}");
        for node in &nodes {
            let wanted: Vec<Value> =
                all.iter().filter(|event| event["body"]["node"] == *node.as_str()).cloned().collect();
            assert_eq!(lines(&place, &["tail", "latest/0", "--json", "--node", node]), wanted);
            let kinds = ["action_sampled", "reward_assigned"];
            let wanted: Vec<Value> = wanted.into_iter().filter(|event| kinds.contains(&text(event, "kind"))).collect();
            let flags = ["tail", "latest/0", "--json", "--node", node, "--kind", "action_sampled,reward_assigned"];
            assert_eq!(lines(&place, &flags), wanted);
        }
        let headers = lines(&place, &["tail", "--json", "--headers"]);
        let whole = lines(&place, &["tail", "--json"]);
        assert_eq!(headers.len(), whole.len());
        for (header, event) in headers.iter().zip(&whole) {
            for field in ["event", "kind", "at_us"] {
                assert_eq!(header[field], event[field]);
            }
            assert!(header["bytes"].as_u64().unwrap() > 0 && header.get("body").is_none());
        }
        let rewards = lines(&place, &["tail", "--json", "--headers", "--kind", "reward_assigned"]);
        assert_eq!(rewards.len(), whole.iter().filter(|event| event["kind"] == "reward_assigned").count());
    }
    place.fails(&["tail", "--headers", "--node", "0"], 2);
    place.fails(&["tail", "--node", "1"], 2);
}

#[test]
fn a_cursor_file_goes_on_in_every_stream() {
    let place = Place::new();
    place.record_oracle(&[]);
    let tail = ["tail", "--json", "--cursor", "seen"];
    // A reader that goes away has not seen what it did not read.
    let pipe = "\"$0\" tail --json --cursor seen | head -1";
    let mut command = std::process::Command::new("bash");
    command.args(["-c", pipe]).arg(assert_cmd::cargo::cargo_bin!("rao-log")).current_dir(place.path());
    let first = command.env_remove("RAO_LOG_DATA").env_remove("RAO_LOG_VECTORS").output().unwrap();
    assert!(first.status.success() && first.stdout.ends_with(b"}\n"), "{first:?}");
    let mut seen = lines(&place, &tail);
    assert_eq!(seen.first(), serde_json::from_slice(&first.stdout).ok().as_ref());
    assert_eq!(lines(&place, &tail), Vec::<Value>::new());
    place.record_oracle(&["--seed", "5"]);
    // A sealed run is where it was.
    let list = place.json(&["list"]);
    place.out(&["seal", text(&list["runs"][0], "run")]);
    seen.extend(lines(&place, &tail));
    assert_eq!(seen, lines(&place, &["tail", "--json"]));
    // What is filtered out is seen as well.
    place.record_oracle(&["--seed", "6"]);
    let mut filtered = tail.to_vec();
    filtered.extend(["--kind", "run_finished"]);
    assert_eq!(lines(&place, &filtered).len(), 1);
    assert_eq!(lines(&place, &tail), Vec::<Value>::new());
    // A run that is gone is told and forgotten.
    place.out(&["prune", "--keep", "1"]);
    let output = place.rao(&tail).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("note: seen: no recorded run"), "{output:?}");
    std::fs::write(place.path().join("seen"), "what is this\n").unwrap();
    assert!(place.fails(&tail, 2).contains("`what is this` is no place in this log"));
    place.fails(&["tail", "--cursor", "seen", "--from", "latest/0#1"], 2);
}

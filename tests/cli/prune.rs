//! Old runs leave a log with the program.

use crate::common::{Place, redact, text};

fn runs(place: &Place) -> Vec<String> {
    let list = place.json(&["list"]);
    list["runs"].as_array().unwrap().iter().map(|run| text(run, "run").to_owned()).collect()
}

#[test]
fn old_runs_are_dropped_and_the_bases_of_forks_are_kept() {
    let place = Place::new();
    for seed in ["1", "2", "3"] {
        place.record("noisy", &["--seed", seed]);
    }
    let recorded = runs(&place);
    place.out(&["seal", &recorded[0]]);
    let from = format!("{}/0#12", recorded[1]);
    let fork = text(&place.json(&["fork", "--from", &from, "--tokenizer", "bytes"]), "run").to_owned();
    let before = place.json(&["show", &format!("{fork}/0")]);
    let plan = place.json(&["prune", "--keep", "1", "--dry-run"]);
    let named = |value: &serde_json::Value, list: &str| -> Vec<String> {
        value[list].as_array().unwrap().iter().map(|run| text(run, "run").to_owned()).collect()
    };
    assert_eq!(named(&plan, "would_drop"), [&recorded[0], &recorded[2]].map(String::clone));
    let kept: Vec<(&str, &str)> =
        plan["kept"].as_array().unwrap().iter().map(|run| (text(run, "run"), text(run, "reason"))).collect();
    assert_eq!(kept, [(recorded[1].as_str(), "needed"), (fork.as_str(), "newest")]);
    assert_eq!(text(&plan["kept"][0], "needed_by"), fork);
    assert_eq!(runs(&place).len(), 4, "a plan does nothing");
    insta::assert_snapshot!("prune_dry_run", redact(&place.out(&["prune", "--keep", "1", "--dry-run"]), &place));
    let done = place.json(&["prune", "--keep", "1"]);
    assert_eq!(done["dropped"], plan["would_drop"]);
    let bytes: u64 = done["dropped"].as_array().unwrap().iter().map(|run| run["bytes"].as_u64().unwrap()).sum();
    assert_eq!(done["freed"], bytes);
    assert_eq!(runs(&place), [recorded[1].clone(), fork.clone()]);
    assert_eq!(place.json(&["show", &format!("{fork}/0")]), before);
    let found = place.json(&["verify"]);
    assert_eq!(found["intact"], true);
    assert_eq!(found["dropped"].as_array().unwrap().len(), 2);
    assert!(place.out(&["verify"]).contains("dropped  2 runs with "));
    assert!(place.fails(&["show", &recorded[0]], 2).contains("no recorded run"));
    assert!(place.out(&["prune", "--keep", "1"]).contains("nothing to drop: 2 runs in the log"));
    let again = place.json(&["doctor"]);
    assert_eq!(again["done"].as_array().unwrap().len(), 0, "{again}");
}

#[test]
fn runs_are_old_by_the_time_that_they_recorded() {
    let place = Place::new();
    place.record_oracle(&[]);
    // Nothing here is a day old.
    for age in ["1d", "24h", "1440m"] {
        assert_eq!(place.json(&["prune", "--older-than", age])["dropped"].as_array().unwrap().len(), 0);
    }
    // With both limits a run goes only if neither keeps it.
    assert_eq!(place.json(&["prune", "--older-than", "0m", "--keep", "1"])["kept"][0]["reason"], "newest");
    assert_eq!(place.json(&["prune", "--older-than", "1d", "--keep", "0"])["kept"][0]["reason"], "young");
    assert_eq!(place.json(&["prune", "--older-than", "0m"])["dropped"].as_array().unwrap().len(), 1);
    assert_eq!(runs(&place), Vec::<String>::new());
    let error = place.fails(&["prune", "--older-than", "3w"], 2);
    assert!(error.contains("30d, 12h or 90m"), "{error}");
    let error = place.fails(&["prune"], 2);
    assert!(error.contains("--keep <N>"), "{error}");
}

#[test]
fn trainings_that_lose_their_runs_are_told() {
    let place = Place::new();
    place.record_oracle(&[]);
    place.init_model();
    place.record("oracle", &["--tokenizer", "model"]);
    let train = ["train", "--loss", "sft", "--batch", "2", "--micro-tokens", "256", "--steps", "1", "--model", "model"];
    place.out(&[&train[..], &["--out", "trained"]].concat());
    let said = place.out(&["prune", "--keep", "1", "--dry-run"]);
    assert!(said.contains("would drop") && said.contains("learned from runs that go"), "{said}");
    place.out(&["prune", "--keep", "1"]);
    let list = place.json(&["list"]);
    assert_eq!((list["runs"].as_array().unwrap().len(), list["trainings"].as_array().unwrap().len()), (0, 1));
    assert_eq!(place.json(&["verify"])["intact"], true);
}

//! Comparing rollouts and runs.

use crate::common::{Place, redact, text};

#[test]
fn two_rollouts_are_aligned_and_part_where_they_part() {
    let place = Place::new();
    place.record("noisy", &["--tasks", "3", "--group", "3", "--seed", "5"]);
    let same = place.json(&["diff", "latest/3", "latest/3"]);
    assert!(same["first"].is_null() && same["nodes"][0]["difference"] == "same", "{same}");
    // Rollouts 6 to 8 are of one task; 8 has a node more than 6.
    let different = place.json(&["diff", "latest/6", "latest/8"]);
    let nodes = different["nodes"].as_array().unwrap();
    assert!(nodes.iter().any(|node| node["difference"] == "added" && node["a"].is_null()), "{different}");
    assert!(different["first"]["a"].is_string());
    let back = place.json(&["diff", "latest/8", "latest/6"]);
    assert!(back["nodes"].as_array().unwrap().iter().any(|node| node["difference"] == "missing"), "{back}");
    insta::assert_snapshot!("diff_rollouts", redact(&place.out(&["diff", "latest/6", "latest/8"]), &place));
    insta::assert_snapshot!("diff_success", redact(&place.out(&["diff", "latest/3", "latest/5"]), &place));
}

#[test]
fn a_fork_parts_from_its_base_behind_what_they_share() {
    let place = Place::new();
    let base = place.record("noisy", &["--seed", "3"]);
    let fork = place.json(&["fork", "--from", "latest/0#31", "--tokenizer", "bytes", "--seed", "9", "-n", "3"]);
    let (base, fork) = (format!("{}/0", text(&base, "run")), text(&fork, "run").to_owned());
    let mut parted = 0;
    for member in 0..3 {
        let diff = place.json(&["diff", &base, &format!("{fork}/{member}")]);
        for node in diff["nodes"].as_array().unwrap().iter().filter(|node| node["seq"].is_array()) {
            assert!(node["seq"][0].as_u64() > Some(31) && node["seq"][1].as_u64() > Some(32), "{diff}");
            parted += 1;
        }
    }
    assert!(parted > 0, "some fork took another step");
}

#[test]
fn two_runs_are_compared_by_difficulty_and_task() {
    let place = Place::new();
    let noisy = place.record("noisy", &["--tasks", "3", "--group", "3", "--seed", "5"]);
    place.record("oracle", &["--tasks", "3", "--group", "3", "--seed", "5"]);
    let diff = place.json(&["diff", text(&noisy, "run"), "latest"]);
    let row = &diff["difficulties"][0];
    assert_eq!((row["a"]["successes"].as_u64(), row["b"]["successes"].as_u64()), (Some(8), Some(9)));
    assert!(row["a"]["low"].as_f64() < row["a"]["rate"].as_f64());
    assert_eq!((diff["changed"].as_array().unwrap().len(), diff["unchanged"].as_u64()), (1, Some(2)));
    assert_eq!(diff["changed"][0]["a"], serde_json::json!([2, 3]));
    let told = place.out(&["diff", text(&noisy, "run"), "latest"]);
    insta::assert_snapshot!("diff_runs", redact(&told, &place));
    let error = place.fails(&["diff", "latest", "latest/0"], 2);
    assert!(error.contains("neither two rollouts nor two recorded runs"), "{error}");
}

#[test]
fn what_is_compared_may_lie_in_other_logs_and_in_sealed_files() {
    let place = Place::new();
    let noisy = text(&place.record("noisy", &["--tasks", "3", "--group", "3", "--seed", "5"]), "run").to_owned();
    let oracle = place.record("oracle", &["--tasks", "3", "--group", "3", "--seed", "5", "--log", "other"]);
    let oracle = text(&oracle, "run").to_owned();
    place.out(&["export", "latest", "oracle.raolog", "--log", "other"]);
    place.record("oracle", &["--tasks", "1", "--group", "1", "--log", "other"]);
    // The newest run of the other log is another one.
    let mut reports = Vec::new();
    for name in [format!("other:{oracle}"), "oracle.raolog".to_owned(), "oracle.raolog:latest".to_owned()] {
        let diff = place.json(&["diff", &noisy, &name]);
        assert_eq!((text(&diff, "a"), text(&diff, "b")), (noisy.as_str(), oracle.as_str()));
        reports.push(diff);
    }
    assert!(reports.iter().all(|report| *report == reports[0]));
    let row = &reports[0]["difficulties"][0];
    let change = &row["difference"];
    assert!(change["low"].as_f64() < change["rate"].as_f64() && change["rate"].as_f64() > Some(0.0), "{change}");
    assert!(row["a"]["tokens_half_width"].as_f64() > Some(0.0), "{row}");
    let steps = row["b"]["mean_steps"].as_f64().unwrap() - row["a"]["mean_steps"].as_f64().unwrap();
    assert!((change["mean_steps"].as_f64().unwrap() - steps).abs() < 1e-9, "{row}");
    // Rollouts, credit included; the sides in either order, and none of them in the log at hand.
    let here = place.json(&["diff", &format!("other:{oracle}/0"), "oracle.raolog:latest/0", "--log", "nowhere"]);
    assert!(here["first"].is_null(), "{here}");
    let diff = place.json(&["diff", "oracle.raolog:latest/6", &format!("{noisy}/6")]);
    assert!(diff["nodes"][0]["advantage"][0].is_f64() && diff["nodes"][0]["reward"][1].is_f64(), "{diff}");
    let error = place.fails(&["diff", "missing.raolog", &noisy], 2);
    assert!(error.contains("no sealed file and no run"), "{error}");
    let error = place.fails(&["diff", "oracle.raolog", &format!("{noisy}/1")], 2);
    assert!(error.contains("neither two rollouts nor two recorded runs"), "{error}");
}

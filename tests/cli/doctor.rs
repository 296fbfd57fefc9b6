//! `doctor` mends what can be mended and keeps every readable event.

use std::fs;

use crate::common::Place;

#[test]
fn a_crashed_log_is_mended_whole() {
    let place = Place::new();
    place.record_oracle(&[]);
    let all = place.out(&["tail", "--json"]);
    let (log, journal) = (place.log(), place.log().join("journal/0000000000.log"));
    let mut bytes = fs::read(&journal).unwrap();
    let length = bytes.len();
    bytes.extend_from_within(..150);
    fs::write(&journal, &bytes).unwrap();
    fs::write(log.join("events/db"), b"no database").unwrap();
    let plan = place.json(&["doctor", "--dry-run"]);
    assert!(plan["plan"][0].as_str().unwrap().contains("cut the unfinished commit"), "{plan}");
    assert_eq!(fs::read(&journal).unwrap(), bytes, "a dry run changes nothing");
    let done = place.out(&["doctor"]);
    assert!(done.contains("done  150 bytes of an unfinished commit were cut off"), "{done}");
    assert!(done.contains("rebuilt from the journal"), "{done}");
    assert!(fs::read_dir(&log).unwrap().any(|entry| entry.unwrap().file_name() == "events.damaged-1"));
    assert_eq!(fs::metadata(&journal).unwrap().len(), length as u64);
    fs::remove_file(log.join("MANIFEST")).unwrap();
    assert!(place.out(&["doctor"]).contains("done  MANIFEST was rebuilt"));
    assert_eq!(place.out(&["tail", "--json"]), all);
    assert!(place.out(&["verify"]).ends_with("intact\n"));
    let again = place.json(&["doctor"]);
    assert_eq!(again["done"].as_array().unwrap().len(), 0, "{again}");
}

#[test]
fn damage_that_stays_is_named_and_costs_no_readable_event() {
    let place = Place::new();
    place.record_oracle(&[]);
    let count = place.out(&["tail", "--json"]).lines().count();
    let journal = place.log().join("journal/0000000000.log");
    let mut bytes = fs::read(&journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&journal, &bytes).unwrap();
    for flags in [&["doctor", "--dry-run"][..], &["doctor"]] {
        let output = place.rao(flags).output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("lost  interior damage: event ") && said.contains("at byte"), "{said}");
        assert!(said.contains(&format!("kept  {} events", count - 1)), "{said}");
    }
    assert_eq!(fs::read(&journal).unwrap(), bytes);
    let output = place.rao(&["tail", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), count - 1);
}

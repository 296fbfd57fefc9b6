//! Every help text, as users see it.

use crate::common::Place;

#[test]
fn help_of_every_command() {
    let place = Place::new();
    insta::assert_snapshot!("help", place.out(&["--help"]));
    for command in [
        "demo", "record", "replay", "fork", "train", "eval", "diff", "show", "list", "verify", "test", "init", "seal",
        "export", "import", "prune", "tail", "schema", "doctor",
    ] {
        insta::assert_snapshot!(format!("help_{command}"), place.out(&[command, "--help"]));
    }
}

#[test]
fn without_a_command_the_usage_is_shown_and_the_code_is_2() {
    let error = Place::new().fails(&[], 2);
    assert!(error.contains("Usage: rao-log <COMMAND>"), "{error}");
}

//! The stored logs under `tests/logs`, as anyone's own regression tests run theirs.

use rao_log::testing::{Check, assert_replays, assert_replays_at};

#[test]
fn stored_logs_replay() {
    assert_replays("tests/logs");
}

#[test]
fn stored_logs_replay_at_every_depth() {
    for check in [Check::Fold, Check::Cells] {
        assert_replays_at("tests/logs", check, None);
    }
    // A model's tokens are the same bits on one kind of processor only, so `mini`'s are left to tests that record them.
    let textcraft = ["textcraft-oracle", "textcraft-noisy", "textcraft-forks", "textcraft-arrival.raolog"];
    let others = ["mail-oracle", "mail-noisy", "oolong-oracle.raolog", "oolong-noisy.raolog"];
    for scripted in textcraft.into_iter().chain(others) {
        assert_replays_at(format!("tests/logs/{scripted}"), Check::Tokens, None);
    }
}

#[test]
#[should_panic(expected = "holds no log")]
fn a_folder_without_logs_is_no_passed_test() {
    assert_replays("tests/cli");
}

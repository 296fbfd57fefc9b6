//! The stored logs under `tests/logs`, as anyone's own regression tests run theirs.

#![expect(clippy::unwrap_used, reason = "a test may stop at the first thing that is not there")]

use std::path::{Path, PathBuf};

use rao_log::testing::{Check, assert_replays, assert_replays_at};

/// Folders and archives with a log, without the data beside them.
fn logs() -> Vec<PathBuf> {
    let paths = std::fs::read_dir("tests/logs").unwrap().map(|entry| entry.unwrap().path());
    let mut logs: Vec<PathBuf> =
        paths.filter(|path| path.join("journal").is_dir() || path.extension().is_some_and(|e| e == "raolog")).collect();
    logs.sort();
    logs
}

fn name(log: &Path) -> String {
    log.file_stem().unwrap().to_string_lossy().into_owned()
}

/// Whether a model's log-probabilities have the stored bits here: vector units of another width add in another order.
fn adds_as_recorded() -> bool {
    #[cfg(target_arch = "x86_64")]
    let as_recorded = std::arch::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    let as_recorded = false;
    as_recorded
}

#[test]
fn stored_logs_replay() {
    assert_replays("tests/logs");
}

#[test]
fn stored_logs_replay_at_every_depth() {
    for check in [Check::Fold, Check::Cells] {
        assert_replays_at("tests/logs", check, None);
    }
    for log in logs() {
        if name(&log).ends_with("-mini") && !adds_as_recorded() {
            println!("{}: skipped at `tokens`, recorded on another kind of processor", log.display());
            continue;
        }
        assert_replays_at(&log, Check::Tokens, None);
    }
}

#[test]
fn every_environment_has_a_log_of_every_policy() {
    let names: Vec<String> = logs().iter().map(|log| name(log)).collect();
    let listed = std::fs::read_to_string("tests/logs/README.md").unwrap();
    for env in ["textcraft", "oolong", "deepdive", "mail"] {
        for policy in ["oracle", "noisy", "mini"] {
            assert!(names.contains(&format!("{env}-{policy}")), "there is no log of {policy} in {env}");
        }
    }
    for name in &names {
        let (_, own) = name.split_once('-').unwrap();
        assert!(listed.contains(&format!("`{name}`")) || listed.contains(&format!("`-{own}`")), "{name} is not listed");
    }
}

#[test]
#[should_panic(expected = "holds no log")]
fn a_folder_without_logs_is_no_passed_test() {
    assert_replays("tests/cli");
}

//! Writes the golden logs under `tests/golden` anew: `cargo run --release --example make_golden`.
//!
//! Only for a new format version. The logs of a released version are never changed: the test that compares them with
//! what the program writes would otherwise be worth nothing.
#![expect(clippy::unwrap_used, reason = "a tool of the developers, which may stop at the first trouble")]
#![expect(dead_code, reason = "it uses a part of what the tests share")]

#[path = "../tests/suite/common.rs"]
mod common;

fn main() {
    let dir = common::golden_dir();
    if dir.exists() {
        std::fs::remove_dir_all(&dir).unwrap();
    }
    common::write_golden(&dir);
    let archives = dir.with_file_name("archive-v1");
    std::fs::create_dir_all(&archives).unwrap();
    common::write_golden_archives(&archives);
    let texts = common::golden_texts_dir();
    if texts.exists() {
        std::fs::remove_dir_all(&texts).unwrap();
    }
    common::write_golden_texts(&texts);
}

//! The fuzz targets' own functions over their seeds, over everything that fuzzing ever found (`fuzz/found`), and over
//! seeded changes of both: what the fuzzer checks is checked here too, if only for a moment.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../../fuzz/src/decoders.rs"]
mod decoders;

const CHANGES: u64 = 300;

fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let mut files = Vec::new();
    for folder in ["seeds", "found"] {
        let Ok(entries) = fs::read_dir(fuzz.join(folder).join(target)) else { continue };
        files.extend(entries.map(|entry| entry.unwrap().path()));
    }
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

/// Bytes set, doubled or cut at places that a counter decides.
fn change(bytes: &[u8], number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 20) as usize % limit.max(1)
    };
    let mut changed = bytes.to_vec();
    for _ in 0..=below(3) {
        let at = below(changed.len());
        match below(6) {
            0 => changed.truncate(at),
            1 => changed.insert(at, below(256) as u8),
            2 => {
                let end = changed.len().min(at + 1 + below(24));
                let piece = changed[at.min(end)..end].to_vec();
                changed.splice(at..at, piece);
            }
            _ if changed.is_empty() => {}
            _ => changed[at] = [0, 1, 0x7f, 0xff, below(256) as u8][below(5)],
        }
    }
    changed
}

fn all(target: &str, decode: fn(&[u8]) -> usize) {
    let inputs = inputs(target);
    assert!(!inputs.is_empty(), "no seeds for {target}");
    for (path, bytes) in inputs {
        let is_whole = path.ends_with("intact")
            || path.ends_with("shared")
            || target == "frame" && path.parent().is_some_and(|p| p.ends_with("seeds/frame"));
        assert!(!is_whole || decode(&bytes) > 0, "{} gives no event", path.display());
        for number in 0..CHANGES {
            let changed = if number == 0 { bytes.clone() } else { change(&bytes, number) };
            let outcome = std::panic::catch_unwind(|| decode(&changed));
            assert!(outcome.is_ok(), "change {number} of {} panics", path.display());
        }
    }
}

#[test]
fn frames() {
    all("frame", decoders::frame);
}

#[test]
fn archives() {
    all("archive", decoders::archive);
}

#[test]
fn journals() {
    all("journal", decoders::journal);
}

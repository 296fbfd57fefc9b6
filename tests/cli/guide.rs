//! The command lines in the README and the guide: every flag exists, and blocks marked as runnable run.
//!
//! A block that begins with ```` ```sh runnable ```` is run by `sh` in a folder of its own, with the built program as
//! `rao-log`. The runnable blocks of one page run one after the other in the same folder.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::Place;

/// A block of shell commands.
struct Block {
    /// The number of its first line.
    line: usize,
    runnable: bool,
    text: String,
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut pages: Vec<PathBuf> = guide.filter(|path| path.extension().is_some_and(|end| end == "md")).collect();
    pages.push(root.join("README.md"));
    pages.sort();
    pages
}

fn blocks(page: &Path) -> Vec<Block> {
    let text = std::fs::read_to_string(page).unwrap();
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in text.lines().enumerate() {
        match &mut open {
            Some(_) if line.trim_start().starts_with("```") => blocks.extend(open.take()),
            Some(block) => block.text.push_str(&format!("{line}\n")),
            None => {
                let words: Vec<&str> = line.split_whitespace().collect();
                if matches!(words.first(), Some(&("```sh" | "```console"))) {
                    let runnable = words.get(1) == Some(&"runnable");
                    open = Some(Block { line: number + 2, runnable, text: String::new() });
                }
            }
        }
    }
    assert!(open.is_none(), "{} has a block without an end", page.display());
    blocks
}

/// The lines of a block that call the program, comments and what follows in a pipe cut off, continued lines joined.
fn calls(block: &Block) -> Vec<String> {
    let joined = block.text.replace("\\\n", " ");
    let lines = joined.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let lines = lines.map(|line| line.split(['|', '>', ';', '&']).next().unwrap_or_default().trim());
    let lines = lines.map(|line| line.strip_prefix("$ ").unwrap_or(line));
    lines.filter(|line| line.starts_with("rao-log ")).map(str::to_owned).collect()
}

#[test]
fn every_flag_that_is_shown_exists() {
    let place = Place::new();
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let mut checked = 0;
    for page in pages() {
        for block in blocks(&page) {
            for call in calls(&block) {
                let mut words = call.split_whitespace().skip(1);
                let command = words.next().unwrap_or_default().to_owned();
                let at = format!("{}:{}: {call}", page.display(), block.line);
                let help = helps.entry(command.clone()).or_insert_with(|| place.out(&[&command, "--help"]));
                let known: Vec<&str> = help.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).collect();
                for flag in words.filter(|word| word.starts_with("--")) {
                    let name = flag.split('=').next().unwrap_or(flag);
                    assert!(known.contains(&name), "{at}\n`rao-log {command}` has no {name}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 20, "only {checked} flags were found: are the blocks still marked as sh?");
}

#[test]
fn runnable_blocks_run() {
    let program = Path::new(assert_cmd::cargo::cargo_bin!("rao-log")).to_path_buf();
    let mut ran = 0;
    for page in pages() {
        let place = Place::new();
        let bin = place.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        // The program under its plain name, whatever else lies beside it.
        std::fs::hard_link(&program, bin.join("rao-log"))
            .or_else(|_| std::fs::copy(&program, bin.join("rao-log")).map(drop))
            .unwrap();
        let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
        for block in blocks(&page).into_iter().filter(|block| block.runnable) {
            let mut shell = Command::new("sh");
            for (name, _) in std::env::vars_os() {
                if name.to_string_lossy().starts_with("RAO_LOG_") {
                    shell.env_remove(name);
                }
            }
            let output =
                shell.args(["-euc", &block.text]).env("PATH", &path).current_dir(place.path()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}:{} does not run:\n{}{said}", page.display(), block.line, block.text);
            ran += 1;
        }
    }
    assert!(ran >= 2, "{ran} blocks are marked as runnable");
}

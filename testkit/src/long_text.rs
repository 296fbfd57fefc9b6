//! A world with one long text, agents that hand it down three levels, and how much memory a process takes.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rao_engine::EngineConfig;
use rao_engine::record::Plan;
use rao_engine::repl::CellLimits;
use rao_envs::judge::Panel;
use rao_envs::oolong::{Oolong, OolongConfig};
use rao_envs::{Environment, Selection, Split};
use serde_json::json;

use crate::{Played, config};

/// Gives the sum of its pieces' lengths; all pieces are handed on before the first is answered.
pub const SPLIT: &str = "size = len(context) // 7 + 1\nparts = await asyncio.gather(*[launch_subagent('Measure.', \
                         context[at:at + size]) for at in range(0, len(context), size)])\nfinish(sum(parts))";

/// How many nodes [`SPLIT`] makes.
pub const SPLIT_NODES: usize = 57;

/// Agents of the first two levels do as `cell` says; those of the third measure their text.
#[must_use]
pub fn agents(cell: &'static str) -> Played {
    Played::new(move |ask| if ask.node.ordinals().len() == 3 { "finish(len(context))" } else { cell }.to_owned())
}

/// A world with one long text.
pub struct LongText {
    /// A plan of its one task and rollout.
    pub plan: Plan,
    /// Bytes of the text, or of the file that it is in.
    pub bytes: usize,
}

impl LongText {
    /// A text of about `bytes`, in a file in `folder`.
    #[must_use]
    pub fn new(folder: &Path, bytes: usize) -> LongText {
        let line = |n: usize| format!("Speaker: this is line {n} of a very long text, n\u{e9}.\n");
        let text: String = (0..).map(line).take(bytes / 58).collect();
        let row = json!({"id": "a", "context_window_id": "w", "context_window_text": text, "question": "How long?",
            "answer": "1", "question_type": "x", "episodes": [1], "campaign": "campaign2"});
        std::fs::write(folder.join("rows.jsonl"), format!("{row}\n")).unwrap();
        let bytes = text.len();
        drop((text, row));
        LongText { bytes, ..LongText::of(folder) }
    }

    /// The world of a text that is in `folder` already.
    #[must_use]
    pub fn of(folder: &Path) -> LongText {
        let bytes = folder.join("rows.jsonl").metadata().unwrap().len();
        let data = Some(folder.to_owned());
        let env = Oolong::new(OolongConfig { data, max_context: u64::MAX, ..OolongConfig::default() }).unwrap();
        let selection = Selection { presets: vec!["1ep".into()], split: Split::Train, count: Some(1), seed: 1 };
        let tasks = env.tasks(&selection).unwrap();
        let cell = CellLimits { time_ms: 60_000, ..CellLimits::default() };
        let config = EngineConfig { max_depth: 2, cell, ..config() };
        let (env, panel) = (Arc::new(env), Panel::default());
        let plan = Plan { env, tasks, group_size: 1, config, seed: 1, only: None, width: 1, panel };
        LongText { plan, bytes: usize::try_from(bytes).unwrap() }
    }
}

/// Bytes of this process's memory, of those it takes now (`VmRSS:`) or took at most (`VmHWM:`).
fn memory(field: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// Does `work`; by how many bytes the process grew meanwhile, at most.
pub fn growth<T>(work: impl FnOnce() -> T) -> (usize, T) {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = memory("VmRSS:");
    let done = work();
    (memory("VmHWM:").saturating_sub(before), done)
}

/// Runs an ignored test of this program in a process of its own, with these environment variables, and shows what it
/// measured.
pub fn alone(test: &str, variables: &[(&str, &Path)]) {
    let mut own = Command::new(std::env::current_exe().unwrap());
    own.args([test, "--exact", "--ignored", "--nocapture"]).envs(variables.iter().copied());
    let ran = own.output().unwrap();
    let (said, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && said.contains("1 passed"), "{test}:\n{said}\n{errors}");
    said.lines().filter(|line| line.contains("times the text")).for_each(|line| println!("{test}: {line}"));
}

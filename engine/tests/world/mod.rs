//! The world and host of the reference cells, for tests of either engine.

use std::path::{Path, PathBuf};

use rao_engine::repl::{Call, CellLimits, CellOutput, Function, Progress, Repl, ReplEngine, Reply};
use rao_envs::{Args, ToolResult, Value};

/// The world that the cells play with, as `reference_runner.py` defines it.
struct World {
    items: Vec<(String, i64)>,
}

type Recipe = (&'static str, &'static [(&'static str, i64)], i64);

const RECIPES: &[Recipe] =
    &[("plank", &[("log", 1)], 4), ("stick", &[("plank", 2)], 4), ("torch", &[("stick", 1), ("coal", 1)], 4)];

fn raised(message: String) -> ToolResult {
    ToolResult::Raised { kind: "RuntimeError".to_owned(), message }
}

fn argument<'a>(args: &'a Args, at: usize, name: &str) -> Option<&'a Value> {
    args.args.get(at).or_else(|| args.kwargs.iter().find(|(key, _)| key == name).map(|(_, value)| value))
}

impl World {
    fn new() -> World {
        World { items: vec![("log".to_owned(), 3), ("coal".to_owned(), 1)] }
    }

    fn count(&mut self, item: &str) -> &mut i64 {
        let at = self.items.iter().position(|(name, _)| name == item).unwrap_or_else(|| {
            self.items.push((item.to_owned(), 0));
            self.items.len() - 1
        });
        &mut self.items[at].1
    }

    fn call(&mut self, call: &Call) -> ToolResult {
        let first = argument(&call.args, 0, if call.name == "search" { "q" } else { "item" });
        let text = first.and_then(Value::as_str).unwrap_or_default().to_owned();
        ToolResult::Value(match call.name.as_str() {
            "inventory" => Value::dict(self.items.iter().map(|(name, n)| (name.as_str(), Value::Int(*n)))),
            "get_info" => {
                let recipe = RECIPES.iter().find(|(name, ..)| *name == text);
                let needs = recipe.map(|(_, needs, _)| needs.iter().map(|(name, n)| (*name, Value::Int(*n))));
                Value::dict([
                    ("item", Value::str(text)),
                    ("needs", needs.map_or(Value::None, Value::dict)),
                    ("makes", Value::Int(recipe.map_or(0, |(.., makes)| *makes))),
                ])
            }
            "craft" => return self.craft(&text, argument(&call.args, 1, "count").and_then(Value::as_int).unwrap_or(1)),
            "search" => {
                let results = 0..=text.chars().count() % 3;
                Value::List(results.map(|k| Value::str(format!("result {k} for {text}"))).collect())
            }
            _ => return launch(&call.args),
        })
    }

    fn craft(&mut self, item: &str, count: i64) -> ToolResult {
        let Some((_, needs, makes)) = RECIPES.iter().find(|(name, ..)| *name == item) else {
            return raised(format!("unknown recipe: {item}"));
        };
        let batches = (count + makes - 1).div_euclid(*makes);
        for (ingredient, n) in *needs {
            let have = self.items.iter().find(|(name, _)| name == ingredient).map_or(0, |(_, n)| *n);
            if have < n * batches {
                return raised(format!("need {} {ingredient}, have {have}", n * batches));
            }
        }
        for (ingredient, n) in *needs {
            *self.count(ingredient) -= n * batches;
        }
        *self.count(item) += batches * makes;
        ToolResult::Value(Value::str(format!("crafted {} {item}", batches * makes)))
    }
}

fn launch(args: &Args) -> ToolResult {
    let goal = argument(args, 0, "goal").and_then(Value::as_str).unwrap_or_default();
    if goal.starts_with("FAIL") {
        return raised(format!("subagent failed: {goal}"));
    }
    let rest = args.kwargs.iter().filter(|(key, _)| key != "goal").map(|(key, value)| (key.as_str(), value.clone()));
    ToolResult::Value(Value::dict(std::iter::once(("goal", Value::str(goal))).chain(rest)))
}

/// In which order and grouping the host answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    FirstInFirstOut,
    LastInFirstOut,
    OneBatch,
    /// First in, first out, with the session saved and restored wherever it stands still.
    Restored,
    /// First in, first out, with the session put to rest wherever it stands still.
    Rested,
}

pub(crate) const ORDERS: [Order; 5] =
    [Order::FirstInFirstOut, Order::LastInFirstOut, Order::OneBatch, Order::Restored, Order::Rested];

pub(crate) struct Host<'a> {
    engine: &'a dyn ReplEngine,
    functions: Vec<Function>,
    repl: Box<dyn Repl>,
    world: World,
    order: Order,
    pub(crate) restores: usize,
}

impl<'a> Host<'a> {
    pub(crate) fn new(engine: &'a dyn ReplEngine, order: Order) -> Host<'a> {
        let sync = ["inventory", "get_info", "craft"].map(Function::sync);
        let functions: Vec<_> =
            sync.into_iter().chain(["search", "launch_subagent"].map(Function::asynchronous)).collect();
        let repl = engine.open(&functions, &limits(), 11).unwrap();
        Host { engine, functions, repl, world: World::new(), order, restores: 0 }
    }

    fn restore(&mut self) {
        if self.order == Order::Restored {
            let bytes = self.repl.snapshot().unwrap();
            self.repl = self.engine.restore(&self.functions, &limits(), &bytes).unwrap();
            self.restores += 1;
        }
        if self.order == Order::Rested {
            self.repl.rest().unwrap();
            assert_eq!(self.repl.held(), 0);
        }
    }

    /// Runs a cell; gives its text as the reference prints it.
    pub(crate) fn cell(&mut self, code: &str) -> String {
        shown(&self.output(code))
    }

    /// Runs a cell.
    pub(crate) fn output(&mut self, code: &str) -> CellOutput {
        let mut waiting: Vec<Call> = Vec::new();
        self.restore();
        let mut progress = self.repl.start(code).unwrap();
        loop {
            self.restore();
            let reply = match progress {
                Progress::Done(cell) => return cell,
                Progress::Call(call) if call.is_async => {
                    waiting.push(call);
                    Reply::Pending
                }
                Progress::Call(call) => Reply::Now(self.world.call(&call)),
                Progress::Blocked { pending } => {
                    let chosen = match self.order {
                        Order::OneBatch => pending,
                        Order::LastInFirstOut => pending[pending.len() - 1..].to_vec(),
                        _ => pending[..1].to_vec(),
                    };
                    let world = &mut self.world;
                    let mut answer = |number: u32| {
                        let at = waiting.iter().position(|call| call.call == number).unwrap();
                        (number, world.call(&waiting.remove(at)))
                    };
                    Reply::Answers(chosen.into_iter().map(&mut answer).collect())
                }
            };
            progress = self.repl.answer(reply).unwrap();
        }
    }
}

pub(crate) fn limits() -> CellLimits {
    CellLimits { output_chars: 1_000_000, time_ms: 10_000, ..CellLimits::default() }
}

pub(crate) fn shown(cell: &CellOutput) -> String {
    let mut text = cell.stdout.clone();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    match &cell.error {
        Some(error) if error.starts_with("SyntaxError") => text + "[error] SyntaxError\n",
        Some(error) => text + "[error] " + error + "\n",
        None => text,
    }
}

pub(crate) fn cells(source: &str) -> Vec<String> {
    let mut cells: Vec<String> = Vec::new();
    for line in source.split_inclusive('\n') {
        if line.starts_with("# %%") {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push_str(line);
        }
    }
    cells
}

/// Expected text of each cell, without its `[cell K]` line.
pub(crate) fn expected_cells(expected: &str) -> Vec<String> {
    let mut cells: Vec<String> = Vec::new();
    for line in expected.split_inclusive('\n') {
        if line.trim_end() == format!("[cell {}]", cells.len() + 1) {
            cells.push(String::new());
        } else if let Some(cell) = cells.last_mut() {
            cell.push_str(line);
        }
    }
    cells
}

pub(crate) fn files() -> Option<Vec<PathBuf>> {
    let Some(folder) = std::env::var_os("RAO_LOG_VECTORS") else {
        println!("skipped: RAO_LOG_VECTORS does not name the reference vectors");
        return None;
    };
    let entries = std::fs::read_dir(Path::new(&folder).join("repl")).expect("RAO_LOG_VECTORS is set but has no repl/");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.with_extension("expected").exists() && path.extension().is_some_and(|end| end == "py"));
    files.sort();
    assert!(!files.is_empty(), "no reference cells in {folder:?}");
    Some(files)
}

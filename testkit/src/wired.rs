use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rao_envs::{
    Args, Assessment, Defaults, Detached, Ending, EnvError, Environment, Episode, Goal, NodeKey, PromptStyle, Script,
    Selection, Task, Tool, ToolResult, Turn, Value,
};

use crate::env;

const TOOLS: &[Tool] = &[
    Tool { name: "craft", is_async: false },
    Tool { name: "get_info", is_async: false },
    Tool { name: "view_inventory", is_async: false },
    Tool { name: "look_up", is_async: false },
    Tool { name: "search", is_async: true },
    Tool { name: "count_calls", is_async: false },
];

/// TextCraft with two slow tools, as if they asked a server: `look_up(x)` and the asynchronous `search(x)` give a text
/// about `x` after that many milliseconds. `count_calls()` tells how many of them were answered.
pub struct Wired {
    inner: Arc<dyn Environment>,
    /// The most slow calls that ran at a time.
    pub most: Arc<AtomicUsize>,
    now: Arc<AtomicUsize>,
}

impl Wired {
    /// The world, with no call made.
    #[must_use]
    pub fn new() -> Self {
        Wired { inner: env(), most: Arc::default(), now: Arc::default() }
    }
}

impl Default for Wired {
    fn default() -> Self {
        Wired::new()
    }
}

impl Environment for Wired {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn config(&self) -> serde_json::Value {
        self.inner.config()
    }

    fn defaults(&self, presets: &[String]) -> Defaults {
        self.inner.defaults(presets)
    }

    fn default_preset(&self) -> &'static str {
        self.inner.default_preset()
    }

    fn tasks(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        self.inner.tasks(selection)
    }

    fn open(&self, task: &Task) -> Result<Box<dyn Episode>, EnvError> {
        let inner = self.inner.open(task)?;
        Ok(Box::new(WiredEpisode { inner, most: Arc::clone(&self.most), now: Arc::clone(&self.now), answered: 0 }))
    }
}

struct WiredEpisode {
    inner: Box<dyn Episode>,
    most: Arc<AtomicUsize>,
    now: Arc<AtomicUsize>,
    answered: i64,
}

fn is_slow(tool: &str) -> bool {
    matches!(tool, "look_up" | "search")
}

fn told(tool: &str, args: &Args) -> ToolResult {
    ToolResult::Value(Value::str(format!("{tool} {}", args.repr())))
}

impl Episode for WiredEpisode {
    fn root_goal(&self) -> Goal {
        self.inner.root_goal()
    }

    fn tools(&self) -> &'static [Tool] {
        TOOLS
    }

    fn system_prompt(&self, style: PromptStyle, recursive: bool) -> String {
        self.inner.system_prompt(style, recursive)
    }

    fn action_space(&self, style: PromptStyle, recursive: bool) -> String {
        self.inner.action_space(style, recursive)
    }

    fn enter(&mut self, node: &NodeKey, goal: &Goal) {
        self.inner.enter(node, goal);
    }

    fn call(&mut self, node: &NodeKey, tool: &str, args: &Args) -> ToolResult {
        match tool {
            "count_calls" => ToolResult::Value(Value::Int(self.answered)),
            _ if is_slow(tool) => {
                self.answered += 1;
                told(tool, args)
            }
            _ => self.inner.call(node, tool, args),
        }
    }

    fn absorb(&mut self, node: &NodeKey, tool: &str, args: &Args, result: &ToolResult) {
        match tool {
            "count_calls" => {}
            _ if is_slow(tool) => self.answered += 1,
            _ => self.inner.absorb(node, tool, args, result),
        }
    }

    fn delegate(&mut self, node: &NodeKey, args: &Args) -> Result<Goal, String> {
        self.inner.delegate(node, args)
    }

    fn verify(&mut self, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
        self.inner.verify(node, ending)
    }

    fn scripted(&self, script: Script, turn: &Turn<'_>) -> String {
        self.inner.scripted(script, turn)
    }

    fn detached(&self, _node: &NodeKey, tool: &str, args: &Args) -> Option<Detached> {
        if !is_slow(tool) {
            return None;
        }
        let delay = args.args.first().and_then(Value::as_int).and_then(|ms| u64::try_from(ms).ok()).unwrap_or(0);
        let (result, most, now) = (told(tool, args), Arc::clone(&self.most), Arc::clone(&self.now));
        Some(Box::new(move || {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(delay));
            now.fetch_sub(1, Ordering::SeqCst);
            result
        }))
    }
}

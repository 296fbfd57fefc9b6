//! The world again: calls, goals, verdicts and turn texts come from the environment and are compared with the log.

use rao_engine::repl::{CellOutput, Repl};
use rao_engine::{
    Asking, CallSite, EngineConfig, EngineError, Extension, Live, Outside, prompt_text, prompt_texts, protocol,
};
use rao_envs::judge::Ruling;
use rao_envs::{Args, Ending, Episode, Goal, ToolResult};
use rao_store::NodePath;
use rao_store::event::{Role, StopReason};

use super::bench::Bench;
use super::logged::Logged;

/// The `tools` outside: a real episode; turn texts are made again, and only their token ids come from the log, so that
/// no tokenizer is needed.
pub(super) struct Tools {
    logged: Logged,
    episode: Box<dyn Episode>,
    config: EngineConfig,
    bench: Bench,
}

impl Tools {
    pub(super) fn new(logged: Logged, episode: Box<dyn Episode>, config: EngineConfig) -> Self {
        Tools { logged, episode, bench: Bench::new(&config), config }
    }
}

impl Outside for Tools {
    fn root_goal(&mut self) -> Goal {
        self.episode.root_goal()
    }

    fn tools(&self) -> Vec<(String, bool)> {
        self.episode.tools().iter().map(|tool| (tool.name.to_owned(), tool.is_async)).collect()
    }

    fn enter(&mut self, node: &NodePath, goal: &Goal) {
        self.episode.enter(node.ordinals(), goal);
    }

    fn prompt(&mut self, asking: &Asking<'_>) -> Result<Option<Extension>, EngineError> {
        let (system, user) = prompt_texts(&*self.episode, &self.config, asking);
        let due = self.logged.due_extension(asking.node, Role::Prompt);
        Ok(due.map(|due| Extension { text: prompt_text(&system, &user), tokens: due.tokens }))
    }

    fn observation(
        &mut self,
        asking: &Asking<'_>,
        _stop: StopReason,
        output: &CellOutput,
    ) -> Result<Option<Extension>, EngineError> {
        let text = protocol::observation(self.config.prompt, asking.step + 1, output);
        let due = self.logged.due_extension(asking.node, Role::Observation);
        Ok(due.map(|due| Extension { text, tokens: due.tokens }))
    }

    fn call(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> ToolResult {
        self.logged.shared.borrow_mut().tool_calls += 1;
        self.episode.call(site.node.ordinals(), tool, args)
    }

    fn delegate(&mut self, site: &CallSite<'_>, args: &Args) -> Result<Goal, String> {
        self.episode.delegate(site.node.ordinals(), args)
    }

    fn context_variable(&self) -> Option<String> {
        self.episode.context_variable().map(str::to_owned)
    }

    fn verify(&mut self, node: &NodePath, ending: &Ending<'_>) -> Result<Option<Ruling>, EngineError> {
        let assessment = self.episode.verify(node.ordinals(), ending);
        let ruling = self.bench.rule(&self.logged, node, assessment)?;
        self.logged.shared.borrow_mut().judge_calls += u64::from(ruling.is_some());
        Ok(ruling)
    }

    fn is_verdict_next(&self, node: &NodePath) -> Option<bool> {
        self.logged.is_verdict_next(node)
    }

    fn episode(&self) -> Option<&dyn Episode> {
        Some(&*self.episode)
    }

    fn is_next(&self, site: &CallSite<'_>) -> Option<bool> {
        self.logged.is_next(site)
    }

    fn stand_in(&mut self, node: &NodePath, step: u32) -> Option<Box<dyn Repl>> {
        self.logged.stand_in(node, step)
    }
}

/// The `tokens` outside: everything live, token ids included; only cells that a limit ended still come from the log.
pub(super) struct Full {
    logged: Logged,
    live: Live,
    bench: Bench,
}

impl Full {
    pub(super) fn new(logged: Logged, live: Live, config: &EngineConfig) -> Self {
        Full { logged, live, bench: Bench::new(config) }
    }
}

impl Outside for Full {
    fn root_goal(&mut self) -> Goal {
        self.live.root_goal()
    }

    fn tools(&self) -> Vec<(String, bool)> {
        self.live.tools()
    }

    fn enter(&mut self, node: &NodePath, goal: &Goal) {
        self.live.enter(node, goal);
    }

    fn prompt(&mut self, asking: &Asking<'_>) -> Result<Option<Extension>, EngineError> {
        self.live.prompt(asking)
    }

    fn observation(
        &mut self,
        asking: &Asking<'_>,
        stop: StopReason,
        output: &CellOutput,
    ) -> Result<Option<Extension>, EngineError> {
        self.live.observation(asking, stop, output)
    }

    fn call(&mut self, site: &CallSite<'_>, tool: &str, args: &Args) -> ToolResult {
        self.logged.shared.borrow_mut().tool_calls += 1;
        self.live.call(site, tool, args)
    }

    fn delegate(&mut self, site: &CallSite<'_>, args: &Args) -> Result<Goal, String> {
        self.live.delegate(site, args)
    }

    fn context_variable(&self) -> Option<String> {
        self.live.context_variable()
    }

    fn verify(&mut self, node: &NodePath, ending: &Ending<'_>) -> Result<Option<Ruling>, EngineError> {
        let assessment = self.live.assess(node, ending);
        let ruling = self.bench.rule(&self.logged, node, assessment)?;
        self.logged.shared.borrow_mut().judge_calls += u64::from(ruling.is_some());
        Ok(ruling)
    }

    fn is_verdict_next(&self, node: &NodePath) -> Option<bool> {
        self.logged.is_verdict_next(node)
    }

    fn episode(&self) -> Option<&dyn Episode> {
        self.live.episode()
    }

    fn is_next(&self, site: &CallSite<'_>) -> Option<bool> {
        self.logged.is_next(site)
    }

    fn stand_in(&mut self, node: &NodePath, step: u32) -> Option<Box<dyn Repl>> {
        self.logged.stand_in(node, step)
    }
}

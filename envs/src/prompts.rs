//! Which of an environment's texts an agent is shown.

use crate::PromptStyle;

/// An environment's texts, for agents that can delegate and for those that cannot.
pub(crate) struct Prompts {
    /// The brief system prompt of an agent that works alone.
    pub(crate) brief_alone: &'static str,
    /// The brief system prompt of an agent that can delegate.
    pub(crate) brief_delegating: &'static str,
    /// The parts of the full system prompt of an agent that works alone.
    pub(crate) full_alone: &'static [&'static str],
    /// The parts of the full system prompt of an agent that can delegate.
    pub(crate) full_delegating: &'static [&'static str],
    /// Signatures of the tools, `finish` included.
    pub(crate) tools: &'static str,
    /// The signature of `launch_subagent`.
    pub(crate) launch: &'static str,
}

impl Prompts {
    /// The system prompt.
    pub(crate) fn system(&self, style: PromptStyle, recursive: bool) -> String {
        match (style, recursive) {
            (PromptStyle::Brief, false) => self.brief_alone.to_owned(),
            (PromptStyle::Brief, true) => self.brief_delegating.to_owned(),
            (PromptStyle::Full, false) => self.full_alone.concat(),
            (PromptStyle::Full, true) => self.full_delegating.concat(),
        }
    }

    /// The signatures that the first user turn lists; none under brief prompts.
    pub(crate) fn action_space(&self, style: PromptStyle, recursive: bool) -> String {
        match (style, recursive) {
            (PromptStyle::Brief, _) => String::new(),
            (PromptStyle::Full, false) => self.tools.to_owned(),
            (PromptStyle::Full, true) => format!("{}{}", self.tools, self.launch),
        }
    }
}

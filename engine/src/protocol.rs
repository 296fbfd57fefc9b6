//! The agent protocol: how turns are written and read.
//!
//! An action is `<thought>..</thought>` followed by `<python>..</python>`; one cell a turn. The first user turn states
//! the task, the budget and the signatures; each later one shows what the last cell gave.

use rao_envs::{Goal, PromptStyle};

use crate::repl::CellOutput;

/// Ends a cell, and with it a completion.
pub const CELL_END: &str = "</python>";
const CELL_START: &str = "<python>";

/// The code of an action.
///
/// Reading is lenient: the thought may be missing or open, and a cell that was cut off before `</python>` still counts,
/// but without `<python>` there is no cell.
#[must_use]
pub fn code_of(action: &str) -> Option<&str> {
    let (_, rest) = action.split_once(CELL_START)?;
    let code = rest.split(CELL_END).next().unwrap_or(rest);
    Some(code.strip_prefix('\n').unwrap_or(code).trim_end())
}

/// The error shown to an agent whose action has no cell.
pub const NO_CELL: &str =
    "No <python> block was found. Answer with <thought>..</thought> and then one cell: <python>..</python>.";

/// The error shown to an agent whose completion was cut off inside its cell.
pub const CUT_OFF: &str =
    "The completion reached its token limit before </python>, so nothing of the cell was run. Write a shorter cell.";

/// The first user turn. `ancestors` are goals to be shown below the node's own, the closest first.
#[must_use]
pub fn first_turn(style: PromptStyle, goal: &Goal, ancestors: &[String], action_space: &str, budget: u32) -> String {
    let mut task = goal.text.clone();
    for (above, ancestor) in ancestors.iter().enumerate() {
        if above == 0 {
            task.push_str("\n\nThis is a part of larger tasks, the closest first:");
        }
        task.push_str(&format!("\nLevel {}: {ancestor}", ancestors.len() - 1 - above));
    }
    match style {
        PromptStyle::Full => format!(
            "# Task\n{task}\n\nBudget: You have a total budget of {budget} steps to complete the task.\n\n\
             # Action Space\n{action_space}\n\n\
             Answer every turn with your reasoning and one Python cell:\n\
             <thought>your reasoning</thought>\n<python>your code</python>"
        ),
        PromptStyle::Brief => task,
    }
}

/// The user turn after a cell.
#[must_use]
pub fn observation(style: PromptStyle, cell: u32, output: &CellOutput) -> String {
    let mut text = format!("[Cell {cell} Output]\n");
    text.push_str(output.stdout.trim_end_matches('\n'));
    if let Some(error) = &output.error {
        if !output.stdout.is_empty() {
            text.push('\n');
        }
        text.push_str("Error: ");
        text.push_str(error);
    } else if output.stdout.is_empty() {
        text.push_str("(No output)");
    }
    if style == PromptStyle::Full {
        text.push_str("\n\nProvide your next action.");
    }
    text
}

/// Whether the cells end in a pattern of one to three cells that stands there at least four times in a row.
#[must_use]
pub fn is_stuck(cells: &[&str]) -> bool {
    const REPEATS: usize = 4;
    (1..=3).any(|period| {
        let window = period * REPEATS;
        cells.len().checked_sub(window).is_some_and(|start| {
            let tail = cells.get(start..).unwrap_or_default();
            tail.iter().zip(tail.iter().skip(period)).all(|(a, b)| a == b)
        })
    })
}

/// What a parent is given for a child that ended without calling `finish`.
#[must_use]
pub fn unfinished(outcome: rao_store::event::Outcome) -> &'static str {
    use rao_store::event::Outcome;
    match outcome {
        Outcome::Finished => "The subagent finished without a value.",
        Outcome::OutOfSteps => "The subagent ran out of steps before it called finish.",
        Outcome::ContextOverflow => "The subagent's context window overflowed before it called finish.",
        Outcome::Stuck => "The subagent repeated itself without progress and was stopped.",
        Outcome::Cancelled => "The subagent was cancelled.",
    }
}

/// The texts of refused launches. They name the goal, so that an agent that launched several knows which was refused.
pub mod refusal {
    /// The child would be too deep.
    #[must_use]
    pub fn depth(goal: &str, max_depth: u32) -> String {
        format!(
            "Launching a subagent for goal {goal:?} would exceed the maximum allowed depth of {max_depth}. You should \
             perform the task yourself."
        )
    }

    /// The budget does not cover the child.
    #[must_use]
    pub fn budget(goal: &str, remaining: u32) -> String {
        format!(
            "Not enough budget to launch subagent for goal {goal:?}: {remaining} steps remain. You could try a smaller \
             number of steps or perform the task yourself."
        )
    }

    /// The tree is full.
    #[must_use]
    pub fn nodes(goal: &str, max_nodes: u32) -> String {
        format!(
            "Launching a subagent for goal {goal:?} would exceed the maximum of {max_nodes} agents. You should perform \
             the task yourself."
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_read_leniently() {
        assert_eq!(code_of("<thought>t</thought>\n<python>\nx = 1\n</python>"), Some("x = 1"));
        assert_eq!(code_of("<python>x</python> and more"), Some("x"));
        assert_eq!(code_of("<python>cut off"), Some("cut off"));
        assert_eq!(code_of("<thought>only words</thought>"), None);
        assert_eq!(code_of("<python>  indented\n</python>"), Some("  indented"));
    }

    #[test]
    fn the_loop_guard_needs_four_repeats_of_at_most_three_cells() {
        assert!(!is_stuck(&["a", "a", "a"]));
        assert!(is_stuck(&["x", "a", "a", "a", "a"]));
        assert!(!is_stuck(&["a", "a", "a", "a", "b"]));
        assert!(is_stuck(&["a", "b", "a", "b", "a", "b", "a", "b"]));
        let three = ["a", "b", "c"].repeat(4);
        assert!(is_stuck(&three));
        let four = ["a", "b", "c", "d"].repeat(4);
        assert!(!is_stuck(&four));
    }

    #[test]
    fn observations_show_output_error_and_emptiness() {
        let output = |stdout: &str, error: Option<&str>| CellOutput {
            stdout: stdout.into(),
            error: error.map(Into::into),
            limit: None,
            rejected: false,
        };
        assert_eq!(observation(PromptStyle::Brief, 1, &output("hi\n", None)), "[Cell 1 Output]\nhi");
        assert_eq!(observation(PromptStyle::Brief, 2, &output("", None)), "[Cell 2 Output]\n(No output)");
        assert_eq!(
            observation(PromptStyle::Full, 3, &output("a", Some("ValueError: b"))),
            "[Cell 3 Output]\na\nError: ValueError: b\n\nProvide your next action."
        );
    }
}

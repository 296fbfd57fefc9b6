//! Between the environments' values and the log's JSON.

use rao_envs::{Args, Goal, Text, ToolResult, Value};
use rao_store::NodePath;
use rao_store::event::Answer;

use crate::error::EngineError;
use crate::rollout::LAUNCH;

fn stored(node: &NodePath, what: &'static str, reason: impl ToString) -> EngineError {
    EngineError::Stored { node: node.clone(), what, reason: reason.to_string() }
}

/// The log's form of a call's result.
#[must_use]
pub fn from_result(result: &ToolResult) -> Answer {
    match result {
        ToolResult::Value(value) => Answer::Value(value.to_json_text()),
        ToolResult::Raised { kind, message } => Answer::Raised { kind: kind.clone(), message: message.clone() },
    }
}

/// A call's result from the log.
///
/// # Errors
/// When the stored JSON is no value.
pub fn to_result(node: &NodePath, answer: &Answer) -> Result<ToolResult, EngineError> {
    match answer {
        Answer::Value(json) => Ok(ToolResult::Value(value(node, json)?)),
        Answer::Raised { kind, message } => Ok(ToolResult::Raised { kind: kind.clone(), message: message.clone() }),
    }
}

/// A value from the log.
///
/// # Errors
/// When the stored JSON is no value.
pub fn value(node: &NodePath, json: &str) -> Result<Value, EngineError> {
    Value::from_json_text(json).map_err(|e| stored(node, "a value", e))
}

/// The log's form of a call's arguments. Launches hand on texts: pieces of `whole` are written as their places there.
#[must_use]
pub fn args_text(name: &str, args: &Args, whole: &str) -> String {
    if name == LAUNCH && !whole.is_empty() { args.to_json_text_within(whole) } else { args.to_json_text() }
}

/// A call's arguments from the log.
///
/// # Errors
/// When the stored JSON is no argument list.
pub fn args(node: &NodePath, json: &str) -> Result<Args, EngineError> {
    Args::from_json_text(json).map_err(|e| stored(node, "a call's arguments", e))
}

/// A node's goal from the log.
///
/// # Errors
/// When the stored targets are no JSON.
pub fn goal(node: &NodePath, text: &str, targets: &str, context: impl Into<Text>) -> Result<Goal, EngineError> {
    let targets = serde_json::from_str(targets).map_err(|e| stored(node, "the goal's targets", e))?;
    Ok(Goal { text: text.to_owned(), targets, context: context.into() })
}

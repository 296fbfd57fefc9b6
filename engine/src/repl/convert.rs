//! Values across the border. Inside the interpreter a value may refer to the same list a million times; here every
//! reference is a copy, so the way out has a budget.

use std::fmt::Write;

use monty_types::{CallArgs, MontyObject, ObjectRef};
use rao_envs::{Args, Value};

/// Values that one call may carry out of the interpreter, shared ones counted every time.
const MAX_NODES: usize = 100_000;

/// Bytes of text that one call may carry out.
const MAX_TEXT: usize = 4 << 20;

/// Nesting that one call may carry out, in levels of its JSON form (a tuple takes two, an unusual dictionary three);
/// JSON readers stop at 128.
const MAX_DEPTH: usize = 110;

/// Characters of the `repr` of a value that has no counterpart.
const MAX_REPR: usize = 10_000;

/// Why arguments cannot leave the interpreter; the text is for the agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge(pub(super) &'static str);

struct Budget {
    nodes: usize,
    text: usize,
}

impl Budget {
    fn spend(&mut self, text: usize) -> Result<(), TooLarge> {
        self.nodes =
            self.nodes.checked_sub(1).ok_or(TooLarge("more than 100,000 values, shared ones counted each time"))?;
        self.text = self.text.checked_sub(text).ok_or(TooLarge("more than 4 MiB of text"))?;
        Ok(())
    }
}

/// A call's arguments as plain values.
///
/// # Errors
/// [`TooLarge`] if they go over the budget.
pub(super) fn args_out(args: &CallArgs) -> Result<Args, TooLarge> {
    let mut budget = Budget { nodes: MAX_NODES, text: MAX_TEXT };
    let positional = args.args().map(|value| value_out(value, 3, &mut budget)).collect::<Result<_, _>>()?;
    let mut kwargs = Vec::new();
    for (name, value) in args.kwargs() {
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        kwargs.push((name, value_out(value, 3, &mut budget)?));
    }
    Ok(Args { args: positional, kwargs })
}

fn value_out(value: ObjectRef<'_>, depth: usize, budget: &mut Budget) -> Result<Value, TooLarge> {
    if depth > MAX_DEPTH {
        return Err(TooLarge("nested too deeply"));
    }
    let text = value.as_str();
    budget.spend(text.map_or(0, str::len))?;
    if let Some(text) = text {
        return Ok(Value::Str(text.to_owned()));
    }
    if let Some(truth) = value.as_bool() {
        return Ok(Value::Bool(truth));
    }
    let kind = value.type_name();
    Ok(match kind {
        "NoneType" => Value::None,
        "int" => value.as_int().map_or_else(|| opaque(value), Value::Int),
        "float" => value.as_float().map_or_else(|| opaque(value), Value::Float),
        "list" => Value::List(items_out(value, depth + 1, budget)?),
        "tuple" => Value::Tuple(items_out(value, depth + 2, budget)?),
        "dict" => Value::Dict(pairs_out(value, depth + 3, budget)?),
        _ => opaque(value),
    })
}

fn items_out(value: ObjectRef<'_>, depth: usize, budget: &mut Budget) -> Result<Vec<Value>, TooLarge> {
    value.items().unwrap_or_default().into_iter().map(|item| value_out(item, depth, budget)).collect()
}

fn pairs_out(value: ObjectRef<'_>, depth: usize, budget: &mut Budget) -> Result<Vec<(Value, Value)>, TooLarge> {
    let pairs = value.pairs().unwrap_or_default().into_iter();
    pairs.map(|(key, value)| Ok((value_out(key, depth, budget)?, value_out(value, depth, budget)?))).collect()
}

/// Stops a `repr` at [`MAX_REPR`] characters: it repeats shared parts, so it has no bound of its own.
struct Short {
    text: String,
    room: usize,
}

impl Write for Short {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let cut = part.char_indices().nth(self.room).map(|(at, _)| at);
        self.text.push_str(&part[..cut.unwrap_or(part.len())]);
        self.room = self.room.saturating_sub(part.chars().count());
        if cut.is_some() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

fn opaque(value: ObjectRef<'_>) -> Value {
    let mut short = Short { text: String::new(), room: MAX_REPR };
    if write!(short, "{value}").is_err() {
        short.text.push_str("...");
    }
    Value::Opaque { type_name: value.type_name().to_owned(), repr: short.text }
}

/// The interpreter's form of a plain value. Values without a counterpart arrive as the text of their `repr`.
///
/// Everything is copied: the session is charged for what it frees later, and the original is the host's to drop.
pub(super) fn value_in(value: &Value) -> MontyObject {
    match value {
        Value::None => MontyObject::none(),
        Value::Bool(truth) => MontyObject::bool(*truth),
        Value::Int(number) => MontyObject::int(*number),
        Value::Float(number) => MontyObject::float(*number),
        Value::Str(text) => MontyObject::string(text.as_str()),
        Value::List(items) => MontyObject::list(items.iter().map(value_in)),
        Value::Tuple(items) => MontyObject::tuple(items.iter().map(value_in)),
        Value::Dict(pairs) => MontyObject::dict(pairs.iter().map(|(key, value)| (value_in(key), value_in(value)))),
        Value::Opaque { repr, .. } => MontyObject::string(repr.as_str()),
    }
}

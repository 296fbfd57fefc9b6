//! Values across the border. Inside the interpreter a value may refer to the same list a million times; here every
//! reference is a copy, so the way out has a budget.

use std::fmt::Write;

use monty_types::unstable::{self, MontyNode};
use monty_types::{CallArgs, MontyObject, ObjectRef};
use rao_envs::{Args, Text, Value};

/// Values that one call may carry out of the interpreter, shared ones counted every time.
const MAX_NODES: usize = 100_000;

/// Bytes of text that one call may carry out, pieces of the host's own texts apart.
const MAX_TEXT: usize = 4 << 20;

/// Strings of this many bytes are looked for in the host's own texts, and are moved out instead of copied.
const LONG: usize = 64 << 10;

/// Nesting that one call may carry out, in levels of its JSON form (a tuple takes two, an unusual dictionary three);
/// JSON readers stop at 128.
const MAX_DEPTH: usize = 110;

/// Characters of the `repr` of a value that has no counterpart.
const MAX_REPR: usize = 10_000;

/// Why arguments cannot leave the interpreter; the text is for the agent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge(pub(super) &'static str);

struct Budget<'a> {
    nodes: usize,
    text: usize,
    /// Pieces of these are not counted as text.
    hosts: &'a [Text],
}

impl Budget<'_> {
    fn spend(&mut self, text: &str) -> Result<(), TooLarge> {
        self.nodes =
            self.nodes.checked_sub(1).ok_or(TooLarge("more than 100,000 values, shared ones counted each time"))?;
        let is_hosts = text.len() >= LONG && self.hosts.iter().any(|host| host.locate(text).is_some());
        let counted = if is_hosts { 0 } else { text.len() };
        self.text = self.text.checked_sub(counted).ok_or(TooLarge("more than 4 MiB of text"))?;
        Ok(())
    }
}

/// A call's arguments as plain values. `hosts` are texts whose pieces do not count as carried out. Long strings that stand
/// there once are moved: their bytes, which were the session's and are now the host's, are added to `moved`.
///
/// # Errors
/// [`TooLarge`] if they go over the budget.
pub(super) fn args_out(args: &mut CallArgs, hosts: &[Text], moved: &mut usize) -> Result<Args, TooLarge> {
    let mut budget = Budget { nodes: MAX_NODES, text: MAX_TEXT, hosts };
    let mut strings = strings_out(args, &mut budget, moved)?.into_iter();
    let mut positional = Vec::new();
    for value in args.args() {
        positional.push(match strings.next().flatten() {
            Some(text) => Value::Str(text),
            None => value_out(value, 3, &mut budget)?,
        });
    }
    let mut kwargs = Vec::new();
    for (name, value) in args.kwargs() {
        let name = name.as_str().map_or_else(|| name.to_string(), str::to_owned);
        let value = match strings.next().flatten() {
            Some(text) => Value::Str(text),
            None => value_out(value, 3, &mut budget)?,
        };
        kwargs.push((name, value));
    }
    Ok(Args { args: positional, kwargs })
}

/// The long strings among the arguments, by position and then by keyword. Those that several arguments share, or that stand
/// beside lists and the like, which may share them, are left to be copied.
fn strings_out(
    args: &mut CallArgs,
    budget: &mut Budget<'_>,
    moved: &mut usize,
) -> Result<Vec<Option<String>>, TooLarge> {
    let (graph, positional, keyword) = unstable::call_args_parts_mut(args);
    if !graph.nodes().iter().all(MontyNode::is_leaf) {
        return Ok(Vec::new());
    }
    let names: Vec<_> = keyword.iter().map(|(name, _)| *name).collect();
    let values: Vec<_> = positional.iter().copied().chain(keyword.iter().map(|(_, value)| *value)).collect();
    let mut strings = Vec::with_capacity(values.len());
    for id in &values {
        let is_alone = values.iter().chain(&names).filter(|known| *known == id).count() == 1;
        strings.push(match graph.nodes_mut().get_mut(id.index()) {
            Some(MontyNode::String(text)) if is_alone && text.len() >= LONG => {
                budget.spend(text)?;
                *moved += text.capacity();
                Some(std::mem::take(text))
            }
            _ => None,
        });
    }
    Ok(strings)
}

fn value_out(value: ObjectRef<'_>, depth: usize, budget: &mut Budget<'_>) -> Result<Value, TooLarge> {
    if depth > MAX_DEPTH {
        return Err(TooLarge("nested too deeply"));
    }
    let text = value.as_str();
    budget.spend(text.unwrap_or_default())?;
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

fn items_out(value: ObjectRef<'_>, depth: usize, budget: &mut Budget<'_>) -> Result<Vec<Value>, TooLarge> {
    value.items().unwrap_or_default().into_iter().map(|item| value_out(item, depth, budget)).collect()
}

fn pairs_out(value: ObjectRef<'_>, depth: usize, budget: &mut Budget<'_>) -> Result<Vec<(Value, Value)>, TooLarge> {
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

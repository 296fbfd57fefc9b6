//! The report of the first event that differs.

use std::fmt;

use rao_store::event::{Body, Event};
use rao_store::{NodePath, RolloutId, RunId, Seq};
use serde_json::Value;

/// How many events before the difference the report shows.
const BEFORE: usize = 5;
/// The longest value that the report shows, in characters.
const SHOWN: usize = 200;

/// The first event in which a replay differs from the log.
#[derive(Clone, Debug, PartialEq)]
pub struct Divergence {
    /// The run.
    pub run: RunId,
    /// The rollout.
    pub rollout: RolloutId,
    /// The node that the stored event belongs to, if it belongs to one.
    pub node: Option<NodePath>,
    /// The node's step.
    pub step: Option<u32>,
    /// The event's position.
    pub seq: Seq,
    /// The stored event's kind; `end of log` if the log has none there.
    pub kind: String,
    /// The first differing field, such as `logprobs[12]`; `kind` if another event came.
    pub field: String,
    /// What the log has.
    pub expected: String,
    /// What the replay made.
    pub got: String,
    /// For token ids, where the tokenizer is known: what the log and the replay have around the place, as text, with `⟦` in
    /// front of the first token that differs.
    pub decoded: Option<(String, String)>,
    /// The token ids to decode: those before the place, then those from it on, of the log and of the replay.
    pub(super) ids: Option<[(Vec<u32>, Vec<u32>); 2]>,
    /// The events before it, a line each.
    pub before: Vec<String>,
    /// A likely cause, where one is known.
    pub cause: Option<String>,
}

impl Divergence {
    fn at(events: &[Event], at: usize, field: String, expected: String, got: String) -> Self {
        let stored = events.get(at).map(|event| &event.body);
        let json = stored.map(Body::to_json).unwrap_or_default();
        let before = events.get(at.saturating_sub(BEFORE)..at.min(events.len())).unwrap_or_default();
        Divergence {
            run: RunId([0; 16]),
            rollout: RolloutId(0),
            node: node_of(&json),
            step: json.get("step").and_then(Value::as_u64).and_then(|step| u32::try_from(step).ok()),
            seq: Seq(at as u64),
            kind: stored.map_or("end of log", |body| body.kind().name()).to_owned(),
            field,
            expected,
            got,
            decoded: None,
            ids: None,
            before: before.iter().map(line).collect(),
            cause: None,
        }
    }

    /// Spells out the token ids around the difference.
    pub(super) fn decode(&mut self, text: &dyn Fn(&[u32]) -> String) {
        if let Some(sides) = &self.ids {
            let [expected, got] = sides.each_ref().map(|(before, from)| format!("{}⟦{}", text(before), text(from)));
            self.decoded = Some((expected, got));
        }
    }

    pub(super) fn placed(mut self, run: RunId, rollout: RolloutId) -> Self {
        (self.run, self.rollout) = (run, rollout);
        self
    }

    /// Something other than an event came, or an event of another kind than the log has.
    pub(super) fn of_kind(events: &[Event], at: usize, got: String) -> Self {
        let expected = events.get(at).map_or("the end of the log".to_owned(), |event| brief(&event.body));
        Divergence::at(events, at, "kind".into(), expected, got)
    }

    /// An event came where the log has none.
    pub(super) fn extra(events: &[Event], at: usize, got: &Body) -> Self {
        Divergence::of_kind(events, at, brief(got))
    }

    /// Another event came than the log has.
    pub(super) fn of_bodies(events: &[Event], at: usize, got: &Body) -> Self {
        let Some(expected) = events.get(at).map(|event| &event.body) else {
            return Divergence::extra(events, at, got);
        };
        if expected.kind() != got.kind() {
            return Divergence::of_kind(events, at, brief(got));
        }
        match first_difference(&expected.to_json(), &got.to_json(), String::new()) {
            Some((field, left, right)) => {
                let ids =
                    token_place(&field).and_then(|place| Some([around_id(expected, place)?, around_id(got, place)?]));
                Divergence { ids, ..Divergence::at(events, at, field, left, right) }
            }
            None => {
                // JSON shows 0.0 and -0.0 apart, but not every bit pattern of a NaN.
                let text = "a number with other bits".to_owned();
                Divergence::at(events, at, "bits".into(), text.clone(), text)
            }
        }
    }
}

impl fmt::Display for Divergence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the replay differs from the log at {}/{}#{}", self.run, self.rollout, self.seq)?;
        if let Some(node) = &self.node {
            write!(f, "  node      {node}")?;
            if let Some(step) = self.step {
                write!(f, ", step {step}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "  event     {}", self.kind)?;
        writeln!(f, "  field     {}", self.field)?;
        writeln!(f, "  expected  {}", self.expected)?;
        write!(f, "  got       {}", self.got)?;
        if let Some((expected, got)) = &self.decoded {
            write!(f, "\n  decoded   {expected:?}\n  and       {got:?}")?;
        }
        if let Some(cause) = &self.cause {
            write!(f, "\n  likely    {cause}")?;
        }
        if !self.before.is_empty() {
            write!(f, "\n  before it")?;
            for line in &self.before {
                write!(f, "\n    {line}")?;
            }
        }
        Ok(())
    }
}

/// The position in `tokens[12]`.
fn token_place(field: &str) -> Option<usize> {
    field.strip_prefix("tokens[")?.strip_suffix(']')?.parse().ok()
}

/// The ids of a body around a position: some before it, and some from it on.
fn around_id(body: &Body, place: usize) -> Option<(Vec<u32>, Vec<u32>)> {
    let tokens = match body {
        Body::ContextExtended(more) => &more.tokens,
        Body::ActionSampled(action) => &action.tokens,
        _ => return None,
    };
    let ids = |from: usize, to: usize| {
        let to = to.min(tokens.len());
        tokens.get(from.min(to)..to).unwrap_or_default().iter().map(|token| token.0).collect()
    };
    Some((ids(place.saturating_sub(16), place), ids(place, place + 8)))
}

fn node_of(body: &Value) -> Option<NodePath> {
    let ordinals = body.get("node")?.as_array()?;
    let text: Vec<String> = ordinals.iter().map(ToString::to_string).collect();
    text.join(".").parse().ok()
}

fn line(event: &Event) -> String {
    format!("#{} {}", event.seq, brief(&event.body))
}

/// An event in a line: its kind, its node and its most telling fields.
fn brief(body: &Body) -> String {
    let json = body.to_json();
    let mut text = body.kind().name().to_owned();
    if let Some(node) = node_of(&json) {
        text.push_str(&format!(" node {node}"));
    }
    for field in ["step", "call", "name", "args", "text", "code", "stdout", "outcome", "score", "reward"] {
        if let Some(value) = json.get(field).filter(|value| !value.is_null()) {
            text.push_str(&format!(" {field}={}", cut(&value.to_string(), 60)));
        }
    }
    text
}

fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most).collect();
    format!("{head}…")
}

/// The first place, in layout order, where two bodies differ: path, expected, got. A long list is shown around it.
fn first_difference(expected: &Value, got: &Value, path: String) -> Option<(String, String, String)> {
    match (expected, got) {
        (Value::Object(a), Value::Object(b)) => a.iter().find_map(|(key, a)| {
            let name = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            first_difference(a, b.get(key).unwrap_or(&Value::Null), name)
        }),
        (Value::Array(a), Value::Array(b)) => {
            let at = (0..a.len().max(b.len())).find(|i| a.get(*i) != b.get(*i))?;
            let name = format!("{path}[{at}]");
            match (a.get(at), b.get(at)) {
                (Some(x), Some(y)) if x.is_object() || x.is_array() => first_difference(x, y, name),
                _ => Some((name, around(a, at), around(b, at))),
            }
        }
        (Value::String(a), Value::String(b)) if a != b => Some((path, around_text(a, b), around_text(b, a))),
        _ if expected == got => None,
        _ => Some((path, cut(&expected.to_string(), SHOWN), cut(&got.to_string(), SHOWN))),
    }
}

/// Up to three list items on either side of `at`.
fn around(list: &[Value], at: usize) -> String {
    let first = at.saturating_sub(3);
    let shown = list.get(first..list.len().min(at + 4)).unwrap_or_default();
    let items: Vec<String> = shown.iter().map(ToString::to_string).collect();
    let head = if first > 0 { "… " } else { "" };
    let tail = if at + 4 < list.len() { " …" } else { "" };
    format!("{head}{}{tail} ({} items)", items.join(" "), list.len())
}

/// A text from a little before the place where it parts from `other`.
fn around_text(text: &str, other: &str) -> String {
    let same = text.chars().zip(other.chars()).take_while(|(a, b)| a == b).count();
    let first = same.saturating_sub(40);
    let shown: String = text.chars().skip(first).take(SHOWN).collect();
    let head = if first > 0 { "…" } else { "" };
    let tail = if text.chars().count() > first + SHOWN { "…" } else { "" };
    format!("{head}{shown:?}{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_difference_is_named_with_its_neighbours() {
        let a = json!({"node": [0], "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]});
        let b = json!({"node": [0], "tokens": [1, 2, 3, 4, 5, 0, 7, 8, 9]});
        let (path, expected, got) = first_difference(&a, &b, String::new()).unwrap();
        assert_eq!(path, "tokens[5]");
        assert_eq!(expected, "… 3 4 5 6 7 8 9 (9 items)");
        assert_eq!(got, "… 3 4 5 0 7 8 9 (9 items)");
    }

    #[test]
    fn texts_are_shown_from_where_they_part() {
        let a = "x".repeat(100) + "left";
        let b = "x".repeat(100) + "right";
        assert_eq!(around_text(&a, &b), format!("…{:?}", "x".repeat(40) + "left"));
    }
}

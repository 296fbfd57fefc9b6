//! Events as JSON for people and programs: ids, digests and stored JSON in the spelling that the commands use.

use rao_store::event::Body;
use rao_store::{Digest, NodePath, RunId};
use serde_json::Value;

/// Fields that hold JSON as text.
const JSON_FIELDS: [&str; 7] = ["targets", "evidence", "args", "env_config", "engine_config", "task", "config"];

/// An event's body, readable.
pub(crate) fn body(body: &Body) -> Value {
    readable("", body.to_json())
}

/// The node that an event belongs to, if it belongs to one.
pub(crate) fn node(body: &Body) -> Option<NodePath> {
    body_field(body, "node").as_ref().and_then(Value::as_str).and_then(|path| path.parse().ok())
}

fn body_field(body: &Body, name: &str) -> Option<Value> {
    body.to_json().get_mut(name).map(|value| readable(name, value.take()))
}

fn readable(name: &str, value: Value) -> Value {
    match value {
        Value::Array(items) => match spelled(name, &items) {
            Some(text) => Value::String(text),
            None => Value::Array(items.into_iter().map(|item| readable("", item)).collect()),
        },
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(name, value)| {
                let value = readable(&name, value);
                (name, value)
            });
            Value::Object(fields.collect())
        }
        Value::String(text) if JSON_FIELDS.contains(&name) => {
            serde_json::from_str(&text).unwrap_or(Value::String(text))
        }
        other => other,
    }
}

/// Node paths, run ids and digests are lists of numbers in the stored form.
fn spelled(name: &str, items: &[Value]) -> Option<String> {
    if matches!(name, "tokens" | "logprobs" | "rollouts") {
        return None;
    }
    if name == "node" {
        let ordinals: Option<Vec<String>> = items.iter().map(|item| item.as_u64().map(|n| n.to_string())).collect();
        return ordinals.map(|ordinals| ordinals.join("."));
    }
    let bytes: Option<Vec<u8>> = items.iter().map(|item| item.as_u64().and_then(|n| u8::try_from(n).ok())).collect();
    let bytes = bytes?;
    if let Ok(digest) = <[u8; 32]>::try_from(bytes.as_slice()) {
        return Some(Digest(digest).to_string());
    }
    <[u8; 16]>::try_from(bytes.as_slice()).ok().map(|run| RunId(run).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rao_store::event::{NodeSpawned, RunFinished};
    use rao_store::{Depth, NodePath};

    #[test]
    fn paths_digests_and_stored_json_are_spelled_out() {
        let spawned = NodeSpawned {
            node: NodePath::root().child(2),
            call: Some((1, 0)),
            goal: "g".into(),
            targets: "{\"a\":1}".into(),
            context: "".into(),
            depth: Depth(1),
            budget: 3,
        };
        let spawned = Body::from(spawned);
        let json = body(&spawned);
        assert_eq!((&json["node"], &json["targets"]["a"]), (&Value::from("0.2"), &Value::from(1)));
        assert_eq!(node(&spawned), Some(NodePath::root().child(2)));
        let end = body(&Body::from(RunFinished { rollouts: 1, content: Digest([171; 32]) }));
        assert_eq!(end["content"], "ab".repeat(32));
    }
}

//! What a node works on, as its `node_spawned` event holds it, and that kind's two layouts.
//!
//! Layout 1 holds the text itself. Layout 2 holds the place of the text in the parent's, so a text that is handed down
//! piece by piece, or whole, stands in a log once however deep the tree is.

use std::sync::Arc;

use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::tree::NodeSpawned;
use super::{Body, BodyError, Kind, MAX_BODY};
use crate::id::{Depth, NodePath};

/// What the parent passed along.
///
/// As JSON the text itself, or `{"$slice": [from, to]}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// The text itself. It is shared, not copied, with whoever made the event or reads it.
    Whole(Arc<str>),
    /// The bytes `from..to` of the parent's own context.
    Piece {
        /// The first byte.
        from: u64,
        /// The byte behind the last.
        to: u64,
    },
}

impl From<&str> for Context {
    fn from(text: &str) -> Self {
        Context::Whole(text.into())
    }
}

impl From<String> for Context {
    fn from(text: String) -> Self {
        Context::Whole(text.into())
    }
}

impl Serialize for Context {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self, serializer.is_human_readable()) {
            (Context::Whole(text), true) => serializer.serialize_str(text),
            (Context::Piece { from, to }, true) => serializer.collect_map([("$slice", [from, to])]),
            (Context::Piece { from, to }, false) => (from, to).serialize(serializer),
            // Such a body is written in layout 1.
            (Context::Whole(_), false) => Err(S::Error::custom("layout 2 of node_spawned holds no text")),
        }
    }
}

impl<'de> Deserialize<'de> for Context {
    /// Reads what layout 2 holds.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (from, to) = Deserialize::deserialize(deserializer)?;
        Ok(Context::Piece { from, to })
    }
}

/// Layout 1, which borrows the context: it is long if anything is.
#[derive(Serialize, Deserialize)]
struct First<'a> {
    node: NodePath,
    call: Option<(u32, u32)>,
    goal: String,
    targets: String,
    context: &'a str,
    depth: Depth,
    budget: u32,
}

/// The bytes of a body that layout 1 holds; `None` for one that it cannot hold.
pub(super) fn encode_first(spawned: &NodeSpawned) -> Option<Result<Vec<u8>, bincode::error::EncodeError>> {
    let Context::Whole(context) = &spawned.context else { return None };
    let first = First {
        node: spawned.node.clone(),
        call: spawned.call,
        goal: spawned.goal.clone(),
        targets: spawned.targets.clone(),
        context,
        depth: spawned.depth,
        budget: spawned.budget,
    };
    // A buffer that grows as it goes is twice as long in the end, and was copied.
    let room = 128 + 4 * first.node.ordinals().len() + first.goal.len() + first.targets.len() + context.len();
    let mut bytes = Vec::with_capacity(room);
    Some(bincode::serde::encode_into_std_write(&first, &mut bytes, bincode::config::legacy()).map(|_| bytes))
}

/// Reads layout 1.
pub(super) fn decode_first(bytes: &[u8]) -> Result<Body, BodyError> {
    let kind = Kind::NodeSpawned.name();
    let config = bincode::config::legacy().with_limit::<MAX_BODY>();
    let (first, read): (First<'_>, usize) =
        bincode::serde::borrow_decode_from_slice(bytes, config).map_err(|source| BodyError::Codec { kind, source })?;
    if read != bytes.len() {
        return Err(BodyError::Trailing { kind, extra: bytes.len() - read });
    }
    let First { node, call, goal, targets, context, depth, budget } = first;
    Ok(NodeSpawned { node, call, goal, targets, context: context.into(), depth, budget }.into())
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may stop at the first thing that is not there")]
mod tests {
    use super::*;

    fn spawned(context: Context) -> Body {
        NodeSpawned {
            node: NodePath::root().child(2),
            call: Some((3, 4)),
            goal: "g".to_owned(),
            targets: "{}".to_owned(),
            context,
            depth: Depth(1),
            budget: 5,
        }
        .into()
    }

    #[test]
    fn a_text_is_written_in_layout_1_and_a_place_in_layout_2() {
        let whole = spawned("text".into());
        let piece = spawned(Context::Piece { from: 7, to: 1 << 40 });
        assert_eq!((whole.version(), piece.version(), Kind::NodeSpawned.layout()), (1, 2, 2));
        for body in [&whole, &piece] {
            let bytes = body.encode().unwrap();
            assert_eq!(&Body::decode(Kind::NodeSpawned, body.version(), &bytes).unwrap(), body);
            let other = 3 - body.version();
            assert!(Body::decode(Kind::NodeSpawned, other, &bytes).is_err(), "read as layout {other}");
            for cut in 0..bytes.len() {
                assert!(Body::decode(Kind::NodeSpawned, body.version(), &bytes[..cut]).is_err());
            }
            let longer = [bytes.as_slice(), &[0]].concat();
            assert!(Body::decode(Kind::NodeSpawned, body.version(), &longer).is_err());
        }
        assert_eq!(whole.to_json()["context"], "text");
        assert_eq!(piece.to_json()["context"], serde_json::json!({ "$slice": [7, 1_u64 << 40] }));
    }

    /// These bytes are part of the format.
    #[test]
    fn both_layouts_have_the_bytes_that_they_were_released_with() {
        let head = "0200000000000000 00000000 02000000 01 03000000 04000000 0100000000000000 67 0200000000000000 7b7d";
        let text = "0400000000000000 74657874 01000000 05000000";
        let place = "0700000000000000 0900000000000000 01000000 05000000";
        for (body, tail) in [(spawned("text".into()), text), (spawned(Context::Piece { from: 7, to: 9 }), place)] {
            let bytes: String = body.encode().unwrap().iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(bytes, format!("{head}{tail}").replace(' ', ""));
        }
    }
}

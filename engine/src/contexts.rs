//! What nodes work on: texts in memory, and how `node_spawned` events write them.

use std::collections::BTreeMap;

use rao_envs::Text;
use rao_store::NodePath;
use rao_store::event::{Body, Context, Event, NodeSpawned};

/// Texts of this many bytes are shared with the parent's, and written as their place in it, where they are a piece of it.
const LONG: usize = 1_024;

/// How the event of a child writes its text.
///
/// It follows from the texts alone, not from how they lie in memory: a run that is taken up again writes the same.
#[must_use]
pub fn written(text: &Text, parent: Option<&Text>) -> Context {
    let place = parent.filter(|_| text.len() >= LONG).and_then(|parent| parent.locate(text));
    match place {
        Some(place) => Context::Piece { from: place.start as u64, to: place.end as u64 },
        None => Context::Whole(text.shared()),
    }
}

/// The text that an event stands for, shared with the parent's where it is a long piece of it.
///
/// # Errors
/// For a place that the parent's text does not have.
pub fn read(context: &Context, parent: Option<&Text>) -> Result<Text, String> {
    match context {
        Context::Whole(text) => {
            let text = Text::from(text.clone());
            let long = parent.filter(|_| text.len() >= LONG);
            Ok(long.and_then(|parent| parent.slice(parent.locate(&text)?)).unwrap_or(text))
        }
        Context::Piece { from, to } => {
            let at = |at: u64| usize::try_from(at).ok();
            let piece = parent.and_then(|parent| parent.slice(at(*from)?..at(*to)?));
            piece.ok_or_else(|| {
                format!("its context is said to be bytes {from}..{to} of its parent's, which has none such")
            })
        }
    }
}

/// The texts of a rollout's nodes.
#[derive(Clone, Debug, Default)]
pub struct Contexts(BTreeMap<NodePath, Text>);

impl Contexts {
    /// Those that events tell of. Nodes whose text cannot be told have none.
    #[must_use]
    pub fn of(events: &[Event]) -> Contexts {
        let mut contexts = Contexts::default();
        for event in events {
            if let Body::NodeSpawned(spawned) = &event.body {
                // Whoever folds the events reports what does not fit.
                let _ = contexts.note(spawned);
            }
        }
        contexts
    }

    /// Takes the next node's, and gives it.
    ///
    /// # Errors
    /// As [`read`].
    pub fn note(&mut self, spawned: &NodeSpawned) -> Result<Text, String> {
        let text = self.told(spawned)?;
        self.0.insert(spawned.node.clone(), text.clone());
        Ok(text)
    }

    /// What an event tells of its node, next to these.
    ///
    /// # Errors
    /// As [`read`].
    pub fn told(&self, spawned: &NodeSpawned) -> Result<Text, String> {
        let parent = spawned.node.parent();
        read(&spawned.context, parent.and_then(|parent| self.0.get(&parent)))
    }

    /// A node's.
    #[must_use]
    pub fn get(&self, node: &NodePath) -> Option<&Text> {
        self.0.get(node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_pieces_are_places_and_come_back_shared() {
        let whole = Text::from((0..1_000).map(|n| format!("line {n} \u{e9}\n")).collect::<String>());
        let place = whole.locate("line 500").unwrap().start..whole.locate("line 900").unwrap().start;
        let piece = Text::from(&whole[place.clone()]);
        let context = written(&piece, Some(&whole));
        assert_eq!(context, Context::Piece { from: place.start as u64, to: place.end as u64 });
        let again = read(&context, Some(&whole)).unwrap();
        assert!(again == piece && again.shares(&whole) && !piece.shares(&whole));
        // Older logs have the text itself.
        let older = read(&Context::from(piece.as_str()), Some(&whole)).unwrap();
        assert!(older == piece && older.shares(&whole));

        for (text, parent) in [(&piece, None), (&Text::from("x".repeat(2_000)), Some(&whole))] {
            assert_eq!(read(&written(text, parent), parent).unwrap(), *text);
            assert!(matches!(written(text, parent), Context::Whole(_)));
        }
        let short = Text::from(&whole[..whole.locate("line 60 ").unwrap().start]);
        assert!(matches!(written(&short, Some(&whole)), Context::Whole(_)));
        let beyond = Context::Piece { from: 0, to: whole.len() as u64 + 1 };
        assert!(read(&beyond, Some(&whole)).is_err() && read(&context, None).is_err());
        assert!(read(&Context::Piece { from: 8, to: 10 }, Some(&whole)).is_err(), "inside a character");
    }

    #[test]
    fn a_whole_text_is_written_without_a_copy() {
        let text = Text::from("x".repeat(5_000));
        let Context::Whole(written) = written(&text, None) else { panic!("it has no parent") };
        assert!(Text::from(written).shares(&text));
        assert_eq!(&*text.slice(7..100).unwrap().shared(), &text[7..100]);
    }
}

//! The events of a step that is not yet known to be taken.

use rao_store::event::Body;

use super::{Sink, TrainError};

/// Bodies of one append.
const PER_APPEND: usize = 1024;
/// Log-probabilities that are held back.
const TOKENS: usize = 1 << 20;
/// Bodies that are held back.
const BODIES: usize = 1 << 14;

/// Events held back until the step's gradient is known to be finite: a step that is not taken leaves nothing in the log. A
/// batch that is too large to hold is written as it comes, so that memory does not follow the log; a failed step then ends the
/// training run without its step.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    bodies: Vec<Body>,
    tokens: usize,
    open: bool,
}

impl Pending {
    /// Takes the next event, of so many log-probabilities.
    pub(crate) fn push(&mut self, body: Body, tokens: usize, sink: &mut dyn Sink) -> Result<(), TrainError> {
        self.bodies.push(body);
        self.tokens += tokens;
        self.open |= self.tokens > TOKENS || self.bodies.len() > BODIES;
        if self.open && (self.bodies.len() >= PER_APPEND || self.tokens > TOKENS) {
            self.flush(sink)?;
        }
        Ok(())
    }

    /// Writes what is held.
    pub(crate) fn write(mut self, sink: &mut dyn Sink) -> Result<(), TrainError> {
        self.flush(sink)
    }

    fn flush(&mut self, sink: &mut dyn Sink) -> Result<(), TrainError> {
        self.tokens = 0;
        let mut bodies = std::mem::take(&mut self.bodies).into_iter();
        loop {
            let part: Vec<Body> = bodies.by_ref().take(PER_APPEND).collect();
            if part.is_empty() {
                return Ok(());
            }
            sink.append(part)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rao_store::event::Note;

    #[derive(Default)]
    struct Heard(Vec<String>);

    impl Sink for Heard {
        fn append(&mut self, bodies: Vec<Body>) -> Result<(), TrainError> {
            self.0.extend(bodies.into_iter().filter_map(|body| match body {
                Body::Note(note) => Some(note.text),
                _ => None,
            }));
            Ok(())
        }

        fn flush(&mut self) -> Result<(), TrainError> {
            Ok(())
        }
    }

    #[test]
    fn little_is_held_back_and_much_comes_in_order() {
        for (count, tokens, early) in
            [(100, 5, false), (BODIES, 1, false), (3 * BODIES, 0, true), (20, TOKENS / 8, true)]
        {
            let (mut pending, mut heard) = (Pending::default(), Heard::default());
            for at in 0..count {
                pending.push(Body::from(Note { text: at.to_string() }), tokens, &mut heard).unwrap();
            }
            assert_eq!(!heard.0.is_empty(), early, "{count} events");
            pending.write(&mut heard).unwrap();
            assert!(heard.0.iter().map(String::as_str).eq((0..count).map(|at| at.to_string())));
        }
    }
}

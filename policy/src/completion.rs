//! A completion as it grows, and what ends it.

use crate::sample::{Completion, Request, Stop};
use crate::{Chat, PolicyError};

/// The text that ends a completion.
const CELL_END: &[u8] = b"</python>";

/// What ends a completion besides the end of a cell and the model's own end tokens. What ended it is part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    texts: Vec<Vec<u8>>,
    ids: Vec<u32>,
}

impl Stops {
    /// Completions that end once their text holds one of `texts`, or with one of `ids`.
    ///
    /// # Errors
    /// When a text is empty, which every text would hold.
    pub fn new(texts: &[String], ids: &[u32]) -> Result<Self, PolicyError> {
        if texts.iter().any(String::is_empty) {
            let reason = "it is empty: every completion would end before its first token".to_owned();
            return Err(PolicyError::Input { what: "stop text".to_owned(), reason });
        }
        Ok(Self { texts: texts.iter().map(|text| text.clone().into_bytes()).collect(), ids: ids.to_vec() })
    }

    /// Bytes of a completion's end that a text found later may begin in.
    fn memory(&self) -> usize {
        self.texts.iter().map(Vec::len).chain([CELL_END.len()]).max().unwrap_or_default() - 1
    }
}

/// A completion that is being made.
pub(crate) struct Growing {
    pub(crate) tokens: Vec<u32>,
    logprobs: Vec<f32>,
    /// The last bytes of its text, enough to see an end across tokens.
    tail: Vec<u8>,
    pub(crate) stop: Option<Stop>,
    context: usize,
    max_tokens: usize,
    window: usize,
}

impl Growing {
    /// An empty completion; it may have ended already, for want of room.
    pub(crate) fn new(request: &Request<'_>) -> Self {
        let mut empty = Self {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            tail: Vec::new(),
            stop: None,
            context: request.context.len(),
            max_tokens: request.sampler.max_tokens as usize,
            window: request.window as usize,
        };
        empty.stop = empty.limit();
        empty
    }

    /// Tokens that it may still have.
    pub(crate) fn room(&self) -> usize {
        self.window.saturating_sub(self.context).min(self.max_tokens).saturating_sub(self.tokens.len())
    }

    fn limit(&self) -> Option<Stop> {
        if self.tokens.len() >= self.max_tokens {
            Some(Stop::MaxTokens)
        } else if self.context + self.tokens.len() >= self.window {
            Some(Stop::Window)
        } else {
            None
        }
    }

    /// Adds a token.
    pub(crate) fn take(&mut self, id: u32, logprob: f32, chat: &Chat, stops: &Stops) {
        self.tokens.push(id);
        self.logprobs.push(logprob);
        self.tail.extend_from_slice(chat.token_bytes(id).unwrap_or_default());
        let holds = |text: &[u8]| self.tail.windows(text.len()).any(|part| part == text);
        let (cell, asked) = (holds(CELL_END), stops.texts.iter().any(|text| holds(text)));
        self.tail.drain(..self.tail.len().saturating_sub(stops.memory()));
        self.stop = if chat.ends_completion(id) {
            Some(Stop::EndOfTurn)
        } else if cell {
            Some(Stop::CellEnd)
        } else if asked || stops.ids.contains(&id) {
            Some(Stop::Asked)
        } else {
            self.limit()
        };
    }

    /// The completion, if it has ended.
    pub(crate) fn finish(self) -> Option<Completion> {
        Some(Completion { tokens: self.tokens, logprobs: self.logprobs, stop: self.stop? })
    }
}

/// Fails for a request that cannot be run with a vocabulary of that size.
pub(crate) fn check(request: &Request<'_>, vocab_size: usize) -> Result<(), PolicyError> {
    let fault = |reason| Err(PolicyError::Input { what: format!("request for row {}", request.row), reason });
    if request.context.is_empty() {
        return fault("its context is empty".to_owned());
    }
    if let Some(id) = request.context.iter().find(|id| **id as usize >= vocab_size) {
        return fault(format!("token id {id} is outside the vocabulary of {vocab_size}"));
    }
    let (temperature, top_p) = (request.sampler.temperature, request.sampler.top_p);
    if temperature.is_nan() || temperature < 0.0 {
        return fault(format!("temperature {temperature} is not 0 or above"));
    }
    if !(top_p > 0.0 && top_p <= 1.0) {
        return fault(format!("top-p {top_p} is not above 0 and at most 1"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{SampleKey, Sampler};

    fn grow(text: &str, stops: &Stops, max_tokens: u32) -> Completion {
        let chat = Chat::bytes().unwrap();
        let request = Request {
            row: 0,
            context: &[0],
            sampler: Sampler::whole(1.0, max_tokens),
            window: 1000,
            key: SampleKey([0; 32]),
        };
        let mut growing = Growing::new(&request);
        for byte in text.bytes() {
            if growing.stop.is_none() {
                growing.take(3 + u32::from(byte), -1.0, &chat, stops);
            }
        }
        growing.stop.get_or_insert(Stop::Window);
        growing.finish().unwrap()
    }

    #[test]
    fn texts_and_ids_end_a_completion_where_they_are_complete() {
        let stops =
            Stops::new(&["\n\nEnd".to_owned(), "longer than </python>".to_owned()], &[3 + u32::from(b'#')]).unwrap();
        let got = |text| {
            let got = grow(text, &stops, 100);
            (got.tokens.len(), got.stop)
        };
        assert_eq!(got("one\n\nEnding"), (8, Stop::Asked));
        assert_eq!(got("one # two"), (5, Stop::Asked));
        assert_eq!(got("x</python>#"), (10, Stop::CellEnd));
        assert_eq!(got("never"), (5, Stop::Window));
        assert_eq!(grow("never", &stops, 2).stop, Stop::MaxTokens);
        assert!(Stops::new(&[String::new()], &[]).is_err());
    }
}

//! Long texts are stored once.
//!
//! An event whose body holds a text, or a list of token ids, of 64 KiB or more is written to the journal as a *short
//! frame*, which names each such part by its blake3 digest; the part itself stands before it in a *payload frame*, once
//! for the whole journal. Readers put the event together again, so nobody but the journal knows: an event's frame, its
//! checksum and the digests over it are those of the whole event.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use crate::event::{Kind, MAX_BODY};
use crate::frame::{self, Form, HEADER_LEN, Parts, View, u32_at};
use crate::id::Digest;
use crate::index::Place;
use crate::journal::Journal;
use crate::manifest::Mark;

/// Parts of a body that are at least this long are payloads.
pub(crate) const PAYLOAD_BYTES: usize = 1 << 16;
/// Body length and number of pieces.
const HEAD_LEN: usize = 8;
/// Place, length and digest.
const PIECE_LEN: usize = 40;

/// A part of a body that is stored on its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where it stands in the body.
    pub(crate) range: Range<usize>,
    /// blake3 of its bytes.
    pub(crate) digest: Digest,
}

/// Where payloads stand in the journal.
pub(crate) trait Payloads: Send + Sync {
    fn place(&self, digest: &Digest) -> Option<Place>;
}

/// The places by digest.
pub(crate) type PayloadPlaces = BTreeMap<Digest, Place>;

impl Payloads for PayloadPlaces {
    fn place(&self, digest: &Digest) -> Option<Place> {
        self.get(digest).copied()
    }
}

impl Payloads for RwLock<PayloadPlaces> {
    fn place(&self, digest: &Digest) -> Option<Place> {
        self.read().unwrap_or_else(PoisonError::into_inner).place(digest)
    }
}

/// The payloads in a body, in order. Only writing needs to know where they are: a short frame stores the places.
pub(crate) fn find(kind: Kind, layout: u16, body: &[u8]) -> Vec<Piece> {
    if body.len() < PAYLOAD_BYTES || layout > kind.layout() {
        return Vec::new();
    }
    let mut walk = Walk { body, at: 0, found: Vec::new() };
    // A walk that ends early has met a body of another layout: what it found before is still a part of the body.
    let _ = walk.body(kind, layout);
    let piece = |range: Range<usize>| {
        let digest = Digest::of(body.get(range.clone())?);
        Some(Piece { range, digest })
    };
    walk.found.into_iter().filter_map(piece).collect()
}

/// The body of the short frame that stands for `body`.
pub(crate) fn shorten(body: &[u8], pieces: &[Piece]) -> Vec<u8> {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    let mut out = Vec::new();
    out.extend_from_slice(&number(body.len()));
    out.extend_from_slice(&number(pieces.len()));
    for piece in pieces {
        out.extend_from_slice(&number(piece.range.start));
        out.extend_from_slice(&number(piece.range.len()));
        out.extend_from_slice(&piece.digest.0);
    }
    let mut at = 0;
    for piece in pieces {
        out.extend_from_slice(body.get(at..piece.range.start).unwrap_or_default());
        at = piece.range.end;
    }
    out.extend_from_slice(body.get(at..).unwrap_or_default());
    out
}

/// What the body of a short frame says.
#[derive(Debug)]
pub(crate) struct Short<'a> {
    /// The length of the whole body.
    pub(crate) body_len: u32,
    pub(crate) pieces: Vec<Piece>,
    /// The body without the pieces.
    rest: &'a [u8],
}

impl<'a> Short<'a> {
    /// Reads the body of a short frame. Everything in it is untrusted: `None` if its parts do not fit together.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Short<'a>> {
        let head = bytes.get(..HEAD_LEN)?;
        let (body_len, count) = (u32_at(head, 0), u32_at(head, 4) as usize);
        let (entries, rest) = bytes.get(HEAD_LEN..)?.split_at_checked(count.checked_mul(PIECE_LEN)?)?;
        let mut pieces = Vec::with_capacity(count);
        let (mut at, mut taken) = (0usize, 0usize);
        for entry in entries.chunks_exact(PIECE_LEN) {
            let (start, len) = (u32_at(entry, 0) as usize, u32_at(entry, 4) as usize);
            let end = start.checked_add(len)?;
            if start < at || len == 0 {
                return None;
            }
            (at, taken) = (end, taken.checked_add(len)?);
            pieces.push(Piece { range: start..end, digest: Digest(entry.get(8..)?.try_into().ok()?) });
        }
        let body = body_len as usize;
        let fits = count > 0 && at <= body && body <= MAX_BODY && taken.checked_add(rest.len()) == Some(body);
        fits.then_some(Short { body_len, pieces, rest })
    }

    /// Appends the whole body. `payload` appends a piece.
    fn body(
        &self,
        body: &mut Vec<u8>,
        payload: impl Fn(&Piece, &mut Vec<u8>) -> Result<(), String>,
    ) -> Result<(), String> {
        let start = body.len();
        let mut rest = self.rest;
        for piece in &self.pieces {
            let before = (start + piece.range.start).saturating_sub(body.len());
            let (now, later) = rest.split_at_checked(before).ok_or("its parts do not fit together")?;
            body.extend_from_slice(now);
            rest = later;
            payload(piece, body)?;
        }
        body.extend_from_slice(rest);
        Ok(())
    }
}

/// The body's length of the event that a stored frame stands for; `None` if a short frame contradicts itself.
pub(crate) fn body_len(view: &View<'_>) -> Option<u32> {
    match view.form() {
        Form::Short => Short::parse(view.body()).map(|short| short.body_len),
        Form::Whole | Form::Payload | Form::Prefix => u32::try_from(view.body().len()).ok(),
    }
}

/// The bytes of the whole frame that a short one stands for.
pub(crate) fn expand(view: &View<'_>, payloads: &dyn Payloads, journal: &Journal) -> Result<Vec<u8>, String> {
    let short = Short::parse(view.body()).ok_or("its parts do not fit together")?;
    let mut bytes = Vec::with_capacity(HEADER_LEN + short.rest.len());
    bytes.resize(HEADER_LEN, 0);
    short.body(&mut bytes, |piece, body| read(piece, payloads, journal, body))?;
    let parts = Parts {
        stream: view.stream(),
        seq: view.seq(),
        at_us: view.at_us(),
        kind: view.kind_code(),
        layout: view.layout(),
        begins_commit: view.begins_commit(),
        previous: view.previous(),
    };
    frame::head(&mut bytes, &parts);
    Ok(bytes)
}

/// Appends a payload's bytes, checked.
fn read(piece: &Piece, payloads: &dyn Payloads, journal: &Journal, out: &mut Vec<u8>) -> Result<(), String> {
    let lost = |reason: &str| format!("its long text {} {reason}", piece.digest.short());
    let place = payloads.place(&piece.digest).ok_or_else(|| lost("is damaged or missing"))?;
    let at = Mark { file: place.file, offset: place.offset };
    let shown = format!("({} at byte {})", Journal::shown(at.file), at.offset);
    let bytes = journal.bytes(at, u64::from(place.len)).map_err(|error| lost(&error.to_string()))?;
    let view = View::parse(&bytes).map_err(|error| lost(&format!("cannot be read {shown}: {error}")))?;
    if view.form() != Form::Payload || view.body().len() != piece.range.len() || Digest::of(view.body()) != piece.digest
    {
        return Err(lost(&format!("is another one than was stored {shown}")));
    }
    out.reserve_exact(view.body().len());
    out.extend_from_slice(view.body());
    Ok(())
}

/// A walk over a body, field by field, as the codec lays them out.
struct Walk<'a> {
    body: &'a [u8],
    at: usize,
    found: Vec<Range<usize>>,
}

impl Walk<'_> {
    fn skip(&mut self, count: usize) -> Option<()> {
        self.at = self.at.checked_add(count).filter(|at| *at <= self.body.len())?;
        Some(())
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.body.get(self.at)?;
        self.skip(1)?;
        Some(byte)
    }

    fn number32(&mut self) -> Option<u32> {
        let bytes = self.body.get(self.at..self.at.checked_add(4)?)?.try_into().ok()?;
        self.skip(4)?;
        Some(u32::from_le_bytes(bytes))
    }

    fn number64(&mut self) -> Option<u64> {
        let bytes = self.body.get(self.at..self.at.checked_add(8)?)?.try_into().ok()?;
        self.skip(8)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// A list of items with `size` bytes each: noted if it is long.
    fn list(&mut self, size: usize) -> Option<()> {
        let len = usize::try_from(self.number64()?).ok()?.checked_mul(size)?;
        let start = self.at;
        self.skip(len)?;
        if len >= PAYLOAD_BYTES {
            self.found.push(start..self.at);
        }
        Some(())
    }

    fn text(&mut self) -> Option<()> {
        self.list(1)
    }

    fn optional_text(&mut self) -> Option<()> {
        if self.byte()? == 0 { Some(()) } else { self.text() }
    }

    /// A node's path and `more` bytes of numbers behind it.
    fn node(&mut self, more: usize) -> Option<()> {
        self.list(4)?;
        self.skip(more)
    }

    /// The texts of a kind. What the walk knows of one stands at the same place in every layout so far, unless it is said.
    fn body(&mut self, kind: Kind, layout: u16) -> Option<()> {
        match kind {
            Kind::Note | Kind::TrainStarted => self.text(),
            Kind::RunStarted | Kind::RolloutStarted => (0..3).try_for_each(|_| self.text()),
            Kind::NodeSpawned => {
                self.node(0)?;
                let call = if self.byte()? == 0 { 0 } else { 8 };
                self.skip(call)?;
                // Layout 2 has no text behind the goal and the targets.
                let texts = if layout == 1 { 3 } else { 2 };
                (0..texts).try_for_each(|_| self.text())
            }
            Kind::SpawnRefused => {
                self.node(12)?;
                (0..2).try_for_each(|_| self.text())
            }
            Kind::ContextExtended => {
                self.node(8)?;
                self.text()?;
                self.skip(4)?;
                self.list(4)
            }
            Kind::ActionSampled | Kind::CellStarted => {
                self.node(4)?;
                self.text()
            }
            Kind::CallIssued => {
                self.node(8)?;
                (0..2).try_for_each(|_| self.text())
            }
            Kind::CallAnswered => {
                self.node(4)?;
                let answers = self.number64()?;
                (0..answers).try_for_each(|_| self.answer())
            }
            Kind::CellFinished => {
                self.node(4)?;
                self.text()?;
                self.optional_text()
            }
            Kind::NodeFinished => {
                self.node(4)?;
                self.optional_text()
            }
            Kind::Verdict => {
                self.node(0)?;
                self.text()?;
                self.skip(8)?;
                self.text()
            }
            Kind::HostFacts
            | Kind::RewardAssigned
            | Kind::RolloutFinished
            | Kind::RunFinished
            | Kind::CreditAssigned
            | Kind::TrajectoryScored
            | Kind::TrainStep
            | Kind::TrainFinished => Some(()),
        }
    }

    /// A call's number and a value, or an exception's kind and message.
    fn answer(&mut self) -> Option<()> {
        self.skip(4)?;
        let texts = if self.number32()? == 0 { 1 } else { 2 };
        (0..texts).try_for_each(|_| self.text())
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "a test may stop at the first thing that is not there")]
mod tests {
    use super::*;
    use crate::event::{Answer, Body, CallAnswered, CellFinished, ContextExtended, NodeFinished, Note, Outcome, Role};
    use crate::id::{NodePath, TokenId};

    fn found(body: &Body) -> Vec<Vec<u8>> {
        let bytes = body.encode().unwrap();
        let pieces = find(body.kind(), body.version(), &bytes);
        let short = shorten(&bytes, &pieces);
        let texts: Vec<Vec<u8>> = pieces.iter().map(|piece| bytes[piece.range.clone()].to_vec()).collect();
        if !pieces.is_empty() {
            let parsed = Short::parse(&short).unwrap();
            assert_eq!((parsed.body_len as usize, &parsed.pieces), (bytes.len(), &pieces));
            let text = |piece: &Piece, out: &mut Vec<u8>| {
                out.extend_from_slice(&bytes[piece.range.clone()]);
                Ok(())
            };
            let mut whole = vec![7];
            parsed.body(&mut whole, text).unwrap();
            assert_eq!(whole[1..], bytes);
            for cut in 0..short.len() {
                assert!(Short::parse(&short[..cut]).is_none());
            }
        }
        texts
    }

    #[test]
    fn long_texts_are_found_wherever_they_stand() {
        let (a, b) = ("a".repeat(PAYLOAD_BYTES), "b".repeat(PAYLOAD_BYTES + 7));
        let node = NodePath::root().child(3);
        let long = |texts: &[&String]| texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>();
        assert_eq!(found(&Note { text: a.clone() }.into()), long(&[&a]));
        assert_eq!(found(&Note { text: "a".repeat(PAYLOAD_BYTES - 1) }.into()), long(&[]));
        let answers = vec![
            (0, Answer::Value("1".into())),
            (1, Answer::Raised { kind: "ValueError".into(), message: a.clone() }),
            (2, Answer::Value(b.clone())),
        ];
        assert_eq!(found(&CallAnswered { node: node.clone(), step: 1, answers }.into()), long(&[&a, &b]));
        let cell = CellFinished {
            node: node.clone(),
            step: 0,
            stdout: b.clone(),
            error: Some(a.clone()),
            limit: None,
            rejected: false,
        };
        assert_eq!(found(&cell.into()), long(&[&b, &a]));
        let end = NodeFinished {
            node: node.clone(),
            outcome: Outcome::Finished,
            value: Some(a.clone()),
            steps: 1,
            tokens: 2,
        };
        assert_eq!(found(&end.into()), long(&[&a]));
        let tokens: Vec<TokenId> = (0..PAYLOAD_BYTES as u32 / 4).map(TokenId).collect();
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.0.to_le_bytes()).collect();
        let more = ContextExtended { node, step: 0, role: Role::Prompt, text: a.clone(), at: 0, tokens };
        assert_eq!(found(&more.into()), vec![a.into_bytes(), ids]);
    }

    #[test]
    fn a_short_body_that_contradicts_itself_is_none() {
        let bytes = Body::from(Note { text: "x".repeat(PAYLOAD_BYTES) }).encode().unwrap();
        let pieces = find(Kind::Note, 1, &bytes);
        let short = shorten(&bytes, &pieces);
        assert!(Short::parse(&short).is_some());
        // The body's length, the number of pieces, the piece's place and its length.
        for (at, value) in [(0, 1u32), (4, 0), (4, 2), (4, u32::MAX), (8, u32::MAX), (12, 0), (12, u32::MAX), (12, 5)] {
            let mut forged = short.clone();
            forged[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(Short::parse(&forged).is_none(), "byte {at}: {value}");
        }
    }
}

//! From damaged places and holes in numbers to findings that name events.

use std::collections::BTreeSet;
use std::ops::Range;

use super::windows::Ahead;
use super::{Scan, Torn};
use crate::event::Kind;
use crate::frame::{Claim, FrameError, stream_key};
use crate::id::{Digest, Seq, Stream};
use crate::journal::Journal;
use crate::manifest::Mark;
use crate::report::{Finding, FindingClass};
use crate::source::Head;

/// A damaged place that has not yet been assigned to an event.
#[derive(Debug)]
pub(super) struct Nameless {
    pub(super) finding: usize,
    pub(super) at: Mark,
    pub(super) claim: Option<Claim>,
}

impl Scan {
    pub(super) fn note_torn(&mut self, len: u64, ahead: &Ahead, error: &FrameError) {
        let bytes = len - self.end.offset;
        self.torn = Some(Torn { at: self.end, bytes, holds_intact: ahead.intact.is_some() });
        let detail = format!("the last commit is unfinished ({bytes} bytes; {error}); nothing acknowledged is lost");
        let finding = Finding::new(FindingClass::TornTail, detail);
        self.findings.push(finding.at(Journal::shown(self.end.file), self.end.offset));
    }

    pub(super) fn note_damage(&mut self, len: u64, claim: Option<Claim>, error: &FrameError) {
        let counted = self
            .manifest
            .as_ref()
            .map_or(0, |manifest| if manifest.mark.file == self.end.file { manifest.mark.offset } else { 0 });
        let cut = matches!(error, FrameError::Short { .. }) && len < counted;
        let (class, detail) = if cut {
            (FindingClass::MissingEvents, format!("the file ends at byte {len}, but held {counted} bytes: {error}"))
        } else {
            (FindingClass::InteriorDamage, error.to_string())
        };
        self.nameless.push(Nameless { finding: self.findings.len(), at: self.end, claim });
        self.findings.push(Finding::new(class, detail).at(Journal::shown(self.end.file), self.end.offset));
    }

    /// At the end of the pass, damaged places that no later event has explained are taken by their word, where it is
    /// plausible. Not earlier: a damaged stream field may name the next event of another stream.
    pub(super) fn settle(&mut self) {
        for place in std::mem::take(&mut self.nameless) {
            let Some((stream, seq)) = place.claim.and_then(|claim| self.believe(claim)) else {
                self.nameless.push(place);
                continue;
            };
            self.name(&place, stream, seq, "");
            let key = stream_key(stream);
            self.heads.entry(key).or_insert(Head::EMPTY).count = seq.0 + 1;
            self.unlinked.insert(key);
        }
    }

    fn name(&mut self, place: &Nameless, stream: Stream, seq: Seq, more: &str) {
        if let Some(finding) = self.findings.get_mut(place.finding) {
            finding.stream = Some(stream);
            finding.seq = Some(seq);
            finding.kind = place.claim.and_then(|claim| claim.kind);
            finding.detail = format!("{more}{}", finding.detail);
        }
    }

    /// A damaged header is believed if it names exactly the next event of a stream that exists.
    pub(super) fn believe(&self, claim: Claim) -> Option<(Stream, Seq)> {
        let stream = claim.stream?;
        let key = stream_key(stream);
        let count = self.heads.get(&key)?.count;
        (count == claim.seq.0 && count < u64::MAX).then_some((stream, claim.seq))
    }

    /// A damaged place that says it is this long text belongs to the first stream that misses the text.
    pub(super) fn blame(&mut self, stream: Stream, digest: Digest) {
        let is_it = |place: &Nameless| place.claim.is_some_and(|claim| claim.payload == Some(digest));
        let Some(at) = self.nameless.iter().position(is_it) else { return };
        let place = self.nameless.remove(at);
        if let Some(finding) = self.findings.get_mut(place.finding) {
            finding.stream = Some(stream);
            finding.detail = format!("a long text: {}", finding.detail);
        }
    }

    pub(super) fn found(&mut self, class: FindingClass, stream: Stream, seq: Seq, kind: Option<Kind>, detail: String) {
        let mut finding = Finding::new(class, detail).of(stream, seq);
        finding.kind = kind;
        self.findings.push(finding.at(Journal::shown(self.end.file), self.end.offset));
    }

    /// Events `from..to` of a stream are not where they should be: explained by a damaged place, or missing.
    pub(super) fn note_gap(&mut self, stream: Stream, from: u64, to: u64) {
        let last = self.index.end(&stream_key(stream)).unwrap_or_default();
        let (mut named, mut rest): (Vec<Nameless>, Vec<Nameless>) =
            std::mem::take(&mut self.nameless).into_iter().partition(|place| claims(place, stream, from..to));
        let explained: BTreeSet<u64> = named.iter().filter_map(|place| Some(place.claim?.seq.0)).collect();
        // Where what a stream shares cannot be read, one damaged place stands for all of it.
        let is_prefix = |place: &Nameless| place.claim.is_some_and(|claim| claim.prefix);
        let shared = named.iter().any(is_prefix);
        for place in named.drain(..) {
            let seq = place.claim.map_or(Seq(from), |claim| claim.seq);
            let more = if is_prefix(&place) { "what it shares with its base: " } else { "" };
            self.name(&place, stream, seq, more);
        }
        let missing = (from..to).find(|seq| !shared && !explained.contains(seq));
        if let Some(first) = missing {
            let count = to - from - explained.len() as u64;
            let more = if count > 1 { format!("{count} events before number {to} are lost: ") } else { String::new() };
            let fits = |place: &&Nameless| last <= place.at && place.at < self.end;
            // A place that names nothing sensible explains a gap better than one that may be another stream's.
            let best = rest
                .iter()
                .filter(fits)
                .min_by_key(|place| place.claim.and_then(|claim| self.believe(claim)).is_some());
            let best = best.map(|place| place.finding);
            match rest.iter().position(|place| Some(place.finding) == best) {
                Some(at) => {
                    let place = rest.remove(at);
                    self.name(&place, stream, Seq(first), &more);
                }
                None => {
                    let detail = format!("{more}the event is not in the journal, though it was written");
                    self.found(FindingClass::MissingEvents, stream, Seq(first), None, detail);
                }
            }
        }
        self.nameless = rest;
    }
}

fn claims(place: &Nameless, stream: Stream, range: Range<u64>) -> bool {
    place.claim.is_some_and(|claim| claim.stream == Some(stream) && range.contains(&claim.seq.0))
}

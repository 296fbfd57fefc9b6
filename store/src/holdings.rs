//! A stream's events wherever they lie: in the journal, in an archive, or in another stream that it shares them with.

use crate::archive::ArchiveReader;
use crate::error::LogError;
use crate::fetch::{self, Frames, Slots, Source};
use crate::id::{Seq, Stream};
use crate::index::Order;
use crate::prefix::{Prefixes, Readdressed, Rebuilt, Span, spans};
use crate::report::Finding;
use crate::sealed::Sealed;
use crate::source::{EventIter, EventSource, Filter, FrameIter, HeaderIter, decode};

/// Everything that a log reads from.
#[derive(Clone, Copy)]
pub(crate) struct Holdings<'a> {
    pub(crate) order: &'a dyn Order,
    pub(crate) source: Source<'a>,
    /// Explains holes in the journal.
    pub(crate) findings: &'a [Finding],
    pub(crate) sealed: &'a Sealed,
    pub(crate) prefixes: &'a dyn Prefixes,
}

impl<'a> Holdings<'a> {
    /// Headers `from..end` of a stream.
    pub(crate) fn headers(self, stream: Stream, from: Seq, end: u64) -> HeaderIter<'a> {
        let Some(to) = self.shares(stream, from) else { return self.own_headers(stream, from.0, end) };
        let shared = self.shared(to, end, from.0, move |span| self.own_headers(span.stream, span.from, span.to));
        let shared = shared.map(move |header| to.header(header));
        Box::new(shared.chain(self.own_headers(stream, to.prefix.count, end)))
    }

    /// Events `from..end` of a stream. No chain digest is computed for shared ones.
    pub(crate) fn events(self, stream: Stream, from: Seq, end: u64, filter: &Filter) -> EventIter<'a> {
        let own = move |from: u64| self.own_frames(stream, from, end, filter).map(|frame| decode(&frame?));
        let Some(to) = self.shares(stream, from) else { return Box::new(own(from.0)) };
        let wanted = filter.clone();
        let shared =
            self.shared(to, end, from.0, move |span| self.own_frames(span.stream, span.from, span.to, &wanted));
        Box::new(shared.map(move |frame| to.event(frame)).chain(own(to.prefix.count)))
    }

    /// Frames `from..end` of a stream. Shared ones are made from the first one on, whatever `from` is.
    pub(crate) fn frames(self, stream: Stream, from: Seq, end: u64, filter: &Filter) -> FrameIter<'a> {
        let Some(to) = self.shares(stream, from) else { return self.own_frames(stream, from.0, end, filter) };
        let held =
            self.shared(to, end, 0, move |span| self.own_frames(span.stream, span.from, span.to, &Filter::all()));
        let wanted = filter.clone();
        let is_wanted = move |frame: &Result<crate::Frame, LogError>| match frame {
            Ok(frame) => {
                let admitted = frame.kind().is_ok_and(|kind| wanted.admits(kind)) && wanted.admits_frame(frame);
                admitted && (from.0..end).contains(&frame.address().seq.0)
            }
            Err(LogError::Damaged { seq, .. }) => *seq >= from,
            Err(_) => true,
        };
        let shared = Rebuilt::new(held, to, from).filter(is_wanted);
        Box::new(shared.chain(self.own_frames(stream, to.prefix.count, end, filter)))
    }

    /// What the stream shares of its events from `from` on.
    fn shares(&self, stream: Stream, from: Seq) -> Option<Readdressed> {
        let is_live = self.sealed.of(stream.run()).is_none();
        let prefix = self.prefixes.of(stream).filter(|prefix| is_live && from.0 < prefix.count)?;
        Some(Readdressed { stream, prefix })
    }

    /// Shared items from number `from` on, as their holders have them.
    fn shared<T: Send + 'a>(
        self,
        to: Readdressed,
        end: u64,
        from: u64,
        read: impl Fn(Span) -> Box<dyn Iterator<Item = Result<T, LogError>> + Send + 'a> + Send + 'a,
    ) -> Box<dyn Iterator<Item = Result<T, LogError>> + Send + 'a> {
        let prefix = to.prefix;
        match spans(self.prefixes, self.sealed, prefix.base, prefix.count.min(end)) {
            Ok(spans) => {
                let spans = spans.into_iter().filter(move |span| span.to > from);
                Box::new(spans.flat_map(move |span| read(Span { from: span.from.max(from), ..span })))
            }
            Err(endless) => {
                let place = "journal".to_owned();
                let (stream, seq, reason) = (prefix.base, Seq(from), endless.to_string());
                Box::new(std::iter::once(Err(LogError::Damaged { stream, seq, place, reason })))
            }
        }
    }

    /// Headers that the stream itself holds.
    fn own_headers(&self, stream: Stream, from: u64, end: u64) -> HeaderIter<'a> {
        match self.sealed.of(stream.run()) {
            Some(archive) => {
                let headers = archive.headers(stream, Seq(from));
                whole(archive, headers, (stream, from, end), |header| header.seq)
            }
            None => Box::new(fetch::headers(self.slots(stream, from, end))),
        }
    }

    /// Frames that the stream itself holds.
    fn own_frames(&self, stream: Stream, from: u64, end: u64, filter: &Filter) -> FrameIter<'a> {
        match self.sealed.of(stream.run()) {
            Some(archive) => {
                let frames = archive.frames(stream, Seq(from), filter);
                whole(archive, frames, (stream, from, end), |frame| frame.address().seq)
            }
            None => Box::new(Frames::new(self.slots(stream, from, end), self.source, filter)),
        }
    }

    fn slots(&self, stream: Stream, from: u64, end: u64) -> Slots<'a> {
        Slots::new((self.order, self.source.journal), stream, Seq(from), end, self.findings)
    }
}

/// Items `from..end` of an archive's stream, and an error where it ends before.
fn whole<'a, T: Send + 'a>(
    archive: &'a ArchiveReader,
    items: Box<dyn Iterator<Item = Result<T, LogError>> + Send + 'a>,
    (stream, from, end): (Stream, u64, u64),
    seq: impl Fn(&T) -> Seq + Send + 'a,
) -> Box<dyn Iterator<Item = Result<T, LogError>> + Send + 'a> {
    let there = archive.head(stream).map_or(0, |head| head.count);
    let lost = (there < end && from < end).then(|| {
        let reason = format!("the archive holds {there} events of this stream");
        Err(LogError::Damaged { stream, seq: Seq(there.max(from)), place: archive.shown(), reason })
    });
    let is_before_end = move |item: &Result<T, LogError>| match item {
        Ok(item) => seq(item).0 < end,
        Err(LogError::Damaged { seq, .. }) => seq.0 < end,
        Err(_) => true,
    };
    Box::new(items.take_while(is_before_end).chain(lost))
}

//! From entries to checked frames: looks for holes, reads neighbouring frames together, and checks what it read.

use std::collections::VecDeque;

use crate::error::LogError;
use crate::frame::{Form, Frame, View};
use crate::id::{Seq, Stream};
use crate::index::{Entry, Held, Order, Slot};
use crate::journal::Journal;
use crate::manifest::Mark;
use crate::payload::{self, Payloads};
use crate::report::Finding;
use crate::source::{Filter, Header};

/// Entries asked for at first, and at a time later on: who wants one event need not wait for hundreds.
const FIRST_CHUNK: usize = 16;
const CHUNK: usize = 256;
/// The most bytes read at a time, unless one frame has more.
const SPAN: u64 = 1 << 18;
/// What errors call the ordered store.
const ORDERED: &str = "the ordered store";
/// Bytes of other streams that are read along rather than left out by a second call.
const GAP: u64 = 1 << 12;

/// The entries of a stream in order; a hole is an error in its place.
pub(crate) struct Slots<'a> {
    order: &'a dyn Order,
    journal: &'a Journal,
    stream: Stream,
    next: u64,
    end: u64,
    findings: &'a [Finding],
    queue: VecDeque<(Seq, Result<Slot, LogError>)>,
    /// Entries to ask for next.
    limit: usize,
}

impl<'a> Slots<'a> {
    /// Entries `from..end`. `findings` explains the holes.
    pub(crate) fn new(
        (order, journal): (&'a dyn Order, &'a Journal),
        stream: Stream,
        from: Seq,
        end: u64,
        findings: &'a [Finding],
    ) -> Self {
        Slots { order, journal, stream, next: from.0, end, findings, queue: VecDeque::new(), limit: FIRST_CHUNK }
    }

    fn missing(&mut self, to: u64) -> LogError {
        let (stream, seq) = (self.stream, Seq(self.next));
        self.next = to;
        let known = self.findings.iter().find(|finding| finding.stream == Some(stream) && finding.seq == Some(seq));
        let place = known.and_then(|finding| Some((finding.file.as_ref()?, finding.offset?)));
        let place = place.map_or_else(|| "journal".to_owned(), |(file, offset)| format!("{file} at byte {offset}"));
        let reason = match (to - seq.0, known) {
            (1, Some(finding)) => finding.detail.clone(),
            (1, None) => "the event is damaged or missing".to_owned(),
            (count, Some(finding)) => {
                format!("{count} events from here on are damaged or missing; of the first: {}", finding.detail)
            }
            (count, None) => format!("{count} events from here on are damaged or missing"),
        };
        LogError::Damaged { stream, seq, place, reason }
    }
}

impl Iterator for Slots<'_> {
    type Item = Result<Slot, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next >= self.end {
            return None;
        }
        if self.queue.is_empty() {
            match self.order.chunk(self.journal, self.stream, Seq(self.next), self.limit) {
                Ok(chunk) => {
                    self.queue.extend(chunk);
                    self.limit = CHUNK;
                }
                Err(error) => {
                    self.next = self.end;
                    return Some(Err(error));
                }
            }
        }
        match self.queue.front().map(|(seq, _)| seq.0) {
            Some(seq) if seq == self.next => {
                self.next += 1;
                self.queue.pop_front().map(|(_, slot)| slot)
            }
            Some(seq) => Some(Err(self.missing(seq.min(self.end)))),
            None => Some(Err(self.missing(self.end))),
        }
    }
}

/// The headers of a stream.
pub(crate) fn headers(slots: Slots<'_>) -> impl Iterator<Item = Result<Header, LogError>> + Send {
    let stream = slots.stream;
    slots.map(move |slot| Ok(slot?.entry.header(stream)))
}

/// The frames of a stream.
pub(crate) struct Frames<'a> {
    slots: std::iter::Peekable<Slots<'a>>,
    stream: Stream,
    source: Source<'a>,
    filter: Filter,
    ready: VecDeque<Result<Frame, LogError>>,
}

/// Where frames are read from.
#[derive(Clone, Copy)]
pub(crate) struct Source<'a> {
    pub(crate) journal: &'a Journal,
    pub(crate) payloads: &'a dyn Payloads,
}

impl<'a> Frames<'a> {
    pub(crate) fn new(slots: Slots<'a>, source: Source<'a>, filter: &Filter) -> Self {
        let stream = slots.stream;
        Frames { slots: slots.peekable(), stream, source, filter: filter.clone(), ready: VecDeque::new() }
    }

    /// Reads `first` and those of the following frames that lie close behind it. Frames that the order has whole are taken along,
    /// so that they do not break one read into many.
    fn read(&mut self, first: Entry) {
        let start = first.place.offset;
        let (file, mut end) = (first.place.file, start + u64::from(first.place.len));
        let mut group = vec![Slot { entry: first, held: Held::Away }];
        while let Some(Ok(slot)) = self.slots.peek() {
            let place = slot.entry.place;
            let next_end = place.offset + u64::from(place.len);
            let near = place.file == file && place.offset >= end && place.offset - end <= GAP;
            let admitted = self.filter.admits(slot.entry.kind);
            let is_held = !matches!(slot.held, Held::Away);
            let fits = is_held || (near && next_end - start <= SPAN);
            if admitted && (!fits || group.len() >= CHUNK) {
                break;
            }
            let Some(Ok(slot)) = self.slots.next() else { break };
            if admitted {
                end = if is_held { end } else { next_end };
                group.push(slot);
            }
        }
        let read = self.source.journal.bytes(Mark { file, offset: start }, end - start);
        for Slot { entry, held } in group {
            let frame = match (held, &read) {
                (Held::Ordered(bytes), _) => self.source.check(self.stream, &entry, bytes.to_vec(), ORDERED),
                (Held::Journal(bytes), _) => self.source.check_read(self.stream, &entry, bytes.to_vec()),
                (Held::Away, Err(error)) => Err(error.clone()),
                (Held::Away, Ok(bytes)) => {
                    let from = usize::try_from(entry.place.offset - start).unwrap_or(usize::MAX);
                    let to = from.saturating_add(entry.place.len as usize).min(bytes.len());
                    let bytes = bytes.get(from..to).unwrap_or_default().to_vec();
                    self.source.check_read(self.stream, &entry, bytes)
                }
            };
            self.ready.push_back(frame);
        }
    }
}

impl Iterator for Frames<'_> {
    type Item = Result<Frame, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(frame) = self.ready.pop_front() {
                if frame.as_ref().is_ok_and(|frame| !self.filter.admits_frame(frame)) {
                    continue;
                }
                return Some(frame);
            }
            match self.slots.next()? {
                Err(error) => return Some(Err(error)),
                Ok(slot) if !self.filter.admits(slot.entry.kind) => {}
                Ok(Slot { entry, held: Held::Ordered(bytes) }) => {
                    let frame = self.source.check(self.stream, &entry, bytes.to_vec(), ORDERED);
                    self.ready.push_back(frame);
                }
                Ok(Slot { entry, held: Held::Journal(bytes) }) => {
                    let frame = self.source.check_read(self.stream, &entry, bytes.to_vec());
                    self.ready.push_back(frame);
                }
                Ok(Slot { entry, held: Held::Away }) => self.read(entry),
            }
        }
    }
}

impl Source<'_> {
    /// As [`Source::check`], of bytes that were read from the journal.
    fn check_read(&self, stream: Stream, entry: &Entry, bytes: Vec<u8>) -> Result<Frame, LogError> {
        self.check(stream, entry, bytes, &Journal::shown(entry.place.file))
    }

    /// Checks that the bytes are the frame which the entry promises, and makes a short one whole.
    fn check(&self, stream: Stream, entry: &Entry, bytes: Vec<u8>, file: &str) -> Result<Frame, LogError> {
        let damaged = |reason: String| {
            let place = format!("{file} at byte {}", entry.place.offset);
            LogError::Damaged { stream, seq: entry.seq, place, reason }
        };
        let view = View::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
        if view.stream() != stream || view.seq() != entry.seq || view.crc() != entry.crc {
            return Err(damaged("another event stands in its place".to_owned()));
        }
        let whole = match view.form() {
            Form::Short => payload::expand(&view, self.payloads, self.journal).map_err(&damaged)?,
            Form::Whole if view.bytes().len() == bytes.len() => return Ok(Frame::checked(bytes, stream)),
            Form::Whole | Form::Payload | Form::Prefix => {
                return Err(damaged("it is not an event, or not only one".to_owned()));
            }
        };
        Frame::parse(whole).map_err(|error| damaged(error.to_string()))
    }
}

//! One pass over the journal, from its first byte to its end: checks every checksum, position and chain link, compares
//! the result with the manifest, and builds the index. Opening, following and verifying are all this pass; opening makes it
//! quicker where the manifest vouches for the digests.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use crate::digest::chain_content;
use crate::error::LogError;
use crate::event::Kind;
use crate::files::{ReadFile, read_full};
use crate::frame::{self, Claim, Form, FrameError, HEADER_LEN, StreamKey, View, stream_key, stream_of_key};
use crate::id::{Digest, RunId, Seq, Stream};
use crate::index::{Entry, Index, Place};
use crate::journal::Journal;
use crate::manifest::{Manifest, Mark};
use crate::payload::{self, PayloadPlaces, Short};
use crate::report::{Finding, FindingClass};
use crate::source::Head;

/// How much of a file is read at a time.
const WINDOW: usize = 1 << 18;

/// An unfinished commit at the journal's end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Torn {
    pub(crate) at: Mark,
    pub(crate) bytes: u64,
    /// Some frames in it are whole.
    pub(crate) holds_intact: bool,
}

/// The state of the pass, and what it has found so far.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    pub(crate) index: Index,
    pub(crate) heads: BTreeMap<StreamKey, Head>,
    pub(crate) findings: Vec<Finding>,
    pub(crate) torn: Option<Torn>,
    /// The end of what was taken in.
    pub(crate) end: Mark,
    /// Nothing may be appended at `end`, because damage there is kept: the next file must have at least this number.
    pub(crate) next_file: Option<u32>,
    pub(crate) events: u64,
    /// Journal files that still hold events of runs that are gone from it.
    pub(crate) stale: BTreeSet<u32>,
    /// Sealed and dropped runs: the journal need not hold their events, and where it does these do not count.
    pub(crate) gone: BTreeSet<RunId>,
    /// Where long texts stand.
    pub(crate) payloads: PayloadPlaces,
    /// Long texts that an event which counts has in it.
    pub(crate) referred: BTreeSet<Digest>,
    manifest: Option<Manifest>,
    /// Before the manifest's mark, digests are taken from the manifest and not computed.
    trusts: bool,
    /// Something before the mark is not as the manifest says, so this pass is worth nothing.
    doubts: bool,
    /// Streams whose next frame continues one that cannot be read.
    unlinked: BTreeSet<StreamKey>,
    /// Damaged places that have not yet been assigned to an event.
    nameless: Vec<Nameless>,
}

#[derive(Debug)]
struct Nameless {
    finding: usize,
    at: Mark,
    claim: Option<Claim>,
}

/// What comes after a damaged place.
#[derive(Debug, Default)]
struct Ahead {
    intact: Option<Mark>,
    commit: bool,
}

impl Scan {
    pub(crate) fn new(manifest: Option<Manifest>) -> Self {
        let gone = manifest.as_ref().map(Manifest::gone).unwrap_or_default();
        Scan { manifest, gone, ..Scan::default() }
    }

    /// The journal as it is, in a quick pass if nothing speaks against one.
    ///
    /// A quick pass checks every frame's checksum and number, but takes the digests of what lies before the manifest's
    /// mark from the manifest, and so does not notice an event there that was exchanged together with its checksum. If
    /// anything at all is not as the manifest says, the pass is made anew and computes everything.
    pub(crate) fn quick(journal: &Journal, dir: &Path, manifest: Option<Manifest>) -> Result<Scan, LogError> {
        if manifest.is_some() {
            let mut scan = Scan::new(manifest.clone());
            scan.trusts = true;
            scan.advance(journal, dir)?;
            if !scan.doubts && !scan.findings.iter().any(Finding::is_damage) {
                return Ok(scan);
            }
        }
        Scan::full(journal, dir, manifest)
    }

    /// The journal as it is, with every digest computed.
    pub(crate) fn full(journal: &Journal, dir: &Path, manifest: Option<Manifest>) -> Result<Scan, LogError> {
        let mut scan = Scan::new(manifest);
        scan.advance(journal, dir)?;
        Ok(scan)
    }

    /// Journal files before `end` that hold something which no run in the journal needs.
    pub(crate) fn stale_before(&self, end: u32) -> BTreeSet<u32> {
        let unused = self.payloads.iter().filter(|(digest, _)| !self.referred.contains(digest));
        let files = self.stale.iter().copied().chain(unused.map(|(_, place)| place.file));
        files.filter(|number| *number < end).collect()
    }

    /// Takes in everything from where the last pass ended. Returns the number of events taken in.
    pub(crate) fn advance(&mut self, journal: &Journal, dir: &Path) -> Result<u64, LogError> {
        let before = self.events;
        self.torn = None;
        self.findings.retain(|finding| finding.class != FindingClass::TornTail);
        let numbers = journal.numbers(dir)?;
        let mut windows = Windows { journal, numbers };
        self.check_files(&windows.numbers);
        while let Some(mut window) = windows.open(self.end.file)? {
            let done = self.scan_file(&mut windows, &mut window)?;
            let Some(next) = windows.after(self.end.file).filter(|_| done) else { break };
            self.end = Mark { file: next, offset: 0 };
            self.next_file = None;
        }
        self.compare_manifest();
        self.settle();
        Ok(self.events - before)
    }

    /// Files are numbered from 0 without gaps.
    fn check_files(&mut self, numbers: &[u32]) {
        if self.events > 0 || self.end != Mark::default() {
            return;
        }
        let mut wanted = 0;
        for &number in numbers {
            if number > wanted {
                let detail = format!("the file is not there, but {} is", Journal::shown(number));
                let mut finding = Finding::new(FindingClass::MissingEvents, detail);
                finding.file = Some(Journal::shown(wanted));
                self.findings.push(finding);
            }
            wanted = number.saturating_add(1);
        }
        self.end.file = numbers.first().copied().unwrap_or(0);
    }

    /// Scans one file from `self.end`. False if the journal ends here with an unfinished commit.
    fn scan_file(&mut self, windows: &mut Windows<'_>, window: &mut Window) -> Result<bool, LogError> {
        while self.end.offset < window.len {
            match window.frame(self.end.offset)? {
                Ok(view) => {
                    self.accept(&view, windows.journal)?;
                    self.end.offset += view.bytes().len() as u64;
                }
                Err(FrameError::Newer { what }) => return Err(self.newer(what)),
                Err(error) => {
                    let ahead = windows.look_ahead(self.end, window)?;
                    if self.is_torn(&ahead, windows)? {
                        self.note_torn(window.len, &ahead, &error);
                        return Ok(false);
                    }
                    let claim = window.bytes(self.end.offset, HEADER_LEN)?;
                    let claim = frame::claim(claim);
                    self.note_damage(window.len, claim, &error);
                    match ahead.intact.filter(|mark| mark.file == self.end.file) {
                        Some(mark) => self.end = mark,
                        None => {
                            self.end.offset = window.len;
                            self.next_file = Some(self.end.file.saturating_add(1));
                        }
                    }
                }
            }
        }
        Ok(true)
    }

    fn newer(&self, what: String) -> LogError {
        let place = format!("{} at byte {}", Journal::shown(self.end.file), self.end.offset);
        LogError::Newer { place, what }
    }

    /// A damaged place is an unfinished commit if nothing after it and nothing in the manifest proves otherwise.
    fn is_torn(&self, ahead: &Ahead, windows: &Windows<'_>) -> Result<bool, LogError> {
        let counted = self.manifest.as_ref().is_some_and(|manifest| self.end < manifest.mark);
        if ahead.commit || counted {
            return Ok(false);
        }
        // A file is only begun after everything in the one before it was durable; a crash can leave it empty.
        let mut later = windows.numbers.iter().filter(|number| **number > self.end.file);
        later.try_fold(true, |torn, number| Ok(torn && windows.journal.get(*number)?.is_empty().unwrap_or(false)))
    }

    fn note_torn(&mut self, len: u64, ahead: &Ahead, error: &FrameError) {
        let bytes = len - self.end.offset;
        self.torn = Some(Torn { at: self.end, bytes, holds_intact: ahead.intact.is_some() });
        let detail = format!("the last commit is unfinished ({bytes} bytes; {error}); nothing acknowledged is lost");
        let finding = Finding::new(FindingClass::TornTail, detail);
        self.findings.push(finding.at(Journal::shown(self.end.file), self.end.offset));
    }

    fn note_damage(&mut self, len: u64, claim: Option<Claim>, error: &FrameError) {
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
    fn settle(&mut self) {
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
    fn believe(&self, claim: Claim) -> Option<(Stream, Seq)> {
        let stream = claim.stream?;
        let key = stream_key(stream);
        let count = self.heads.get(&key)?.count;
        (count == claim.seq.0 && count < u64::MAX).then_some((stream, claim.seq))
    }

    /// Takes in one intact frame at `self.end`.
    fn accept(&mut self, view: &View<'_>, journal: &Journal) -> Result<(), LogError> {
        if self.manifest.as_ref().is_some_and(|manifest| self.end >= manifest.mark) {
            self.compare_manifest();
        }
        if view.form() == Form::Payload {
            self.accept_payload(view);
            return Ok(());
        }
        if self.gone.contains(&view.stream().run()) {
            self.stale.insert(self.end.file);
            return Ok(());
        }
        let code = view.kind_code();
        let kind = Kind::from_code(code).ok_or_else(|| self.newer(format!("event kind {code}")))?;
        if view.layout() > kind.layout() {
            return Err(self.newer(format!("layout version {} of {}", view.layout(), kind.name())));
        }
        let (stream, seq) = (view.stream(), view.seq());
        let key = stream_key(stream);
        let head = self.heads.get(&key).copied().unwrap_or(Head::EMPTY);
        if seq.0 < head.count || seq.0 == u64::MAX {
            let detail = format!("a second event with this number; the stream already has {} events", head.count);
            self.found(FindingClass::ChainBreak, stream, seq, Some(kind), detail);
            return Ok(());
        }
        if seq.0 > head.count {
            self.note_gap(stream, head.count, seq.0);
        } else if !self.trusts && !self.unlinked.contains(&key) && view.previous() != head.chain {
            let detail = "it does not continue the event before it: one of the two was exchanged".to_owned();
            self.found(FindingClass::ChainBreak, stream, seq, Some(kind), detail);
        }
        self.unlinked.remove(&key);
        match self.digests(view, kind, head, journal) {
            Ok((body_len, digests)) => {
                self.heads.insert(key, Head { count: seq.0 + 1, ..digests });
                self.index.push(stream, Entry::new(view, kind, body_len, self.end.file, self.end.offset));
                self.events += 1;
            }
            Err(reason) => {
                self.found(FindingClass::InteriorDamage, stream, seq, Some(kind), reason);
                self.heads.insert(key, Head { count: seq.0 + 1, ..head });
                self.unlinked.insert(key);
            }
        }
        Ok(())
    }

    /// The length of an event's body, and the digests behind the event; or why the event is none, though its frame is
    /// intact: a long text of it is not.
    fn digests(&mut self, view: &View<'_>, kind: Kind, head: Head, journal: &Journal) -> Result<(u32, Head), String> {
        let body_len = payload::body_len(view).ok_or("its parts do not fit together")?;
        if view.form() == Form::Whole {
            return Ok((body_len, self.chained(view, kind, head)));
        }
        let pieces = Short::parse(view.body()).map(|short| short.pieces).unwrap_or_default();
        for piece in &pieces {
            self.referred.insert(piece.digest);
            if !self.payloads.contains_key(&piece.digest) {
                self.blame(view.stream(), piece.digest);
                return Err(format!("its long text {} is damaged or missing", piece.digest.short()));
            }
        }
        if self.trusts {
            return Ok((body_len, head));
        }
        let whole = payload::expand(view, &self.payloads, journal)?;
        let whole = View::parse(&whole).map_err(|error| error.to_string())?;
        Ok((body_len, self.chained(&whole, kind, head)))
    }

    fn chained(&self, whole: &View<'_>, kind: Kind, head: Head) -> Head {
        if self.trusts {
            return head;
        }
        let content = if kind.is_content() {
            chain_content(head.content, kind, whole.layout(), whole.body())
        } else {
            head.content
        };
        Head { chain: Digest::of(whole.bytes()), content, ..head }
    }

    fn accept_payload(&mut self, view: &View<'_>) {
        let digest = view.previous();
        if !self.trusts && Digest::of(view.body()) != digest {
            let detail = "a long text is not the one that was stored: it was exchanged".to_owned();
            let finding = Finding::new(FindingClass::InteriorDamage, detail);
            let claim = Some(Claim { stream: None, seq: Seq(0), kind: None, payload: Some(digest) });
            self.nameless.push(Nameless { finding: self.findings.len(), at: self.end, claim });
            self.findings.push(finding.at(Journal::shown(self.end.file), self.end.offset));
            return;
        }
        self.payloads.entry(digest).or_insert(Place::of(view, self.end.file, self.end.offset));
    }

    /// A damaged place that says it is this long text belongs to the first stream that misses the text.
    fn blame(&mut self, stream: Stream, digest: Digest) {
        let is_it = |place: &Nameless| place.claim.is_some_and(|claim| claim.payload == Some(digest));
        let Some(at) = self.nameless.iter().position(is_it) else { return };
        let place = self.nameless.remove(at);
        if let Some(finding) = self.findings.get_mut(place.finding) {
            finding.stream = Some(stream);
            finding.detail = format!("a long text: {}", finding.detail);
        }
    }

    fn found(&mut self, class: FindingClass, stream: Stream, seq: Seq, kind: Option<Kind>, detail: String) {
        let mut finding = Finding::new(class, detail).of(stream, seq);
        finding.kind = kind;
        self.findings.push(finding.at(Journal::shown(self.end.file), self.end.offset));
    }

    /// Events `from..to` of a stream are not where they should be: explained by a damaged place, or missing.
    fn note_gap(&mut self, stream: Stream, from: u64, to: u64) {
        let last = self.index.last(&stream_key(stream));
        let last = last.map_or(Mark::default(), |entry| Mark { file: entry.place.file, offset: entry.place.offset });
        let (mut named, mut rest): (Vec<Nameless>, Vec<Nameless>) =
            std::mem::take(&mut self.nameless).into_iter().partition(|place| claims(place, stream, from..to));
        let explained: BTreeSet<u64> = named.iter().filter_map(|place| Some(place.claim?.seq.0)).collect();
        for place in named.drain(..) {
            let seq = place.claim.map_or(Seq(from), |claim| claim.seq);
            self.name(&place, stream, seq, "");
        }
        let missing = (from..to).find(|seq| !explained.contains(seq));
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

    /// Compares what lies before the manifest's mark with the manifest, once.
    fn compare_manifest(&mut self) {
        let Some(manifest) = self.manifest.take() else { return };
        if std::mem::take(&mut self.trusts) {
            self.doubts |= self.end < manifest.mark || !self.adopt_heads(&manifest);
            return;
        }
        if self.end < manifest.mark {
            // What is appended from now on must lie behind the mark.
            self.next_file = Some(self.end.file.max(manifest.mark.file).saturating_add(1));
        }
        for (stream, counted) in &manifest.heads {
            self.compare_head(*stream, *counted);
        }
        let counted: BTreeSet<StreamKey> = manifest.heads.iter().map(|(stream, _)| stream_key(*stream)).collect();
        let extra: Vec<StreamKey> = self.heads.keys().filter(|key| !counted.contains(*key)).copied().collect();
        for stream in extra.iter().filter_map(|key| stream_of_key(key)) {
            let detail = "the manifest does not know this stream, whose events are older than it".to_owned();
            let mut finding = Finding::new(FindingClass::ManifestDisagreement, detail);
            finding.stream = Some(stream);
            self.findings.push(finding);
        }
    }

    /// Takes over the digests of the manifest, if its streams and counts are those that were found.
    fn adopt_heads(&mut self, manifest: &Manifest) -> bool {
        let agrees = |(stream, counted): &(Stream, Head)| {
            self.heads.get(&stream_key(*stream)).is_some_and(|head| head.count == counted.count)
        };
        if manifest.heads.len() != self.heads.len() || !manifest.heads.iter().all(agrees) {
            return false;
        }
        self.heads = manifest.heads.iter().map(|(stream, head)| (stream_key(*stream), *head)).collect();
        true
    }

    fn compare_head(&mut self, stream: Stream, counted: Head) {
        let key = stream_key(stream);
        let head = self.heads.get(&key).copied().unwrap_or(Head::EMPTY);
        let damaged = self.findings.iter().any(|finding| finding.is_damage() && finding.stream == Some(stream));
        if head.count < counted.count {
            self.note_gap(stream, head.count, counted.count);
            // The numbers stay taken, so that the loss stays visible.
            self.heads.insert(key, counted);
            self.unlinked.insert(key);
            return;
        }
        if self.unlinked.contains(&key) && head.count == counted.count {
            // Its last event is lost and told of; what was behind it is known from here alone.
            self.heads.insert(key, counted);
            return;
        }
        if damaged && head.count == counted.count {
            // The content chain cannot be computed over a hole.
            self.heads.insert(key, Head { content: counted.content, ..head });
        }
        let wrong = if head.count > counted.count {
            format!("the journal holds {} events where the manifest counts {}", head.count, counted.count)
        } else if head.chain != counted.chain {
            "the last event is not the one that the manifest names: it was exchanged".to_owned()
        } else if head.content != counted.content && !damaged {
            "the content digest is not the one in the manifest".to_owned()
        } else {
            return;
        };
        self.found(FindingClass::ManifestDisagreement, stream, Seq(head.count.saturating_sub(1)), None, wrong);
    }
}

fn claims(place: &Nameless, stream: Stream, range: Range<u64>) -> bool {
    place.claim.is_some_and(|claim| claim.stream == Some(stream) && range.contains(&claim.seq.0))
}

/// The journal's files as the pass found them.
struct Windows<'a> {
    journal: &'a Journal,
    numbers: Vec<u32>,
}

impl Windows<'_> {
    fn open(&self, number: u32) -> Result<Option<Window>, LogError> {
        if !self.numbers.contains(&number) {
            return Ok(None);
        }
        Window::open(self.journal, number).map(Some)
    }

    fn after(&self, number: u32) -> Option<u32> {
        self.numbers.iter().copied().find(|other| *other > number)
    }

    /// Looks beyond the damaged frame at `from` for the next intact one, and for the beginning of a later commit.
    fn look_ahead(&self, from: Mark, window: &mut Window) -> Result<Ahead, LogError> {
        let mut ahead = Ahead::default();
        let Some(mut at) = window.resync(from.offset)? else { return self.look_in_later(from.file, ahead) };
        ahead.intact = Some(Mark { file: from.file, offset: at });
        while at < window.len {
            let next = match window.frame(at)? {
                Ok(view) if view.begins_commit() => {
                    ahead.commit = true;
                    return Ok(ahead);
                }
                Ok(view) => Some(at + view.bytes().len() as u64),
                Err(_) => window.resync(at)?,
            };
            let Some(next) = next else { break };
            at = next;
        }
        self.look_in_later(from.file, ahead)
    }

    /// Every file begins with the beginning of a commit.
    fn look_in_later(&self, file: u32, mut ahead: Ahead) -> Result<Ahead, LogError> {
        let mut at = file;
        while let Some(number) = self.after(at) {
            let mut window = Window::open(self.journal, number)?;
            ahead.commit |= window.len > 0 && (window.frame(0)?.is_ok() || window.resync(0)?.is_some());
            at = number;
        }
        Ok(ahead)
    }
}

/// A file read piece by piece.
struct Window {
    file: std::sync::Arc<dyn ReadFile>,
    path: std::path::PathBuf,
    /// The file's length when it was opened; what is appended later is not looked at.
    len: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl Window {
    fn open(journal: &Journal, number: u32) -> Result<Self, LogError> {
        let path = journal.path(number);
        let file = journal.get(number)?;
        let len = file.len().map_err(|error| LogError::io("read the journal file", &path, error))?;
        Ok(Window { file, path, len, start: 0, buffer: Vec::new() })
    }

    /// `want` bytes from `offset` on, or as many as there are.
    fn bytes(&mut self, offset: u64, want: usize) -> Result<&[u8], LogError> {
        let there = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX);
        let want = want.min(there);
        let held = offset.checked_sub(self.start).and_then(|from| usize::try_from(from).ok());
        let held = held.filter(|from| from.checked_add(want).is_some_and(|end| end <= self.buffer.len()));
        let from = match held {
            Some(from) => from,
            None => {
                self.buffer.resize(want.max(WINDOW).min(there), 0);
                let read = read_full(self.file.as_ref(), &mut self.buffer, offset);
                let read = read.map_err(|error| LogError::io("read the journal file", &self.path, error))?;
                self.buffer.truncate(read);
                self.start = offset;
                0
            }
        };
        let end = (from + want).min(self.buffer.len());
        Ok(self.buffer.get(from..end).unwrap_or_default())
    }

    /// The frame at `offset`, or why there is none.
    fn frame(&mut self, offset: u64) -> Result<Result<View<'_>, FrameError>, LogError> {
        let need = match frame::frame_len(self.bytes(offset, HEADER_LEN)?) {
            Ok(need) => need,
            Err(error) => return Ok(Err(error)),
        };
        let have = self.len - offset.min(self.len);
        if need > have {
            return Ok(Err(FrameError::Short { have, need }));
        }
        let bytes = self.bytes(offset, usize::try_from(need).unwrap_or(usize::MAX))?;
        Ok(View::parse(bytes))
    }

    /// Where the next intact frame behind a damaged one begins.
    fn resync(&mut self, damaged: u64) -> Result<Option<u64>, LogError> {
        // If only the body is damaged, the header still says where the frame ends. That also passes over whatever
        // looks like a frame inside a body.
        if let Ok(length) = frame::frame_len(self.bytes(damaged, HEADER_LEN)?) {
            let next = damaged + length;
            if next < self.len && self.frame(next)?.is_ok() {
                return Ok(Some(next));
            }
        }
        let mut at = damaged + 1;
        while at < self.len {
            let bytes = self.bytes(at, WINDOW)?;
            let searched = bytes.len() as u64;
            let hit = bytes.windows(frame::MAGIC.len()).position(|four| four == frame::MAGIC);
            match hit {
                Some(hit) => {
                    at += hit as u64;
                    if self.frame(at)?.is_ok() {
                        return Ok(Some(at));
                    }
                    at += 1;
                }
                // The magic bytes may lie across the end of the piece.
                None if searched > frame::MAGIC.len() as u64 => at += searched - (frame::MAGIC.len() as u64 - 1),
                None => break,
            }
        }
        Ok(None)
    }
}

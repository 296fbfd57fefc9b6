//! One pass over the journal, from its first byte to its end: checks every checksum, position and chain link, compares
//! the result with the manifest, and builds the index. Opening, following and verifying are all this pass; opening makes it
//! quicker where the manifest vouches for the digests.

mod counted;
mod damage;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::digest::chain_content;
use crate::error::LogError;
use crate::event::Kind;
use crate::frame::{self, Claim, Form, FrameError, HEADER_LEN, StreamKey, View, stream_key};
use crate::id::{Digest, RunId, Seq};
use crate::index::{Entry, Index, Place};
use crate::journal::Journal;
use crate::manifest::{Manifest, Mark};
use crate::payload::{self, PayloadPlaces, Short};
use crate::prefix::{Prefix, PrefixMap};
use crate::report::{Finding, FindingClass};
use crate::source::Head;

use damage::Nameless;
use windows::{Ahead, Window, Windows};

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
    /// What streams share with others by reference.
    pub(crate) prefixes: PrefixMap,
    /// Every digest was computed, none was taken from the manifest.
    pub(crate) computed: bool,
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

impl Scan {
    pub(crate) fn new(manifest: Option<Manifest>) -> Self {
        let gone = manifest.as_ref().map(Manifest::gone).unwrap_or_default();
        Scan { manifest, gone, ..Scan::default() }
    }

    /// Whether nothing was ever written.
    pub(crate) fn is_untouched(&self) -> bool {
        self.events == 0 && self.end == Mark::default() && self.findings.is_empty() && self.torn.is_none()
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
        scan.computed = true;
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
        if view.form() == Form::Prefix {
            self.accept_prefix(view);
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
                self.index.push(stream, &Entry::new(view, kind, body_len, self.end.file, self.end.offset));
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

    /// Takes in what a stream shares with another one by reference. Whether the other one has it can only be said once
    /// everything is known that the log holds: see [`crate::prefix`].
    fn accept_prefix(&mut self, view: &View<'_>) {
        let (stream, seq) = (view.stream(), Seq(0));
        let key = stream_key(stream);
        let head = self.heads.get(&key).copied().unwrap_or(Head::EMPTY);
        let Some(prefix) = Prefix::parse(view, Place::of(view, self.end.file, self.end.offset)) else {
            let detail = "what it shares with its base is not said as a program writes it".to_owned();
            self.found(FindingClass::InteriorDamage, stream, seq, None, detail);
            return;
        };
        if head.count > 0 {
            let detail = format!("a second beginning: the stream already has {} events", head.count);
            self.found(FindingClass::ChainBreak, stream, seq, None, detail);
            return;
        }
        self.heads.insert(key, prefix.head());
        self.events = self.events.saturating_add(prefix.count);
        self.prefixes.insert(key, prefix);
    }

    fn accept_payload(&mut self, view: &View<'_>) {
        let digest = view.previous();
        if !self.trusts && Digest::of(view.body()) != digest {
            let detail = "a long text is not the one that was stored: it was exchanged".to_owned();
            let finding = Finding::new(FindingClass::InteriorDamage, detail);
            let claim = Some(Claim { stream: None, seq: Seq(0), kind: None, payload: Some(digest), prefix: false });
            self.nameless.push(Nameless { finding: self.findings.len(), at: self.end, claim });
            self.findings.push(finding.at(Journal::shown(self.end.file), self.end.offset));
            return;
        }
        self.payloads.entry(digest).or_insert(Place::of(view, self.end.file, self.end.offset));
    }
}

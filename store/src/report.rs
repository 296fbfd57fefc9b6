//! What a check or an opening found, as values to print or to count.

use std::fmt;
use std::path::PathBuf;

use crate::event::Kind;
use crate::id::{Seq, Stream};

/// What kind of trouble a [`Finding`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FindingClass {
    /// The journal ends in the middle of its last commit: what a killed process or a power cut leaves. Nothing
    /// acknowledged is lost.
    TornTail,
    /// A stored event is damaged: something after it proves that it was whole once.
    InteriorDamage,
    /// Events that were acknowledged are not there.
    MissingEvents,
    /// An intact event does not continue the one before it: one of the two was exchanged.
    ChainBreak,
    /// The manifest is missing or damaged, or says something else than the journal.
    ManifestDisagreement,
    /// A run's recorded content digest is not that of its events.
    ContentDisagreement,
    /// What a stream shares with another one by reference is not what it shared when it began.
    BaseDisagreement,
}

impl FindingClass {
    /// The class in words.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            FindingClass::TornTail => "torn tail",
            FindingClass::InteriorDamage => "interior damage",
            FindingClass::MissingEvents => "missing events",
            FindingClass::ChainBreak => "chain break",
            FindingClass::ManifestDisagreement => "manifest disagreement",
            FindingClass::ContentDisagreement => "content disagreement",
            FindingClass::BaseDisagreement => "base disagreement",
        }
    }
}

/// One thing that is wrong with a log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What kind of trouble.
    pub class: FindingClass,
    /// The stream, where it can be told.
    pub stream: Option<Stream>,
    /// The event's position, where it can be told; the first one if several are concerned.
    pub seq: Option<Seq>,
    /// The event's kind, where it can be told.
    pub kind: Option<Kind>,
    /// The file, relative to the log's directory.
    pub file: Option<String>,
    /// Where in the file it begins, in bytes.
    pub offset: Option<u64>,
    /// The reason, in words.
    pub detail: String,
}

impl Finding {
    pub(crate) fn new(class: FindingClass, detail: String) -> Self {
        Finding { class, stream: None, seq: None, kind: None, file: None, offset: None, detail }
    }

    pub(crate) fn of(mut self, stream: Stream, seq: Seq) -> Self {
        self.stream = Some(stream);
        self.seq = Some(seq);
        self
    }

    pub(crate) fn at(mut self, file: String, offset: u64) -> Self {
        self.file = Some(file);
        self.offset = Some(offset);
        self
    }

    pub(crate) fn is_damage(&self) -> bool {
        self.class != FindingClass::TornTail
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.class.name())?;
        match (self.stream, self.seq) {
            (Some(stream), Some(seq)) => write!(f, ": event {stream}#{seq}")?,
            (Some(stream), None) => write!(f, ": stream {stream}")?,
            _ => {}
        }
        if let Some(kind) = self.kind {
            write!(f, " ({})", kind.name())?;
        }
        if let (Some(file), Some(offset)) = (&self.file, self.offset) {
            write!(f, ", {file} at byte {offset}")?;
        } else if let Some(file) = &self.file {
            write!(f, ", {file}")?;
        }
        write!(f, ": {}", self.detail)
    }
}

/// What opening a log found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenReport {
    /// What was repaired or is worth knowing, one sentence each, for printing. Empty after an ordinary opening.
    pub lines: Vec<String>,
    /// What is wrong with the log.
    pub findings: Vec<Finding>,
    /// Bytes of an unfinished commit at the journal's end: cut off by a writer, passed over by a reader.
    pub torn_tail_bytes: u64,
    /// Events that the ordered store had not yet taken over from the journal.
    pub reapplied: u64,
    /// Bytes of the journal that sealed runs gave back.
    pub freed_bytes: u64,
    /// Where a damaged ordered store was moved to before it was rebuilt.
    pub set_aside: Option<PathBuf>,
}

impl OpenReport {
    /// True if anything but an unfinished last commit was found: what is intact can be read, but results that rest on
    /// the whole log cannot be trusted.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.findings.iter().any(Finding::is_damage)
    }
}

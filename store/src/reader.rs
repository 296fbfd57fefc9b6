//! A read-only view of a log directory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::LogError;
use crate::fetch::Source;
use crate::files::{Files, RealFiles};
use crate::frame::{StreamKey, stream_key, stream_of_key};
use crate::holdings::Holdings;
use crate::id::{RunId, Seq, Stream};
use crate::journal::Journal;
use crate::manifest::{Manifest, ManifestError};
use crate::prefix::{self, SharedPrefix};
use crate::report::{Finding, FindingClass, OpenReport};
use crate::scan::Scan;
use crate::sealed::Sealed;
use crate::source::{EventIter, EventSource, Filter, FrameIter, Head, HeaderIter};

/// How often opening begins anew because runs are being sealed meanwhile.
const SEAL_TRIES: u32 = 10;

/// A pass over the journal: [`Scan::quick`] or [`Scan::full`].
type Pass = fn(&Journal, &Path, Option<Manifest>) -> Result<Scan, LogError>;

/// A log as it was when it was opened or last refreshed. It takes no lock and changes nothing, so any number of
/// processes may read a log, also while another one writes to it.
///
/// It reads the journal alone. Opening checks the whole journal and keeps a byte or two for every event, or 16 where each
/// was written alone; headers and bodies are read when they are asked for, and must be those that were checked. What lies in archives is read from there. A run that is sealed after the log was opened
/// leaves the journal, so reading it may then fail: open the log again. Events that were written but not yet acknowledged may be seen.
#[derive(Debug)]
pub struct Reader {
    dir: PathBuf,
    journal: Journal,
    scan: Scan,
    sealed: Sealed,
    /// Findings about the manifest itself.
    notes: Vec<Finding>,
    /// Findings about what streams share, and the number of streams that were looked at.
    sharing: (Vec<Finding>, usize),
}

impl Reader {
    /// Opens the log in `dir`. Every event's checksum and number is checked; the digests of what lies before the
    /// manifest's mark are taken from it.
    ///
    /// Damage does not keep it from opening: it is in the report, and what is intact can be read.
    ///
    /// # Errors
    /// [`LogError::NoLog`], [`LogError::Newer`] if a later program wrote any of it, or [`LogError::Io`].
    pub fn open(dir: &Path) -> Result<(Reader, OpenReport), LogError> {
        Self::open_with(Arc::new(RealFiles), dir)
    }

    /// As [`Reader::open`], with another file layer.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_with(files: Arc<dyn Files>, dir: &Path) -> Result<(Reader, OpenReport), LogError> {
        Self::open_by(&files, dir, Scan::quick)
    }

    /// As [`Reader::open`], with every digest computed, rather than taken from the manifest where it vouches for them. It
    /// costs a few seconds for each GB, and notices events that were exchanged together with their checksums: for whoever
    /// computes with what a log holds.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_checked(dir: &Path) -> Result<(Reader, OpenReport), LogError> {
        let files: Arc<dyn Files> = Arc::new(RealFiles);
        Self::open_full(&files, dir)
    }

    /// As [`Reader::open_checked`], with another file layer.
    pub(crate) fn open_full(files: &Arc<dyn Files>, dir: &Path) -> Result<(Reader, OpenReport), LogError> {
        Self::open_by(files, dir, Scan::full)
    }

    fn open_by(files: &Arc<dyn Files>, dir: &Path, pass: Pass) -> Result<(Reader, OpenReport), LogError> {
        // A run that is being sealed meanwhile leaves the journal in the middle of the pass: then once more.
        for _ in 0..SEAL_TRIES {
            let opened = Self::open_once(files, dir, pass)?;
            if same_archives(&opened.0, files.as_ref(), dir)? {
                return Ok(opened);
            }
        }
        Self::open_once(files, dir, pass)
    }

    fn open_once(files: &Arc<dyn Files>, dir: &Path, pass: Pass) -> Result<(Reader, OpenReport), LogError> {
        // The manifest first: the journal then holds at least what it counts, even if a writer goes on meanwhile.
        let (manifest, note) = load_manifest(files.as_ref(), dir)?;
        let lists = manifest.as_ref().map(|manifest| (manifest.sealed.clone(), manifest.dropped.clone()));
        let (listed, dropped) = lists.unwrap_or_default();
        let journal = Journal::new(Arc::clone(files), dir);
        let scan = pass(&journal, dir, manifest)?;
        let mut notes: Vec<Finding> = note.into_iter().collect();
        let in_journal = |run| scan.heads.keys().filter_map(|key| stream_of_key(key)).any(|stream| stream.run() == run);
        let sealed = Sealed::load(files, dir, (&listed, &dropped), in_journal)?;
        // A writer makes the journal before it has a manifest to write: where both are empty it came no further.
        if sealed.entries.is_empty() && scan.is_untouched() && Manifest::read(files.as_ref(), dir)?.is_none() {
            notes.clear();
        }
        let mut reader = Reader { dir: dir.to_owned(), journal, scan, sealed, notes, sharing: Default::default() };
        reader.check_sharing(reader.scan.computed)?;
        let findings = reader.findings();
        let report = OpenReport {
            lines: findings.iter().map(Finding::to_string).collect(),
            torn_tail_bytes: reader.scan.torn.map_or(0, |torn| torn.bytes),
            findings,
            ..OpenReport::default()
        };
        Ok((reader, report))
    }

    /// Takes in what has been appended since the log was opened or last refreshed, and returns the number of new events.
    ///
    /// # Errors
    /// As [`Reader::open`]; what was taken in before stays readable.
    pub fn refresh(&mut self) -> Result<u64, LogError> {
        let taken = self.scan.advance(&self.journal, &self.dir)?;
        if self.sharing.1 != self.scan.prefixes.len() {
            self.check_sharing(false)?;
        }
        Ok(taken)
    }

    /// Looks at what streams share with others by reference.
    fn check_sharing(&mut self, compute: bool) -> Result<(), LogError> {
        let found = prefix::check(self.holdings(), &self.scan.prefixes, |stream| self.head(stream), compute)?;
        self.sharing = (found, self.scan.prefixes.len());
        Ok(())
    }

    /// The log's directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The journal's files and their bytes together.
    pub(crate) fn size(&self) -> Result<(u64, u64), LogError> {
        let numbers = self.journal.numbers(&self.dir)?;
        let mut bytes = 0;
        for number in &numbers {
            let len = self.journal.get(*number)?.len();
            bytes += len.map_err(|error| LogError::io("read the journal file", &self.journal.path(*number), error))?;
        }
        Ok((numbers.len() as u64, bytes))
    }

    pub(crate) fn sealed(&self) -> &Sealed {
        &self.sealed
    }

    pub(crate) fn scan(&self) -> &Scan {
        &self.scan
    }

    fn holdings(&self) -> Holdings<'_> {
        Holdings {
            order: &self.scan.index,
            source: Source { journal: &self.journal, payloads: &self.scan.payloads },
            findings: &self.scan.findings,
            sealed: &self.sealed,
            prefixes: &self.scan.prefixes,
        }
    }

    fn count(&self, stream: Stream) -> u64 {
        self.head(stream).map_or(0, |head| head.count)
    }
}

impl EventSource for Reader {
    fn runs(&self) -> Vec<RunId> {
        self.sealed.with_runs(runs(self.scan.heads.keys()))
    }

    fn streams(&self, run: RunId) -> Vec<Stream> {
        match self.sealed.of(run) {
            Some(archive) => archive.streams(run),
            None => streams(self.scan.heads.keys(), run),
        }
    }

    fn head(&self, stream: Stream) -> Option<Head> {
        match self.sealed.of(stream.run()) {
            Some(archive) => archive.head(stream),
            None => self.scan.heads.get(&stream_key(stream)).copied(),
        }
    }

    fn findings(&self) -> Vec<Finding> {
        let in_journal = self.notes.iter().chain(&self.scan.findings);
        in_journal.chain(&self.sealed.findings).chain(&self.sharing.0).cloned().collect()
    }

    fn headers(&self, stream: Stream, from: Seq) -> HeaderIter<'_> {
        self.holdings().headers(stream, from, self.count(stream))
    }

    fn frames(&self, stream: Stream, from: Seq, filter: &Filter) -> FrameIter<'_> {
        self.holdings().frames(stream, from, self.count(stream), filter)
    }

    fn events(&self, stream: Stream, from: Seq, filter: &Filter) -> EventIter<'_> {
        self.holdings().events(stream, from, self.count(stream), filter)
    }

    fn shared(&self, stream: Stream) -> Option<SharedPrefix> {
        let is_live = self.sealed.of(stream.run()).is_none();
        self.scan.prefixes.get(&stream_key(stream)).filter(|_| is_live).map(prefix::Prefix::shared)
    }
}

/// Whether the manifest still lists the archives that it listed when the reader was opened.
fn same_archives(reader: &Reader, files: &dyn Files, dir: &Path) -> Result<bool, LogError> {
    Ok(match load_manifest(files, dir)? {
        (Some(manifest), _) => {
            manifest.sealed.iter().all(|entry| reader.sealed.entries.contains(entry))
                && manifest.dropped.iter().all(|dropped| reader.sealed.knows_dropped(dropped.run))
        }
        (None, _) => true,
    })
}

/// The manifest, or the finding that there is none to trust.
pub(crate) fn load_manifest(files: &dyn Files, dir: &Path) -> Result<(Option<Manifest>, Option<Finding>), LogError> {
    let trouble = |detail: String| {
        let mut finding = Finding::new(FindingClass::ManifestDisagreement, detail);
        finding.file = Some("MANIFEST".to_owned());
        Ok((None, Some(finding)))
    };
    match Manifest::read(files, dir)? {
        Some(Ok(manifest)) => Ok((Some(manifest), None)),
        Some(Err(ManifestError::Newer { version })) => {
            let what = format!("format version {version}");
            Err(LogError::Newer { place: dir.join("MANIFEST").display().to_string(), what })
        }
        Some(Err(error @ ManifestError::Damaged { .. })) => {
            trouble(format!("{error}; opening the log for writing rebuilds it from the journal"))
        }
        None => trouble(
            "it is missing, so a journal that lost its end would look whole; opening the log for writing rebuilds it"
                .to_owned(),
        ),
    }
}

/// The runs of sorted stream keys, in order.
pub(crate) fn runs<'a>(keys: impl Iterator<Item = &'a StreamKey>) -> Vec<RunId> {
    let mut runs: Vec<RunId> = keys.filter_map(|key| stream_of_key(key)).map(|stream| stream.run()).collect();
    runs.dedup();
    runs
}

/// The streams of a run among sorted stream keys, in order.
pub(crate) fn streams<'a>(keys: impl Iterator<Item = &'a StreamKey>, run: RunId) -> Vec<Stream> {
    keys.filter_map(|key| stream_of_key(key)).filter(|stream| stream.run() == run).collect()
}

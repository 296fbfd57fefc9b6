//! The archives of a log: the folder `sealed`, and what `MANIFEST` says must be in it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::archive::{ArchiveReader, ArchiveSummary, EXTENSION};
use crate::dropped::DroppedRun;
use crate::error::LogError;
use crate::files::Files;
use crate::frame::StreamKey;
use crate::id::{Digest, RunId, Stream};
use crate::manifest::{Manifest, Mark};
use crate::report::{Finding, FindingClass};
use crate::source::Head;

/// The folder in the log's directory.
pub(crate) const FOLDER: &str = "sealed";

/// An archive that belongs to a log, as `MANIFEST` lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealedEntry {
    /// The run.
    pub run: RunId,
    /// Its events.
    pub events: u64,
    /// The archive's length in bytes.
    pub bytes: u64,
    /// The archive's digest.
    pub digest: Digest,
}

impl SealedEntry {
    pub(crate) fn new(run: RunId, events: u64, bytes: u64, digest: Digest) -> Self {
        SealedEntry { run, events, bytes, digest }
    }

    pub(crate) fn of(summary: &ArchiveSummary) -> Self {
        Self::new(summary.run, summary.events, summary.bytes, summary.digest)
    }
}

/// Where a run's archive lies.
pub(crate) fn path_of(dir: &Path, run: RunId) -> PathBuf {
    dir.join(FOLDER).join(format!("{run}.{EXTENSION}"))
}

/// The archives of a log, open for reading.
#[derive(Debug, Default)]
pub(crate) struct Sealed {
    archives: BTreeMap<RunId, Arc<ArchiveReader>>,
    /// What `MANIFEST` must list from now on: what it lists, and archives that were put beside them.
    pub(crate) entries: Vec<SealedEntry>,
    /// Runs that were dropped, as `MANIFEST` must list them from now on.
    pub(crate) dropped: Vec<DroppedRun>,
    /// Archives that are there and not listed.
    pub(crate) adopted: usize,
    pub(crate) findings: Vec<Finding>,
}

impl Sealed {
    /// Opens what is in the folder. An archive that is not listed counts if no event of its run is in the journal, and
    /// if it is not what is left of a dropped run.
    pub(crate) fn load(
        files: &Arc<dyn Files>,
        dir: &Path,
        (listed, dropped): (&[SealedEntry], &[DroppedRun]),
        in_journal: impl Fn(RunId) -> bool,
    ) -> Result<Sealed, LogError> {
        let mut sealed = Sealed { entries: listed.to_vec(), dropped: dropped.to_vec(), ..Sealed::default() };
        let mut there = names(files.as_ref(), dir)?;
        for run in dropped.iter().filter(|dropped| dropped.unfinished).map(|dropped| dropped.run) {
            there.remove(&run);
        }
        for entry in listed {
            let shown = format!("{FOLDER}/{}.{EXTENSION}", entry.run);
            if there.remove(&entry.run) {
                sealed.open_listed(files, dir, entry, shown)?;
            } else {
                let detail = format!("the archive of a sealed run with {} events is not there", entry.events);
                sealed.found(FindingClass::MissingEvents, entry.run, shown, detail);
            }
        }
        for run in there.into_iter().filter(|run| !in_journal(*run)) {
            let shown = format!("{FOLDER}/{run}.{EXTENSION}");
            match ArchiveReader::open_with(Arc::clone(files), &path_of(dir, run)) {
                Ok(archive) if archive.run() == run => {
                    sealed.entries.push(SealedEntry::of(&archive.summary()));
                    sealed.adopted += 1;
                    sealed.dropped.retain(|dropped| dropped.run != run);
                    sealed.archives.insert(run, Arc::new(archive));
                }
                Ok(_) => {
                    let detail = "the archive holds another run than its name says".to_owned();
                    sealed.found(FindingClass::InteriorDamage, run, shown, detail);
                }
                Err(LogError::Archive { source, .. }) => {
                    sealed.found(FindingClass::InteriorDamage, run, shown, source.to_string());
                }
                Err(error) => return Err(error),
            }
        }
        sealed.entries.sort_by_key(|entry| entry.run);
        Ok(sealed)
    }

    fn open_listed(
        &mut self,
        files: &Arc<dyn Files>,
        dir: &Path,
        entry: &SealedEntry,
        shown: String,
    ) -> Result<(), LogError> {
        match ArchiveReader::open_with(Arc::clone(files), &path_of(dir, entry.run)) {
            Ok(archive) => {
                if SealedEntry::of(&archive.summary()) != *entry {
                    let detail = "the archive is not the one that the manifest lists: it was exchanged".to_owned();
                    self.found(FindingClass::ManifestDisagreement, entry.run, shown, detail);
                }
                if archive.run() == entry.run {
                    self.archives.insert(entry.run, Arc::new(archive));
                }
                Ok(())
            }
            Err(error @ LogError::Archive { .. }) if error.class() == crate::ErrorClass::Newer => Err(error),
            Err(LogError::Archive { source, .. }) => {
                self.found(FindingClass::InteriorDamage, entry.run, shown, source.to_string());
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn found(&mut self, class: FindingClass, run: RunId, file: String, detail: String) {
        let mut finding = Finding::new(class, format!("{detail} (run {run})"));
        finding.file = Some(file);
        self.findings.push(finding);
    }

    /// The archive of a run, if it is sealed and readable.
    pub(crate) fn of(&self, run: RunId) -> Option<&Arc<ArchiveReader>> {
        self.archives.get(&run)
    }

    /// Whether the run is sealed, readable or not.
    pub(crate) fn holds(&self, run: RunId) -> bool {
        self.entries.iter().any(|entry| entry.run == run) || self.archives.contains_key(&run)
    }

    /// The manifest of a log with these archives and dropped runs.
    pub(crate) fn manifest(&self, mark: Mark, heads: &BTreeMap<StreamKey, Head>) -> Manifest {
        Manifest::new(mark, heads).with_sealed(&self.entries).with_dropped(&self.dropped)
    }

    /// Whether the run was dropped.
    pub(crate) fn dropped(&self, run: RunId) -> bool {
        self.dropped.iter().any(|dropped| dropped.run == run)
    }

    /// Whether it is known that the run was dropped, though an archive of it may have been put there since.
    pub(crate) fn knows_dropped(&self, run: RunId) -> bool {
        self.dropped(run) || self.archives.contains_key(&run)
    }

    /// Every archive that is readable, in the order of runs.
    pub(crate) fn archives(&self) -> impl Iterator<Item = &Arc<ArchiveReader>> {
        self.archives.values()
    }

    /// Adds the sealed runs to those of a journal, in order.
    pub(crate) fn with_runs(&self, mut runs: Vec<RunId>) -> Vec<RunId> {
        runs.extend(self.archives.keys());
        runs.sort_unstable();
        runs.dedup();
        runs
    }

    /// Every stream of the archives with its end.
    pub(crate) fn streams(&self) -> impl Iterator<Item = (Stream, Head)> {
        use crate::source::EventSource;
        self.archives().flat_map(|archive| {
            let streams = archive.streams(archive.run()).into_iter();
            streams.filter_map(move |stream| Some((stream, archive.head(stream)?)))
        })
    }
}

/// The runs that have an archive in the folder, by the files' names.
fn names(files: &dyn Files, dir: &Path) -> Result<BTreeSet<RunId>, LogError> {
    let folder = dir.join(FOLDER);
    match files.list(&folder) {
        Ok(names) => Ok(names.iter().filter_map(|name| run_of(name)).collect()),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(BTreeSet::new())
        }
        Err(error) => Err(LogError::io("list the archives", &folder, error)),
    }
}

fn run_of(name: &str) -> Option<RunId> {
    let run: RunId = name.strip_suffix(EXTENSION)?.strip_suffix('.')?.parse().ok()?;
    (format!("{run}.{EXTENSION}") == name).then_some(run)
}

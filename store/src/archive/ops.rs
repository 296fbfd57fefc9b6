//! Runs on their way between a journal and archives.
//!
//! # Sealing, step by step
//!
//! 1. The archive is written as `sealed/RUN.raolog.new`, synced, and every event in it compared with the journal's.
//! 2. It is renamed to `sealed/RUN.raolog`, and the directory synced. The run is now in both; the journal's counts.
//! 3. A new, empty journal file is begun, and `MANIFEST` replaced by one whose mark lies there, which does not count the
//!    run's streams and lists the archive. From this moment the run is sealed: its events in the journal are passed over.
//! 4. The ordered store is removed, and each journal file with events of the run replaced by one without them.
//! 5. The ordered store is built anew.
//!
//! A crash before step 3 leaves the run in the journal, and sealing it again begins anew. A crash after it leaves work
//! that the next opening for writing does: steps 4 and 5 are part of every opening.

use std::path::Path;
use std::sync::Arc;

use super::check::check;
use super::read::ArchiveReader;
use super::write::{ArchiveSummary, write_archive};
use crate::error::LogError;
use crate::event::Kind;
use crate::files::{Files, RealFiles};
use crate::id::{RunId, Seq, Stream};
use crate::log::{Log, Options};
use crate::report::Finding;
use crate::sealed::{self, SealedEntry};
use crate::source::{EventSource, Filter};

/// What [`seal`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SealReport {
    /// The archive.
    pub archive: ArchiveSummary,
    /// Bytes that the journal gave back.
    pub freed: u64,
}

/// What [`import`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImportReport {
    /// The archive.
    pub archive: ArchiveSummary,
    /// False if the log had exactly this run already, and nothing was done.
    pub added: bool,
}

/// Why a run is not ready to be sealed or exported, if it is not.
///
/// A recorded run ends with `run_finished`, a training run with `train_finished`.
pub(crate) fn unfinished(source: &dyn EventSource, run: RunId) -> Result<Option<String>, LogError> {
    let ends = [(Stream::Run(run), Kind::RunFinished), (Stream::Training(run), Kind::TrainFinished)];
    let mut known = false;
    for (stream, wanted) in ends {
        if source.head(stream).is_none() {
            continue;
        }
        known = true;
        let mut ended = false;
        for header in source.headers(stream, Seq(0)) {
            ended |= header?.kind == wanted;
        }
        if !ended {
            return Ok(Some(format!("it has no {} event", wanted.name())));
        }
    }
    Ok(if known { None } else { Some("it has neither a recorded nor a training stream".to_owned()) })
}

fn require_finished(source: &dyn EventSource, run: RunId) -> Result<(), LogError> {
    match unfinished(source, run)? {
        Some(reason) => Err(LogError::Incomplete { run, reason }),
        None => Ok(()),
    }
}

/// Whether a run can be sealed or exported: it has ended, and no damage is known that may concern it.
///
/// # Errors
/// [`LogError::Incomplete`] or [`LogError::DamagedStream`] if not.
pub fn check_sealable(source: &dyn EventSource, run: RunId) -> Result<(), LogError> {
    refuse_damage(&source.findings(), run)?;
    require_finished(source, run)
}

/// Moves a finished run from the journal of the log in `dir` into an archive in its folder `sealed`. The archive is read
/// back and compared event by event before anything is removed, and a crash at any moment loses nothing.
///
/// # Errors
/// [`LogError::Incomplete`] for a run that has not ended, [`LogError::Sealed`] for one that is sealed already,
/// [`LogError::Damaged`] if any event of it is damaged, what [`Log::open`] says, and [`LogError::Io`].
pub fn seal(dir: &Path, run: RunId, options: Options) -> Result<SealReport, LogError> {
    seal_with(Arc::new(RealFiles), dir, run, options)
}

/// As [`seal`], with another file layer.
///
/// # Errors
/// As [`seal`].
pub fn seal_with(files: Arc<dyn Files>, dir: &Path, run: RunId, options: Options) -> Result<SealReport, LogError> {
    let checked = Options { check_digests: true, ..options.clone() };
    let (log, _) = Log::open_with(Arc::clone(&files), dir, checked)?;
    if log.is_sealed(run) {
        return Err(LogError::Sealed { run });
    }
    check_sealable(&log, run)?;
    let folder = dir.join(sealed::FOLDER);
    let path = sealed::path_of(dir, run);
    let new = path.with_extension("raolog.new");
    make_folder(files.as_ref(), dir, &folder)?;
    let archive = write_archive(files.as_ref(), &new, &log, run)?;
    compare(&ArchiveReader::open_with(Arc::clone(&files), &new)?, &log, run)?;
    put_in_place(files.as_ref(), &new, &path, &folder)?;
    log.hand_over(|sealed, _| sealed.push(SealedEntry::of(&archive)))?;
    let (log, report) = Log::open_with(files, dir, options)?;
    log.close()?;
    Ok(SealReport { archive, freed: report.freed_bytes })
}

/// Writes a finished run into an archive of its own and leaves the log as it is. A sealed run's archive is copied.
///
/// The file is checked before it gets its name.
///
/// # Errors
/// As [`seal`], but sealed runs are welcome.
pub fn export(source: &dyn EventSource, run: RunId, to: &Path) -> Result<ArchiveSummary, LogError> {
    let files = RealFiles;
    check_sealable(source, run)?;
    let new = beside(to);
    let archive = write_archive(&files, &new, source, run)?;
    compare(&ArchiveReader::open(&new)?, source, run)?;
    put_in_place(&files, &new, to, parent(to))?;
    Ok(archive)
}

/// Takes the archive `from` into the log in `dir`, after a full check of it.
///
/// # Errors
/// [`LogError::Archive`] or [`LogError::Imported`] for a file that fails its check, [`LogError::Present`] if the log
/// has a run of this id that is not exactly the archive's, what [`Log::open`] says, and [`LogError::Io`].
pub fn import(dir: &Path, from: &Path, options: Options) -> Result<ImportReport, LogError> {
    let files: Arc<dyn Files> = Arc::new(RealFiles);
    let archive = ArchiveReader::open_with(Arc::clone(&files), from)?;
    if let Some(finding) = check(&archive)?.first() {
        return Err(LogError::Imported { path: from.to_owned(), finding: finding.to_string() });
    }
    let (summary, run) = (archive.summary(), archive.run());
    require_finished(&archive, run)?;
    let (log, _) = Log::open_with(Arc::clone(&files), dir, options)?;
    if log.is_sealed(run) || !log.streams(run).is_empty() {
        compare(&archive, &log, run).map_err(|_| LogError::Present { run })?;
        log.close()?;
        return Ok(ImportReport { archive: summary, added: false });
    }
    let folder = dir.join(sealed::FOLDER);
    let path = sealed::path_of(dir, run);
    let new = path.with_extension("raolog.new");
    make_folder(files.as_ref(), dir, &folder)?;
    copy(files.as_ref(), &archive, &new)?;
    let copied = ArchiveReader::open_with(Arc::clone(&files), &new)?;
    if let Some(finding) = check(&copied)?.first() {
        return Err(LogError::Imported { path: new, finding: finding.to_string() });
    }
    put_in_place(files.as_ref(), &new, &path, &folder)?;
    log.hand_over(|sealed, dropped| {
        sealed.push(SealedEntry::of(&summary));
        dropped.retain(|dropped| dropped.run != run);
    })?;
    Ok(ImportReport { archive: summary, added: true })
}

/// Any damage that may concern the run.
fn refuse_damage(findings: &[Finding], run: RunId) -> Result<(), LogError> {
    let concerns = |finding: &&Finding| finding.is_damage() && finding.stream.is_none_or(|stream| stream.run() == run);
    match findings.iter().find(concerns).map(|finding| finding.stream.unwrap_or(Stream::Run(run))) {
        Some(stream) => Err(LogError::DamagedStream { stream }),
        None => Ok(()),
    }
}

/// Every stream, head and frame of the archive is that of the source, and the other way round.
fn compare(archive: &ArchiveReader, source: &dyn EventSource, run: RunId) -> Result<(), LogError> {
    let differs = |place: String| {
        let reason = "it is not what the log holds".to_owned();
        super::ArchiveError::Damaged { place, reason }.in_file(archive.path())
    };
    let streams = source.streams(run);
    if archive.run() != run || archive.streams(run) != streams {
        return Err(differs("list of streams".to_owned()));
    }
    for stream in streams {
        if archive.head(stream) != source.head(stream) {
            return Err(differs(format!("end of {stream}")));
        }
        let mut copied = archive.frames(stream, Seq(0), &Filter::all());
        for frame in source.frames(stream, Seq(0), &Filter::all()) {
            let frame = frame?;
            if copied.next().transpose()?.as_ref() != Some(&frame) {
                return Err(differs(format!("event {}", frame.address())));
            }
        }
        if copied.next().is_some() {
            return Err(differs(format!("end of {stream}")));
        }
    }
    Ok(())
}

fn make_folder(files: &dyn Files, dir: &Path, folder: &Path) -> Result<(), LogError> {
    let made = files.create_dir(folder).and_then(|()| files.sync_dir(dir));
    made.map_err(|error| LogError::io("make the folder for archives", folder, error))
}

fn put_in_place(files: &dyn Files, new: &Path, path: &Path, folder: &Path) -> Result<(), LogError> {
    let moved = files.rename(new, path).and_then(|()| files.sync_dir(folder));
    moved.map_err(|error| LogError::io("give the archive its name", path, error))
}

fn copy(files: &dyn Files, archive: &ArchiveReader, to: &Path) -> Result<(), LogError> {
    const PART: u64 = 1 << 20;
    let failed = |error| LogError::io("copy the archive", to, error);
    let mut out = files.open(to).map_err(failed)?;
    out.truncate(0).map_err(failed)?;
    let (mut at, end) = (0, archive.summary().bytes);
    while at < end {
        let part = archive.read(at, usize::try_from((end - at).min(PART)).unwrap_or_default())?;
        if part.is_empty() {
            break;
        }
        out.append(&part).map_err(failed)?;
        at += part.len() as u64;
    }
    out.sync().map_err(failed)
}

fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A name beside a file for it while it is unfinished.
fn beside(path: &Path) -> std::path::PathBuf {
    let mut name = path.file_name().map(std::ffi::OsStr::to_owned).unwrap_or_default();
    name.push(".new");
    path.with_file_name(name)
}

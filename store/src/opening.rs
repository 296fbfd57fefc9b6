//! What opening a log for writing does beside reading it: it finishes what a crash left unfinished, and brings the
//! ordered store up to the journal.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use crate::dropped::DroppedRun;
use crate::error::LogError;
use crate::files::Files;
use crate::frame::{StreamKey, stream_key};
use crate::id::{RunId, Stream};
use crate::journal::{self, Journal};
use crate::manifest::{Manifest, Mark};
use crate::ordered::{self, Comparison, Ordered, SledStore};
use crate::report::{Finding, OpenReport};
use crate::scan::Scan;
use crate::sealed;
use crate::sweep::{self, Sweep};

/// Events carried into the ordered store at a time when it is rebuilt.
const REBUILD_EVENTS: usize = 4096;

/// Makes the log's directory and its journal folder where they are missing, durably: a name is durable once the directory
/// that it stands in is synced, and so on up to the first one that was there before.
pub(crate) fn make_folders(files: &dyn Files, dir: &Path) -> Result<(), LogError> {
    let parent = |path: &Path| {
        path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent }.to_owned())
    };
    let missing = |path: &Path| matches!(files.list(path), Err(error) if error.kind() == io::ErrorKind::NotFound);
    let mut to_sync = vec![dir.to_owned()];
    let mut at = dir.to_owned();
    while missing(&at)
        && let Some(above) = parent(&at)
    {
        to_sync.push(above.clone());
        at = above;
    }
    files
        .create_dir(&dir.join(journal::FOLDER))
        .map_err(|error| LogError::io("make the log's directory", dir, error))?;
    for folder in to_sync {
        files.sync_dir(&folder).map_err(|error| LogError::io("sync the log's directory", &folder, error))?;
    }
    Ok(())
}

/// A journal from which everything is gone that the manifest says is gone.
pub(crate) struct Cleared {
    pub(crate) journal: Journal,
    pub(crate) scan: Scan,
    /// Bytes that were given back.
    pub(crate) freed: u64,
    /// Dropped runs, as the manifest must list them from now on.
    pub(crate) dropped: Vec<DroppedRun>,
    /// The list is another one than the manifest's.
    pub(crate) changed: bool,
}

/// Removes what sealed and dropped runs have left in the journal, and the archives of dropped runs; and looks at the
/// journal again if there was anything. The ordered store knows where events stood before, so it goes first. Nothing is
/// removed from a damaged journal; the runs are passed over all the same.
pub(crate) fn remove_gone(
    files: &Arc<dyn Files>,
    dir: &Path,
    journal: Journal,
    scan: Scan,
    manifest: Option<Manifest>,
) -> Result<Cleared, LogError> {
    let mark = manifest.as_ref().map_or(0, |manifest| manifest.mark.file);
    let mut dropped = manifest.as_ref().map(|manifest| manifest.dropped.clone()).unwrap_or_default();
    let stale = scan.stale_before(mark);
    let is_unfinished = dropped.iter().any(|dropped| dropped.unfinished);
    let is_damaged = scan.findings.iter().any(Finding::is_damage);
    if is_damaged || (stale.is_empty() && !is_unfinished) {
        return Ok(Cleared { journal, scan, freed: 0, dropped, changed: false });
    }
    let mut cleared = Cleared { journal, scan, freed: 0, dropped: Vec::new(), changed: is_unfinished };
    if !stale.is_empty() {
        if dir.join(ordered::FOLDER).exists() {
            ordered::remove(dir)?;
        }
        let what = Sweep { gone: &cleared.scan.gone, payloads: &cleared.scan.referred };
        cleared.freed += sweep::sweep(files.as_ref(), dir, &stale, &what)?;
        cleared.journal = Journal::new(Arc::clone(files), dir);
        cleared.scan = Scan::quick(&cleared.journal, dir, manifest)?;
    }
    let unfinished = dropped.iter().filter(|dropped| dropped.unfinished).map(|dropped| dropped.run);
    cleared.freed += remove_archives(files.as_ref(), dir, unfinished)?;
    dropped.iter_mut().for_each(|dropped| dropped.unfinished = false);
    cleared.dropped = dropped;
    Ok(cleared)
}

fn remove_archives(files: &dyn Files, dir: &Path, runs: impl Iterator<Item = RunId>) -> Result<u64, LogError> {
    let mut freed = 0;
    let mut removed = false;
    for run in runs {
        let path = sealed::path_of(dir, run);
        let remove = || {
            let len = files.read(&path)?.len()?;
            files.remove(&path).map(|()| len)
        };
        match remove() {
            Ok(len) => {
                freed += len;
                removed = true;
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
            Err(error) => return Err(LogError::io("remove the archive of a dropped run", &path, error)),
        }
    }
    if removed {
        let folder = dir.join(sealed::FOLDER);
        files.sync_dir(&folder).map_err(|error| LogError::io("sync the folder of archives", &folder, error))?;
    }
    Ok(freed)
}

pub(crate) fn counts(manifest: Option<&Manifest>) -> BTreeMap<StreamKey, u64> {
    let heads = manifest.into_iter().flat_map(|manifest| &manifest.heads);
    heads.map(|(stream, head)| (stream_key(*stream), head.count)).collect()
}

/// Cuts off an unfinished commit, and says where to go on.
pub(crate) fn repair_end(
    files: &dyn Files,
    journal: &Journal,
    scan: &Scan,
    report: &mut OpenReport,
) -> Result<Mark, LogError> {
    let Some(torn) = scan.torn else {
        let next = |number| Mark { file: number, offset: 0 };
        return Ok(scan.next_file.map_or(scan.end, next));
    };
    report.torn_tail_bytes = torn.bytes;
    let kept = if torn.holds_intact { Some(journal.bytes(torn.at, torn.bytes)?) } else { None };
    journal::cut_tail(files, journal, torn.at, kept.as_deref())?;
    report.lines.push(format!(
        "{} bytes of an unfinished commit were cut off {}; nothing acknowledged was lost{}",
        torn.bytes,
        Journal::shown(torn.at.file),
        if torn.holds_intact { " (they were kept in a file beside it)" } else { "" },
    ));
    Ok(torn.at)
}

/// Opens sled and makes it agree with the journal, whatever state it is in.
pub(crate) fn open_ordered(
    dir: &Path,
    inline_bytes: usize,
    journal: &Journal,
    scan: &mut Scan,
    counted: &BTreeMap<StreamKey, u64>,
    report: &mut OpenReport,
) -> Result<Ordered, LogError> {
    let existed = dir.join(ordered::FOLDER).exists();
    let counted = |key: &StreamKey| if existed { counted.get(key).copied().unwrap_or(0) } else { 0 };
    let count = |key: &StreamKey| scan.heads.get(key).map_or(0, |head| head.count);
    let reason = match SledStore::open(dir, inline_bytes) {
        Ok(store) => match store.compare(&scan.index, counted, count) {
            Comparison::Behind(missing) => match reapply(&store, journal, &missing, report) {
                Ok(()) => {
                    if !existed && !missing.is_empty() {
                        report.lines.push(format!(
                            "the ordered store was missing and was rebuilt from the journal ({} events)",
                            missing.len()
                        ));
                    }
                    return Ok(Ordered::Sled(store));
                }
                Err(reason) => reason,
            },
            Comparison::Disagrees(reason) => reason,
        },
        Err(reason) => reason,
    };
    let aside = ordered::set_aside(dir)?;
    let all: Vec<_> = scan.index.all();
    let rebuilt =
        SledStore::open(dir, inline_bytes).and_then(|store| reapply(&store, journal, &all, report).map(|()| store));
    let line = format!("the ordered store was damaged ({reason}); it was moved to {}", aside.display());
    report.set_aside = Some(aside);
    match rebuilt {
        Ok(store) => {
            report.lines.push(format!("{line} and rebuilt from the journal ({} events)", all.len()));
            Ok(Ordered::Sled(store))
        }
        Err(again) => {
            report
                .lines
                .push(format!("{line}; it could not be rebuilt ({again}), so an index in memory takes its place"));
            Ok(Ordered::Memory(std::mem::take(&mut scan.index)))
        }
    }
}

/// Carries events from the journal into sled.
fn reapply(
    store: &SledStore,
    journal: &Journal,
    events: &[(Stream, crate::index::Entry)],
    report: &mut OpenReport,
) -> Result<(), String> {
    for some in events.chunks(REBUILD_EVENTS) {
        let mut frames = BTreeMap::new();
        for (_, entry) in some.iter().filter(|(_, entry)| store.stores_whole(entry)) {
            let at = Mark { file: entry.place.file, offset: entry.place.offset };
            let bytes = journal.bytes(at, u64::from(entry.place.len)).map_err(|error| error.to_string())?;
            frames.insert(at, bytes);
        }
        let frame = |entry: &crate::index::Entry| {
            let at = Mark { file: entry.place.file, offset: entry.place.offset };
            frames.get(&at).map(Vec::as_slice)
        };
        store.apply(some, frame)?;
        report.reapplied += some.len() as u64;
    }
    Ok(())
}

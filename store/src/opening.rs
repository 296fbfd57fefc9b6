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
use crate::id::{RunId, Seq, Stream};
use crate::index::{Held, Index, Order, Slot};
use crate::journal::{self, Journal};
use crate::manifest::{Manifest, Mark};
use crate::ordered::{self, Comparison, SledStore};
use crate::report::{Finding, OpenReport};
use crate::scan::Scan;
use crate::sealed;
use crate::sweep::{self, Sweep};

/// Events carried into the ordered store at a time when it is rebuilt.
const REBUILD_EVENTS: usize = 1024;

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
        ordered::remove(dir)?;
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

/// What the ordered store must hold.
pub(crate) struct Promised {
    /// The number of events by stream.
    counts: BTreeMap<StreamKey, u64>,
    /// Writers went on without the store since it was last brought up to the journal.
    is_behind: bool,
}

impl Promised {
    /// What the manifest counts or, where writers went on without the store, what it counted before they did. Where that is
    /// not known any more, nothing is promised, and what is missing is just carried in again.
    pub(crate) fn read(files: &dyn Files, dir: &Path, manifest: Option<&Manifest>) -> Result<Self, LogError> {
        let behind = Manifest::read_as(files, dir, ordered::BEHIND)?;
        let is_behind = behind.is_some();
        let manifest = match &behind {
            Some(behind) => behind.as_ref().ok(),
            None => manifest,
        };
        let heads = manifest.into_iter().flat_map(|manifest| &manifest.heads);
        Ok(Promised { counts: heads.map(|(stream, head)| (stream_key(*stream), head.count)).collect(), is_behind })
    }

    pub(crate) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Goes on without the store: from now on the manifest may count what the store does not hold, so what it does hold is
    /// written down first.
    pub(crate) fn leave(&self, files: &dyn Files, dir: &Path, manifest: Option<&Manifest>) -> Result<(), LogError> {
        if self.is_behind || !dir.join(ordered::FOLDER).exists() {
            return Ok(());
        }
        let empty = Manifest::new(Mark::default(), &BTreeMap::new());
        manifest.unwrap_or(&empty).write_as(files, dir, ordered::BEHIND)
    }

    /// The store holds what the manifest counts again, and has been flushed.
    pub(crate) fn fulfil(&self, files: &dyn Files, dir: &Path) -> Result<(), LogError> {
        if !self.is_behind {
            return Ok(());
        }
        let path = dir.join(ordered::BEHIND);
        files.remove(&path).map_err(|error| LogError::io("remove the ordered store's old manifest", &path, error))
    }
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

/// Opens sled and makes it agree with the journal, whatever state it is in; `None` where it cannot be made at all.
pub(crate) fn open_ordered(
    dir: &Path,
    inline_bytes: usize,
    journal: &Journal,
    scan: &Scan,
    promised: &Promised,
    report: &mut OpenReport,
) -> Result<Option<SledStore>, LogError> {
    let existed = dir.join(ordered::FOLDER).exists();
    let counted = |key: &StreamKey| if existed { promised.counts.get(key).copied().unwrap_or(0) } else { 0 };
    let count = |key: &StreamKey| scan.heads.get(key).map_or(0, |head| head.count);
    let reason = match SledStore::open(dir, inline_bytes) {
        Ok(store) => match store.compare(&scan.index, journal, counted, count) {
            Comparison::Behind(missing) => match reapply(&store, journal, &scan.index, &missing, report) {
                Ok(()) => {
                    if !existed && report.reapplied > 0 {
                        let events = report.reapplied;
                        let line = "the ordered store was missing and was rebuilt from the journal";
                        report.lines.push(format!("{line} ({events} events)"));
                    }
                    return Ok(Some(store));
                }
                Err(reason) => reason,
            },
            Comparison::Disagrees(reason) => reason,
        },
        Err(reason) => reason,
    };
    let aside = ordered::set_aside(dir)?;
    let all: Vec<_> = scan.index.streams().map(|(stream, _)| (stream, Seq(0))).collect();
    report.reapplied = 0;
    let rebuilt = SledStore::open(dir, inline_bytes)
        .and_then(|store| reapply(&store, journal, &scan.index, &all, report).map(|()| store));
    let line = format!("the ordered store was damaged ({reason}); it was moved to {}", aside.display());
    report.set_aside = Some(aside);
    match rebuilt {
        Ok(store) => {
            report.lines.push(format!("{line} and rebuilt from the journal ({} events)", report.reapplied));
            Ok(Some(store))
        }
        Err(again) => {
            let instead = "so an index in memory takes its place";
            report.lines.push(format!("{line}; it could not be rebuilt ({again}), {instead}"));
            Ok(None)
        }
    }
}

/// Carries events of streams, from a number on, from the journal into sled.
fn reapply(
    store: &SledStore,
    journal: &Journal,
    index: &Index,
    streams: &[(Stream, Seq)],
    report: &mut OpenReport,
) -> Result<(), String> {
    let mut some = Vec::new();
    for (stream, from) in streams {
        let mut next = *from;
        loop {
            let chunk = index.chunk(journal, *stream, next, REBUILD_EVENTS).map_err(|error| error.to_string())?;
            let Some((last, _)) = chunk.last() else { break };
            next = Seq(last.0 + 1);
            for (_, slot) in chunk {
                some.push((*stream, slot.map_err(|error| error.to_string())?));
            }
            if some.len() >= REBUILD_EVENTS {
                carry(store, journal, std::mem::take(&mut some), report)?;
            }
        }
    }
    carry(store, journal, some, report)
}

fn carry(
    store: &SledStore,
    journal: &Journal,
    slots: Vec<(Stream, Slot)>,
    report: &mut OpenReport,
) -> Result<(), String> {
    let (mut events, mut frames) = (Vec::with_capacity(slots.len()), BTreeMap::new());
    for (stream, Slot { entry, held }) in slots {
        let at = Mark { file: entry.place.file, offset: entry.place.offset };
        if store.stores_whole(&entry) {
            let bytes = match held {
                Held::Journal(bytes) | Held::Ordered(bytes) => bytes,
                Held::Away => {
                    let bytes = journal.bytes(at, u64::from(entry.place.len)).map_err(|error| error.to_string())?;
                    sled::IVec::from(bytes)
                }
            };
            frames.insert(at, bytes);
        }
        events.push((stream, entry));
    }
    let frame = |entry: &crate::index::Entry| {
        let at = Mark { file: entry.place.file, offset: entry.place.offset };
        frames.get(&at).map(|bytes| bytes.as_ref())
    };
    store.apply(&events, frame)?;
    report.reapplied += events.len() as u64;
    Ok(())
}

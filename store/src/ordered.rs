//! The ordered store: a sled tree with one key per event, in the order of streams and positions.
//!
//! It is a copy that speeds up reading while the log is open for writing; nothing rests on it. A short frame is stored
//! whole; of a longer one, only its place in the journal, since sled keeps what it has seen in memory.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use crate::error::LogError;
use crate::event::Kind;
use crate::extent::{Check, Extent};
use crate::fence::fenced;
use crate::frame::{EventKey, HEADER_LEN, StreamKey, View, address_of_key, event_key, stream_key};
use crate::id::{Seq, Stream};
use crate::index::{Chunk, Entry, Held, Index, Order, Place, Slot};
use crate::journal::Journal;

/// The folder in the log's directory.
pub(crate) const FOLDER: &str = "events";
/// Beside the folder, after a writer went on without the store: the manifest that the store lives up to.
pub(crate) const BEHIND: &str = "events.manifest";
/// sled puts longer values into a file each.
pub(crate) const INLINE_LIMIT: usize = 100_000;
/// How often, and how far apart, opening is tried again while sled still holds its lock.
const LOCK_TRIES: u32 = 500;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
const TREE: &str = "events";
const CACHE_BYTES: u64 = 32 << 20;
const TAG_PLACE: u8 = 1;
const TAG_FRAME: u8 = 2;
/// Added to the tag where the frame is short; the body's length then follows.
const TAG_SHORT: u8 = 2;
/// Tag, number, kind, time, checksum, file, offset, length, and the body's length.
const PLACE_LEN: usize = 1 + 8 + 2 + 8 + 4 + 4 + 8 + 4 + 4;

/// An open sled database.
#[derive(Debug)]
pub(crate) struct SledStore {
    tree: sled::Tree,
    dir: PathBuf,
    /// The longest frame that is stored whole, in bytes.
    inline_bytes: usize,
    // Keeps the database open; dropping it writes out what is left.
    _db: sled::Db,
}

/// How a sled tree relates to the journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// These streams miss events from that number on, none of which it had to hold.
    Behind(Vec<(Stream, Seq)>),
    /// It cannot be used, for this reason.
    Disagrees(String),
}

impl SledStore {
    pub(crate) fn open(dir: &Path, inline_bytes: usize) -> Result<SledStore, String> {
        let path = dir.join(FOLDER);
        let open = || {
            let config = sled::Config::new().path(&path).cache_capacity(CACHE_BYTES).flush_every_ms(None);
            let db = config.open()?;
            let tree = db.open_tree(TREE)?;
            let inline_bytes = inline_bytes.min(INLINE_LIMIT);
            Ok::<_, sled::Error>(SledStore { tree, dir: dir.to_owned(), inline_bytes, _db: db })
        };
        // The log's own lock is ours, so a database that is still locked is one being closed: sled's threads, or a
        // process that is just being started and has not yet let go of our files, hold on a little longer.
        let mut patience = LOCK_TRIES;
        loop {
            match fenced(open)? {
                Ok(store) => return Ok(store),
                Err(sled::Error::Io(error)) if patience > 0 && error.to_string().contains("acquire lock") => {
                    patience -= 1;
                    thread::sleep(LOCK_PAUSE);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Stores events. `frame` gives the bytes of those that are stored whole.
    pub(crate) fn apply<'a>(
        &self,
        events: &[(Stream, Entry)],
        frame: impl Fn(&Entry) -> Option<&'a [u8]>,
    ) -> Result<(), String> {
        let mut batch = sled::Batch::default();
        for (stream, entry) in events {
            let key = event_key(*stream, entry.seq);
            let whole = if self.stores_whole(entry) { frame(entry) } else { None };
            batch.insert(key.as_slice(), value(entry, whole));
        }
        guarded(|| self.tree.apply_batch(batch))
    }

    /// Whether the store holds the event's frame, rather than only its place.
    pub(crate) fn stores_whole(&self, entry: &Entry) -> bool {
        entry.place.len as usize <= self.inline_bytes
    }

    pub(crate) fn flush(&self) -> Result<(), String> {
        guarded(|| self.tree.flush().map(|_| ()))
    }

    /// Compares every event in the tree with the journal's index, in one pass over both in key order. `counted` gives
    /// the number of events of a stream that must be in the tree, `count` the number there are.
    pub(crate) fn compare(
        &self,
        index: &Index,
        journal: &Journal,
        counted: impl Fn(&StreamKey) -> u64,
        count: impl Fn(&StreamKey) -> u64,
    ) -> Comparison {
        let walk = || {
            let mut stored = Stored { items: self.tree.iter().peekable(), count: &count };
            let mut behind = Vec::new();
            for (stream, extents) in index.streams() {
                let counted = counted(&stream_key(stream));
                let mut missing = None;
                for extent in extents.from(0) {
                    let lacks = stored.compare(stream, &extent, counted, journal)?;
                    missing = missing.or(lacks);
                }
                behind.extend(missing.map(|seq| (stream, seq)));
            }
            stored.pass_below(None)?;
            Ok(behind)
        };
        match fenced(walk).and_then(|walked| walked) {
            Ok(behind) => Comparison::Behind(behind),
            Err(reason) => Comparison::Disagrees(reason),
        }
    }
}

/// A pass over the tree.
struct Stored<'a, C> {
    items: std::iter::Peekable<sled::Iter>,
    count: &'a C,
}

impl<C: Fn(&StreamKey) -> u64> Stored<'_, C> {
    /// Passes over what is before a key, or over all that is left.
    fn pass_below(&mut self, wanted: Option<&EventKey>) -> Result<(), String> {
        let is_below = |key: &[u8]| wanted.is_none_or(|wanted| key < wanted.as_slice());
        while let Some(item) = self.items.next_if(|item| item.as_ref().map_or(true, |(key, _)| is_below(key))) {
            allow_extra(&item.map_err(|error| error.to_string())?.0, self.count)?;
        }
        Ok(())
    }

    /// The value of a key, if that is there.
    fn take(&mut self, wanted: &EventKey) -> Result<Option<sled::IVec>, String> {
        self.pass_below(Some(wanted))?;
        let item = self.items.next_if(|item| item.as_ref().is_ok_and(|(key, _)| key.as_ref() == wanted.as_slice()));
        Ok(item.transpose().map_err(|error| error.to_string())?.map(|(_, value)| value))
    }

    /// Compares the events of an extent; gives the first one that is not there, if it need not be.
    fn compare(
        &mut self,
        stream: Stream,
        extent: &Extent,
        counted: u64,
        journal: &Journal,
    ) -> Result<Option<Seq>, String> {
        let differs = |seq: u64| format!("its event {stream}#{seq} is not the journal's");
        let (mut there, mut missing) = (Vec::new(), None);
        let (mut offset, mut check) = (extent.place.offset, Check::default());
        for seq in extent.first..extent.next() {
            let Some(value) = self.take(&event_key(stream, Seq(seq)))? else {
                if seq < counted {
                    return Err(format!("event {stream}#{seq} is not in it"));
                }
                missing.get_or_insert(Seq(seq));
                continue;
            };
            if missing.is_some() {
                // It is written again with those before it.
                continue;
            }
            let entry = read_value(&value).map(|slot| slot.entry).ok_or_else(|| differs(seq))?;
            let Place { file, offset: at, len } = entry.place;
            if (entry.seq.0, file, at) != (seq, extent.place.file, offset) {
                return Err(differs(seq));
            }
            let place = u32::try_from(there.len()).unwrap_or(u32::MAX);
            (offset, check) = (offset.wrapping_add(u64::from(len)), check.with(place, &entry));
            there.push(entry);
        }
        if missing.is_none() && (offset, check) == (extent.end(), extent.check) || there.is_empty() {
            return Ok(missing);
        }
        // Which one it is, and those of an extent that is there in part, the journal says.
        for (entry, slot) in there.iter().zip(crate::index::entries(journal, stream, extent)) {
            if slot.map_err(|error| error.to_string())? != *entry {
                return Err(differs(entry.seq.0));
            }
        }
        if missing.is_some() { Ok(missing) } else { Err(differs(extent.first)) }
    }
}

/// Where the journal is damaged, the tree may still have the event.
fn allow_extra(key: &[u8], count: impl Fn(&StreamKey) -> u64) -> Result<(), String> {
    let address = address_of_key(key).ok_or("it has a key that is no event's")?;
    let known = key.get(..21).and_then(|key| key.try_into().ok()).map_or(0, |key| count(&key));
    if address.seq.0 < known { Ok(()) } else { Err(format!("it has an event {address} that the journal has not")) }
}

/// sled reports most trouble as errors, but not all.
fn guarded<T>(work: impl FnOnce() -> sled::Result<T>) -> Result<T, String> {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("sled panicked".to_owned()),
    }
}

impl Order for SledStore {
    fn chunk(&self, _: &Journal, stream: Stream, from: Seq, limit: usize) -> Result<Chunk, LogError> {
        let failed = |reason: String| LogError::Ordered { dir: self.dir.clone(), reason };
        let range: std::ops::RangeInclusive<EventKey> = event_key(stream, from)..=event_key(stream, Seq(u64::MAX));
        let read = || {
            let mut slots = Vec::new();
            for item in self.tree.range(range).take(limit) {
                let (key, value) = item?;
                slots.push((address_of_key(&key), read_value(&value)));
            }
            Ok(slots)
        };
        let slots = guarded(read).map_err(failed)?;
        let sound = |(address, slot): (Option<crate::Address>, Option<Slot>)| {
            let (address, slot) = (address?, slot?);
            (address.stream == stream && address.seq == slot.entry.seq).then_some((address.seq, Ok(slot)))
        };
        let damaged = || failed("it holds a value that is no event".to_owned());
        slots.into_iter().map(|slot| sound(slot).ok_or_else(damaged)).collect()
    }
}

fn value(entry: &Entry, whole: Option<&[u8]>) -> Vec<u8> {
    let mut value = Vec::with_capacity(PLACE_LEN + whole.map_or(0, <[u8]>::len));
    let short = if entry.is_short() { TAG_SHORT } else { 0 };
    value.push(short + if whole.is_some() { TAG_FRAME } else { TAG_PLACE });
    value.extend_from_slice(&entry.seq.0.to_be_bytes());
    value.extend_from_slice(&entry.kind.code().to_be_bytes());
    value.extend_from_slice(&entry.at_us.to_be_bytes());
    value.extend_from_slice(&entry.crc.to_be_bytes());
    value.extend_from_slice(&entry.place.file.to_be_bytes());
    value.extend_from_slice(&entry.place.offset.to_be_bytes());
    value.extend_from_slice(&entry.place.len.to_be_bytes());
    if entry.is_short() {
        value.extend_from_slice(&entry.body_len.to_be_bytes());
    }
    value.extend_from_slice(whole.unwrap_or_default());
    value
}

fn read_value(value: &sled::IVec) -> Option<Slot> {
    let (tag, rest) = value.split_first()?;
    let (tag, is_short) = if *tag > TAG_SHORT { (tag - TAG_SHORT, true) } else { (*tag, false) };
    let (seq, rest) = rest.split_first_chunk()?;
    let (kind, rest) = rest.split_first_chunk()?;
    let (at_us, rest) = rest.split_first_chunk()?;
    let (crc, rest) = rest.split_first_chunk()?;
    let (file, rest) = rest.split_first_chunk()?;
    let (offset, rest) = rest.split_first_chunk()?;
    let (len, mut rest) = rest.split_first_chunk()?;
    let mut body_len = u32::from_be_bytes(*len).checked_sub(HEADER_LEN as u32)?;
    if is_short {
        let (len, behind) = rest.split_first_chunk()?;
        (body_len, rest) = (u32::from_be_bytes(*len), behind);
    }
    let place =
        Place { offset: u64::from_be_bytes(*offset), file: u32::from_be_bytes(*file), len: u32::from_be_bytes(*len) };
    let entry = Entry {
        seq: Seq(u64::from_be_bytes(*seq)),
        at_us: u64::from_be_bytes(*at_us),
        place,
        crc: u32::from_be_bytes(*crc),
        body_len,
        kind: Kind::from_code(u16::from_be_bytes(*kind))?,
    };
    let held = match (tag, rest.is_empty()) {
        (TAG_PLACE, true) => Held::Away,
        (TAG_FRAME, false) => {
            // The frame's own checksum vouches for it.
            let view = View::parse(rest).ok()?;
            (view.crc() == entry.crc).then_some(())?;
            Held::Ordered(value.subslice(value.len() - rest.len(), rest.len()))
        }
        _ => return None,
    };
    Some(Slot { entry, held })
}

/// What a log that is open for writing reads through.
#[derive(Debug)]
pub(crate) struct Ordered {
    /// Every event of the journal.
    pub(crate) index: Index,
    /// Sled, which is read in its place; not where sled is not wanted or has failed.
    pub(crate) sled: Option<SledStore>,
}

impl Order for RwLock<Ordered> {
    fn chunk(&self, journal: &Journal, stream: Stream, from: Seq, limit: usize) -> Result<Chunk, LogError> {
        let ordered = self.read().unwrap_or_else(PoisonError::into_inner);
        match &ordered.sled {
            Some(store) => store.chunk(journal, stream, from, limit),
            None => ordered.index.chunk(journal, stream, from, limit),
        }
    }
}

/// Removes the store, which the journal can rebuild, if it is there.
pub(crate) fn remove(dir: &Path) -> Result<(), LogError> {
    let path = dir.join(FOLDER);
    match std::fs::remove_dir_all(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LogError::io("remove the outdated ordered store", &path, error))
        }
        _ => Ok(()),
    }
}

/// Moves a damaged store out of the way, so that nothing in it is lost, and says where to.
pub(crate) fn set_aside(dir: &Path) -> Result<PathBuf, LogError> {
    let from = dir.join(FOLDER);
    let free = (1..u32::MAX).map(|number| dir.join(format!("{FOLDER}.damaged-{number}"))).find(|path| !path.exists());
    let to = free.unwrap_or_else(|| dir.join(format!("{FOLDER}.damaged")));
    std::fs::rename(&from, &to).map_err(|error| LogError::io("move the damaged ordered store aside", &from, error))?;
    Ok(to)
}

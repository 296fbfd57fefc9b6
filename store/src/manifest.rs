//! `MANIFEST`: what the journal must at least hold. Without it, a journal that lost its end would look whole.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use crate::dropped::{DROPPED_LEN, DroppedRun};
use crate::error::LogError;
use crate::files::{Files, read_full};
use crate::frame::{StreamKey, stream_key, stream_of_key, u16_at, u32_at, u64_at};
use crate::id::{Digest, RunId, Stream};
use crate::sealed::SealedEntry;
use crate::source::Head;

/// The manifest's name in the log's directory.
pub(crate) const NAME: &str = "MANIFEST";
const NEW_NAME: &str = "MANIFEST.new";
const MAGIC: [u8; 4] = *b"RAOM";
/// Without archives.
const PLAIN_VERSION: u16 = 1;
/// With a list of archives behind the entries.
const SEALED_VERSION: u16 = 2;
/// With a list of dropped runs behind that of archives, which may then be empty.
const VERSION: u16 = 3;
const HEAD_LEN: usize = 28;
const ENTRY_LEN: usize = 96;
const SEALED_LEN: usize = 64;
const CRC_LEN: usize = 4;

/// A place in the journal: everything before it was durable when it was noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The journal file's number.
    pub file: u32,
    /// The byte in it.
    pub offset: u64,
}

/// The contents of `MANIFEST`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Manifest {
    /// Everything before this place is counted below.
    pub mark: Mark,
    /// Each stream's end at that place, in key order.
    pub heads: Vec<(Stream, Head)>,
    /// The archives that belong to the log, in the order of their runs. Their streams are not among `heads`, and the
    /// journal's events of these runs do not count.
    pub sealed: Vec<SealedEntry>,
    /// Runs that were dropped, in their order. They have neither heads nor archives here, and the journal's events of
    /// them do not count.
    pub dropped: Vec<DroppedRun>,
}

/// Why bytes are not a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ManifestError {
    /// The length, the magic bytes, the checksum or a field is wrong.
    #[error("MANIFEST is damaged: {reason}")]
    Damaged {
        /// What is wrong.
        reason: &'static str,
    },
    /// A later program wrote it.
    #[error("MANIFEST has format version {version}, which this program does not know; use a newer rao-log")]
    Newer {
        /// The version.
        version: u16,
    },
}

impl Manifest {
    pub(crate) fn new(mark: Mark, heads: &BTreeMap<StreamKey, Head>) -> Self {
        let heads = heads.iter().filter_map(|(key, head)| Some((stream_of_key(key)?, *head))).collect();
        Manifest { mark, heads, sealed: Vec::new(), dropped: Vec::new() }
    }

    pub(crate) fn with_sealed(mut self, sealed: &[SealedEntry]) -> Self {
        self.sealed = sealed.to_vec();
        self
    }

    pub(crate) fn with_dropped(mut self, dropped: &[DroppedRun]) -> Self {
        self.dropped = dropped.to_vec();
        self
    }

    /// Runs whose events in the journal do not count.
    pub(crate) fn gone(&self) -> BTreeSet<RunId> {
        let sealed = self.sealed.iter().map(|entry| entry.run);
        sealed.chain(self.dropped.iter().map(|dropped| dropped.run)).collect()
    }

    /// The file's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD_LEN + self.heads.len() * ENTRY_LEN + CRC_LEN);
        out.extend_from_slice(&MAGIC);
        // An older program must not read a log whose archives it would not see, or whose dropped runs it would.
        let version = match (self.sealed.is_empty(), self.dropped.is_empty()) {
            (_, false) => VERSION,
            (false, true) => SEALED_VERSION,
            (true, true) => PLAIN_VERSION,
        };
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.mark.file.to_le_bytes());
        out.extend_from_slice(&self.mark.offset.to_le_bytes());
        out.extend_from_slice(&(self.heads.len() as u64).to_le_bytes());
        for (stream, head) in &self.heads {
            out.extend_from_slice(&stream_key(*stream));
            out.extend_from_slice(&[0; 3]);
            out.extend_from_slice(&head.count.to_le_bytes());
            out.extend_from_slice(&head.chain.0);
            out.extend_from_slice(&head.content.0);
        }
        if version >= SEALED_VERSION {
            out.extend_from_slice(&(self.sealed.len() as u64).to_le_bytes());
        }
        for entry in &self.sealed {
            out.extend_from_slice(&entry.run.0);
            out.extend_from_slice(&entry.events.to_le_bytes());
            out.extend_from_slice(&entry.bytes.to_le_bytes());
            out.extend_from_slice(&entry.digest.0);
        }
        if version >= VERSION {
            out.extend_from_slice(&(self.dropped.len() as u64).to_le_bytes());
        }
        self.dropped.iter().for_each(|dropped| dropped.put(&mut out));
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the file's bytes.
    ///
    /// # Errors
    /// [`ManifestError::Newer`] only where the checksum is right; anything else that is wrong is damage.
    pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
        let damaged = |reason| ManifestError::Damaged { reason };
        let content =
            bytes.len().checked_sub(CRC_LEN).filter(|len| *len >= HEAD_LEN).ok_or(damaged("it is too short"))?;
        let (content, crc) = bytes.split_at(content);
        if content.get(..MAGIC.len()) != Some(MAGIC.as_slice()) {
            return Err(damaged("it does not begin as a manifest does"));
        }
        if crc32fast::hash(content) != u32_at(crc, 0) {
            return Err(damaged("its checksum is wrong"));
        }
        let version = u16_at(content, 4);
        if version > VERSION {
            return Err(ManifestError::Newer { version });
        }
        let (head, entries) = content.split_at(HEAD_LEN);
        let count = usize::try_from(u64_at(head, 20)).ok().and_then(|count| count.checked_mul(ENTRY_LEN));
        let contradiction = damaged("its header contradicts itself");
        let Some((entries, rest)) = count.and_then(|count| entries.split_at_checked(count)) else {
            return Err(contradiction);
        };
        if version == 0 || u16_at(head, 6) != 0 {
            return Err(contradiction);
        }
        let (sealed, dropped) = lists(version, rest).ok_or(contradiction)?;
        let mark = Mark { file: u32_at(head, 8), offset: u64_at(head, 12) };
        let heads = entries.chunks_exact(ENTRY_LEN).map(entry).collect::<Option<Vec<_>>>();
        Ok(Manifest { mark, heads: heads.ok_or(damaged("an entry names an impossible stream"))?, sealed, dropped })
    }

    /// Reads `MANIFEST` in `dir`; `None` if it is missing.
    pub(crate) fn read(files: &dyn Files, dir: &Path) -> Result<Option<Result<Manifest, ManifestError>>, LogError> {
        Self::read_as(files, dir, NAME)
    }

    /// The same of a file with another name.
    pub(crate) fn read_as(
        files: &dyn Files,
        dir: &Path,
        name: &str,
    ) -> Result<Option<Result<Manifest, ManifestError>>, LogError> {
        let path = dir.join(name);
        let load = || {
            let file = files.read(&path)?;
            let mut bytes = vec![0; usize::try_from(file.len()?).map_err(io::Error::other)?];
            let read = read_full(file.as_ref(), &mut bytes, 0)?;
            bytes.truncate(read);
            Ok::<_, io::Error>(bytes)
        };
        match load() {
            Ok(bytes) => Ok(Some(Manifest::decode(&bytes))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(LogError::io("read the manifest", &path, error)),
        }
    }

    /// Replaces `MANIFEST` in `dir`: afterwards the old or the new one is there, whole, whatever happens.
    pub(crate) fn write(&self, files: &dyn Files, dir: &Path) -> Result<(), LogError> {
        self.write_as(files, dir, NAME)
    }

    /// The same under another name.
    pub(crate) fn write_as(&self, files: &dyn Files, dir: &Path, name: &str) -> Result<(), LogError> {
        let new = dir.join(NEW_NAME);
        let replace = || {
            let mut file = files.open(&new)?;
            // A crash may have left an unfinished one.
            file.truncate(0)?;
            file.append(&self.encode())?;
            file.sync()?;
            files.rename(&new, &dir.join(name))?;
            files.sync_dir(dir)
        };
        replace().map_err(|error| LogError::io("write the manifest", &new, error))
    }
}

fn entry(bytes: &[u8]) -> Option<(Stream, Head)> {
    if bytes.get(21..24)? != [0; 3] {
        return None;
    }
    let stream = stream_of_key(bytes.get(..21)?)?;
    let chain = Digest(bytes.get(32..64)?.try_into().ok()?);
    let content = Digest(bytes.get(64..96)?.try_into().ok()?);
    Some((stream, Head { count: u64_at(bytes, 24), chain, content }))
}

/// What follows the entries: archives, then dropped runs. A list that a version is for is not empty, so that every
/// manifest has one form only.
fn lists(version: u16, bytes: &[u8]) -> Option<(Vec<SealedEntry>, Vec<DroppedRun>)> {
    if version == PLAIN_VERSION {
        return bytes.is_empty().then(|| (Vec::new(), Vec::new()));
    }
    let (sealed, rest) = list(bytes, SEALED_LEN, sealed_entry)?;
    if version == SEALED_VERSION {
        return (rest.is_empty() && !sealed.is_empty()).then(|| (sealed, Vec::new()));
    }
    let (dropped, rest) = list(rest, DROPPED_LEN, DroppedRun::read)?;
    (rest.is_empty() && !dropped.is_empty()).then_some((sealed, dropped))
}

/// A count and that many entries of `len` bytes, with what comes behind them.
fn list<T>(bytes: &[u8], len: usize, read: impl Fn(&[u8]) -> Option<T>) -> Option<(Vec<T>, &[u8])> {
    let (count, rest) = bytes.split_first_chunk()?;
    let count = usize::try_from(u64::from_le_bytes(*count)).ok()?;
    let (entries, rest) = rest.split_at_checked(count.checked_mul(len)?)?;
    Some((entries.chunks_exact(len).map(read).collect::<Option<_>>()?, rest))
}

fn sealed_entry(bytes: &[u8]) -> Option<SealedEntry> {
    let run = RunId(bytes.get(..16)?.try_into().ok()?);
    let digest = Digest(bytes.get(32..64)?.try_into().ok()?);
    Some(SealedEntry::new(run, u64_at(bytes, 16), u64_at(bytes, 24), digest))
}

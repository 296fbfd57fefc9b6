//! What each fuzz target does with its bytes. The store's own test suite runs the same functions over the seeds.
//!
//! Checksums would turn away nearly every changed input at the door, so the first byte chooses: with an odd one the
//! checksums are made right again first, and what lies behind them is reached. Each function says how many events it read.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rao_store::archive::{ArchiveReader, verify_archive_with};
use rao_store::event::Body;
use rao_store::files::{Files, JournalFile, ReadFile};
use rao_store::{EventSource, Filter, Frame, HEADER_LEN, Manifest, Reader, Seq, Stream};

/// Takes the bytes of one frame: header, then the body of its kind. A frame that reads must be written as it was read.
pub(crate) fn frame(bytes: &[u8]) -> usize {
    let Some((mode, bytes)) = bytes.split_first() else { return 0 };
    let mut bytes = bytes.to_vec();
    if mode % 2 == 1 {
        repair_frame(&mut bytes);
    }
    let Ok(frame) = Frame::parse(bytes.clone()) else { return 0 };
    assert_eq!(frame.bytes(), bytes);
    let _ = (frame.address().to_string(), frame.at_us(), frame.previous(), frame.chain());
    let Ok(kind) = frame.kind() else { return 0 };
    let Ok(body) = Body::decode(kind, frame.layout(), frame.body()) else { return 0 };
    let _ = body.to_json();
    if frame.layout() == kind.layout() {
        assert_eq!(body.encode().ok().as_deref(), Some(frame.body()), "read and written differ");
    }
    1
}

/// Takes the bytes of a sealed file: opens it, verifies it, reads every event of every stream.
pub(crate) fn archive(bytes: &[u8]) -> usize {
    let Some((mode, bytes)) = bytes.split_first() else { return 0 };
    let mut bytes = bytes.to_vec();
    if mode % 2 == 1 {
        let _ = repair_archive(&mut bytes);
    }
    let files: Arc<dyn Files> = Arc::new(OneFile(Arc::new(bytes)));
    let path = Path::new("/one.raolog");
    let whole = verify_archive_with(Arc::clone(&files), path).is_ok_and(|report| report.findings.is_empty());
    let Ok(archive) = ArchiveReader::open_with(files, path) else {
        assert!(!whole, "a file that does not open was verified");
        return 0;
    };
    let mut read = 0;
    for stream in archive.streams(archive.run()) {
        for event in archive.events(stream, Seq(0), &Filter::all()).take(10_000) {
            assert!(event.is_ok() || !whole, "a verified file has an event that does not read");
            read += usize::from(event.is_ok());
        }
        for header in archive.headers(stream, Seq(1)).take(10_000) {
            let _ = header;
        }
    }
    read
}

/// Takes the bytes of a MANIFEST (a length in two bytes before it) and of a journal's first file, and reads the log.
pub(crate) fn journal(bytes: &[u8]) -> usize {
    let Some((head, rest)) = bytes.split_first_chunk::<3>() else { return 0 };
    let [mode, low, high] = *head;
    let cut = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
    let (manifest, journal) = rest.split_at(cut);
    let mut journal = journal.to_vec();
    if mode % 2 == 1 {
        repair_journal(&mut journal);
    }
    let _ = Manifest::decode(manifest);
    let Ok((reader, _)) =
        Reader::open_with(Arc::new(OneLog { manifest: manifest.to_vec(), journal }), Path::new("/log"))
    else {
        return 0;
    };
    let mut read = 0;
    for run in reader.runs() {
        for stream in reader.streams(run) {
            for event in reader.events(stream, Seq(0), &Filter::all()).take(10_000) {
                read += usize::from(event.is_ok());
            }
            check_shared(&reader, stream);
        }
    }
    read
}

/// Events that a stream shares by reference are frames of its own, chained to one another.
fn check_shared(reader: &Reader, stream: Stream) {
    let Some(shared) = reader.shared(stream) else { return };
    let (mut next, mut chain) = (0, None);
    for frame in reader.frames(stream, Seq(0), &Filter::all()).take(10_000) {
        let Ok(frame) = frame else {
            chain = None;
            continue;
        };
        assert_eq!(frame.address().stream, stream);
        let seq = frame.address().seq.0;
        assert!(seq >= next, "a number comes twice");
        assert!(seq >= shared.count || chain.is_none_or(|chain| chain == frame.previous()), "the chain is broken");
        (next, chain) = (seq + 1, Some(frame.chain()));
    }
    reader.headers(stream, Seq(0)).take(10_000).for_each(drop);
}

const CHECKSUM_AT: usize = 88;

/// Makes length and checksum of a frame right.
fn repair_frame(bytes: &mut [u8]) {
    let Some(body) = bytes.len().checked_sub(HEADER_LEN) else { return };
    put(bytes, 36, &u32::try_from(body).unwrap_or(u32::MAX).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&bytes[..CHECKSUM_AT]);
    hasher.update(&bytes[HEADER_LEN..]);
    put(bytes, CHECKSUM_AT, &hasher.finalize().to_le_bytes());
}

/// Makes the checksums of the frames right, as far as their lengths lead from one to the next.
fn repair_journal(bytes: &mut [u8]) {
    let mut at = bytes.windows(4).position(|four| four == b"RAOE").unwrap_or(bytes.len());
    while let Some(length) = bytes.get(at + 36..at + 40).and_then(|four| four.try_into().ok()).map(u32::from_le_bytes) {
        let end = at + HEADER_LEN + length as usize;
        let Some(frame) = bytes.get_mut(at..end) else { return };
        repair_frame(frame);
        at = end;
    }
}

/// Makes the checksums of head, footer, segments and blocks right, and the file's digest. `None` if it is no archive.
fn repair_archive(bytes: &mut [u8]) -> Option<()> {
    let tail = bytes.len().checked_sub(48)?;
    let footer_len = usize::try_from(u64_at(bytes, tail)?).ok()?;
    let footer = tail.checked_sub(footer_len)?;
    let counts = |at| u32_at(bytes, footer + at).map(|count| count as usize);
    let (streams, segments, pieces, blocks) = (counts(16)?, counts(20)?, counts(24)?, counts(28)?);
    let at = footer.checked_add(48)?.checked_add(streams.checked_mul(96)?)?;
    for number in 0..segments.min(1000) {
        repair_part(bytes, at + number * 24, 8, 12);
    }
    let at = at.checked_add(segments.checked_mul(24)?)?.checked_add(pieces.checked_mul(56)?)?;
    for number in 0..blocks.min(1000) {
        repair_part(bytes, at + number * 24, 8, 16);
    }
    let head = crc32fast::hash(bytes.get(..8)?);
    put(bytes, 8, &head.to_le_bytes());
    let crc = crc32fast::hash(bytes.get(footer..tail)?);
    put(bytes, tail + 8, &crc.to_le_bytes());
    let digest = blake3::hash(bytes.get(..tail + 12)?);
    put(bytes, tail + 12, digest.as_bytes());
    Some(())
}

/// A part's entry begins with its place; `length_at` and `crc_at` say where in the entry the others are.
fn repair_part(bytes: &mut [u8], entry: usize, length_at: usize, crc_at: usize) -> Option<()> {
    let from = usize::try_from(u64_at(bytes, entry)?).ok()?;
    let length = u32_at(bytes, entry + length_at)? as usize;
    let crc = crc32fast::hash(bytes.get(from..from.checked_add(length)?)?);
    put(bytes, entry + crc_at, &crc.to_le_bytes());
    Some(())
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at.checked_add(8)?)?.try_into().ok()?))
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at + value.len()) {
        place.copy_from_slice(value);
    }
}

/// The same file under every name.
#[derive(Debug)]
struct OneFile(Arc<Vec<u8>>);

/// A log of one journal file.
#[derive(Debug)]
struct OneLog {
    manifest: Vec<u8>,
    journal: Vec<u8>,
}

#[derive(Debug)]
struct InMemory(Arc<Vec<u8>>);

impl ReadFile for InMemory {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(self.0.len());
        let rest = &self.0[from..];
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }
}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::other("reading must change nothing"))
}

macro_rules! read_only {
    ($files:ty) => {
        fn create_dir(&self, _: &Path) -> io::Result<()> {
            refused()
        }

        fn open(&self, _: &Path) -> io::Result<Box<dyn JournalFile>> {
            refused()
        }

        fn rename(&self, _: &Path, _: &Path) -> io::Result<()> {
            refused()
        }

        fn sync_dir(&self, _: &Path) -> io::Result<()> {
            refused()
        }

        fn remove(&self, _: &Path) -> io::Result<()> {
            refused()
        }
    };
}

impl Files for OneFile {
    read_only!(OneFile);

    fn list(&self, _: &Path) -> io::Result<Vec<String>> {
        Ok(vec!["one.raolog".into()])
    }

    fn read(&self, _: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(InMemory(Arc::clone(&self.0))))
    }
}

impl Files for OneLog {
    read_only!(OneLog);

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names: &[&str] = match dir.file_name().and_then(|name| name.to_str()) {
            Some("log") => &["MANIFEST", "journal"],
            Some("journal") => &[JOURNAL],
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(names.iter().map(|name| (*name).to_owned()).collect())
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        let bytes = match path.file_name().and_then(|name| name.to_str()) {
            Some("MANIFEST") if !self.manifest.is_empty() => &self.manifest,
            Some(JOURNAL) => &self.journal,
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(Box::new(InMemory(Arc::new(bytes.clone()))))
    }
}

/// The name of a log's first journal file.
const JOURNAL: &str = "0000000000.log";

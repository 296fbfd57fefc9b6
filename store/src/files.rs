//! The file layer under the journal and the manifest: the few operations that durability rests on, behind a trait, so
//! that tests can fail each of them and can lose what was written but not synced.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// Directories and files as the journal needs them.
///
/// An implementation that loses data at a crash must keep what [`JournalFile::sync`] and [`Files::sync_dir`] have
/// promised: synced bytes of a file whose name was made durable by syncing its directory.
pub trait Files: fmt::Debug + Send + Sync {
    /// Makes a directory and those above it; none of them need be missing.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn create_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names of the entries of a directory, in order.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such directory, or when it cannot be read.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file for appending, making it if it is missing.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn open(&self, path: &Path) -> io::Result<Box<dyn JournalFile>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or when it cannot be opened.
    fn read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>>;

    /// Renames a file, replacing the target if there is one.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if there is no such file, or when the operating system refuses.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// A file open for reading at any place.
pub trait ReadFile: fmt::Debug + Send + Sync {
    /// Reads up to `buffer.len()` bytes from `offset` on; 0 at the end.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// The file's length in bytes.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn len(&self) -> io::Result<u64>;

    /// True if the file has no bytes.
    ///
    /// # Errors
    /// As [`ReadFile::len`].
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

/// A file open for appending.
pub trait JournalFile: fmt::Debug + Send {
    /// Writes all of `bytes` at the end. After an error any part of them may have been written.
    ///
    /// # Errors
    /// When the operating system refuses, for instance because the disk is full.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable, with the file's length.
    ///
    /// # Errors
    /// When the operating system refuses. What was written since the last success is then in doubt.
    fn sync(&mut self) -> io::Result<()>;

    /// Cuts the file to `length` bytes.
    ///
    /// # Errors
    /// When the operating system refuses.
    fn truncate(&mut self, length: u64) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealFiles;

#[derive(Debug)]
struct Real(fs::File);

impl Files for RealFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn JournalFile>> {
        Ok(Box::new(Real(OpenOptions::new().append(true).create(true).open(path)?)))
    }

    fn read(&self, path: &Path) -> io::Result<Box<dyn ReadFile>> {
        Ok(Box::new(Real(fs::File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        // Windows has no way to sync a directory and needs none.
        if cfg!(unix) { fs::File::open(dir)?.sync_all() } else { Ok(()) }
    }
}

impl ReadFile for Real {
    #[cfg(unix)]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&self.0, buffer, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        std::os::windows::fs::FileExt::seek_read(&self.0, buffer, offset)
    }

    fn len(&self) -> io::Result<u64> {
        self.0.metadata().map(|metadata| metadata.len())
    }
}

impl JournalFile for Real {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }
}

/// Fills `buffer` from `offset` on as far as the file goes and says how far that was.
pub(crate) fn read_full(file: &dyn ReadFile, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while let Some(rest) = buffer.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, offset + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

//! The journal's files: append, sync, and on failure back to the last durable byte.
//!
//! Files are not prefilled: it gains 15 to 20 % on an idle machine and nothing on a busy one, and costs extra writes.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::LogError;
use crate::files::{Files, JournalFile, ReadFile, read_full};
use crate::manifest::Mark;

/// The journal's folder in the log's directory.
pub(crate) const FOLDER: &str = "journal";
/// How many files are kept open for reading.
const OPEN_FILES: usize = 64;

/// The name of file `number`.
pub(crate) fn file_name(number: u32) -> String {
    format!("{number:010}.log")
}

fn file_number(name: &str) -> Option<u32> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// The journal's files, for reading.
#[derive(Debug)]
pub(crate) struct Journal {
    files: Arc<dyn Files>,
    folder: PathBuf,
    open: Mutex<BTreeMap<u32, Arc<dyn ReadFile>>>,
}

impl Journal {
    pub(crate) fn new(files: Arc<dyn Files>, dir: &Path) -> Self {
        Journal { files, folder: dir.join(FOLDER), open: Mutex::default() }
    }

    /// The numbers of the files there are, ascending. [`LogError::NoLog`] if there is no journal at all.
    pub(crate) fn numbers(&self, dir: &Path) -> Result<Vec<u32>, LogError> {
        let names = self.files.list(&self.folder).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => LogError::NoLog { dir: dir.to_owned() },
            _ => LogError::io("list the journal", &self.folder, error),
        })?;
        let mut numbers: Vec<u32> = names.iter().filter_map(|name| file_number(name)).collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(crate) fn path(&self, number: u32) -> PathBuf {
        self.folder.join(file_name(number))
    }

    /// The file's name relative to the log's directory, for reports.
    pub(crate) fn shown(number: u32) -> String {
        format!("{FOLDER}/{}", file_name(number))
    }

    /// `count` bytes from a place on.
    pub(crate) fn bytes(&self, at: Mark, count: u64) -> Result<Vec<u8>, LogError> {
        let file = self.get(at.file)?;
        let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
        let read = read_full(file.as_ref(), &mut bytes, at.offset);
        let read = read.map_err(|error| LogError::io("read the journal file", &self.path(at.file), error))?;
        bytes.truncate(read);
        Ok(bytes)
    }

    /// The file, opened once and kept.
    pub(crate) fn get(&self, number: u32) -> Result<Arc<dyn ReadFile>, LogError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(&number) {
            return Ok(Arc::clone(file));
        }
        let path = self.path(number);
        let file = self.files.read(&path).map_err(|error| LogError::io("open the journal file", &path, error))?;
        let file: Arc<dyn ReadFile> = Arc::from(file);
        if open.len() >= OPEN_FILES {
            open.clear();
        }
        open.insert(number, Arc::clone(&file));
        Ok(file)
    }
}

/// The journal's end.
#[derive(Debug)]
pub(crate) struct JournalWriter {
    files: Arc<dyn Files>,
    dir: PathBuf,
    folder: PathBuf,
    file: Box<dyn JournalFile>,
    end: Mark,
    /// Everything before this place is durable; it is never behind `end`, and in the same file.
    synced: Mark,
    rotate_bytes: u64,
    poisoned: Option<String>,
}

impl JournalWriter {
    /// Opens the journal to append at `end`, where the file may not yet exist. What is before `end` becomes durable.
    pub(crate) fn open(files: Arc<dyn Files>, dir: &Path, end: Mark, rotate_bytes: u64) -> Result<Self, LogError> {
        let folder = dir.join(FOLDER);
        let mut file = open_file(files.as_ref(), &folder, end.file)?;
        // A killed process may have left whole commits that were written but not yet synced.
        file.sync().map_err(|error| LogError::io("sync the journal", &folder.join(file_name(end.file)), error))?;
        let dir = dir.to_owned();
        Ok(JournalWriter { files, dir, folder, file, end, synced: end, rotate_bytes, poisoned: None })
    }

    /// The place of the next byte.
    pub(crate) fn end(&self) -> Mark {
        self.end
    }

    /// Whether everything that was appended is durable.
    pub(crate) fn is_synced(&self) -> bool {
        self.synced == self.end
    }

    /// Whether the file is so long that the next commit belongs into a new one.
    pub(crate) fn is_full(&self) -> bool {
        self.end.offset >= self.rotate_bytes
    }

    /// Begins a new file. Everything before it must be durable.
    pub(crate) fn next_file(&mut self) -> Result<(), LogError> {
        self.check()?;
        self.sync()?;
        let number = self.end.file.saturating_add(1);
        self.file = open_file(self.files.as_ref(), &self.folder, number)?;
        self.end = Mark { file: number, offset: 0 };
        self.synced = self.end;
        Ok(())
    }

    /// Appends the bytes of one commit and, with `durable`, makes everything durable. After an error the journal ends
    /// where it ended before.
    pub(crate) fn commit(&mut self, bytes: &[u8], durable: bool) -> Result<(), LogError> {
        self.check()?;
        let path = self.folder.join(file_name(self.end.file));
        let mut doubt = false;
        let written = match self.file.append(bytes) {
            Ok(()) if durable => self.file.sync().map_err(|error| {
                doubt = !self.is_synced();
                LogError::io("sync the journal", &path, error)
            }),
            Ok(()) => Ok(()),
            Err(error) => Err(LogError::io("append to the journal", &path, error)),
        };
        let Err(failure) = written else {
            self.end.offset += bytes.len() as u64;
            if durable {
                self.synced = self.end;
            }
            return Ok(());
        };
        if doubt {
            self.poison_unsynced(&failure);
            return Err(failure);
        }
        // The failed bytes must not come back after a restart as if they had been acknowledged, nor lie under later ones.
        let undone = self.file.truncate(self.end.offset).and_then(|()| self.file.sync());
        match undone {
            Ok(()) => self.synced = self.end,
            Err(error) => self.poisoned = Some(format!("{failure}; cutting the file failed too: {error}")),
        }
        Err(failure)
    }

    /// Makes everything that was appended durable.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        if self.is_synced() {
            return Ok(());
        }
        self.check()?;
        let path = self.folder.join(file_name(self.end.file));
        match self.file.sync().map_err(|error| LogError::io("sync the journal", &path, error)) {
            Ok(()) => {
                self.synced = self.end;
                Ok(())
            }
            Err(failure) => {
                self.poison_unsynced(&failure);
                Err(failure)
            }
        }
    }

    /// A failed sync leaves what was written before it in doubt for good: a later one may succeed without it.
    fn poison_unsynced(&mut self, failure: &LogError) {
        self.poisoned = Some(format!("{failure}; what was acknowledged since the last sync may be lost"));
    }

    /// Whether the journal can take anything.
    pub(crate) fn check(&self) -> Result<(), LogError> {
        match &self.poisoned {
            Some(reason) => Err(LogError::Poisoned { dir: self.dir.clone(), reason: reason.clone() }),
            None => Ok(()),
        }
    }
}

fn open_file(files: &dyn Files, folder: &Path, number: u32) -> Result<Box<dyn JournalFile>, LogError> {
    let path = folder.join(file_name(number));
    let file = files.open(&path).map_err(|error| LogError::io("open the journal file", &path, error))?;
    files.sync_dir(folder).map_err(|error| LogError::io("sync the directory of the journal", folder, error))?;
    Ok(file)
}

/// Cuts an unfinished commit off the journal's last file. If `keep` is set, its bytes are first saved beside the file,
/// since some events in them are intact.
pub(crate) fn cut_tail(files: &dyn Files, journal: &Journal, at: Mark, keep: Option<&[u8]>) -> Result<(), LogError> {
    let path = journal.path(at.file);
    if let Some(bytes) = keep {
        let side = path.with_extension(format!("cut-{}", at.offset));
        let save = || {
            let mut file = files.open(&side)?;
            file.truncate(0)?;
            file.append(bytes)?;
            file.sync()
        };
        save().map_err(|error| LogError::io("save the journal's unfinished end", &side, error))?;
    }
    let cut = || {
        let mut file = files.open(&path)?;
        file.truncate(at.offset)?;
        file.sync()
    };
    cut().map_err(|error| LogError::io("cut the journal's unfinished end", &path, error))
}

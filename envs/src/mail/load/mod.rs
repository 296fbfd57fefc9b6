//! Mail from files: tables (JSONL, Parquet) in the columns of `corbt/enron-emails`, mbox files, and folders of single
//! messages (maildir, or any tree of them).

mod mime;
mod table;

use std::fs;
use std::path::{Path, PathBuf};

use crate::EnvError;
use crate::mail::mailbox::{Mailbox, MailboxBuilder};

pub(super) use table::{Cell, Record, each_record};

/// A kind of file, by its name's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Table,
    Mbox,
}

impl Mailbox {
    /// Reads mail from a file (`.jsonl`, `.json`, `.parquet`, `.mbox`) or a folder. A folder may hold tables and mbox
    /// files (several are read in the order of their names), or single messages in files of their own, as a maildir does.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file, the row and the reason.
    pub fn load(path: &Path) -> Result<Self, EnvError> {
        let mut builder = MailboxBuilder::default();
        let found = fs::metadata(path).map_err(|error| data_error(path, error))?;
        if found.is_dir() {
            let files = mail_files(path)?;
            if files.is_empty() {
                mime::folder(path, &mut builder)?;
            }
            for (file, kind) in files {
                read_file(&file, kind, &mut builder)?;
            }
        } else {
            let Some(kind) = kind_of(path) else {
                let reason = "a mailbox is a .jsonl, .parquet or .mbox file, or a folder of such files or of messages";
                return Err(data_error(path, reason));
            };
            read_file(path, kind, &mut builder)?;
        }
        let mailbox = builder.finish();
        if mailbox.emails().is_empty() {
            let dropped = mailbox.dropped();
            let reason = format!("it holds no mail that can be used ({} left out)", dropped.total());
            return Err(data_error(path, reason));
        }
        Ok(mailbox)
    }
}

fn read_file(file: &Path, kind: Kind, builder: &mut MailboxBuilder) -> Result<(), EnvError> {
    match kind {
        Kind::Table => each_record(file, |record| {
            builder.push(table::email(&record)?);
            Ok(())
        }),
        Kind::Mbox => mime::mbox(file, builder),
    }
}

fn kind_of(path: &Path) -> Option<Kind> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    match extension.as_str() {
        "jsonl" | "json" | "parquet" => Some(Kind::Table),
        "mbox" => Some(Kind::Mbox),
        _ => None,
    }
}

/// Tables and mbox files of a folder by name, questions apart; those in its folder `emails` if there is one.
fn mail_files(folder: &Path) -> Result<Vec<(PathBuf, Kind)>, EnvError> {
    let inner = folder.join("emails");
    let folder = if inner.is_dir() { inner.as_path() } else { folder };
    let files = entries(folder)?.into_iter().filter(|path| path.is_file() && !is_questions(path));
    Ok(files.filter_map(|path| Some((path.clone(), kind_of(&path)?))).collect())
}

/// Whether a file is one of questions, by its name: `questions*.jsonl` or `questions*.parquet`.
pub(super) fn is_questions(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("");
    name.starts_with("questions") && kind_of(path) == Some(Kind::Table)
}

/// What a folder holds, by name.
pub(super) fn entries(folder: &Path) -> Result<Vec<PathBuf>, EnvError> {
    let listing = fs::read_dir(folder).map_err(|error| data_error(folder, error))?;
    let paths = listing.map(|entry| entry.map(|entry| entry.path()));
    let mut paths = paths.collect::<Result<Vec<_>, _>>().map_err(|error| data_error(folder, error))?;
    paths.sort();
    Ok(paths)
}

pub(super) fn data_error(file: &Path, reason: impl ToString) -> EnvError {
    EnvError::Data { file: file.display().to_string(), reason: reason.to_string() }
}

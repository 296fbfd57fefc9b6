//! Questions from files, in the columns of `corbt/enron_emails_sample_questions`.

use std::path::{Path, PathBuf};

use super::load::{Cell, Record, each_record, entries, is_questions};
use super::mailbox::Mailbox;
use crate::{EnvError, Split};

/// Questions that the authors found to be wrong, by id.
pub const EXCLUDED: [i64; 7] = [49, 101, 129, 171, 208, 266, 327];

/// Of the questions in files that are of neither split, every fifth is for validation.
const VAL_SHARE: u64 = 5;

/// A question from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// Its number in the data set.
    pub id: i64,
    /// The question.
    pub question: String,
    /// The right answer, in free text.
    pub answer: String,
    /// The mails that hold it.
    pub message_ids: Vec<String>,
    /// How realistic the authors' model found it, from 0 to 1.
    pub how_realistic: Option<f64>,
    /// Whose mail is asked about.
    pub inbox_address: String,
    /// The day on which it is asked, `YYYY-MM-DD`.
    pub query_date: String,
    /// The split that it belongs to.
    pub split: Split,
}

/// The questions of a data folder.
#[derive(Clone, Debug, Default)]
pub struct Questions {
    /// In the order of their files' names, then of their rows.
    pub asked: Vec<Asked>,
    /// Left out because the authors found them wrong.
    pub excluded: u64,
    /// Left out because one of their mails is not in the mailbox.
    pub unsupported: u64,
    /// blake3 over what was kept.
    pub digest: String,
}

impl Questions {
    /// Reads every `questions*.jsonl` and `questions*.parquet` of a folder, or of its folder `questions`. A name with
    /// `train` in it holds training questions, one with `test` or `val` validation questions. `None` if there is no
    /// such file.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file, the row and the reason.
    pub fn load(folder: &Path, mailbox: &Mailbox) -> Result<Option<Self>, EnvError> {
        let files = question_files(folder)?;
        if files.is_empty() {
            return Ok(None);
        }
        let mut found = Self::default();
        let mut hasher = blake3::Hasher::new();
        for file in files {
            let split = split_of(&file);
            each_record(&file, |record| {
                let asked = read(&record, split)?;
                found.take(asked, mailbox, &mut hasher);
                Ok(())
            })?;
        }
        found.digest = hasher.finalize().to_hex().to_string();
        Ok(Some(found))
    }

    fn take(&mut self, asked: Asked, mailbox: &Mailbox, hasher: &mut blake3::Hasher) {
        if EXCLUDED.contains(&asked.id) {
            self.excluded += 1;
        } else if asked.message_ids.iter().any(|id| mailbox.read(id).is_none()) {
            self.unsupported += 1;
        } else {
            // Debug output of plain data is one-to-one.
            hasher.update(format!("{asked:?}").as_bytes());
            self.asked.push(asked);
        }
    }
}

fn question_files(folder: &Path) -> Result<Vec<PathBuf>, EnvError> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let inner = folder.join("questions");
    let all = if inner.is_dir() { entries(&inner)? } else { entries(folder)? };
    let is_table = |path: &PathBuf| path.extension().is_some_and(|end| end == "jsonl" || end == "parquet");
    let chosen = |path: &PathBuf| path.is_file() && (is_questions(path) || (inner.is_dir() && is_table(path)));
    Ok(all.into_iter().filter(chosen).collect())
}

fn split_of(file: &Path) -> Option<Split> {
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("");
    if name.contains("train") {
        Some(Split::Train)
    } else if name.contains("test") || name.contains("val") {
        Some(Split::Val)
    } else {
        None
    }
}

fn read(record: &Record, split: Option<Split>) -> Result<Asked, String> {
    let id = match record.get("id") {
        Cell::Number(id) => *id,
        Cell::Null => return Err("`id` is missing".to_owned()),
        other => return Err(format!("`id` must be a whole number, not {}", other.kind())),
    };
    let how_realistic = match record.get("how_realistic") {
        Cell::Null => None,
        Cell::Real(share) => Some(*share),
        Cell::Number(share) => Some(*share as f64),
        other => return Err(format!("`how_realistic` must be a number, not {}", other.kind())),
    };
    let message_ids = record.texts("message_ids")?;
    if message_ids.is_empty() {
        return Err("`message_ids` names no mail".to_owned());
    }
    Ok(Asked {
        id,
        question: record.text("question")?,
        answer: record.text("answer")?,
        message_ids,
        how_realistic,
        inbox_address: record.text("inbox_address")?,
        query_date: record.date("query_date")?.get(..10).unwrap_or_default().to_owned(),
        split: split.unwrap_or(if id.unsigned_abs().is_multiple_of(VAL_SHARE) { Split::Val } else { Split::Train }),
    })
}

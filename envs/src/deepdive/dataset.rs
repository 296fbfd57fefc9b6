//! The DeepDive data set's own shape: questions with answers, and nothing of how they are found.

use std::fs;
use std::path::{Path, PathBuf};

use super::rows;
use crate::{EnvError, Split};

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiveQuestion {
    /// The row's own id.
    pub id: String,
    /// The question.
    pub question: String,
    /// Its answer.
    pub answer: String,
    /// The split that it belongs to.
    pub split: Split,
}

/// The questions of a file or folder.
#[derive(Debug)]
pub struct DiveSet {
    /// In file order, files by name.
    pub questions: Vec<DiveQuestion>,
    /// blake3 over ids, questions and answers.
    pub digest: String,
}

impl DiveSet {
    /// Reads rows `{id, question, answer, ..}` from a Parquet, JSON or JSON-lines file, or from all such files of a
    /// folder or of `data` in it. As in the authors' configurations `qa_rl` is for training and `qa_sft` for validation;
    /// `trajectories_sft`, whose questions are among `qa_sft`'s, is left out. Of files with other names a fifth of the
    /// questions is for validation.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file, the row and the reason.
    pub fn load(path: &Path) -> Result<Self, EnvError> {
        let mut questions = Vec::new();
        let mut hasher = blake3::Hasher::new();
        for file in files(path)? {
            let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let split = if name.contains("qa_rl") {
                Some(Split::Train)
            } else if name.contains("qa_sft") {
                Some(Split::Val)
            } else {
                None
            };
            rows::read(&file, &mut |row| {
                let id = rows::id(&row, "id")?;
                let (question, answer) = (rows::text(&row, "question")?, rows::text(&row, "answer")?);
                for (name, text) in [("question", &question), ("answer", &answer)] {
                    if text.trim().is_empty() {
                        return Err(format!("`{name}` is empty"));
                    }
                }
                // The id as it is written, so that 7 and "7" are told apart.
                let written = row.get("id").map_or_else(String::new, ToString::to_string);
                for text in [&written, &question, &answer] {
                    hasher.update(&(text.len() as u64).to_le_bytes());
                    hasher.update(text.as_bytes());
                }
                let split = split.unwrap_or_else(|| fifth(&question));
                questions.push(DiveQuestion { id, question, answer, split });
                Ok(())
            })?;
        }
        if questions.is_empty() {
            let reason = "no questions: expected Parquet or JSON-lines files with id, question and answer".to_owned();
            return Err(EnvError::Data { file: path.display().to_string(), reason });
        }
        Ok(Self { questions, digest: hasher.finalize().to_hex().to_string() })
    }
}

/// The split of something that names none: a fifth is for validation, decided by its text.
pub(super) fn fifth(text: &str) -> Split {
    let [first, ..] = *blake3::hash(text.as_bytes()).as_bytes();
    // 51 of 256 values.
    if first < 51 { Split::Val } else { Split::Train }
}

fn files(path: &Path) -> Result<Vec<PathBuf>, EnvError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let inner = path.join("data");
    let folder = if inner.is_dir() { inner } else { path.to_owned() };
    let failed =
        |error: std::io::Error| EnvError::Data { file: folder.display().to_string(), reason: error.to_string() };
    let mut found = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
        let table = [".parquet", ".jsonl", ".json"].iter().any(|ending| name.ends_with(ending));
        if file.is_file() && table && !name.contains("trajectories") {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

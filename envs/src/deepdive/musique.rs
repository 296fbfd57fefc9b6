//! MuSiQue's questions (Trivedi et al., 2022): every hop has its own question, answer and passage.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value as Json;

use super::chain::{Hop, filled};
use super::rows;
use super::search::{Corpus, Page, corpus_slug};
use crate::EnvError;

/// A question with its hops.
#[derive(Clone, Debug, PartialEq)]
pub struct MusiqueQuestion {
    /// Such as `3hop1__858308_102146_56430`.
    pub id: String,
    /// The question.
    pub question: String,
    /// Its answer.
    pub answer: String,
    /// Other forms of the answer.
    pub aliases: Vec<String>,
    /// The hops in the order in which they are answered.
    pub hops: Vec<Hop>,
}

/// Questions, and the passages among which their answers are.
#[derive(Debug)]
pub struct Musique {
    /// The questions in file order; those that have no answer are left out.
    pub questions: Vec<MusiqueQuestion>,
    /// The passages: those of the corpus files, then those of the questions that are not among them.
    pub corpus: Arc<Corpus>,
    /// blake3 over the questions' rows.
    pub digest: String,
}

#[derive(Deserialize)]
struct Row {
    id: String,
    paragraphs: Vec<Paragraph>,
    question: String,
    question_decomposition: Vec<Step>,
    answer: String,
    #[serde(default)]
    answer_aliases: Vec<String>,
    #[serde(default = "yes")]
    answerable: bool,
}

#[derive(Deserialize)]
struct Paragraph {
    idx: i64,
    title: String,
    paragraph_text: String,
}

#[derive(Deserialize)]
struct Step {
    id: Json,
    question: String,
    answer: String,
    paragraph_support_idx: Option<i64>,
}

#[derive(Deserialize)]
struct Passage {
    title: String,
    text: String,
}

fn yes() -> bool {
    true
}

/// Passages, each with an address of its own.
#[derive(Default)]
struct Passages {
    pages: Vec<Page>,
    by_content: BTreeMap<(String, String), String>,
}

impl Passages {
    /// The address of a passage, which is added if it is new.
    fn url(&mut self, title: String, text: String) -> String {
        let number = self.pages.len();
        let key = (title, text);
        if let Some(url) = self.by_content.get(&key) {
            return url.clone();
        }
        let url = format!("https://passages.example/{number}/{}", corpus_slug(&key.0));
        self.pages.push(Page { url: url.clone(), title: key.0.clone(), text: Arc::from(key.1.as_str()) });
        self.by_content.insert(key, url.clone());
        url
    }
}

impl Musique {
    /// Whether a folder, or `multihop-qa` in it, holds MuSiQue's questions.
    #[must_use]
    pub fn folder(path: &Path) -> Option<PathBuf> {
        let folders = [path.join("multihop-qa"), path.to_owned()];
        folders.into_iter().find(|folder| files(folder, is_questions).is_ok_and(|files| !files.is_empty()))
    }

    /// Reads `musique*.json` and `musique*.jsonl` as questions, and as passages `musique*_corpus.json` and
    /// `2wikimultihopqa_corpus.json`, lists of `{title, text}`.
    ///
    /// # Errors
    /// [`EnvError::Data`] naming the file, the row and the reason.
    pub fn load(folder: &Path) -> Result<Self, EnvError> {
        let mut passages = Passages::default();
        // MuSiQue's own first: of equally good results its passages come first.
        for name in [is_own_corpus, is_wiki_corpus] {
            for file in files(folder, name)? {
                rows::read(&file, &mut |row| {
                    let passage = Passage::deserialize(row).map_err(|error| error.to_string())?;
                    passages.url(passage.title, passage.text);
                    Ok(())
                })?;
            }
        }
        let mut questions = Vec::new();
        let mut hasher = blake3::Hasher::new();
        for file in files(folder, is_questions)? {
            rows::read(&file, &mut |row| {
                hasher.update(row.to_string().as_bytes());
                let row = Row::deserialize(row).map_err(|error| error.to_string())?;
                if row.answerable {
                    questions.push(question(row, &mut passages)?);
                }
                Ok(())
            })?;
        }
        let failed = |error: super::search::CorpusError| EnvError::Data {
            file: folder.display().to_string(),
            reason: error.to_string(),
        };
        let corpus = Arc::new(Corpus::new(passages.pages).map_err(failed)?);
        Ok(Self { questions, corpus, digest: hasher.finalize().to_hex().to_string() })
    }
}

fn question(row: Row, passages: &mut Passages) -> Result<MusiqueQuestion, String> {
    let mut addresses = BTreeMap::new();
    for paragraph in row.paragraphs {
        addresses.insert(paragraph.idx, passages.url(paragraph.title, paragraph.paragraph_text));
    }
    let mut hops = Vec::with_capacity(row.question_decomposition.len());
    for step in row.question_decomposition {
        let page = step.paragraph_support_idx.map(|index| {
            let lacks = || format!("{}: a hop rests on paragraph {index}, which is not there", row.id);
            addresses.get(&index).cloned().ok_or_else(lacks)
        });
        hops.push(Hop {
            template: step.id.to_string().trim_matches('"').to_owned(),
            question: step.question,
            also: None,
            phrase: None,
            answer: step.answer,
            aliases: Vec::new(),
            pages: page.transpose()?.into_iter().collect(),
        });
    }
    if hops.is_empty() {
        return Err(format!("{}: no decomposition", row.id));
    }
    if let Some(at) = (0..hops.len()).find(|&at| filled(&hops, at).is_none()) {
        return Err(format!("{}: hop {} builds on a hop that does not come before it", row.id, at + 1));
    }
    if let Some(last) = hops.last_mut() {
        // The question's aliases are those of its last hop.
        last.aliases.clone_from(&row.answer_aliases);
    }
    Ok(MusiqueQuestion { id: row.id, question: row.question, answer: row.answer, aliases: row.answer_aliases, hops })
}

fn is_own_corpus(name: &str) -> bool {
    name.starts_with("musique") && name.ends_with("_corpus.json")
}

fn is_wiki_corpus(name: &str) -> bool {
    name == "2wikimultihopqa_corpus.json"
}

fn is_questions(name: &str) -> bool {
    name.starts_with("musique")
        && (name.ends_with(".json") || name.ends_with(".jsonl"))
        && !name.ends_with("_corpus.json")
}

/// A folder's files of certain names, in the order of their names.
fn files(folder: &Path, wanted: fn(&str) -> bool) -> Result<Vec<PathBuf>, EnvError> {
    let failed =
        |error: std::io::Error| EnvError::Data { file: folder.display().to_string(), reason: error.to_string() };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        if wanted(&name) && path.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

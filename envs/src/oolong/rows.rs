//! Rows of the published data sets, from JSONL or Parquet. Files of many gigabytes are passed through once, row by row,
//! without their texts; a text is read when its row was chosen, and kept once however many rows have it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row as Columns};
use parquet::schema::types::Type;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize};

use super::score::AnswerType;
use crate::{EnvError, Split};

/// The column with the text.
const TEXT: &str = "context_window_text";

/// Columns that are read for every row, as far as a file has them.
const COLUMNS: [&str; 11] = [
    "id",
    "context_window_id",
    "question",
    "answer",
    "question_type",
    "episodes",
    "campaign",
    "answer_type",
    "task",
    "dataset",
    "context_len",
];

/// Which scorer a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Oolong-Real.
    Dnd,
    /// Oolong-Synth, numbers.
    SynthNumeric,
    /// Oolong-Synth, dates.
    SynthDate,
    /// Oolong-Synth, anything else.
    Synth,
}

impl Scoring {
    /// The kind of answer, for the scorer of Oolong-Synth.
    #[must_use]
    pub fn answer_type(self) -> Option<AnswerType> {
        match self {
            Scoring::Dnd => None,
            Scoring::SynthNumeric => Some(AnswerType::Numeric),
            Scoring::SynthDate => Some(AnswerType::Date),
            Scoring::Synth => Some(AnswerType::Other),
        }
    }
}

/// Where a row stands: the file's name, and its first byte (JSONL) or its number (Parquet).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Place {
    /// The file's name, without its folder.
    pub file: String,
    /// The position.
    pub at: u64,
}

/// A row without its text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Its id.
    pub id: String,
    /// The id of its text, which other rows may have too.
    pub window: String,
    /// The question.
    pub question: String,
    /// The right answer, as the data set writes it.
    pub answer: String,
    /// Its type, such as `singledoc_rolls`, or the task of a synthetic one.
    pub kind: String,
    /// The episodes of its text; empty for synthetic rows.
    pub episodes: Vec<u32>,
    /// The series of its episodes, such as `campaign2`.
    pub campaign: String,
    /// How it is scored.
    pub scoring: Scoring,
    /// Length of its text in characters, where that is known before the text is read.
    pub length: Option<u64>,
    /// Where it stands.
    pub place: Place,
}

impl Row {
    /// The split it belongs to: what the file's name says, else campaign 2 to train on, as the authors do.
    #[must_use]
    pub fn split(&self) -> Split {
        let name = self.place.file.to_lowercase();
        if name.contains("test") {
            Split::Val
        } else if name.contains("validation") || name.contains("train") || self.campaign != "campaign1" {
            Split::Train
        } else {
            Split::Val
        }
    }
}

/// One JSON row as it is written; texts are measured and dropped.
#[derive(Deserialize)]
struct Written {
    id: Loose,
    context_window_id: Loose,
    question: String,
    answer: Loose,
    #[serde(default)]
    question_type: Option<String>,
    #[serde(default)]
    task: Option<String>,
    #[serde(default)]
    episodes: Option<Vec<u32>>,
    #[serde(default)]
    campaign: Option<String>,
    #[serde(default)]
    answer_type: Option<String>,
    #[serde(default, rename = "context_window_text")]
    text: Option<Length>,
}

/// A string or a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum Loose {
    Text(String),
    Number(i64),
}

impl Loose {
    fn text(self) -> String {
        match self {
            Loose::Text(text) => text,
            Loose::Number(number) => number.to_string(),
        }
    }
}

/// The length of a string that is not kept.
struct Length(u64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl Visitor<'_> for Count {
            type Value = Length;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Length, E> {
                Ok(Length(text.chars().count() as u64))
            }
        }
        deserializer.deserialize_str(Count)
    }
}

/// Only the text of a JSON row.
#[derive(Deserialize)]
struct OnlyText {
    #[serde(rename = "context_window_text")]
    text: Option<String>,
}

fn scoring(answer_type: Option<&str>) -> Scoring {
    match answer_type.map(AnswerType::of) {
        None => Scoring::Dnd,
        Some(AnswerType::Numeric) => Scoring::SynthNumeric,
        Some(AnswerType::Date) => Scoring::SynthDate,
        Some(AnswerType::Other) => Scoring::Synth,
    }
}

/// The files with rows at a path: itself, or those of a folder, by name.
///
/// # Errors
/// When the path cannot be read.
pub fn files(path: &Path) -> Result<Vec<PathBuf>, EnvError> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|error| failed(path, error))? {
        let file = entry.map_err(|error| failed(path, error))?.path();
        if is_jsonl(&file) || is_parquet(&file) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn has_extension(file: &Path, wanted: &str) -> bool {
    file.extension().is_some_and(|extension| extension == wanted)
}

fn is_jsonl(file: &Path) -> bool {
    has_extension(file, "jsonl")
}

fn is_parquet(file: &Path) -> bool {
    has_extension(file, "parquet")
}

fn failed(file: &Path, error: impl ToString) -> EnvError {
    EnvError::Data { file: file.display().to_string(), reason: error.to_string() }
}

fn file_name(file: &Path) -> String {
    file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Passes every row of a file to `take`, without its text, in the order of the file.
///
/// # Errors
/// When the file cannot be read or a row is none.
pub fn scan(file: &Path, take: &mut dyn FnMut(Row)) -> Result<(), EnvError> {
    if is_parquet(file) { scan_parquet(file, take) } else { scan_jsonl(file, take) }
}

fn scan_jsonl(file: &Path, take: &mut dyn FnMut(Row)) -> Result<(), EnvError> {
    let mut reader = BufReader::new(File::open(file).map_err(|error| failed(file, error))?);
    let (mut line, mut at, mut number) = (Vec::new(), 0, 0_u64);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(|error| failed(file, error))?;
        if read == 0 {
            return Ok(());
        }
        number += 1;
        if !line.trim_ascii().is_empty() {
            let row: Written = serde_json::from_slice(&line)
                .map_err(|error| failed(file, format!("line {number} is no row of Oolong: {error}")))?;
            take(row.row(Place { file: file_name(file), at }));
        }
        at += read as u64;
    }
}

impl Written {
    fn row(self, place: Place) -> Row {
        Row {
            id: self.id.text(),
            window: self.context_window_id.text(),
            question: self.question,
            answer: self.answer.text(),
            kind: self.question_type.or(self.task).unwrap_or_default(),
            episodes: self.episodes.unwrap_or_default(),
            campaign: self.campaign.unwrap_or_default(),
            scoring: scoring(self.answer_type.as_deref()),
            length: self.text.map(|text| text.0),
            place,
        }
    }
}

fn open_parquet(file: &Path) -> Result<SerializedFileReader<File>, EnvError> {
    let handle = File::open(file).map_err(|error| failed(file, error))?;
    SerializedFileReader::new(handle).map_err(|error| failed(file, error))
}

/// The schema of these columns only.
fn projection(file: &Path, reader: &SerializedFileReader<File>, names: &[&str]) -> Result<Type, EnvError> {
    let root = reader.metadata().file_metadata().schema();
    let fields: Vec<Arc<Type>> =
        root.get_fields().iter().filter(|field| names.contains(&field.name())).map(Arc::clone).collect();
    Type::group_type_builder(root.name()).with_fields(fields).build().map_err(|error| failed(file, error))
}

fn scan_parquet(file: &Path, take: &mut dyn FnMut(Row)) -> Result<(), EnvError> {
    let reader = open_parquet(file)?;
    let projection = projection(file, &reader, &COLUMNS)?;
    let rows = reader.get_row_iter(Some(projection)).map_err(|error| failed(file, error))?;
    for (at, columns) in rows.enumerate() {
        let columns = columns.map_err(|error| failed(file, error))?;
        let place = Place { file: file_name(file), at: at as u64 };
        take(row_of(&columns, place).map_err(|name| failed(file, format!("row {at} has no column `{name}`")))?);
    }
    Ok(())
}

fn row_of(columns: &Columns, place: Place) -> Result<Row, &'static str> {
    let text = |name: &'static str| {
        columns.get_column_iter().find(|(known, _)| *known == name).and_then(|(_, field)| text_of(field))
    };
    let episodes = columns.get_column_iter().find(|(name, _)| *name == "episodes").map(|(_, field)| numbers_of(field));
    Ok(Row {
        id: text("id").ok_or("id")?,
        window: text("context_window_id").ok_or("context_window_id")?,
        question: text("question").ok_or("question")?,
        answer: text("answer").ok_or("answer")?,
        kind: text("question_type").or_else(|| text("task")).unwrap_or_default(),
        episodes: episodes.unwrap_or_default(),
        campaign: text("campaign").unwrap_or_default(),
        scoring: scoring(text("answer_type").as_deref()),
        // The column `context_len` counts tokens of some tokenizer.
        length: None,
        place,
    })
}

fn text_of(field: &Field) -> Option<String> {
    match field {
        Field::Str(text) => Some(text.clone()),
        Field::Bytes(bytes) => bytes.as_utf8().ok().map(str::to_owned),
        _ => whole_number(field).map(|number| number.to_string()),
    }
}

fn whole_number(field: &Field) -> Option<i64> {
    match field {
        Field::Byte(number) => Some(i64::from(*number)),
        Field::Short(number) => Some(i64::from(*number)),
        Field::Int(number) => Some(i64::from(*number)),
        Field::Long(number) => Some(*number),
        Field::UByte(number) => Some(i64::from(*number)),
        Field::UShort(number) => Some(i64::from(*number)),
        Field::UInt(number) => Some(i64::from(*number)),
        Field::ULong(number) => i64::try_from(*number).ok(),
        _ => None,
    }
}

fn numbers_of(field: &Field) -> Vec<u32> {
    let Field::ListInternal(list) = field else { return Vec::new() };
    list.elements().iter().filter_map(whole_number).filter_map(|number| u32::try_from(number).ok()).collect()
}

/// The text of the row at a place in `file`.
///
/// # Errors
/// When it cannot be read, or no row with a text is there.
pub fn text_at(file: &Path, at: u64) -> Result<String, EnvError> {
    let text = if is_parquet(file) { parquet_text(file, at)? } else { jsonl_text(file, at)? };
    text.ok_or_else(|| failed(file, format!("the row at {at} has no `{TEXT}`")))
}

fn jsonl_text(file: &Path, at: u64) -> Result<Option<String>, EnvError> {
    let mut handle = File::open(file).map_err(|error| failed(file, error))?;
    handle.seek(SeekFrom::Start(at)).map_err(|error| failed(file, error))?;
    let mut line = Vec::new();
    BufReader::new(handle.take(u64::MAX)).read_until(b'\n', &mut line).map_err(|error| failed(file, error))?;
    let row: OnlyText = serde_json::from_slice(&line)
        .map_err(|error| failed(file, format!("there is no row at byte {at} any more: {error}")))?;
    Ok(row.text)
}

fn parquet_text(file: &Path, at: u64) -> Result<Option<String>, EnvError> {
    let reader = open_parquet(file)?;
    let projection = projection(file, &reader, &[TEXT])?;
    let mut left = usize::try_from(at).unwrap_or(usize::MAX);
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number).map_err(|error| failed(file, error))?;
        let rows = usize::try_from(group.metadata().num_rows()).unwrap_or_default();
        if left >= rows {
            left -= rows;
            continue;
        }
        let mut rows = group.get_row_iter(Some(projection)).map_err(|error| failed(file, error))?;
        let Some(columns) = rows.nth(left) else { return Ok(None) };
        let columns = columns.map_err(|error| failed(file, error))?;
        return Ok(columns.get_column_iter().next().and_then(|(_, field)| text_of(field)));
    }
    Ok(None)
}

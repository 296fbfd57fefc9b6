//! Rows of JSONL and Parquet files, in one shape.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::{Field, Row};
use serde_json::Value as Json;

use super::data_error;
use crate::EnvError;
use crate::mail::message::{Email, read_date, read_epoch};

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::mail) enum Cell {
    Null,
    Text(String),
    Number(i64),
    Real(f64),
    Texts(Vec<String>),
    /// What no column of ours may hold, by its type.
    Other(&'static str),
}

/// A row by column name.
#[derive(Clone, Debug)]
pub(in crate::mail) struct Record {
    cells: Vec<(String, Cell)>,
}

/// Reads a file row by row. An error of `take`, such as of a missing column, is given the file and the row.
pub(in crate::mail) fn each_record(
    file: &Path,
    mut take: impl FnMut(Record) -> Result<(), String>,
) -> Result<(), EnvError> {
    let opened = File::open(file).map_err(|error| data_error(file, error))?;
    let is_parquet = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("parquet"));
    let at = |kind: &str, number: usize| {
        let kind = kind.to_owned();
        move |reason: String| data_error(file, format!("{kind} {number}: {reason}"))
    };
    if is_parquet {
        let reader = SerializedFileReader::new(opened).map_err(|error| data_error(file, error))?;
        let rows = reader.get_row_iter(None).map_err(|error| data_error(file, error))?;
        for (index, row) in rows.enumerate() {
            let fail = at("row", index + 1);
            let row = row.map_err(|error| fail(error.to_string()))?;
            take(Record::from_row(row)).map_err(fail)?;
        }
        return Ok(());
    }
    for (index, line) in BufReader::new(opened).lines().enumerate() {
        let fail = at("line", index + 1);
        let line = line.map_err(|error| fail(error.to_string()))?;
        if line.trim().is_empty() {
            continue;
        }
        let json: Json = serde_json::from_str(&line).map_err(|error| fail(error.to_string()))?;
        Record::from_json(json).and_then(&mut take).map_err(fail)?;
    }
    Ok(())
}

impl Record {
    fn from_json(json: Json) -> Result<Self, String> {
        let Json::Object(map) = json else { return Err("a row must be a JSON object".to_owned()) };
        Ok(Self { cells: map.into_iter().map(|(name, value)| (name, json_cell(value))).collect() })
    }

    fn from_row(row: Row) -> Self {
        Self { cells: row.into_columns().into_iter().map(|(name, field)| (name, field_cell(field))).collect() }
    }

    /// A column; [`Cell::Null`] if there is none.
    pub(in crate::mail) fn get(&self, name: &str) -> &Cell {
        self.cells.iter().find(|(column, _)| column == name).map_or(&Cell::Null, |(_, cell)| cell)
    }

    /// A text that must be there.
    pub(in crate::mail) fn text(&self, name: &str) -> Result<String, String> {
        self.maybe_text(name)?.ok_or_else(|| format!("`{name}` is missing"))
    }

    /// A text that may be missing.
    pub(in crate::mail) fn maybe_text(&self, name: &str) -> Result<Option<String>, String> {
        match self.get(name) {
            Cell::Null => Ok(None),
            Cell::Text(text) => Ok(Some(text.clone())),
            other => Err(format!("`{name}` must be text, not {}", other.kind())),
        }
    }

    /// A list of texts; a missing one is empty, a single text a list of one.
    pub(in crate::mail) fn texts(&self, name: &str) -> Result<Vec<String>, String> {
        match self.get(name) {
            Cell::Null => Ok(Vec::new()),
            Cell::Text(text) => Ok(vec![text.clone()]),
            Cell::Texts(texts) => Ok(texts.clone()),
            other => Err(format!("`{name}` must be a list of texts, not {}", other.kind())),
        }
    }

    /// A date as `YYYY-MM-DD HH:MM:SS`, from text or from a number of seconds or their fractions since 1970.
    pub(in crate::mail) fn date(&self, name: &str) -> Result<String, String> {
        let read = match self.get(name) {
            Cell::Null => return Err(format!("`{name}` is missing")),
            Cell::Text(text) => read_date(text).ok_or_else(|| format!("{text:?}")),
            Cell::Number(number) => read_epoch(*number).ok_or_else(|| number.to_string()),
            other => Err(other.kind().to_owned()),
        };
        read.map_err(|given| format!("`{name}` must be a date such as 2001-05-14 16:39:00, not {given}"))
    }
}

impl Cell {
    pub(in crate::mail) fn kind(&self) -> &'static str {
        match self {
            Cell::Null => "null",
            Cell::Text(_) => "text",
            Cell::Number(_) => "a whole number",
            Cell::Real(_) => "a number",
            Cell::Texts(_) => "a list",
            Cell::Other(kind) => kind,
        }
    }
}

fn json_cell(value: Json) -> Cell {
    match value {
        Json::Null => Cell::Null,
        Json::String(text) => Cell::Text(text),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => Cell::Number(whole),
            (None, Some(real)) => Cell::Real(real),
            (None, None) => Cell::Other("a number beyond 64 bits"),
        },
        Json::Array(items) => {
            let texts: Option<Vec<String>> =
                items.into_iter().map(|item| if let Json::String(text) = item { Some(text) } else { None }).collect();
            texts.map_or(Cell::Other("a list of other things than texts"), Cell::Texts)
        }
        Json::Bool(_) => Cell::Other("a truth value"),
        Json::Object(_) => Cell::Other("an object"),
    }
}

fn field_cell(field: Field) -> Cell {
    match field {
        Field::Null => Cell::Null,
        Field::Str(text) => Cell::Text(text),
        Field::Byte(number) => Cell::Number(number.into()),
        Field::Short(number) => Cell::Number(number.into()),
        Field::Int(number) => Cell::Number(number.into()),
        // Nanoseconds, for which the record interface has no kind of its own, come as plain numbers too.
        Field::Long(number) | Field::TimestampMicros(number) => Cell::Number(number),
        Field::UByte(number) => Cell::Number(number.into()),
        Field::UShort(number) => Cell::Number(number.into()),
        Field::UInt(number) => Cell::Number(number.into()),
        Field::TimestampMillis(number) => millis(number),
        Field::Float(number) => Cell::Real(number.into()),
        Field::Double(number) => Cell::Real(number),
        Field::ListInternal(list) => {
            let texts: Option<Vec<String>> = list
                .elements()
                .iter()
                .map(|item| if let Field::Str(text) = item { Some(text.clone()) } else { None })
                .collect();
            texts.map_or(Cell::Other("a list of other things than texts"), Cell::Texts)
        }
        Field::Bytes(_) => Cell::Other("bytes that are not marked as text"),
        Field::Bool(_) => Cell::Other("a truth value"),
        _ => Cell::Other("a value of another type"),
    }
}

/// A time whose unit is known; the size decides elsewhere.
fn millis(number: i64) -> Cell {
    jiff::Timestamp::from_millisecond(number).map_or(Cell::Number(number), |stamp| Cell::Text(stamp.to_string()))
}

/// A mail from a row with the columns of `corbt/enron-emails`: `message_id`, `subject`, `from`, `to`, `cc`, `bcc`, `date`,
/// `body`, `file_name`.
pub(super) fn email(record: &Record) -> Result<Email, String> {
    Ok(Email {
        message_id: record.text("message_id")?,
        date: record.date("date")?,
        subject: record.maybe_text("subject")?.unwrap_or_default(),
        from_address: record.text("from")?,
        to_addresses: record.texts("to")?,
        cc_addresses: record.texts("cc")?,
        bcc_addresses: record.texts("bcc")?,
        body: record.maybe_text("body")?.unwrap_or_default(),
        file_name: record.maybe_text("file_name")?,
    })
}

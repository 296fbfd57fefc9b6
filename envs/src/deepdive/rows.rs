//! Rows of tables: JSON lines, JSON lists and Parquet files.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader as _, SerializedFileReader};
use parquet::record::Field;
use serde_json::{Map, Value as Json, json};

use crate::EnvError;

/// Reads a table one row after another: `.parquet`, `.json` (a list), anything else as JSON lines. Each row is a JSON
/// object; `read` gets its number, from 1.
///
/// # Errors
/// [`EnvError::Data`] naming the file, the row and the reason, also for what `read` finds wrong.
pub(super) fn read(file: &Path, read: &mut dyn FnMut(Json) -> Result<(), String>) -> Result<(), EnvError> {
    let name = file.file_name().map_or_else(String::new, |name| name.to_string_lossy().to_lowercase());
    let failed = |reason: String| EnvError::Data { file: file.display().to_string(), reason };
    let mut number = 0_usize;
    let mut take = |row: Result<Json, String>| {
        number += 1;
        row.and_then(&mut *read).map_err(|reason| failed(format!("row {number}: {reason}")))
    };
    if name.ends_with(".parquet") {
        let opened = File::open(file).map_err(|error| failed(error.to_string()))?;
        let broken = |error: ParquetError| failed(format!("it is no whole Parquet file ({error}); was it cut short?"));
        let reader = SerializedFileReader::new(opened).map_err(broken)?;
        for row in reader.get_row_iter(None).map_err(|error| failed(error.to_string()))? {
            take(row.map(|row| object(row.into_columns())).map_err(|error| error.to_string()))?;
        }
        return Ok(());
    }
    if name.ends_with(".json") {
        let text = fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let rows: Vec<Json> =
            serde_json::from_str(&text).map_err(|error| failed(format!("not a JSON list: {error}")))?;
        return rows.into_iter().try_for_each(|row| take(Ok(row)));
    }
    let lines = BufReader::new(File::open(file).map_err(|error| failed(error.to_string()))?).lines();
    for line in lines {
        let line = line.map_err(|error| failed(error.to_string()))?;
        if !line.trim().is_empty() {
            take(serde_json::from_str(&line).map_err(|error| error.to_string()))?;
        }
    }
    Ok(())
}

fn object(columns: Vec<(String, Field)>) -> Json {
    Json::Object(columns.into_iter().map(|(name, field)| (name, value(field))).collect::<Map<String, Json>>())
}

/// A field as JSON. Numbers of every width become numbers; what tasks never hold (times, decimals, geometry) its text.
fn value(field: Field) -> Json {
    match field {
        Field::Null => Json::Null,
        Field::Bool(value) => json!(value),
        Field::Byte(value) => json!(value),
        Field::Short(value) => json!(value),
        Field::Int(value) => json!(value),
        Field::Long(value) => json!(value),
        Field::UByte(value) => json!(value),
        Field::UShort(value) => json!(value),
        Field::UInt(value) => json!(value),
        Field::ULong(value) => json!(value),
        Field::Float(value) => json!(value),
        Field::Double(value) => json!(value),
        Field::Str(text) => Json::String(text),
        Field::Bytes(bytes) => match std::str::from_utf8(bytes.data()) {
            Ok(text) => json!(text),
            // No text; whoever wants this column says so.
            Err(_) => json!({ "bytes": bytes.len() }),
        },
        Field::Group(row) => object(row.into_columns()),
        Field::ListInternal(list) => list.elements().iter().cloned().map(value).collect(),
        other => Json::String(other.to_string()),
    }
}

/// A text that a row must have.
pub(super) fn text(row: &Json, name: &str) -> Result<String, String> {
    maybe_text(row, name)?.ok_or_else(|| format!("`{name}` is null"))
}

/// A text that a row may have: `None` if it is null. The column must be there.
fn maybe_text(row: &Json, name: &str) -> Result<Option<String>, String> {
    match column(row, name)? {
        Json::Null => Ok(None),
        Json::String(text) => Ok(Some(text.clone())),
        other => Err(format!("`{name}` must be text, not {}", kind(other))),
    }
}

/// A text that a row need not have.
pub(super) fn optional_text(row: &Json, name: &str) -> Result<Option<String>, String> {
    if row.get(name).is_none() { Ok(None) } else { maybe_text(row, name) }
}

/// The id of a row, a text or a whole number.
pub(super) fn id(row: &Json, name: &str) -> Result<String, String> {
    match column(row, name)? {
        Json::String(text) => Ok(text.clone()),
        Json::Number(number) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        other => Err(format!("`{name}` must be text or a whole number, not {}", kind(other))),
    }
}

fn column<'a>(row: &'a Json, name: &str) -> Result<&'a Json, String> {
    let Json::Object(columns) = row else { return Err(format!("a row must be an object, not {}", kind(row))) };
    columns.get(name).ok_or_else(|| {
        let there: Vec<&str> = columns.keys().map(String::as_str).collect();
        format!("there is no column `{name}`, only {}", there.join(", "))
    })
}

fn kind(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a truth value",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

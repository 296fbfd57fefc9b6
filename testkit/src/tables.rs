use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;

/// A column of a table, one entry a row.
#[derive(Clone, Copy, Debug)]
pub enum Column<'a> {
    /// Whole numbers.
    Whole(&'a [Option<i64>]),
    /// Texts.
    Texts(&'a [Option<&'a str>]),
    /// Lists of `{role, content}`.
    Turns(&'a [&'a [(&'a str, &'a str)]]),
}

/// Writes a Parquet file as published data sets are written: every column may hold nulls, values in dictionaries, Snappy,
/// one row group.
pub fn write_parquet(file: &Path, columns: &[(&str, Column<'_>)]) {
    let fields: String = columns.iter().map(|(name, column)| field(name, *column)).collect();
    let schema = Arc::new(parse_message_type(&format!("message schema {{ {fields} }}")).unwrap());
    let settings = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer = SerializedFileWriter::new(File::create(file).unwrap(), schema, Arc::new(settings)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    for (_, column) in columns {
        match column {
            Column::Whole(rows) => {
                let values: Vec<i64> = rows.iter().flatten().copied().collect();
                let levels = levels(rows);
                let mut out = group.next_column().unwrap().unwrap();
                out.typed::<Int64Type>().write_batch(&values, Some(&levels), None).unwrap();
                out.close().unwrap();
            }
            Column::Texts(rows) => texts(&mut group, rows.iter().flatten().copied(), &levels(rows), None),
            Column::Turns(rows) => turns(&mut group, rows),
        }
    }
    group.close().unwrap();
    writer.close().unwrap();
}

fn field(name: &str, column: Column<'_>) -> String {
    match column {
        Column::Whole(_) => format!("optional int64 {name};"),
        Column::Texts(_) => format!("optional binary {name} (UTF8);"),
        Column::Turns(_) => format!(
            "optional group {name} (LIST) {{ repeated group list {{ optional group element {{ \
             optional binary role (UTF8); optional binary content (UTF8); }} }} }}"
        ),
    }
}

fn levels<T>(rows: &[Option<T>]) -> Vec<i16> {
    rows.iter().map(|row| i16::from(row.is_some())).collect()
}

fn texts<'a>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: impl Iterator<Item = &'a str>,
    levels: &[i16],
    repeats: Option<&[i16]>,
) {
    let values: Vec<ByteArray> = values.map(ByteArray::from).collect();
    let mut out = group.next_column().unwrap().unwrap();
    out.typed::<ByteArrayType>().write_batch(&values, Some(levels), repeats).unwrap();
    out.close().unwrap();
}

fn turns(group: &mut SerializedRowGroupWriter<'_, File>, rows: &[&[(&str, &str)]]) {
    let (mut levels, mut repeats) = (Vec::new(), Vec::new());
    for row in rows {
        // A list that is there and empty is one entry without a value; a value lies four levels deep.
        let depths = if row.is_empty() { vec![1] } else { vec![4; row.len()] };
        repeats.extend((0..depths.len()).map(|at| i16::from(at > 0)));
        levels.extend(depths);
    }
    let all = || rows.iter().flat_map(|row| row.iter());
    texts(group, all().map(|turn| turn.0), &levels, Some(&repeats));
    texts(group, all().map(|turn| turn.1), &levels, Some(&repeats));
}

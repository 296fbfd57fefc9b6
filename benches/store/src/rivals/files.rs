//! Plain files, the floor: one write and one `fdatasync` for each commit.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::{Item, Rival, read, value};
use crate::Outcome;
use crate::events::key;

/// Length, checksum, key, value.
pub struct Plain {
    path: PathBuf,
    file: File,
}

impl Plain {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        let path = dir.join("plain");
        Ok(Box::new(Plain { file: File::create(&path)?, path }))
    }
}

impl Rival for Plain {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        let mut buffer = Vec::new();
        for item in &items {
            let value = value(&item.body)?;
            let key = key(item.stream, item.seq);
            buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&key);
            hasher.update(&value);
            buffer.extend_from_slice(&hasher.finalize().to_le_bytes());
            buffer.extend_from_slice(&key);
            buffer.extend_from_slice(&value);
        }
        self.file.write_all(&buffer)?;
        Ok(self.file.sync_data()?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let mut file = BufReader::with_capacity(1 << 20, File::open(&self.path)?);
        let (mut head, mut bytes, mut count) = ([0; 36], Vec::new(), 0);
        loop {
            match file.read_exact(&mut head) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(count),
                done => done?,
            }
            let [a, b, c, d, e, f, g, h, ..] = head;
            bytes.resize(u32::from_le_bytes([a, b, c, d]) as usize, 0);
            file.read_exact(&mut bytes)?;
            let mut hasher = crc32fast::Hasher::new();
            hasher.update(&head[8..]);
            hasher.update(&bytes);
            if hasher.finalize() != u32::from_le_bytes([e, f, g, h]) {
                return Err("a damaged record".into());
            }
            read(&bytes)?;
            count += 1;
        }
    }
}

/// One JSON object for each event, as most tools write them. Its scan parses JSON and goes no further.
pub struct JsonLines {
    path: PathBuf,
    file: File,
}

impl JsonLines {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        let path = dir.join("events.jsonl");
        Ok(Box::new(JsonLines { file: File::create(&path)?, path }))
    }
}

/// An event as a line of JSON.
pub fn line(item: &Item) -> Outcome<Vec<u8>> {
    let body = serde_json::json!({
        "stream": item.stream, "seq": item.seq, "kind": item.body.kind().name(), "body": item.body.to_json(),
    });
    let mut line = serde_json::to_vec(&body)?;
    line.push(b'\n');
    Ok(line)
}

impl Rival for JsonLines {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        let mut buffer = Vec::new();
        for item in &items {
            buffer.extend(line(item)?);
        }
        self.file.write_all(&buffer)?;
        Ok(self.file.sync_data()?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let mut count = 0;
        for line in BufReader::with_capacity(1 << 20, File::open(&self.path)?).lines() {
            serde_json::from_str::<serde_json::Value>(&line?)?;
            count += 1;
        }
        Ok(count)
    }
}

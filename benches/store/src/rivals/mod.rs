//! The stores: each commits a batch of encoded events durably and scans everything in order.

pub mod files;
mod fjall;
mod ours;
mod redb;
mod sled;
mod sqlite;

use std::path::Path;

use rao_store::event::{Body, Kind};

use crate::Outcome;

pub use ours::options;

/// An event on its way to a store.
pub struct Item {
    pub stream: u32,
    pub seq: u64,
    pub body: Body,
}

/// A store under measurement. Every commit is durable when it returns, by the store's own account.
pub trait Rival: Send {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()>;

    /// Waits for work that goes on behind acknowledged commits.
    fn catch_up(&mut self) -> Outcome<()> {
        Ok(())
    }

    /// Reads and decodes every event; by key where the store has keys, else in the order of arrival.
    fn scan(&mut self) -> Outcome<u64>;
}

/// How a store is opened.
pub type Open = fn(&Path) -> Outcome<Box<dyn Rival>>;

/// Every store. The plain file comes first: ratios are to it.
pub const ALL: &[(&str, Open)] = &[
    ("plain file, crc32", files::Plain::open),
    ("rao-log", ours::Ours::open),
    ("redb 4", redb::Redb::open),
    ("fjall 3", fjall::Fjall::open),
    ("SQLite, WAL, FULL", sqlite::Sqlite::open),
    ("sled 0.34 + fdatasync", sled::Sled::open),
    ("JSON lines", files::JsonLines::open),
];

/// What a value holds: the kind's number, its layout's, and the body's bytes.
fn value(body: &Body) -> Outcome<Vec<u8>> {
    let mut bytes = body.kind().code().to_le_bytes().to_vec();
    bytes.extend(body.version().to_le_bytes());
    bytes.extend(body.encode()?);
    Ok(bytes)
}

/// Reads a value again, as every scan does.
fn read(value: &[u8]) -> Outcome<Body> {
    let (code, body) = value.split_first_chunk::<2>().ok_or("a value without a kind")?;
    let kind = Kind::from_code(u16::from_le_bytes(*code)).ok_or("an unknown kind")?;
    let (layout, body) = body.split_first_chunk::<2>().ok_or("a value without a layout")?;
    Ok(Body::decode(kind, u16::from_le_bytes(*layout), body)?)
}

//! fjall: one batch for each commit, then its journal is synced.

use std::path::Path;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};

use super::{Item, Rival, read, value};
use crate::Outcome;
use crate::events::key;

pub struct Fjall {
    db: Database,
    events: Keyspace,
}

impl Fjall {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        let db = Database::builder(dir.join("fjall")).open()?;
        let events = db.keyspace("events", KeyspaceCreateOptions::default)?;
        Ok(Box::new(Fjall { db, events }))
    }
}

impl Rival for Fjall {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        let mut batch = self.db.batch();
        for item in &items {
            batch.insert(&self.events, key(item.stream, item.seq), value(&item.body)?);
        }
        batch.commit()?;
        Ok(self.db.persist(PersistMode::SyncData)?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let mut count = 0;
        for entry in self.events.iter() {
            read(&entry.into_inner()?.1)?;
            count += 1;
        }
        Ok(count)
    }
}

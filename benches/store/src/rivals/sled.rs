//! sled alone: a batch and a flush for each commit, then the `fdatasync` that its flush leaves out.

use std::fs::File;
use std::path::Path;

use super::{Item, Rival, read, value};
use crate::Outcome;
use crate::events::key;

pub struct Sled {
    db: sled::Db,
    file: File,
}

impl Sled {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        let path = dir.join("sled");
        let db = sled::open(&path)?;
        Ok(Box::new(Sled { db, file: File::options().write(true).open(path.join("db"))? }))
    }
}

impl Rival for Sled {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        let mut batch = sled::Batch::default();
        for item in &items {
            batch.insert(&key(item.stream, item.seq), value(&item.body)?);
        }
        self.db.apply_batch(batch)?;
        self.db.flush()?;
        Ok(self.file.sync_data()?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let mut count = 0;
        for entry in self.db.iter() {
            read(&entry?.1)?;
            count += 1;
        }
        Ok(count)
    }
}

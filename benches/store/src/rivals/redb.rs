//! redb: one write transaction for each commit, its default durability.

use std::path::Path;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::{Item, Rival, read, value};
use crate::Outcome;
use crate::events::key;

const EVENTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("events");

pub struct Redb {
    db: Database,
}

impl Redb {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        Ok(Box::new(Redb { db: Database::create(dir.join("redb"))? }))
    }
}

impl Rival for Redb {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        let transaction = self.db.begin_write()?;
        {
            let mut table = transaction.open_table(EVENTS)?;
            for item in &items {
                table.insert(key(item.stream, item.seq).as_slice(), value(&item.body)?.as_slice())?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let table = self.db.begin_read()?.open_table(EVENTS)?;
        let mut count = 0;
        for entry in table.iter()? {
            read(entry?.1.value())?;
            count += 1;
        }
        Ok(count)
    }
}

//! SQLite with a write-ahead log that is synced at each commit.

use std::path::Path;

use rusqlite::Connection;

use super::{Item, Rival, read, value};
use crate::Outcome;

pub struct Sqlite {
    db: Connection,
}

impl Sqlite {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        let db = Connection::open(dir.join("sqlite"))?;
        db.pragma_update(None, "journal_mode", "wal")?;
        db.pragma_update(None, "synchronous", "full")?;
        db.execute_batch(
            "create table events (stream integer, seq integer, value blob, primary key (stream, seq)) without rowid",
        )?;
        Ok(Box::new(Sqlite { db }))
    }
}

impl Rival for Sqlite {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        let transaction = self.db.transaction()?;
        {
            let mut insert = transaction.prepare_cached("insert into events values (?1, ?2, ?3)")?;
            for item in &items {
                insert.execute((item.stream, i64::try_from(item.seq)?, value(&item.body)?))?;
            }
        }
        Ok(transaction.commit()?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let mut select = self.db.prepare_cached("select value from events order by stream, seq")?;
        let mut rows = select.query(())?;
        let mut count = 0;
        while let Some(row) = rows.next()? {
            read(row.get_ref(0)?.as_blob()?)?;
            count += 1;
        }
        Ok(count)
    }
}

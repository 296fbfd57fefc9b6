//! rao-log itself, sled behind the journal included.

use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rao_store::{EventSource, Expected, Filter, Log, Options, Seq};

use super::{Item, Rival};
use crate::Outcome;
use crate::events::{STREAMS, stream};

pub struct Ours {
    log: Log,
}

/// The settings of a recording.
pub fn options() -> Options {
    Options::new(Arc::new(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64)))
}

impl Ours {
    pub fn open(dir: &Path) -> Outcome<Box<dyn Rival>> {
        Ok(Box::new(Ours { log: Log::open(&dir.join("log"), options())?.0 }))
    }
}

impl Rival for Ours {
    fn commit(&mut self, items: Vec<Item>) -> Outcome<()> {
        // A commit may hold events of several streams; each stream's part is one submission, and all wait together.
        let mut tickets = Vec::new();
        let mut items = items.into_iter().peekable();
        while let Some(first) = items.next() {
            let number = first.stream;
            let mut bodies = vec![first.body];
            while let Some(next) = items.next_if(|next| next.stream == number) {
                bodies.push(next.body);
            }
            tickets.push(self.log.submit(stream(1, number as usize), Expected::Any, bodies));
        }
        for ticket in tickets {
            ticket.wait()?;
        }
        Ok(())
    }

    fn catch_up(&mut self) -> Outcome<()> {
        Ok(self.log.flush()?)
    }

    fn scan(&mut self) -> Outcome<u64> {
        let mut count = 0;
        for number in 0..STREAMS {
            for event in self.log.events(stream(1, number as usize), Seq(0), &Filter::all()) {
                event?;
                count += 1;
            }
        }
        Ok(count)
    }
}

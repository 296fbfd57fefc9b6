//! Streams that begin with events of another stream, by reference.

use crate::commit::{Message, Sharing, Ticket, TicketState};
use crate::error::LogError;
use crate::id::{Address, Seq, Stream};
use crate::index::Place;
use crate::log::Log;
use crate::prefix::{self, Digests, MAX_BASES, Prefix, Sharer};
use crate::source::{EventSource, Filter};

impl Log {
    /// Lets streams without events begin with the first `count` events of `base`, by reference: each takes the same few
    /// bytes of the journal, whatever it shares. Whoever reads a stream sees these events as its own, with its own
    /// address, the time of this call and digests as if they had been appended to it. The base may be live or sealed,
    /// and may share its own beginning.
    ///
    /// What is shared is read once for all the streams. There is a ticket for each of them, in order, whose
    /// acknowledgement names the events `0..count`; what is submitted to a stream afterwards stands behind them. As an
    /// append with [`crate::Expected::Exactly`], it can be repeated: a stream that shares just this already stays as it is.
    ///
    /// Errors come out of [`Ticket::wait`]: [`LogError::UnknownEvent`] if the base has fewer events, [`LogError::Damaged`]
    /// if one of them cannot be read, [`LogError::Conflict`] for a stream that has events of its own,
    /// [`LogError::TooManyBases`] if too many live streams stand behind one another, and those of [`Log::submit`].
    pub fn share_prefix(&self, streams: &[Stream], base: Stream, count: u64) -> Vec<Ticket> {
        let at_us = self.now_us();
        let sharer = |stream: &Stream| Sharer { stream: *stream, at_us, count };
        let sharers: Vec<Sharer> = streams.iter().map(sharer).collect();
        let digests = self.digests_of(&sharers, base, count);
        let share = |(place, sharer): (usize, &Sharer)| {
            let digests = digests.as_ref().map_err(Clone::clone)?.get(place).copied().flatten();
            let unreadable = || LogError::UnknownEvent { address: last(base, count), count };
            self.enqueue_prefix(*sharer, base, digests.ok_or_else(unreadable)?)
        };
        let tickets = sharers.iter().enumerate().map(share);
        tickets.map(|state| Ticket { state: state.unwrap_or_else(TicketState::Refused) }).collect()
    }

    fn digests_of(&self, sharers: &[Sharer], base: Stream, count: u64) -> Result<Vec<Option<Digests>>, LogError> {
        if sharers.is_empty() {
            return Ok(Vec::new());
        }
        let there = self.head(base).map_or(0, |head| head.count);
        if count == 0 || there < count {
            return Err(LogError::UnknownEvent { address: last(base, count), count: there });
        }
        if self.bases_behind(base) >= MAX_BASES {
            return Err(LogError::TooManyBases { base, limit: MAX_BASES });
        }
        let mut damage = None;
        let held = self.frames(base, Seq(0), &Filter::all());
        let failed = |error| damage = Some(error);
        let digests = prefix::digests(held, sharers, failed)?;
        damage.map_or(Ok(digests), Err)
    }

    fn enqueue_prefix(&self, sharer: Sharer, base: Stream, digests: Digests) -> Result<TicketState, LogError> {
        let Sharer { stream, at_us, count } = sharer;
        self.check_open(stream)?;
        let Digests { base_chain, chain, content } = digests;
        let place = Place { offset: 0, file: 0, len: 0 };
        let prefix = Prefix { base, count, base_chain, chain, content, at_us, place };
        let failures = self.failures();
        self.send(|reply| Message::Share(Sharing { stream, prefix, failures, reply }))
    }
}

fn last(base: Stream, count: u64) -> Address {
    Address { stream: base, seq: Seq(count.saturating_sub(1)) }
}

//! A stream's events in few bytes: what was written together is kept together.
//!
//! An *extent* is events of one stream whose frames lie next to one another in the journal. It is kept as its place, the
//! number of its events and one check over what their headers say; the headers themselves are read from the journal when
//! they are asked for, and must give the same check. Extents are packed as differences, 14 bytes or so for each, and a
//! recording makes one for each round of a rollout, of a dozen events or more. So a log's index takes about one byte for
//! each event, where an entry for each of them took 48.

use crate::index::{Entry, Place};

/// The most events of an extent.
const EVENTS: u32 = 64;
/// The most bytes of an extent, unless it is one event.
const BYTES: u32 = 64 << 10;
/// A longer frame is an extent of its own, so that it is read only when it is wanted.
const ALONE: u32 = 4 << 10;
/// Extents between two places where reading the packed form can begin.
const PER_ANCHOR: u32 = 64;

/// What the headers of an extent's events say, in 64 bits: a word for each event, added up, and once more with odd weights.
/// One event that is another one now is always noticed, and in all but one of millions of cases the two sums also say which.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Check {
    sum: u32,
    weighted: u32,
}

impl Check {
    /// Takes in the event at a place of the extent. Number and place need not be in it: they follow from the extent's.
    #[must_use]
    pub(crate) fn with(self, at: u32, entry: &Entry) -> Self {
        let [low, high] = [entry.at_us, entry.at_us >> 32].map(|half| half as u32);
        let words = [entry.crc, entry.body_len, low, high, u32::from(entry.kind.code())];
        // Each step is a bijection of the state and of the word: one word that differs is never missed.
        let step = |state: u32, word: u32| (state ^ word).wrapping_mul(0x9E37_79B1).rotate_left(15);
        let word = words.into_iter().fold(0, step);
        Check { sum: self.sum.wrapping_add(word), weighted: self.weighted.wrapping_add(word.wrapping_mul(weight(at))) }
    }

    /// The one of `count` events that alone can have made this check into the other one.
    pub(crate) fn differs_at(self, other: Self, count: u32) -> Option<u32> {
        let (sum, weighted) = (other.sum.wrapping_sub(self.sum), other.weighted.wrapping_sub(self.weighted));
        let mut places = (0..count).filter(|at| sum.wrapping_mul(weight(*at)) == weighted);
        places.next().filter(|_| sum != 0 && places.next().is_none())
    }
}

fn weight(at: u32) -> u32 {
    2 * at + 1
}

/// Events of a stream that lie next to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first one's number.
    pub(crate) first: u64,
    /// How many there are, at least one.
    pub(crate) count: u32,
    /// All of their frames.
    pub(crate) place: Place,
    pub(crate) check: Check,
}

impl Extent {
    fn of(entry: &Entry) -> Self {
        Extent { first: entry.seq.0, count: 1, place: entry.place, check: Check::default().with(0, entry) }
    }

    /// The number behind the last event's.
    pub(crate) fn next(&self) -> u64 {
        self.first.wrapping_add(u64::from(self.count))
    }

    /// The byte behind the last frame.
    pub(crate) fn end(&self) -> u64 {
        self.place.offset.wrapping_add(u64::from(self.place.len))
    }

    /// Whether it is one event that is long.
    pub(crate) fn is_alone(&self) -> bool {
        self.count == 1 && self.place.len > ALONE
    }

    /// The extent with one more event, if that belongs to it.
    fn and(&self, entry: &Entry) -> Option<Self> {
        let joins =
            self.place.file == entry.place.file && self.end() == entry.place.offset && self.next() == entry.seq.0;
        let fits = !self.is_alone() && entry.place.len <= ALONE && self.count < EVENTS;
        let len = self.place.len.checked_add(entry.place.len).filter(|len| *len <= BYTES)?;
        let place = Place { len, ..self.place };
        (joins && fits).then(|| Extent {
            count: self.count + 1,
            place,
            check: self.check.with(self.count, entry),
            ..*self
        })
    }
}

/// Where an extent is expected: behind the one before it.
#[derive(Clone, Copy, Debug, Default)]
struct Behind {
    next: u64,
    file: u32,
    end: u64,
}

impl Behind {
    fn of(extent: &Extent) -> Self {
        Behind { next: extent.next(), file: extent.place.file, end: extent.end() }
    }

    /// Appends an extent: the number of its events and whether it begins with another number or in another file than
    /// expected, and then how much; where it begins, how long it is, and its check.
    fn put(self, out: &mut Vec<u8>, extent: &Extent) {
        let Extent { first, count, place, check } = *extent;
        let is_elsewhere = first != self.next || place.file != self.file;
        put_number(out, u64::from(count) << 1 | u64::from(is_elsewhere));
        if is_elsewhere {
            put_number(out, first.wrapping_sub(self.next));
            put_number(out, u64::from(place.file.wrapping_sub(self.file)));
        }
        let base = if place.file == self.file { self.end } else { 0 };
        put_number(out, place.offset.wrapping_sub(base));
        put_number(out, u64::from(place.len));
        out.extend_from_slice(&check.sum.to_le_bytes());
        out.extend_from_slice(&check.weighted.to_le_bytes());
    }

    /// Reads what [`Behind::put`] wrote, and what is behind it.
    fn take(self, bytes: &[u8]) -> Option<(Extent, &[u8])> {
        let (head, mut rest) = number(bytes)?;
        let (mut first, mut file) = (self.next, self.file);
        if head & 1 == 1 {
            let (skipped, behind) = number(rest)?;
            let (files, behind) = number(behind)?;
            first = first.wrapping_add(skipped);
            file = file.wrapping_add(u32::try_from(files).ok()?);
            rest = behind;
        }
        let (gap, rest) = number(rest)?;
        let (len, rest) = number(rest)?;
        let (sum, rest) = rest.split_first_chunk()?;
        let (weighted, rest) = rest.split_first_chunk()?;
        let check = Check { sum: u32::from_le_bytes(*sum), weighted: u32::from_le_bytes(*weighted) };
        let base = if file == self.file { self.end } else { 0 };
        let place = Place { offset: base.wrapping_add(gap), file, len: u32::try_from(len).ok()? };
        let count = u32::try_from(head >> 1).ok()?;
        Some((Extent { first, count, place, check }, rest))
    }
}

/// Seven bits in each byte, the lowest first, the top bit set in all but the last.
fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((number, bytes.get(at + 1..)?));
        }
    }
    None
}

/// A place in the packed form where reading can begin.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    at: usize,
    behind: Behind,
}

/// The extents of a stream, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extents {
    /// All but the last.
    packed: Vec<u8>,
    anchors: Vec<Anchor>,
    /// Packed extents behind the last anchor.
    since_anchor: u32,
    /// Where the last one is expected.
    behind: Behind,
    /// The last one, which may grow.
    last: Option<Extent>,
}

impl Extents {
    /// Takes in the next event. Its number must be higher than those before it.
    pub(crate) fn push(&mut self, entry: &Entry) {
        let grown = self.last.as_ref().and_then(|last| last.and(entry));
        if grown.is_none()
            && let Some(full) = self.last.take()
        {
            self.pack(&full);
        }
        self.last = Some(grown.unwrap_or_else(|| Extent::of(entry)));
    }

    fn pack(&mut self, extent: &Extent) {
        /// More bytes than any packed extent takes.
        const ROOM: usize = 48;
        if self.packed.capacity() - self.packed.len() < ROOM {
            // By less than doubling: there is one of these for each stream.
            self.packed.reserve_exact(ROOM + self.packed.len() / 8);
        }
        if self.since_anchor == PER_ANCHOR {
            self.anchors.reserve_exact(1 + self.anchors.len() / 8);
            self.anchors.push(Anchor { at: self.packed.len(), behind: self.behind });
            self.since_anchor = 0;
        }
        self.since_anchor += 1;
        self.behind.put(&mut self.packed, extent);
        self.behind = Behind::of(extent);
    }

    /// The last extent.
    pub(crate) fn last(&self) -> Option<&Extent> {
        self.last.as_ref()
    }

    /// The extents from the one that holds event `from` on, or from the next one behind a hole.
    pub(crate) fn from(&self, from: u64) -> impl Iterator<Item = Extent> {
        let passed = self.anchors.partition_point(|anchor| anchor.behind.next <= from);
        let anchor = passed.checked_sub(1).and_then(|at| self.anchors.get(at));
        let (at, mut behind) = anchor.map_or((0, Behind::default()), |anchor| (anchor.at, anchor.behind));
        let mut rest = self.packed.get(at..).unwrap_or_default();
        let packed = std::iter::from_fn(move || {
            let (extent, more) = behind.take(rest)?;
            (rest, behind) = (more, Behind::of(&extent));
            Some(extent)
        });
        packed.chain(self.last).skip_while(move |extent| extent.next() <= from)
    }

    /// The bytes that this takes in memory.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.packed.capacity() + self.anchors.capacity() * size_of::<Anchor>()
    }
}

#[cfg(test)]
#[expect(clippy::indexing_slicing, reason = "an index out of range is a failed test")]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Kind;
    use crate::frame::HEADER_LEN;
    use crate::id::Seq;

    /// How the next event of a stream comes.
    #[derive(Clone, Debug)]
    struct Next {
        /// Numbers that are left out.
        hole: u64,
        files: u32,
        /// Bytes of others between it and the one before.
        gap: u64,
        body_len: u32,
        at_us: u64,
        crc: u32,
    }

    fn next() -> impl Strategy<Value = Next> {
        let rarely = |most: u64| prop_oneof![9 => Just(0u64), 1 => 0..=most];
        let body_len = prop_oneof![6 => 0..600u32, 2 => 600..5_000u32, 1 => 5_000..(1u32 << 30)];
        let parts = (rarely(1 << 40), rarely(3), rarely(1 << 40), body_len, any::<u64>(), any::<u32>());
        parts.prop_map(|(hole, files, gap, body_len, at_us, crc)| Next {
            hole,
            files: files as u32,
            gap,
            body_len,
            at_us,
            crc,
        })
    }

    fn entries(nexts: &[Next]) -> Vec<Entry> {
        let (mut seq, mut file, mut end) = (0u64, 0u32, 0u64);
        let entry = |next: &Next| {
            seq += next.hole;
            if next.files > 0 {
                (file, end) = (file + next.files, 0);
            }
            let offset = end + next.gap;
            let place = Place { offset, file, len: HEADER_LEN as u32 + next.body_len };
            end = offset + u64::from(place.len);
            let kind = Kind::from_code(1 + (next.crc % 20) as u16).unwrap();
            let Next { at_us, crc, body_len, .. } = *next;
            let entry = Entry { seq: Seq(seq), at_us, place, crc, body_len, kind };
            seq += 1;
            entry
        };
        nexts.iter().map(entry).collect()
    }

    /// What a stream's extents must say, from the entries alone.
    fn covers(extents: &[Extent], entries: &[Entry]) -> bool {
        let mut left = entries;
        for extent in extents {
            let Some((own, more)) = left.split_at_checked(extent.count as usize) else { return false };
            left = more;
            let (mut seq, mut offset, mut check) = (extent.first, extent.place.offset, Check::default());
            for (at, entry) in (0..).zip(own) {
                if (entry.seq.0, entry.place.file, entry.place.offset) != (seq, extent.place.file, offset) {
                    return false;
                }
                (seq, offset, check) = (seq + 1, offset + u64::from(entry.place.len), check.with(at, entry));
            }
            if (offset, check) != (extent.end(), extent.check) || own.is_empty() {
                return false;
            }
            let is_long = own.iter().any(|entry| entry.place.len > ALONE);
            if own.len() > 1 && (is_long || extent.place.len > BYTES || extent.count > EVENTS) {
                return false;
            }
        }
        left.is_empty()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn extents_say_what_a_list_of_entries_says(nexts in prop::collection::vec(next(), 0..400), at in any::<prop::sample::Index>()) {
            let entries = entries(&nexts);
            let mut extents = Extents::default();
            for (count, entry) in entries.iter().enumerate() {
                extents.push(entry);
                prop_assert_eq!(extents.last().unwrap().next(), entry.seq.0 + 1);
                prop_assert_eq!(extents.last().unwrap().end(), entry.place.offset + u64::from(entry.place.len));
                if count % 97 == 0 {
                    prop_assert!(covers(&extents.from(0).collect::<Vec<_>>(), &entries[..=count]));
                }
            }
            let all: Vec<Extent> = extents.from(0).collect();
            prop_assert!(covers(&all, &entries));
            // From any event, from any hole, and behind the end.
            let mut starts = vec![0, entries.last().map_or(7, |entry| entry.seq.0 + 1)];
            if !entries.is_empty() {
                let seq = at.get(&entries).seq.0;
                starts.extend([seq, seq + 1, seq.saturating_sub(1)]);
            }
            for from in starts {
                let wanted: Vec<Extent> = all.iter().copied().filter(|extent| extent.next() > from).collect();
                prop_assert_eq!(extents.from(from).collect::<Vec<_>>(), wanted, "from {}", from);
            }
        }

        #[test]
        fn a_header_that_differs_in_one_field_has_another_check(before in next(), it in next(), other in next(), behind in next()) {
            let check = |entries: &[Entry]| (0..).zip(entries).fold(Check::default(), |check, (at, entry)| check.with(at, entry));
            let right = entries(&[before.clone(), it.clone(), behind.clone()]);
            let theirs = entries(&[before, other, behind]);
            let (it, other) = (right[1], theirs[1]);
            let changes = [
                Entry { crc: other.crc, ..it },
                Entry { at_us: other.at_us, ..it },
                Entry { body_len: other.body_len, ..it },
                Entry { kind: other.kind, ..it },
                Entry { crc: it.crc ^ 1 << 31, ..it },
                Entry { at_us: it.at_us ^ 1 << 63, ..it },
            ];
            prop_assert_eq!(check(&right).differs_at(check(&right), 3), None);
            for change in changes.into_iter().filter(|change| *change != it) {
                let (right, changed) = (check(&right), check(&[right[0], change, right[2]]));
                prop_assert_ne!(right, changed);
                prop_assert_eq!(right.differs_at(changed, 3), Some(1));
            }
        }
    }

    #[test]
    fn an_event_takes_a_byte_where_rounds_are_written_together_and_16_where_each_is_alone() {
        let bytes_an_event = |together: u64, others: u64| {
            let mut extents = Extents::default();
            let mut offset = 0;
            for seq in 0..50_000 {
                offset += if seq % together == 0 { others } else { 0 };
                let (len, kind) = (100 + (seq % 700) as u32, Kind::from_code(1).unwrap());
                let place = Place { offset: offset % (64 << 20), file: (offset >> 26) as u32, len };
                let body_len = len - HEADER_LEN as u32;
                extents.push(&Entry { seq: Seq(seq), at_us: seq, place, crc: seq as u32, body_len, kind });
                offset += u64::from(len);
            }
            extents.bytes() as f64 / 50_000.0
        };
        // Rounds of 17 events of one of 64 rollouts, as the oracle records them.
        assert!(bytes_an_event(17, 500_000) < 1.1, "{}", bytes_an_event(17, 500_000));
        // Every event alone among those of other streams.
        assert!(bytes_an_event(1, 30_000) < 16.5, "{}", bytes_an_event(1, 30_000));
        // One stream alone.
        assert!(bytes_an_event(u64::MAX, 0) < 0.35, "{}", bytes_an_event(u64::MAX, 0));
    }
}

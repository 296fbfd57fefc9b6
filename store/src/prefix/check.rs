//! Whether the bases of streams hold what these share with them.

use std::collections::{BTreeMap, BTreeSet};

use super::rebuild::{Sharer, digests};
use super::{Prefix, PrefixMap, Span, spans};
use crate::error::LogError;
use crate::frame::stream_of_key;
use crate::holdings::Holdings;
use crate::id::{Seq, Stream};
use crate::journal::Journal;
use crate::report::{Finding, FindingClass};
use crate::sealed::Sealed;
use crate::source::{Filter, Head};

/// Looks at every stream that shares events: whether its base has them, and whether damage is known of them. With
/// `compute` it also computes every digest that the prefix frames state, as far as their events can be read.
pub(crate) fn check(
    holdings: Holdings<'_>,
    prefixes: &PrefixMap,
    head: impl Fn(Stream) -> Option<Head>,
    compute: bool,
) -> Result<Vec<Finding>, LogError> {
    let mut found = damage_of_bases(prefixes, holdings.sealed, holdings.findings);
    let mut whole: BTreeMap<Stream, Vec<(Stream, Prefix)>> = BTreeMap::new();
    for (stream, prefix) in each(prefixes, holdings.sealed) {
        match spans(prefixes, holdings.sealed, stream, prefix.count) {
            Err(endless) => found.push(disagrees(stream, &prefix, Seq(0), endless.to_string())),
            Ok(spans) => match spans.iter().find_map(|span| lacks(span, &head)) {
                Some((span, there)) => found.push(missing(stream, &prefix, span, there)),
                None => whole.entry(prefix.base).or_default().push((stream, prefix)),
            },
        }
    }
    for (base, sharing) in &whole {
        let computed = if compute { sharing.as_slice() } else { &[] };
        compare(holdings, *base, computed, &mut found)?;
        let end = head(*base);
        for (stream, prefix) in sharing.iter().filter(|_| !compute) {
            // What is known without reading anything.
            if end.is_some_and(|end| end.count == prefix.count && end.chain != prefix.base_chain) {
                found.push(exchanged(*stream, prefix));
            }
        }
    }
    Ok(found)
}

/// Damage that is known of shared events, as damage of each stream that shares them, at the same number.
pub(crate) fn damage_of_bases(prefixes: &PrefixMap, sealed: &Sealed, known: &[Finding]) -> Vec<Finding> {
    let mut found = Vec::new();
    if !known.iter().any(Finding::is_damage) {
        return found;
    }
    for (stream, prefix) in each(prefixes, sealed) {
        for Span { stream: holder, from, to } in spans(prefixes, sealed, stream, prefix.count).unwrap_or_default() {
            let shared = |finding: &&Finding| {
                let seq = finding.seq.filter(|seq| (from..to).contains(&seq.0));
                finding.is_damage() && finding.stream == Some(holder) && seq.is_some()
            };
            for finding in known.iter().filter(shared) {
                let detail = format!("it is shared with {holder}, where it stands: {}", finding.detail);
                found.push(Finding { stream: Some(stream), detail, ..finding.clone() });
            }
        }
    }
    found
}

/// Streams of live runs with what they share.
fn each<'a>(prefixes: &'a PrefixMap, sealed: &'a Sealed) -> impl Iterator<Item = (Stream, Prefix)> + 'a {
    let streams = prefixes.iter().filter_map(|(key, prefix)| Some((stream_of_key(key)?, *prefix)));
    streams.filter(|(stream, _)| sealed.of(stream.run()).is_none())
}

/// Whether a span goes beyond its stream's end, and where that is.
fn lacks(span: &Span, head: impl Fn(Stream) -> Option<Head>) -> Option<(Span, u64)> {
    let there = head(span.stream).map_or(0, |head| head.count);
    (there < span.to).then_some((*span, there))
}

fn at(finding: Finding, prefix: &Prefix) -> Finding {
    finding.at(Journal::shown(prefix.place.file), prefix.place.offset)
}

fn missing(stream: Stream, prefix: &Prefix, span: Span, there: u64) -> Finding {
    let (holder, count) = (span.stream, span.to);
    let detail = if there == 0 {
        format!("it shares events up to number {} with {holder} by reference, which is not in the log", count - 1)
    } else {
        format!("it shares {count} events with {holder} by reference, which has only {there}")
    };
    let finding = Finding::new(FindingClass::MissingEvents, detail).of(stream, Seq(there.max(span.from)));
    at(finding, prefix)
}

fn disagrees(stream: Stream, prefix: &Prefix, seq: Seq, detail: String) -> Finding {
    at(Finding::new(FindingClass::BaseDisagreement, detail).of(stream, seq), prefix)
}

fn exchanged(stream: Stream, prefix: &Prefix) -> Finding {
    let last = prefix.count - 1;
    let base = prefix.base;
    let detail =
        format!("it shares events up to number {last} with {base}, and these are not what it shared when it began");
    disagrees(stream, prefix, Seq(last), detail)
}

/// Computes what prefix frames state of shared events of one base.
fn compare(
    holdings: Holdings<'_>,
    base: Stream,
    sharing: &[(Stream, Prefix)],
    found: &mut Vec<Finding>,
) -> Result<(), LogError> {
    let Some(longest) = sharing.iter().map(|(_, prefix)| prefix.count).max() else { return Ok(()) };
    let sharer =
        |(stream, prefix): &(Stream, Prefix)| Sharer { stream: *stream, at_us: prefix.at_us, count: prefix.count };
    let sharers: Vec<Sharer> = sharing.iter().map(sharer).collect();
    let known: BTreeSet<(Stream, Seq)> =
        found.iter().filter_map(|finding| Some((finding.stream?, finding.seq?))).collect();
    let failed = |error: LogError| {
        let LogError::Damaged { seq, place, reason, .. } = error else { return };
        for (stream, prefix) in sharing.iter().filter(|(_, prefix)| seq.0 < prefix.count) {
            if !known.contains(&(*stream, seq)) {
                let detail = format!("it is shared with {base}, where it cannot be read ({place}): {reason}");
                let finding = Finding::new(FindingClass::InteriorDamage, detail).of(*stream, seq);
                found.push(at(finding, prefix));
            }
        }
    };
    let held = holdings.frames(base, Seq(0), longest, &Filter::all());
    let computed = digests(held, &sharers, failed)?;
    for ((stream, prefix), digests) in sharing.iter().zip(computed) {
        let Some(digests) = digests else { continue };
        if digests.base_chain != prefix.base_chain {
            found.push(exchanged(*stream, prefix));
        } else if (digests.chain, digests.content) != (prefix.chain, prefix.content) {
            let detail = format!("its digests behind what it shares with {base} are not those of the shared events");
            found.push(disagrees(*stream, prefix, Seq(prefix.count - 1), detail));
        }
    }
    Ok(())
}

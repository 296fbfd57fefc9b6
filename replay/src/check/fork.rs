//! What a fork shares with its base.

use rao_store::event::{Body, Event, ForkBase};
use rao_store::{EventSource, Filter, Seq, Stream};

use super::compare::same;
use super::divergence::Divergence;

/// The fork's own beginning among the events: its position, and where it left its base.
fn beginning(events: &[Event]) -> Option<(usize, &ForkBase)> {
    let mut beginnings = events.iter().enumerate().rev().filter_map(|(at, event)| match &event.body {
        Body::RolloutStarted(started) => Some((at, started)),
        _ => None,
    });
    let (at, started) = beginnings.next()?;
    started.fork_base.as_ref().map(|base| (at, base))
}

/// How many events at the start no replay makes again: the shared ones and the fork's own beginning.
pub(super) fn given(events: &[Event]) -> u64 {
    beginning(events).map_or(0, |(at, _)| at as u64 + 1)
}

/// The first shared event that the base has otherwise. A base that is not in the log, or not readable there, says
/// nothing against the fork, whose stream is whole without it.
pub(super) fn differs_from_base(source: &dyn EventSource, events: &[Event]) -> Option<Divergence> {
    let (own, base) = beginning(events)?;
    let stream = Stream::Rollout(base.run, base.rollout);
    source.head(stream)?;
    let shared = source.events(stream, Seq(0), &Filter::all()).take(own);
    for (at, event) in shared.enumerate() {
        let original = event.ok()?;
        let copy = events.get(at)?;
        if !same(&copy.body, &original.body) {
            let mut divergence = Divergence::of_bodies(events, at, &original.body);
            divergence.cause = Some(format!("event {at} is a copy of {stream}#{at}, which is `got`"));
            return Some(divergence);
        }
    }
    None
}

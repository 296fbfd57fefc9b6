//! Where token ids and log-probabilities lie in a body.
//!
//! Only writing an archive needs to know: it stores the places, so reading depends on no event's layout.

use super::cursor::Cursor;
use crate::event::Kind;

/// Runs of 4-byte values in a body: ids first, then log-probabilities. An empty run stands at 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Split {
    pub(super) ids_at: usize,
    pub(super) ids: usize,
    pub(super) logprobs_at: usize,
    pub(super) logprobs: usize,
}

impl Split {
    /// Bytes of the body that the two runs take up; `None` if the runs do not lie in a body of `body` bytes in order.
    pub(super) fn taken(&self, body: usize) -> Option<usize> {
        let ids_end = self.ids_at.checked_add(self.ids.checked_mul(4)?)?;
        let logprobs_end = self.logprobs_at.checked_add(self.logprobs.checked_mul(4)?)?;
        let in_order = self.logprobs == 0 || self.logprobs_at >= ids_end;
        let last = if self.logprobs == 0 { ids_end } else { logprobs_end };
        (in_order && last <= body).then_some((self.ids + self.logprobs) * 4)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ids == 0 && self.logprobs == 0
    }
}

/// The runs in a body, or none where its layout is not one of those that have any.
pub(super) fn find(kind: Kind, layout: u16, body: &[u8]) -> Split {
    let found = match (kind, layout) {
        (Kind::ContextExtended, 1) => context_extended(body),
        // What layout 2 added lies behind the two runs.
        (Kind::ActionSampled, 1 | 2) => action_sampled(body),
        (Kind::TrajectoryScored, 1) => trajectory_scored(body),
        _ => None,
    };
    found.filter(|split| split.taken(body.len()).is_some()).unwrap_or_default()
}

struct Walk<'a> {
    cursor: Cursor<'a>,
    length: usize,
}

impl Walk<'_> {
    fn new(body: &[u8]) -> Walk<'_> {
        Walk { cursor: Cursor::new(body), length: body.len() }
    }

    fn skip(&mut self, count: usize) -> Option<()> {
        self.cursor.take(count).map(|_| ())
    }

    /// Passes over a list whose items have `size` bytes; gives its place and number of items.
    fn list(&mut self, size: usize) -> Option<(usize, usize)> {
        let count = usize::try_from(self.cursor.u64()?).ok()?;
        let at = self.length - self.cursor.len();
        self.skip(count.checked_mul(size)?)?;
        Some((at, count))
    }
}

/// node, step, role, text, at, tokens
fn context_extended(body: &[u8]) -> Option<Split> {
    let mut walk = Walk::new(body);
    walk.list(4)?;
    walk.skip(8)?;
    walk.list(1)?;
    walk.skip(4)?;
    let (ids_at, ids) = walk.list(4)?;
    Some(Split { ids_at, ids, ..Split::default() })
}

/// node, step, text, at, tokens, logprobs, ..
fn action_sampled(body: &[u8]) -> Option<Split> {
    let mut walk = Walk::new(body);
    walk.list(4)?;
    walk.skip(4)?;
    walk.list(1)?;
    walk.skip(4)?;
    let (ids_at, ids) = walk.list(4)?;
    let (logprobs_at, logprobs) = walk.list(4)?;
    Some(Split { ids_at, ids, logprobs_at, logprobs })
}

/// step, run, rollout, node, logprobs, ..
fn trajectory_scored(body: &[u8]) -> Option<Split> {
    let mut walk = Walk::new(body);
    walk.skip(8 + 16 + 4)?;
    walk.list(4)?;
    let (logprobs_at, logprobs) = walk.list(4)?;
    Some(Split { logprobs_at, logprobs, ..Split::default() })
}

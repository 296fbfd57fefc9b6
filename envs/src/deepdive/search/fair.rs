//! Who may go next, and when: the pure parts of rate limiting. Time comes in as an argument.

use std::collections::VecDeque;
use std::time::Duration;

use super::Lane;

/// What waits in one rollout, by node.
type Nodes<T> = VecDeque<(Vec<u32>, VecDeque<T>)>;

/// Waiting things, served fairly: rollouts take turns, and so do the nodes of a rollout; a node's own come in order.
/// So a node that asks for a hundred pages delays its siblings by one page, not by a hundred.
#[derive(Debug)]
pub struct FairQueue<T> {
    rollouts: VecDeque<(u64, Nodes<T>)>,
    length: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self { rollouts: VecDeque::new(), length: 0 }
    }
}

impl<T> FairQueue<T> {
    /// Puts something at the end of a lane.
    pub fn push(&mut self, lane: &Lane, item: T) {
        self.length += 1;
        let Some((_, nodes)) = self.rollouts.iter_mut().find(|(rollout, _)| *rollout == lane.rollout) else {
            let nodes = VecDeque::from([(lane.node.clone(), VecDeque::from([item]))]);
            self.rollouts.push_back((lane.rollout, nodes));
            return;
        };
        match nodes.iter_mut().find(|(node, _)| *node == lane.node) {
            Some((_, items)) => items.push_back(item),
            None => nodes.push_back((lane.node.clone(), VecDeque::from([item]))),
        }
    }

    /// Takes the next in turn.
    pub fn pop(&mut self) -> Option<T> {
        let (rollout, mut nodes) = self.rollouts.pop_front()?;
        let (node, mut items) = nodes.pop_front()?;
        let item = items.pop_front()?;
        if !items.is_empty() {
            nodes.push_back((node, items));
        }
        if !nodes.is_empty() {
            self.rollouts.push_back((rollout, nodes));
        }
        self.length -= 1;
        Some(item)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Permissions that come at a steady rate and add up to a limit while no one takes them.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    capacity: f64,
    per_second: f64,
    tokens: f64,
    at: Duration,
}

impl TokenBucket {
    /// A full bucket of `burst` permissions that fills at `per_minute`; both are at least 1.
    #[must_use]
    pub fn new(per_minute: u32, burst: u32) -> Self {
        let capacity = f64::from(burst.max(1));
        Self { capacity, per_second: f64::from(per_minute.max(1)) / 60.0, tokens: capacity, at: Duration::ZERO }
    }

    /// Takes a permission at `now`, counted from the bucket's making.
    ///
    /// # Errors
    /// How long it takes until there is one; nothing was taken.
    pub fn take(&mut self, now: Duration) -> Result<(), Duration> {
        let passed = now.saturating_sub(self.at).as_secs_f64();
        self.tokens = (self.tokens + passed * self.per_second).min(self.capacity);
        self.at = self.at.max(now);
        // A sleep may wake a hair early; a permission that is there but for rounding counts.
        if self.tokens >= 1.0 - 1e-9 {
            self.tokens = (self.tokens - 1.0).max(0.0);
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - self.tokens) / self.per_second))
    }

    /// Gives a permission back that was not used.
    pub fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(self.capacity);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lane(rollout: u64, node: &[u32]) -> Lane {
        Lane { rollout, node: node.to_vec() }
    }

    #[test]
    fn children_take_turns_and_so_do_rollouts() {
        let mut queue = FairQueue::default();
        for item in 0..100 {
            queue.push(&lane(1, &[0, 0]), ("greedy", item));
        }
        queue.push(&lane(1, &[0, 1]), ("sibling", 0));
        queue.push(&lane(2, &[0]), ("other", 0));
        queue.push(&lane(2, &[0]), ("other", 1));
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        let expected = [("greedy", 0), ("other", 0), ("sibling", 0), ("other", 1), ("greedy", 1), ("greedy", 2)];
        assert_eq!(order[..6], expected);
        assert_eq!(order.len(), 103);
        assert!(queue.is_empty());
    }

    proptest! {
        /// Nothing is lost, a lane's own order stands, and between two things of one lane each other lane that waits
        /// all the while is served at least once per lane of its rollout.
        #[test]
        fn no_lane_starves(pushes in prop::collection::vec((0_u64..3, 0_u32..3), 1..60)) {
            let mut queue = FairQueue::default();
            for (item, &(rollout, node)) in pushes.iter().enumerate() {
                queue.push(&lane(rollout, &[0, node]), (rollout, node, item));
            }
            prop_assert_eq!(queue.len(), pushes.len());
            let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
            prop_assert_eq!(order.len(), pushes.len());
            for &(rollout, node) in &pushes {
                let places: Vec<usize> =
                    (0..order.len()).filter(|&at| (order[at].0, order[at].1) == (rollout, node)).collect();
                let items: Vec<usize> = places.iter().map(|&at| order[at].2).collect();
                prop_assert!(items.windows(2).all(|pair| pair[0] < pair[1]));
                // Three rollouts of three nodes: a lane's turn comes at least every nine pops.
                prop_assert!(places.windows(2).all(|pair| pair[1] - pair[0] <= 9), "{:?}", places);
                prop_assert!(places[0] < 9);
            }
        }
    }

    #[test]
    fn the_bucket_gives_its_burst_and_then_its_rate() {
        let mut bucket = TokenBucket::new(120, 3);
        let now = Duration::from_secs;
        assert!((0..3).all(|_| bucket.take(now(0)).is_ok()));
        assert_eq!(bucket.take(now(0)), Err(Duration::from_millis(500)));
        assert_eq!(bucket.take(Duration::from_millis(500)), Ok(()));
        assert!(bucket.take(Duration::from_millis(600)).is_err());
        // Idle time adds up to the burst and no further; a clock that goes back takes nothing away.
        assert!((0..3).all(|_| bucket.take(now(60)).is_ok()));
        assert!(bucket.take(now(59)).is_err());
        bucket.give_back();
        assert_eq!(bucket.take(now(60)), Ok(()));
    }
}

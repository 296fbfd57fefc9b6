//! The `arrival` scheduler: every node goes on as soon as its own answer is there. Which answer comes first is whatever
//! happened, and the log keeps it: a replay takes the order from there.
//!
//! A policy that keeps requests in flight ([`crate::InFlight`]) is asked for every ready node at once, up to its capacity;
//! rollouts that began earlier come first. Any other policy is asked for all ready nodes as one batch, so that with it the
//! order is always the same. What a node samples does not depend on the order: only its context and its seed do.
//!
//! Tool calls that can run by themselves ([`rao_envs::Episode::detached`]) and questions to judges outside this process
//! ([`rao_envs::judge::Inquiry`]) overlap with requests and with each other.

use std::collections::BTreeMap;
use std::time::Duration;

use crossbeam::channel::{Receiver, Sender, unbounded};
use rao_store::NodePath;

use crate::actor::{Action, Actor};
use crate::beside::{Beside, Came};
use crate::error::EngineError;
use crate::in_flight::{Answer, InFlight, Slot, Ticket};
use crate::rollout::{Need, Rollout};
use crate::rounds::{Standing, Watch};

/// How long the scheduler waits at most before it looks whether it is to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// What comes to the scheduler from outside.
enum Arrival {
    Action(Answer),
    Beside(Came),
}

/// A rollout in progress.
struct Running {
    rollout: Rollout,
    /// Ready nodes that nobody was asked for yet, in the order in which they became ready.
    wanted: Vec<NodePath>,
    /// Nodes whose requests are in flight.
    asked: BTreeMap<NodePath, Ticket>,
    has_ended: bool,
}

/// Runs rollouts to their end, at most `width` at a time, taking the next from `queue` as one finishes.
/// Each finished rollout is handed to `done`.
///
/// # Errors
/// At the first failure; every event acknowledged before stays in the log, requests in flight are cancelled.
/// [`EngineError::Stopped`] if the watcher stopped it.
pub fn run(
    queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
    width: usize,
    actor: &mut dyn Actor,
    watch: &mut Watch<'_>,
    done: &mut dyn FnMut(Rollout),
) -> Result<Standing, EngineError> {
    let mut scheduler = Scheduler::new();
    let outcome = scheduler.run(queue, width, actor, watch, done);
    match (outcome, scheduler.give_up(actor)) {
        (Ok(()), _) => Ok(scheduler.standing),
        (Err(EngineError::Stopped), Err(error)) => Err(error),
        (Err(error), _) => Err(error),
    }
}

struct Scheduler {
    /// By the order in which they began.
    active: BTreeMap<usize, Running>,
    begun: usize,
    /// Where each request in flight belongs.
    tickets: BTreeMap<Ticket, (usize, NodePath)>,
    next_ticket: u64,
    beside: Beside,
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
    standing: Standing,
}

impl Scheduler {
    fn new() -> Self {
        let (sender, arrivals) = unbounded();
        let own = sender.clone();
        Scheduler {
            active: BTreeMap::new(),
            begun: 0,
            tickets: BTreeMap::new(),
            next_ticket: 0,
            // A scheduler that has ended does not listen any more.
            beside: Beside::new(move |came| drop(own.send(Arrival::Beside(came)))),
            sender,
            arrivals,
            standing: Standing::default(),
        }
    }

    fn run(
        &mut self,
        queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
        width: usize,
        actor: &mut dyn Actor,
        watch: &mut Watch<'_>,
        done: &mut dyn FnMut(Rollout),
    ) -> Result<(), EngineError> {
        loop {
            let is_last = self.admit(queue, width.max(1), actor)?;
            // What a node is to act on is durable before anybody is asked.
            for running in self.active.values_mut() {
                running.rollout.settle()?;
            }
            self.retire(done);
            if self.active.is_empty() && is_last {
                return Ok(());
            }
            match actor.in_flight() {
                Some(requests) => self.submit(requests)?,
                None => self.ask(actor)?,
            }
            self.take_arrivals(actor)?;
            self.standing.active = self.active.len();
            if watch(self.standing).is_break() {
                return Err(EngineError::Stopped);
            }
        }
    }

    /// Begins rollouts while there is room. True once there are no more to begin.
    fn admit(
        &mut self,
        queue: &mut dyn Iterator<Item = Result<Rollout, EngineError>>,
        width: usize,
        actor: &mut dyn Actor,
    ) -> Result<bool, EngineError> {
        while self.active.len() < width {
            match queue.next() {
                Some(rollout) => self.begin(rollout?, actor)?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    fn begin(&mut self, rollout: Rollout, actor: &mut dyn Actor) -> Result<(), EngineError> {
        let number = self.begun;
        self.begun += 1;
        let running = Running { rollout, wanted: Vec::new(), asked: BTreeMap::new(), has_ended: false };
        self.active.insert(number, running);
        self.go_on(number, actor)
    }

    /// Lets a rollout do what it can, and notes what it then waits for.
    fn go_on(&mut self, number: usize, actor: &mut dyn Actor) -> Result<(), EngineError> {
        let Some(running) = self.active.get_mut(&number) else { return Ok(()) };
        let ready = match running.rollout.advance()? {
            Need::Arrivals(nodes) => nodes,
            Need::Nothing => {
                running.has_ended = true;
                Vec::new()
            }
            Need::Actions(_) | Need::Calls | Need::Verdicts(_) => {
                return Err(EngineError::Internal("a rollout of the `rounds` scheduler waits for its round".into()));
            }
        };
        for row in running.rollout.take_released() {
            actor.release(row);
        }
        running.wanted.retain(|node| ready.contains(node));
        for node in &ready {
            if !running.wanted.contains(node) && !running.asked.contains_key(node) {
                running.wanted.push(node.clone());
            }
        }
        let cancelled: Vec<NodePath> = running.asked.keys().filter(|node| !ready.contains(node)).cloned().collect();
        for node in cancelled {
            if let Some(ticket) = running.asked.remove(&node) {
                self.tickets.remove(&ticket);
                if let Some(requests) = actor.in_flight() {
                    requests.cancel(ticket);
                }
            }
        }
        self.beside.start(number, &mut running.rollout)
    }

    fn retire(&mut self, done: &mut dyn FnMut(Rollout)) {
        for (_, running) in self.active.extract_if(.., |_, running| running.has_ended) {
            self.standing.finished += 1;
            self.standing.events += running.rollout.tree().events;
            done(running.rollout);
        }
    }

    /// Puts requests in flight, those of the oldest rollouts first.
    fn submit(&mut self, requests: &mut dyn InFlight) -> Result<(), EngineError> {
        let capacity = requests.capacity().max(1);
        for (number, running) in &mut self.active {
            while self.tickets.len() < capacity && !running.wanted.is_empty() {
                let node = running.wanted.remove(0);
                let ticket = Ticket(self.next_ticket);
                self.next_ticket += 1;
                let slot = Slot::new(ticket, self.sender.clone(), Arrival::Action);
                requests.submit(&running.rollout.request(&node)?, slot)?;
                self.tickets.insert(ticket, (*number, node.clone()));
                running.asked.insert(node, ticket);
            }
        }
        Ok(())
    }

    /// Takes the actions of all ready nodes as one batch, in a fixed order.
    fn ask(&mut self, actor: &mut dyn Actor) -> Result<(), EngineError> {
        let mut asks = Vec::new();
        let mut order = Vec::new();
        for (number, running) in &mut self.active {
            let Running { rollout, wanted, .. } = running;
            order.extend(wanted.iter().map(|node| (*number, node.clone())));
            asks.extend(rollout.asks(wanted)?);
        }
        if asks.is_empty() {
            return Ok(());
        }
        let actions = actor.act(&asks)?;
        drop(asks);
        if actions.len() != order.len() {
            return Err(EngineError::Internal("the policy gave fewer actions than asked for".into()));
        }
        for ((number, node), action) in order.into_iter().zip(actions) {
            // An action taken before this one may have cancelled the node.
            let Some(running) = self.active.get_mut(&number) else { continue };
            let Some(place) = running.wanted.iter().position(|wanted| *wanted == node) else { continue };
            running.wanted.remove(place);
            self.act(number, &node, action, actor)?;
        }
        Ok(())
    }

    fn act(
        &mut self,
        number: usize,
        node: &NodePath,
        action: Action,
        actor: &mut dyn Actor,
    ) -> Result<(), EngineError> {
        if let Some(running) = self.active.get_mut(&number) {
            running.rollout.act(node, action)?;
            self.standing.actions += 1;
        }
        self.go_on(number, actor)
    }

    /// Takes what has arrived; waits for something to arrive if there is nothing else to do.
    fn take_arrivals(&mut self, actor: &mut dyn Actor) -> Result<(), EngineError> {
        let is_idle = self.active.values().all(|running| running.wanted.is_empty() && !running.has_ended);
        if self.tickets.is_empty() && self.beside.outstanding() == 0 {
            return match is_idle && !self.active.is_empty() {
                true => Err(EngineError::Internal("no node of any rollout can go on".into())),
                false => Ok(()),
            };
        }
        let first = match self.tickets.is_empty() && !is_idle {
            true => self.arrivals.try_recv().ok(),
            false => self.arrivals.recv_timeout(PATIENCE).ok(),
        };
        let mut next = first;
        while let Some(arrival) = next {
            self.take(arrival, actor)?;
            next = self.arrivals.try_recv().ok();
        }
        Ok(())
    }

    fn take(&mut self, arrival: Arrival, actor: &mut dyn Actor) -> Result<(), EngineError> {
        match arrival {
            Arrival::Action((ticket, answer)) => {
                // The answers of cancelled requests have no place any more.
                let Some((number, node)) = self.tickets.remove(&ticket) else { return Ok(()) };
                if let Some(running) = self.active.get_mut(&number) {
                    running.asked.remove(&node);
                }
                self.act(number, &node, answer?, actor)
            }
            Arrival::Beside(came) => {
                let number = came.rollout();
                self.beside.take(came, self.active.get_mut(&number).map(|running| &mut running.rollout))?;
                self.go_on(number, actor)
            }
        }
    }

    /// Cancels what is in flight and hands on what has happened, so that a stopped run can be taken up where it stood.
    fn give_up(&mut self, actor: &mut dyn Actor) -> Result<(), EngineError> {
        if let Some(requests) = actor.in_flight() {
            for ticket in std::mem::take(&mut self.tickets).into_keys() {
                requests.cancel(ticket);
            }
        }
        for running in self.active.values_mut() {
            running.rollout.hand_on()?;
            running.rollout.settle()?;
        }
        Ok(())
    }
}

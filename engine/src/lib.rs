//! The REPL, the live recursion and the tree fold of rao-log.
//!
//! A [`Rollout`] is a state machine over a [`Tree`]: every change is an event, emitted to a [`Sink`] and applied to the
//! tree in the same breath. What reaches it from outside comes through three traits: an [`Actor`] takes actions, a
//! [`repl::ReplEngine`] runs cells, an [`Outside`] answers calls, writes prompts and judges. Recording uses the live
//! ones; a replay puts the log in the place of some of them and compares what comes out.

#![deny(unsafe_code)]

mod actor;
pub mod answer;
pub mod arrival;
mod beside;
mod config;
pub mod contexts;
mod error;
pub mod fork;
mod in_flight;
mod outside;
pub mod protocol;
pub mod record;
pub mod repl;
mod rollout;
pub mod rounds;
pub mod seed;
mod served;
mod session;
mod sink;
mod tree;

pub use actor::{Action, Actor, Ask, Sampled, Scripted};
pub use config::{BudgetModel, Decoding, EngineConfig, Judges, Scheduler};
pub use error::EngineError;
pub use in_flight::{InFlight, Slot, Ticket};
pub use outside::{Asking, CallSite, Extension, Live, Outside, absorb, absorb_with, prompt_text, prompt_texts};
pub use rollout::{CallKey, DetachedCall, Ended, FINISH, LAUNCH, Need, Parts, Rollout, cell_output, reward};
pub use served::{SERVED, SERVED_TEXT, ServedActor, served_identity};
pub use sink::{LogSink, Sink};
pub use tree::{Call, Node, Phase, Segment, Source, Step, Tree, TreeError};

//! What runs beside the rollouts of a scheduler: tool calls on threads, and questions to judges outside this process.
//!
//! A scheduler starts here what its rollouts ask for, goes on, and takes in what has come.

mod calls;

use std::collections::BTreeMap;
use std::sync::Arc;

use rao_envs::judge::Sitting;
use rao_envs::{Judgement, ToolResult};
use rao_store::NodePath;

use self::calls::Workers;
use crate::error::EngineError;
use crate::rollout::{CallKey, Rollout};

/// What has come for the rollout of that number.
pub(crate) enum Came {
    /// The result of a call.
    Call(usize, CallKey, Result<ToolResult, EngineError>),
    /// The verdict on a node.
    Verdict(usize, NodePath, Result<Judgement, EngineError>),
}

impl Came {
    /// Which rollout it is for.
    pub(crate) fn rollout(&self) -> usize {
        match self {
            Came::Call(rollout, ..) | Came::Verdict(rollout, ..) => *rollout,
        }
    }
}

/// Hands over what has come; called from any thread, never waits.
pub(crate) type Deliver = Arc<dyn Fn(Came) + Send + Sync>;

/// What is on its way. Dropped, questions are taken back and no further call begins.
pub(crate) struct Beside {
    calls: Workers,
    sittings: BTreeMap<(usize, NodePath), Sitting>,
    deliver: Deliver,
}

impl Beside {
    pub(crate) fn new(deliver: impl Fn(Came) + Send + Sync + 'static) -> Self {
        let deliver: Deliver = Arc::new(deliver);
        Beside { calls: Workers::new(Arc::clone(&deliver)), sittings: BTreeMap::new(), deliver }
    }

    /// Calls and questions whose results were not taken in.
    pub(crate) fn outstanding(&self) -> usize {
        self.calls.running() + self.sittings.len()
    }

    /// Starts what a rollout has come to ask for since the last time.
    pub(crate) fn start(&mut self, number: usize, rollout: &mut Rollout) -> Result<(), EngineError> {
        for call in rollout.take_detached() {
            self.calls.start(number, call)?;
        }
        for (node, inquiry) in rollout.take_inquiries() {
            let (deliver, to) = (Arc::clone(&self.deliver), node.clone());
            let sitting =
                inquiry.start(move |outcome| deliver(Came::Verdict(number, to, outcome.map_err(EngineError::from))));
            self.sittings.insert((number, node), sitting);
        }
        Ok(())
    }

    /// Takes in what has come for a rollout, which can then go on.
    ///
    /// # Errors
    /// When the call or the judge failed.
    pub(crate) fn take(&mut self, came: Came, rollout: Option<&mut Rollout>) -> Result<(), EngineError> {
        match came {
            Came::Call(_, key, result) => {
                self.calls.note_end();
                if let Some(rollout) = rollout {
                    rollout.arrive(&key, result?);
                }
            }
            Came::Verdict(number, node, outcome) => {
                self.sittings.remove(&(number, node.clone()));
                if let Some(rollout) = rollout {
                    rollout.hear(&node, outcome?);
                }
            }
        }
        Ok(())
    }
}

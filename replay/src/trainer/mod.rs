//! Training from the log: two passes, one optimizer step at a time.
//!
//! Pass 1 folds the chosen runs into rewards and counts: a few bytes a node, no tokens ([`credit_table`] shows the whole
//! of them). Pass 2 ([`Trainer::train`]) streams trajectories rollout by rollout, exactly as recorded, through the decoder in
//! micro-batches and accumulates the gradient in a fixed order. Memory follows the micro-batch, not the log. What reinforcement did stands in the log afterwards (credits, log-probabilities, losses, steps), and
//! [`rederive`] computes it again without a model. Supervised steps write their [`TrainStep`](rao_store::event::TrainStep)
//! only: the log-probabilities of thousands of small steps would outgrow the recordings.
//!
//! The same log, weights and settings give the same bytes, whatever the number of threads.

mod batch;
mod census;
mod checkpoint;
mod corpus;
mod error;
mod fold;
mod gradient;
mod memory;
mod metrics;
mod micro;
mod pending;
mod rederive;
mod run;
mod saving;
mod settings;
mod sink;
mod summary;
mod trajectory;

pub use batch::{Batch, Entry, LeftOut, batch_digest, credit_table};
pub use checkpoint::{CONFIG_FILE, MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, State, TOKENIZER_FILE};
pub use corpus::order;
pub use error::{Class, TrainError};
pub use fold::{Folded, NodeNumbers, RolloutNumbers, fold};
pub use gradient::{Gradient, Outcome, Piece, Sums, Terms, gradient};
pub use memory::Lanes;
pub use metrics::{GroupNorm, GroupNorms, Metrics};
pub use micro::{Batching, plan, plan_shared};
pub use rederive::{Mismatch, Rederived, RunConfig, rederive};
pub use run::{Flow, StepReport, TrainReport, Trainer};
pub use settings::{LoraSettings, Resources, Settings, SftFilter};
pub use sink::{LogSink, NoSink, Sink};
pub use summary::{BatchSummary, Mean};
pub use trajectory::{Trajectories, Trajectory};

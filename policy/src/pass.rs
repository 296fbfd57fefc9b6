//! One pass over a packed batch, and its place in candle's gradients.

use crate::forward::{Attend, Network, Rows, Tape};
use crate::ops::{self, Heads};
use crate::trie::{Branch, Layout};
use crate::{Packed, PolicyError};
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Device, Result, Shape, Tensor, Var, bail};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// How a pass is computed. No choice changes a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassOptions {
    /// Compute each beginning that sequences share once: cost follows the distinct tokens.
    pub share_prefixes: bool,
    /// Keep only the input of each block and compute the rest again in the backward pass: a third more work, much less memory.
    pub checkpoints: bool,
}

/// Scores of a packed batch's targets, with what their gradients need.
///
/// This is the short way to gradients: no graph is built, and the weights' gradients come from one call.
pub struct Pass {
    network: Arc<Network>,
    rows: Rows,
    layout: Layout,
    tape: Tape,
    /// Log-probabilities of the targets, then their entropies.
    scores: Vec<f32>,
}

struct PathAttend<'a> {
    branches: &'a [Branch],
}

impl Attend for PathAttend<'_> {
    fn attend(&mut self, _: usize, heads: Heads, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        ops::path_attention(q, k, v, heads, self.branches)
    }
}

impl Pass {
    pub(crate) fn new(network: Arc<Network>, packed: &Packed, options: PassOptions) -> Result<Self> {
        let mut layout = if options.share_prefixes { Layout::shared(packed) } else { Layout::plain(packed) };
        let rows = Rows {
            ids: std::mem::take(&mut layout.ids),
            positions: std::mem::take(&mut layout.positions),
            wanted: std::mem::take(&mut layout.wanted),
        };
        let mut tape = Tape::new(options.checkpoints);
        let hidden = network.hidden(&rows, &mut PathAttend { branches: &layout.branches }, Some(&mut tape))?;
        let picked: Vec<f32> =
            ops::token_logprob(&hidden, network.head().tensor()?, &layout.picks)?.flatten_all()?.to_vec1()?;
        let (logprobs, entropies) = picked.split_at(layout.picks.len());
        let scores = [layout.spread(logprobs), layout.spread(entropies)].concat();
        Ok(Self { network, rows, layout, tape, scores })
    }

    /// The targets' log-probabilities alone: nothing is kept.
    pub(crate) fn score(network: &Network, packed: &Packed, share_prefixes: bool) -> Result<Vec<f32>> {
        let layout = if share_prefixes { Layout::shared(packed) } else { Layout::plain(packed) };
        let Layout { ids, positions, branches, wanted, picks, targets } = layout;
        let hidden = network.hidden(&Rows { ids, positions, wanted }, &mut PathAttend { branches: &branches }, None)?;
        let picked: Vec<f32> =
            ops::token_logprob(&hidden, network.head().tensor()?, &picks)?.flatten_all()?.to_vec1()?;
        Ok(targets.iter().map(|pick| picked[*pick]).collect())
    }

    /// Logits of every position.
    pub(crate) fn logits(network: &Network, packed: &Packed) -> Result<Tensor> {
        let layout = Layout::plain(packed);
        let rows = Rows { wanted: (0..packed.tokens()).collect(), ids: layout.ids, positions: layout.positions };
        let hidden = network.hidden(&rows, &mut PathAttend { branches: &layout.branches }, None)?;
        ops::linear(&hidden, network.head())
    }

    /// Tokens that the model was run on: the distinct ones, if prefixes are shared.
    pub fn rows(&self) -> usize {
        self.rows.ids.len()
    }

    fn targets(&self) -> usize {
        self.layout.targets.len()
    }

    /// Natural logarithm of each target's probability given the tokens before it, in the batch's order.
    pub fn logprobs(&self) -> &[f32] {
        &self.scores[..self.targets()]
    }

    /// Entropy, in nats, of the distribution that each target is drawn from.
    pub fn entropies(&self) -> &[f32] {
        &self.scores[self.targets()..]
    }

    /// Gradients, by tensor name, of `sum(logprob_slopes * logprobs) + sum(entropy_slopes * entropies)`: with a loss's derivatives
    /// as slopes, the loss's own. Every trainable tensor has one.
    ///
    /// # Errors
    /// When there are not as many slopes as targets.
    pub fn gradients(
        &self,
        logprob_slopes: &[f32],
        entropy_slopes: Option<&[f32]>,
    ) -> std::result::Result<BTreeMap<String, Tensor>, PolicyError> {
        let n = self.targets();
        for slopes in [Some(logprob_slopes), entropy_slopes].into_iter().flatten() {
            if slopes.len() != n {
                let reason = format!("{} for {n} targets", slopes.len());
                return Err(PolicyError::Input { what: "slopes".to_owned(), reason });
            }
        }
        let mut slopes = logprob_slopes.to_vec();
        slopes.resize(2 * n, 0.0);
        if let Some(entropy_slopes) = entropy_slopes {
            slopes[n..].copy_from_slice(entropy_slopes);
        }
        Ok(self.backward(&slopes)?)
    }

    /// Gradients from the slopes of the scores: a token that several sequences share has the sum of theirs.
    fn backward(&self, slopes: &[f32]) -> Result<BTreeMap<String, Tensor>> {
        let (layout, (logprobs, entropies)) = (&self.layout, slopes.split_at(self.targets()));
        let grad = [layout.gather(logprobs), layout.gather(entropies)].concat();
        let attend = &mut PathAttend { branches: &layout.branches };
        self.network.backward(&self.rows, &layout.branches, attend, &self.tape, &layout.picks, &grad)
    }
}

/// Where the weights' gradients wait between the backward pass and the anchors that hand them to candle.
type Waiting = Arc<Mutex<BTreeMap<String, Tensor>>>;

/// The pass's scores `[2, n]` as a candle tensor through which gradients reach `vars`.
///
/// candle's operations take at most three tensors, so the variables hang on a chain of anchors: numbers that are zero and
/// whose gradients are what the pass computed.
pub(crate) fn differentiable(pass: Pass, vars: &BTreeMap<String, Var>) -> Result<Tensor> {
    let waiting = Waiting::default();
    let mut chain = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu)?;
    let all: Vec<(&String, &Var)> = vars.iter().collect();
    for pair in all.chunks(2) {
        let (Some(first), Some(last)) = (pair.first(), pair.last()) else { continue };
        let names = [first.0.clone(), last.0.clone()];
        chain = chain.apply_op3(first.1, last.1, Anchor { names, waiting: waiting.clone() })?;
    }
    chain.apply_op1(Scores { pass, waiting })
}

struct Anchor {
    names: [String; 2],
    waiting: Waiting,
}

impl CustomOp3 for Anchor {
    fn name(&self) -> &'static str {
        "anchor"
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &candle_core::Layout,
        _: &CpuStorage,
        _: &candle_core::Layout,
        _: &CpuStorage,
        _: &candle_core::Layout,
    ) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(vec![0.0]), 1.into()))
    }

    fn bwd(
        &self,
        chain: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // A lone last variable is both ends of its pair: its gradient is there once.
        let [first, last] = self.names.each_ref().map(|name| waiting.remove(name));
        Ok((Some(chain.zeros_like()?), first, last))
    }
}

struct Scores {
    pass: Pass,
    waiting: Waiting,
}

impl CustomOp1 for Scores {
    fn name(&self) -> &'static str {
        "scores"
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &candle_core::Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.pass.scores.clone()), (2, self.pass.targets()).into()))
    }

    fn bwd(&self, chain: &Tensor, _: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let slopes: Vec<f32> = grad.flatten_all()?.to_vec1()?;
        if slopes.len() != self.pass.scores.len() {
            bail!("scores: a gradient of {:?}", grad.shape());
        }
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = self.pass.backward(&slopes)?;
        chain.zeros_like().map(Some)
    }
}

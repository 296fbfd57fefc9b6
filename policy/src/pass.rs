//! One pass over a packed batch, and its place in candle's gradients.

use crate::forward::{Attend, Network, Rows, Tape};
use crate::ops::{self, Heads};
use crate::{Packed, PolicyError};
use candle_core::{CpuStorage, CustomOp1, CustomOp3, Device, Layout, Result, Shape, Tensor, Var, bail};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Scores of a packed batch's targets, with what their gradients need.
///
/// This is the short way to gradients: no graph is built, and the weights' gradients come from one call.
pub struct Pass {
    network: Arc<Network>,
    rows: Rows,
    lengths: Vec<usize>,
    ids: Vec<u32>,
    tape: Tape,
    /// Log-probabilities, then entropies.
    scores: Vec<f32>,
}

struct PackedAttend<'a> {
    lengths: &'a [usize],
}

impl Attend for PackedAttend<'_> {
    fn attend(&mut self, _: usize, heads: Heads, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
        ops::packed_attention(q, k, v, heads, self.lengths)
    }
}

fn rows(packed: &Packed, wanted: Vec<usize>) -> Rows {
    let sequences = || packed.sequences.iter().map(|sequence| &sequence.tokens);
    Rows {
        ids: sequences().flatten().map(|id| *id as usize).collect(),
        positions: sequences().flat_map(|tokens| 0..tokens.len()).collect(),
        wanted,
    }
}

impl Pass {
    pub(crate) fn new(network: Arc<Network>, packed: &Packed) -> Result<Self> {
        let (lengths, wanted, ids) = packed.layout();
        let (rows, mut tape) = (rows(packed, wanted), Tape::default());
        let hidden = network.hidden(&rows, &mut PackedAttend { lengths: &lengths }, Some(&mut tape))?;
        let scores = ops::token_logprob(&hidden, network.head(), &ids)?.flatten_all()?.to_vec1()?;
        Ok(Self { network, rows, lengths, ids, tape, scores })
    }

    /// Logits of every position.
    pub(crate) fn logits(network: &Network, packed: &Packed) -> Result<Tensor> {
        let rows = rows(packed, (0..packed.tokens()).collect());
        let hidden = network.hidden(&rows, &mut PackedAttend { lengths: &packed.layout().0 }, None)?;
        ops::linear(&hidden, network.head())
    }

    /// Natural logarithm of each target's probability given the tokens before it, in the batch's order.
    pub fn logprobs(&self) -> &[f32] {
        &self.scores[..self.ids.len()]
    }

    /// Entropy, in nats, of the distribution that each target is drawn from.
    pub fn entropies(&self) -> &[f32] {
        &self.scores[self.ids.len()..]
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
        let n = self.ids.len();
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

    fn backward(&self, slopes: &[f32]) -> Result<BTreeMap<String, Tensor>> {
        self.network.backward(&self.rows, &self.lengths, &self.tape, &self.ids, slopes)
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
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
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

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok((CpuStorage::F32(self.pass.scores.clone()), (2, self.pass.ids.len()).into()))
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

use super::linear::{Matrix, product};
use super::math::{exp, simd, softmax_parts};
use super::with_numbers;
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Tensor, bail};
use std::sync::Arc;

/// Rows whose logits are held at once: memory does not grow with rows x vocabulary.
const CHUNK: usize = 256;

/// Scores of tokens under the rows of hidden states that predict them.
///
/// `hidden` `[n, width]`, `head` `[vocabulary, width]`, `ids` `[n]`, each below the vocabulary. Returns `[2, n]`: the natural
/// logarithm of each token's probability, and the entropy of each row's distribution in nats. Logits are computed in chunks
/// of rows, and again in the backward pass.
pub(crate) fn token_logprob(hidden: &Tensor, head: &Tensor, ids: &[u32]) -> Result<Tensor> {
    hidden.apply_op2(head, TokenLogprob { ids: Arc::new(ids.to_vec()) })
}

/// Gradients of `hidden` and of `head`, given those of [`token_logprob`]'s result, `[2, n]` row by row.
pub(crate) fn token_logprob_gradients(
    hidden: &Tensor,
    head: &Tensor,
    ids: &[u32],
    grad: &[f32],
) -> Result<[Tensor; 2]> {
    use rayon::prelude::*;
    let (hidden, head) = (hidden.detach(), head.detach());
    let n = ids.len();
    let vocabulary = head.dim(0)?;
    let (mut dhidden, mut dhead) = (Vec::new(), head.zeros_like()?);
    for first in (0..n).step_by(CHUNK) {
        let rows = CHUNK.min(n - first);
        let chunk = hidden.narrow(0, first, rows)?;
        let logits = super::linear(&chunk, &head)?;
        let dlogits = with_numbers([&logits], "token-logprob", |[logits]| {
            let mut logits = logits.to_vec();
            logits.par_chunks_mut(vocabulary).with_min_len(32).enumerate().for_each(|(row, logits)| {
                let at = first + row;
                simd(
                    #[inline(always)]
                    || logit_gradient(logits, ids[at] as usize, grad[at], grad[n + at]),
                );
            });
            Tensor::from_vec(logits, (rows, vocabulary), &Device::Cpu)
        })?;
        dhidden.push(dlogits.matmul(&head)?);
        dhead = super::sum(&[&dhead, &dlogits.t()?.matmul(&chunk)?])?;
    }
    let dhidden = if n == 0 { hidden.zeros_like()? } else { Tensor::cat(&dhidden, 0)? };
    Ok([dhidden, dhead])
}

struct TokenLogprob {
    ids: Arc<Vec<u32>>,
}

/// The entropy of a row: `log_sum - sum(p (logit - largest))`.
#[inline(always)]
fn entropy(row: &[f32], largest: f32, log_sum: f32) -> f32 {
    let mut mean = [0f64; super::math::LANES];
    for chunk in row.chunks(super::math::LANES) {
        for (sum, x) in mean.iter_mut().zip(chunk) {
            let centred = x - largest;
            *sum += f64::from(exp(centred - log_sum) * centred.max(f32::MIN));
        }
    }
    (f64::from(log_sum) - mean.iter().sum::<f64>()) as f32
}

/// Turns a row of logits into its gradient: `g (1[i = id] - p_i) - h p_i (log p_i + H)`, where g and h are the gradients of
/// the log-probability and of the entropy H.
#[inline(always)]
fn logit_gradient(row: &mut [f32], id: usize, g: f32, h: f32) {
    let (largest, log_sum) = softmax_parts(row);
    let constant = if h == 0.0 { 0.0 } else { entropy(row, largest, log_sum) };
    for x in row.iter_mut() {
        let logprob = *x - largest - log_sum;
        *x = -exp(logprob) * h.mul_add(logprob.max(f32::MIN) + constant, g);
    }
    row[id] += g;
}

impl CustomOp2 for TokenLogprob {
    fn name(&self) -> &'static str {
        "token-logprob"
    }

    fn cpu_fwd(&self, h: &CpuStorage, lh: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        use rayon::prelude::*;
        let (hidden, head) = (Matrix::new(h, lh, self.name())?, Matrix::new(w, lw, self.name())?);
        let n = self.ids.len();
        if hidden.rows != n || self.ids.iter().any(|id| *id as usize >= head.rows) {
            bail!("token-logprob: {} rows for {n} ids below {}", hidden.rows, head.rows);
        }
        let mut out = vec![0.0; 2 * n];
        let (logprobs, entropies) = out.split_at_mut(n);
        for first in (0..n).step_by(CHUNK) {
            let rows = CHUNK.min(n - first);
            let logits = product(hidden.rows(first, rows), head)?;
            let scores = logprobs[first..first + rows].par_iter_mut().zip(&mut entropies[first..first + rows]);
            scores.zip(logits.par_chunks(head.rows)).zip(&self.ids[first..]).with_min_len(32).for_each(
                |(((logprob, h), row), id)| {
                    simd(
                        #[inline(always)]
                        || {
                            let (largest, log_sum) = softmax_parts(row);
                            *logprob = row[*id as usize] - largest - log_sum;
                            *h = entropy(row, largest, log_sum);
                        },
                    );
                },
            );
        }
        Ok((CpuStorage::F32(out), (2, n).into()))
    }

    fn bwd(
        &self,
        hidden: &Tensor,
        head: &Tensor,
        _: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let grad: Vec<f32> = grad.flatten_all()?.to_vec1()?;
        let [dhidden, dhead] = token_logprob_gradients(hidden, head, &self.ids, &grad)?;
        Ok((Some(dhidden), Some(dhead)))
    }
}

use super::linear::{View, product};
use super::math::{exp, simd, softmax_parts};
use super::with_numbers;
use crate::trie::Pick;
use candle_core::{CpuStorage, CustomOp2, Device, Layout, Result, Shape, Storage, Tensor, bail};
use std::sync::Arc;

/// Rows whose logits are held at once: memory does not grow with rows x vocabulary.
const CHUNK: usize = 256;

/// Scores of tokens under the rows of hidden states that predict them.
///
/// `hidden` `[rows, width]`, `head` `[vocabulary, width]`, `picks` `[n]` in ascending order. Returns `[2, n]`: the natural
/// logarithm of each picked token's probability, and the entropy of its row's distribution in nats. Logits are computed in
/// chunks of rows, and again in the backward pass; a row that several picks share is computed once.
pub(crate) fn token_logprob(hidden: &Tensor, head: &Tensor, picks: &[Pick]) -> Result<Tensor> {
    hidden.apply_op2(head, TokenLogprob { picks: Arc::new(picks.to_vec()) })
}

/// Gradients of `hidden` and, if wanted, of `head`, given those of [`token_logprob`]'s result, `[2, n]` row by row.
pub(crate) fn token_logprob_gradients(
    hidden: &Tensor,
    head: &Tensor,
    picks: &[Pick],
    grad: &[f32],
    wants_head: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    use rayon::prelude::*;
    let (hidden, head) = (hidden.detach(), head.detach());
    let (rows, vocabulary) = (hidden.dim(0)?, head.dim(0)?);
    let (logprob_slopes, entropy_slopes) = grad.split_at(picks.len());
    let (mut dhidden, mut dhead) = (Vec::new(), wants_head.then(|| vec![0f32; head.elem_count()]));
    for (chunk, first) in chunks(picks, rows) {
        let count = CHUNK.min(rows - first);
        let states = hidden.narrow(0, first, count)?;
        let mut logits = with_matrices(&states, &head, product)?;
        logits.par_chunks_mut(vocabulary).with_min_len(32).enumerate().for_each(|(row, logits)| {
            let own = chunk.start + picks[chunk.clone()].partition_point(|pick| pick.place < first + row);
            let own = own..own + picks[own..].iter().take_while(|pick| pick.place == first + row).count();
            let (picks, g, h) = (&picks[own.clone()], &logprob_slopes[own.clone()], &entropy_slopes[own]);
            simd(
                #[inline(always)]
                || logit_gradient(logits, picks, g, h),
            );
        });
        let dlogits = Tensor::from_vec(logits, (count, vocabulary), &Device::Cpu)?;
        dhidden.push(dlogits.matmul(&head)?);
        if let Some(sum) = &mut dhead {
            with_numbers([&dlogits.t()?.matmul(&states)?], "token-logprob", |[part]| {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                Ok(())
            })?;
        }
    }
    let dhidden = if rows == 0 { hidden.zeros_like()? } else { Tensor::cat(&dhidden, 0)? };
    let dhead = dhead.map(|sum| Tensor::from_vec(sum, head.shape(), &Device::Cpu)).transpose()?;
    Ok((dhidden, dhead))
}

/// The picks of each chunk of rows, with the chunk's first row.
fn chunks(picks: &[Pick], rows: usize) -> impl Iterator<Item = (std::ops::Range<usize>, usize)> {
    let before = |row: usize| picks.partition_point(|pick| pick.place < row);
    (0..rows).step_by(CHUNK).map(move |first| (before(first)..before(first + CHUNK), first))
}

/// Calls `f` with two tensors as matrices.
fn with_matrices<R>(a: &Tensor, b: &Tensor, f: impl FnOnce(View<'_>, View<'_>) -> Result<R>) -> Result<R> {
    let ((a, la), (b, lb)) = (a.storage_and_layout(), b.storage_and_layout());
    match (&*a, &*b) {
        (Storage::Cpu(a), Storage::Cpu(b)) => f(View::new(a, la, "token-logprob")?, View::new(b, lb, "token-logprob")?),
        _ => bail!("token-logprob: needs the CPU"),
    }
}

struct TokenLogprob {
    picks: Arc<Vec<Pick>>,
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

/// Turns a row of logits into its gradient: `sum(g_k (1[i = id_k] - p_i)) - h p_i (log p_i + H)`, where `g_k` is the gradient
/// of the k-th picked token's log-probability and h that of the entropy H, summed over the picks.
#[inline(always)]
fn logit_gradient(row: &mut [f32], picks: &[Pick], g: &[f32], h: &[f32]) {
    let (largest, log_sum) = softmax_parts(row);
    let (total, h) = (total(g), total(h));
    let constant = if h == 0.0 { 0.0 } else { entropy(row, largest, log_sum) };
    for x in row.iter_mut() {
        let logprob = *x - largest - log_sum;
        *x = -exp(logprob) * h.mul_add(logprob.max(f32::MIN) + constant, total);
    }
    for (pick, g) in picks.iter().zip(g) {
        row[pick.id as usize] += g;
    }
}

/// The sum, in f64; of one number, that number.
#[inline(always)]
fn total(numbers: &[f32]) -> f32 {
    numbers.iter().fold(0f64, |sum, x| sum + f64::from(*x)) as f32
}

impl CustomOp2 for TokenLogprob {
    fn name(&self) -> &'static str {
        "token-logprob"
    }

    fn cpu_fwd(&self, h: &CpuStorage, lh: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        use rayon::prelude::*;
        let (hidden, head) = (View::new(h, lh, self.name())?, View::new(w, lw, self.name())?);
        let (n, rows) = (self.picks.len(), hidden.rows);
        if self.picks.iter().any(|pick| pick.place >= rows || pick.id as usize >= head.rows) {
            bail!("token-logprob: picks outside {rows} rows of {} logits", head.rows);
        }
        let mut out = vec![0.0; 2 * n];
        let (logprobs, entropies) = out.split_at_mut(n);
        for (picks, first) in chunks(&self.picks, rows) {
            let logits = product(hidden.rows(first, CHUNK.min(rows - first)), head)?;
            let parts: Vec<[f32; 3]> = logits
                .par_chunks(head.rows)
                .with_min_len(32)
                .map(|row| {
                    simd(
                        #[inline(always)]
                        || {
                            let (largest, log_sum) = softmax_parts(row);
                            [largest, log_sum, entropy(row, largest, log_sum)]
                        },
                    )
                })
                .collect();
            for at in picks {
                let Pick { place, id } = self.picks[at];
                let [largest, log_sum, h] = parts[place - first];
                logprobs[at] = logits[(place - first) * head.rows + id as usize] - largest - log_sum;
                entropies[at] = h;
            }
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
        let (dhidden, dhead) = token_logprob_gradients(hidden, head, &self.picks, &grad, true)?;
        Ok((Some(dhidden), dhead))
    }
}

//! AdamW with decoupled weight decay, global gradient clipping and state that can be saved.
//!
//! For parameter `p` with gradient `g`, step `t` counted from 1, rate `lr`, and `s = 1`, or `clip / norm` where the
//! global gradient norm exceeds `clip`:
//!
//! ```text
//! m = beta1 * m + (1 - beta1) * s g        p = p - lr * decay * p
//! v = beta2 * v + (1 - beta2) * (s g)^2    p = p - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)
//! ```
//!
//! Parameters are visited in the order of their names. Every element is updated on its own, and the norm is summed in
//! f64 over blocks of fixed size, added in order: no result depends on how many threads run.

use std::collections::BTreeMap;

use rayon::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};
use serde::{Deserialize, Serialize};

/// Elements whose squares are added one after another before a block's sum joins the total.
const BLOCK: usize = 4096;

/// AdamW's settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdamWSettings {
    /// Decay of the first moment.
    pub beta1: f64,
    /// Decay of the second moment.
    pub beta2: f64,
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Decoupled weight decay per unit of learning rate.
    pub weight_decay: f64,
    /// Whether vectors (norm weights, biases) decay too. Off by default.
    pub decay_vectors: bool,
    /// The greatest global gradient norm; a longer gradient is scaled down to it. 0 turns clipping off.
    pub clip_norm: f64,
}

impl Default for AdamWSettings {
    fn default() -> Self {
        AdamWSettings { beta1: 0.9, beta2: 0.95, eps: 1e-8, weight_decay: 0.017, decay_vectors: false, clip_norm: 1.0 }
    }
}

impl AdamWSettings {
    /// What is wrong with the settings, in words; `None` if nothing is.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        for (name, beta) in [("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Some(format!("{name} is {beta}; it must be at least 0 and below 1"));
            }
        }
        for (name, value) in [("eps", self.eps), ("weight_decay", self.weight_decay), ("clip_norm", self.clip_norm)] {
            if !(value.is_finite() && value >= 0.0) {
                return Some(format!("{name} is {value}; it must be a finite number of at least 0"));
            }
        }
        None
    }
}

/// Why the optimizer cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OptimizerError {
    /// A gradient holds an infinity or no number: nothing was updated.
    #[error(
        "the gradient of `{name}` is not finite (element {index}): the step was not taken; lower the learning rate or look at the batch"
    )]
    NotFinite {
        /// The parameter.
        name: String,
        /// The first such element, in row-major order.
        index: usize,
    },
    /// The parameters given are not the optimizer's.
    #[error("the optimizer knows {known} and was given {given}")]
    Parameters {
        /// What the optimizer was made for.
        known: String,
        /// What it was given.
        given: String,
    },
    /// A state file that does not fit.
    #[error(
        "the optimizer state does not fit the model: {reason}; start without it, or use the checkpoint it belongs to"
    )]
    State {
        /// What does not fit.
        reason: String,
    },
    /// State bytes that cannot be read or written.
    #[error("optimizer state: {0}")]
    Format(#[from] safetensors::SafeTensorError),
}

/// A parameter of the model for one step: its values, which the step changes, and its gradient of the same length.
#[derive(Debug)]
pub struct Parameter<'a> {
    /// The name.
    pub name: &'a str,
    /// The values, row-major.
    pub values: &'a mut [f32],
    /// The gradient, row-major.
    pub gradient: &'a [f32],
}

#[derive(Clone, Debug, PartialEq)]
struct Slot {
    decays: bool,
    shape: Vec<usize>,
    first: Vec<f32>,
    second: Vec<f32>,
}

/// The optimizer: settings, moments and step.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    settings: AdamWSettings,
    slots: BTreeMap<String, Slot>,
    step: u64,
}

#[derive(Clone, Copy)]
struct Update {
    scale: f32,
    keep: f32,
    beta1: f32,
    beta2: f32,
    rest1: f32,
    rest2: f32,
    rate: f32,
    root: f32,
    eps: f32,
}

impl AdamW {
    /// An optimizer at step 0 for the named parameters with their shapes.
    #[must_use]
    pub fn new(settings: AdamWSettings, shapes: impl IntoIterator<Item = (String, Vec<usize>)>) -> Self {
        let slot = |shape: Vec<usize>| {
            let len = shape.iter().product();
            let decays = settings.decay_vectors || shape.len() > 1;
            Slot { decays, shape, first: vec![0.0; len], second: vec![0.0; len] }
        };
        AdamW { settings, slots: shapes.into_iter().map(|(name, shape)| (name, slot(shape))).collect(), step: 0 }
    }

    /// Steps taken.
    #[must_use]
    pub fn step_count(&self) -> u64 {
        self.step
    }

    /// Takes one step at rate `lr` and gives the gradient's norm before clipping. The parameters must be the
    /// optimizer's own, in the order of their names.
    ///
    /// # Errors
    /// When they are not, or a gradient is not finite; nothing is changed then.
    pub fn step(&mut self, lr: f64, parameters: &mut [Parameter<'_>]) -> Result<f64, OptimizerError> {
        self.check(parameters)?;
        let norm = gradient_norm(parameters.iter().map(|p| (p.name, p.gradient)))?;
        self.step += 1;
        let update = self.update(lr, norm);
        for (slot, parameter) in self.slots.values_mut().zip(parameters) {
            let keep = if slot.decays { update.keep } else { 1.0 };
            apply(Update { keep, ..update }, slot, parameter);
        }
        Ok(norm)
    }

    fn check(&self, parameters: &[Parameter<'_>]) -> Result<(), OptimizerError> {
        if self.slots.len() != parameters.len() {
            return Err(OptimizerError::Parameters {
                known: format!("{} parameters", self.slots.len()),
                given: format!("{}", parameters.len()),
            });
        }
        for ((name, slot), p) in self.slots.iter().zip(parameters) {
            let fits = name == p.name && slot.first.len() == p.values.len() && slot.first.len() == p.gradient.len();
            if !fits {
                return Err(OptimizerError::Parameters {
                    known: format!("`{name}` of {} elements in its place", slot.first.len()),
                    given: format!(
                        "`{}` of {} elements with a gradient of {}",
                        p.name,
                        p.values.len(),
                        p.gradient.len()
                    ),
                });
            }
        }
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "the elements are f32; the factors are rounded to them once")]
    fn update(&self, lr: f64, norm: f64) -> Update {
        let AdamWSettings { beta1, beta2, eps, weight_decay, clip_norm, .. } = self.settings;
        let scale = if clip_norm > 0.0 && norm > clip_norm { clip_norm / norm } else { 1.0 };
        let (bias1, bias2) = (1.0 - power(beta1, self.step), 1.0 - power(beta2, self.step));
        Update {
            scale: scale as f32,
            keep: (1.0 - lr * weight_decay) as f32,
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            rest1: (1.0 - beta1) as f32,
            rest2: (1.0 - beta2) as f32,
            rate: (lr / bias1) as f32,
            root: bias2.sqrt() as f32,
            eps: eps as f32,
        }
    }

    /// Moments and step as safetensors: `first.NAME` and `second.NAME` in f32, `step` in u64. Equal states give equal
    /// bytes.
    ///
    /// # Errors
    /// When the format refuses a shape, which no shape of a model makes it do.
    pub fn to_bytes(&self) -> Result<Vec<u8>, OptimizerError> {
        let step = self.step.to_le_bytes();
        let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = self
            .slots
            .iter()
            .flat_map(|(name, slot)| {
                [("first", &slot.first), ("second", &slot.second)]
                    .map(|(which, values)| (format!("{which}.{name}"), slot.shape.clone(), to_bytes(values)))
            })
            .collect();
        let mut views = vec![("step".to_owned(), TensorView::new(Dtype::U64, vec![1], &step)?)];
        for (name, shape, data) in &bytes {
            views.push((name.clone(), TensorView::new(Dtype::F32, shape.clone(), data)?));
        }
        Ok(serialize(views, None)?)
    }

    /// Reads what [`AdamW::to_bytes`] gave, for the same parameters.
    ///
    /// # Errors
    /// When the bytes are no such state or belong to other parameters.
    pub fn from_bytes(
        settings: AdamWSettings,
        shapes: impl IntoIterator<Item = (String, Vec<usize>)>,
        bytes: &[u8],
    ) -> Result<Self, OptimizerError> {
        let file = SafeTensors::deserialize(bytes)?;
        let mut optimizer = AdamW::new(settings, shapes);
        let wanted = 2 * optimizer.slots.len() + 1;
        if file.len() != wanted {
            return Err(OptimizerError::State { reason: format!("{} tensors instead of {wanted}", file.len()) });
        }
        let step = file.tensor("step")?;
        let step: [u8; 8] = step
            .data()
            .try_into()
            .map_err(|_| OptimizerError::State { reason: "`step` is not one 64-bit number".to_owned() })?;
        optimizer.step = u64::from_le_bytes(step);
        for (name, slot) in &mut optimizer.slots {
            slot.first = moments(&file, &format!("first.{name}"), &slot.shape)?;
            slot.second = moments(&file, &format!("second.{name}"), &slot.shape)?;
        }
        Ok(optimizer)
    }
}

fn moments(file: &SafeTensors<'_>, name: &str, shape: &[usize]) -> Result<Vec<f32>, OptimizerError> {
    let tensor = file.tensor(name)?;
    if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
        let reason = format!("`{name}` is {:?} {:?} instead of F32 {shape:?}", tensor.dtype(), tensor.shape());
        return Err(OptimizerError::State { reason });
    }
    Ok(tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
}

fn to_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn apply(update: Update, slot: &mut Slot, parameter: &mut Parameter<'_>) {
    let values = parameter.values.par_chunks_mut(BLOCK).zip(parameter.gradient.par_chunks(BLOCK));
    let moments = slot.first.par_chunks_mut(BLOCK).zip(slot.second.par_chunks_mut(BLOCK));
    values.zip(moments).for_each(|((values, gradient), (first, second))| {
        for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
            let g = g * update.scale;
            *m = update.beta1 * *m + update.rest1 * g;
            *v = update.beta2 * *v + update.rest2 * (g * g);
            let denominator = v.sqrt() / update.root + update.eps;
            *p = *p * update.keep - update.rate * (*m / denominator);
        }
    });
}

/// The global norm of the gradients, in f64, in the order given.
///
/// # Errors
/// When an element is not finite: names the parameter and the element.
pub fn gradient_norm<'a>(gradients: impl IntoIterator<Item = (&'a str, &'a [f32])>) -> Result<f64, OptimizerError> {
    let mut total = 0.0;
    for (name, values) in gradients {
        let blocks: Vec<f64> = values
            .par_chunks(BLOCK)
            .map(|block| block.iter().fold(0.0, |sum, &g| sum + f64::from(g) * f64::from(g)))
            .collect();
        let sum = crate::credit::sum(blocks.into_iter());
        if !sum.is_finite() {
            let index = values.iter().position(|g| !g.is_finite()).unwrap_or(0);
            return Err(OptimizerError::NotFinite { name: name.to_owned(), index });
        }
        total += sum;
    }
    Ok(total.sqrt())
}

/// `base` to the power `exponent` by repeated squaring: the same bits everywhere.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut result, mut square, mut left) = (1.0, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result *= square;
        }
        square *= square;
        left >>= 1;
    }
    result
}

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
//! Matrices decay; vectors (norm weights, biases) do not unless `decay_vectors` says so.
//!
//! Parameters are visited in the order of their names. Every element is updated on its own, and norms are summed in
//! f64 over blocks of fixed size, added in order: no result depends on how many threads run.

use std::borrow::Cow;
use std::collections::BTreeMap;

use rayon::prelude::*;
use safetensors::tensor::{Dtype, View};
use safetensors::{SafeTensors, serialize, serialize_to_file};
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

/// A step that has begun.
#[derive(Clone, Debug)]
pub struct Step {
    update: Update,
    /// The norm of the whole gradient before clipping.
    pub norm: f64,
    /// The square of each gradient's norm before clipping, by name.
    pub squares: Vec<(String, f64)>,
}

#[derive(Clone, Copy, Debug)]
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
        let step = self.begin(lr, parameters.iter().map(|p| (p.name, p.gradient)))?;
        for parameter in parameters.iter_mut() {
            self.apply(&step, parameter)?;
        }
        Ok(step.norm)
    }

    /// Begins a step at rate `lr` from all gradients in the order of their names. [`AdamW::apply`] must follow for every
    /// parameter: taking them one at a time needs no copy of all values.
    ///
    /// # Errors
    /// When a gradient is not finite: names the parameter; nothing is changed then.
    pub fn begin<'a>(
        &mut self,
        lr: f64,
        gradients: impl IntoIterator<Item = (&'a str, &'a [f32])>,
    ) -> Result<Step, OptimizerError> {
        let squares = gradient_squares(gradients)?;
        let norm = crate::credit::sum(squares.iter().map(|(_, square)| *square)).sqrt();
        self.step += 1;
        Ok(Step { update: self.update(lr, norm), norm, squares })
    }

    /// Updates one parameter; gives the square of its change's norm.
    ///
    /// # Errors
    /// When the parameter is not one of the optimizer's.
    pub fn apply(&mut self, step: &Step, parameter: &mut Parameter<'_>) -> Result<f64, OptimizerError> {
        let slot = self.slots.get_mut(parameter.name);
        let fits = |slot: &&mut Slot| {
            slot.first.len() == parameter.values.len() && slot.first.len() == parameter.gradient.len()
        };
        let slot = slot.filter(fits).ok_or_else(|| OptimizerError::Parameters {
            known: "no such parameter".to_owned(),
            given: format!("`{}` of {} elements", parameter.name, parameter.values.len()),
        })?;
        let keep = if slot.decays { step.update.keep } else { 1.0 };
        Ok(apply(Update { keep, ..step.update }, slot, parameter))
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
        Ok(serialize(self.entries(), None)?)
    }

    /// Writes the bytes of [`AdamW::to_bytes`] to a file, one tensor at a time.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &std::path::Path) -> Result<(), OptimizerError> {
        Ok(serialize_to_file(self.entries(), None, path)?)
    }

    fn entries(&self) -> Vec<(String, Moments<'_>)> {
        let mut all = vec![("step".to_owned(), Moments::Step(self.step.to_le_bytes()))];
        for (name, slot) in &self.slots {
            all.push((format!("first.{name}"), Moments::Numbers(&slot.shape, &slot.first)));
            all.push((format!("second.{name}"), Moments::Numbers(&slot.shape, &slot.second)));
        }
        all
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

/// A tensor of the state, turned into bytes when it is written.
enum Moments<'a> {
    Step([u8; 8]),
    Numbers(&'a [usize], &'a [f32]),
}

impl View for Moments<'_> {
    fn dtype(&self) -> Dtype {
        match self {
            Moments::Step(_) => Dtype::U64,
            Moments::Numbers(..) => Dtype::F32,
        }
    }

    fn shape(&self) -> &[usize] {
        match self {
            Moments::Step(_) => &[1],
            Moments::Numbers(shape, _) => shape,
        }
    }

    fn data(&self) -> Cow<'_, [u8]> {
        match self {
            Moments::Step(bytes) => Cow::Borrowed(bytes),
            Moments::Numbers(_, values) => {
                values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>().into()
            }
        }
    }

    fn data_len(&self) -> usize {
        match self {
            Moments::Step(bytes) => bytes.len(),
            Moments::Numbers(_, values) => size_of_val(*values),
        }
    }
}

/// Updates the values; gives the sum of the squares of their changes.
fn apply(update: Update, slot: &mut Slot, parameter: &mut Parameter<'_>) -> f64 {
    let values = parameter.values.par_chunks_mut(BLOCK).zip(parameter.gradient.par_chunks(BLOCK));
    let moments = slot.first.par_chunks_mut(BLOCK).zip(slot.second.par_chunks_mut(BLOCK));
    let changes: Vec<f64> = values
        .zip(moments)
        .map(|((values, gradient), (first, second))| {
            let mut changed = 0.0;
            for (((p, g), m), v) in values.iter_mut().zip(gradient).zip(first).zip(second) {
                let g = g * update.scale;
                *m = update.beta1 * *m + update.rest1 * g;
                *v = update.beta2 * *v + update.rest2 * (g * g);
                let denominator = v.sqrt() / update.root + update.eps;
                let before = *p;
                *p = *p * update.keep - update.rate * (*m / denominator);
                changed += (f64::from(*p) - f64::from(before)).powi(2);
            }
            changed
        })
        .collect();
    crate::credit::sum(changes.into_iter())
}

/// The global norm of the gradients, in f64, in the order given.
///
/// # Errors
/// When an element is not finite: names the parameter and the element.
pub fn gradient_norm<'a>(gradients: impl IntoIterator<Item = (&'a str, &'a [f32])>) -> Result<f64, OptimizerError> {
    Ok(crate::credit::sum(gradient_squares(gradients)?.into_iter().map(|(_, square)| square)).sqrt())
}

/// The square of each gradient's norm, in f64, in the order given.
fn gradient_squares<'a>(
    gradients: impl IntoIterator<Item = (&'a str, &'a [f32])>,
) -> Result<Vec<(String, f64)>, OptimizerError> {
    let mut all = Vec::new();
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
        all.push((name.to_owned(), sum));
    }
    Ok(all)
}

/// The group of tensors that one belongs to, by its Hugging Face name: gradients and updates are reported by it.
#[must_use]
pub fn group_of(name: &str) -> &'static str {
    let part = |text: &str| name.contains(text);
    if part("norm.") {
        "norms"
    } else if part("embed_tokens.") {
        "embedding"
    } else if part("lm_head.") {
        "head"
    } else if part(".self_attn.") {
        "attention"
    } else if part(".mlp.") {
        "feed_forward"
    } else {
        "other"
    }
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

/// The shape of a mixture-of-experts model's feed-forward layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Experts {
    /// Experts of a layer.
    pub count: usize,
    /// Experts that each token goes through: those with the largest router probabilities.
    pub per_token: usize,
    /// Width of an expert's gated layer.
    pub width: usize,
    /// Whether the chosen experts' probabilities are divided by their sum.
    pub normalize: bool,
    /// Every `step`-th layer has experts, the first at index `step - 1`.
    pub step: usize,
    /// Layers that have none all the same.
    pub dense: Vec<usize>,
}

impl Experts {
    /// Whether the layer's feed-forward part is a mixture.
    pub fn at(&self, layer: usize) -> bool {
        (layer + 1).is_multiple_of(self.step.max(1)) && !self.dense.contains(&layer)
    }

    pub(super) fn fault(&self) -> Option<&'static str> {
        if self.count == 0 || self.width == 0 || self.step == 0 {
            Some("a size of its experts is zero")
        } else if self.per_token == 0 || self.per_token > self.count {
            Some("num_experts_per_tok must be between 1 and num_experts")
        } else {
            None
        }
    }
}

//! Which experts each row goes through, with the gradients of that choice's weights.

use super::math::{exp, max};
use super::with_numbers;
use candle_core::{Device, Result, Tensor, bail};

/// Each row's experts and their weights: a function of the row's router logits alone.
pub(crate) struct Routes {
    experts: usize,
    per_row: usize,
    normalize: bool,
    /// `[rows, experts]`.
    probabilities: Vec<f32>,
    /// `[rows, per_row]`, increasing within a row.
    chosen: Vec<usize>,
    /// `[rows, per_row]`.
    weights: Vec<f32>,
}

/// The rows that go through one expert, in order, and the place of each in [`Routes`]' weights.
pub(crate) struct Visit {
    pub(crate) rows: Vec<usize>,
    slots: Vec<usize>,
}

impl Routes {
    /// The softmax of `logits` `[rows, experts]` and its `per_row` largest entries (of equals, those of the lowest experts),
    /// divided by their sum if `normalize`.
    pub(crate) fn new(logits: &Tensor, per_row: usize, normalize: bool) -> Result<Self> {
        let experts = logits.dims2()?.1;
        if per_row == 0 || per_row > experts {
            bail!("experts: {per_row} of {experts} for a row");
        }
        with_numbers([logits], "experts", |[logits]| {
            let mut routes = Self {
                experts,
                per_row,
                normalize,
                probabilities: Vec::new(),
                chosen: Vec::new(),
                weights: Vec::new(),
            };
            logits.chunks_exact(experts).for_each(|row| routes.push(row));
            Ok(routes)
        })
    }

    fn push(&mut self, logits: &[f32]) {
        let largest = max(logits);
        let exponentials: Vec<f32> = logits.iter().map(|x| exp(x - largest)).collect();
        let sum: f64 = exponentials.iter().map(|e| f64::from(*e)).sum();
        let probabilities: Vec<f32> = exponentials.iter().map(|e| (f64::from(*e) / sum) as f32).collect();
        let mut order: Vec<usize> = (0..self.experts).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        order.truncate(self.per_row);
        order.sort_unstable();
        let total: f32 = if self.normalize { order.iter().map(|e| probabilities[*e]).sum() } else { 1.0 };
        self.weights.extend(order.iter().map(|e| probabilities[*e] / total));
        self.chosen.extend(order);
        self.probabilities.extend(probabilities);
    }

    /// The rows that go through `expert`.
    pub(crate) fn visit(&self, expert: usize) -> Visit {
        let slots: Vec<usize> = (0..self.chosen.len()).filter(|slot| self.chosen[*slot] == expert).collect();
        Visit { rows: slots.iter().map(|slot| slot / self.per_row).collect(), slots }
    }

    /// Adds the expert's results `y` `[visit.rows, width]`, each times its weight, to the rows of `sum` that they belong to.
    /// Experts come in increasing order, so a row's sum has one order, whatever the other rows are.
    pub(crate) fn add(&self, visit: &Visit, y: &Tensor, sum: &mut [f32]) -> Result<()> {
        let width = y.dims2()?.1;
        with_numbers([y], "experts", |[y]| {
            for ((row, slot), y) in visit.rows.iter().zip(&visit.slots).zip(y.chunks_exact(width)) {
                let weight = self.weights[*slot];
                sum[row * width..][..width].iter_mut().zip(y).for_each(|(sum, y)| *sum = y.mul_add(weight, *sum));
            }
            Ok(())
        })
    }

    /// Given the gradient `[rows, width]` of the sums, that of the expert's results; those of the expert's weights go to
    /// their slots of `dweights`.
    pub(crate) fn add_gradient(
        &self,
        visit: &Visit,
        y: &Tensor,
        grad: &Tensor,
        dweights: &mut [f32],
    ) -> Result<Tensor> {
        let (n, width) = y.dims2()?;
        let dy = with_numbers([y, grad], "experts", |[y, grad]| {
            let mut dy = Vec::with_capacity(n * width);
            for ((row, slot), y) in visit.rows.iter().zip(&visit.slots).zip(y.chunks_exact(width)) {
                let grad = &grad[row * width..][..width];
                dweights[*slot] = super::math::dot(y, grad);
                dy.extend(grad.iter().map(|g| g * self.weights[*slot]));
            }
            Ok(dy)
        })?;
        Tensor::from_vec(dy, (n, width), &Device::Cpu)
    }

    /// How many weights there are.
    pub(crate) fn slots(&self) -> usize {
        self.weights.len()
    }

    /// The gradient of the router's logits, `[rows, experts]`, given that of the weights. With p the probabilities, C the
    /// chosen experts and w = p / S (S = sum of p over C, or 1): dp = (dw - sum(dw w)) / S on C (or dw), 0 elsewhere;
    /// dlogits = p (dp - sum(p dp)).
    pub(crate) fn gradient(&self, dweights: &[f32]) -> Result<Tensor> {
        let mut all = Vec::with_capacity(self.probabilities.len());
        let rows = self.probabilities.chunks_exact(self.experts).zip(self.chosen.chunks_exact(self.per_row));
        let weights = self.weights.chunks_exact(self.per_row).zip(dweights.chunks_exact(self.per_row));
        for ((p, chosen), (w, dw)) in rows.zip(weights) {
            let mut dp = vec![0.0f32; self.experts];
            let (mean, total) = if self.normalize {
                (w.iter().zip(dw).map(|(w, dw)| w * dw).sum::<f32>(), chosen.iter().map(|e| p[*e]).sum::<f32>())
            } else {
                (0.0, 1.0)
            };
            chosen.iter().zip(dw).for_each(|(e, dw)| dp[*e] = (dw - mean) / total);
            let mean: f32 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            all.extend(p.iter().zip(&dp).map(|(p, dp)| p * (dp - mean)));
        }
        Tensor::from_vec(all, (self.probabilities.len() / self.experts, self.experts), &Device::Cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 8] = [0.5, -1.0, 2.0, 0.5, 0.1, 0.2, -0.3, 1.5];

    fn routes(logits: &[f32], per_row: usize, normalize: bool) -> Routes {
        let logits = Tensor::from_slice(logits, (logits.len() / 4, 4), &Device::Cpu).unwrap();
        Routes::new(&logits, per_row, normalize).unwrap()
    }

    #[test]
    fn the_largest_are_chosen_and_the_lowest_of_equals() {
        let routes = routes(&LOGITS, 2, true);
        assert_eq!(routes.chosen, [0, 2, 1, 3]);
        assert_eq!(routes.visit(2).rows, [0]);
        assert_eq!(routes.visit(3).rows, [1]);
        for pair in routes.weights.chunks_exact(2) {
            assert!((pair[0] + pair[1] - 1.0).abs() < 1e-6);
        }
        assert!((routes.weights[1] / routes.weights[0] - 1.5f32.exp()).abs() < 1e-5);
    }

    #[test]
    fn the_gradient_agrees_with_finite_differences() {
        for (per_row, normalize) in [(2, true), (2, false), (3, true), (4, false), (1, false)] {
            let slopes: Vec<f32> = (0..2 * per_row).map(|i| (i as f32 - 1.3) * 0.7).collect();
            let value = |logits: &[f32]| -> f64 {
                let weights = routes(logits, per_row, normalize).weights;
                weights.iter().zip(&slopes).map(|(w, s)| f64::from(*w) * f64::from(*s)).sum()
            };
            let got = routes(&LOGITS, per_row, normalize).gradient(&slopes).unwrap();
            let got: Vec<f32> = got.flatten_all().unwrap().to_vec1().unwrap();
            for i in 0..8 {
                let moved = |by: f32| {
                    let mut logits = LOGITS;
                    logits[i] += by;
                    value(&logits)
                };
                let want = (moved(1e-2) - moved(-1e-2)) / 2e-2;
                // The two equal logits of row 0 change the choice when moved: there is no derivative to compare.
                if per_row != 2 || !(i == 0 || i == 3) {
                    assert!((f64::from(got[i]) - want).abs() < 2e-4, "{per_row} {normalize} {i}: {} {want}", got[i]);
                }
            }
        }
    }
}

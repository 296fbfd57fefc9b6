//! Matrix products with the transpose of a weight matrix: `y[row][output] = sum over k of x[row][k] * weight[output][k]`.
//!
//! **Order.** Every number of the result is one chain of fused multiply-adds from zero, over `k` from 0 upwards. Rows, outputs
//! and threads only decide which chains run side by side, and a fused multiply-add rounds once on every processor: a result's
//! bits depend on its own row of `x` and its own row of the weights, on nothing else. That makes decoding, in any batch, equal
//! to training.
//!
//! **Layout.** The kernel reads weights in panels of [`PANEL`] outputs: `[outputs / PANEL][inputs][PANEL]`, the last panel as
//! wide as is needed, in whole vectors of [`LANES`]. So the loop over `k` reads memory straight on. A matrix that is used for
//! few rows at a time ([`Panels`]) is laid out once; one that changes between uses is copied panel by panel as it is needed,
//! which costs little where there are many rows.

mod kernel;
mod panels;

pub(crate) use panels::Panels;

use super::math::LANES;
use kernel::{MOST_ROWS, Panel, Task};
use panels::Scratch;
use pulp::bytemuck::cast_slice;
use rayon::prelude::*;
use std::ops::Range;

/// Outputs of a panel: three vectors, which with eight rows fill the registers of AVX-512.
const PANEL: usize = 3 * LANES;

/// Multiply-adds below which a second thread costs more than it brings.
const PARALLEL_WORK: usize = 1 << 19;

/// Pieces for each thread, so that one that starts late or is held up does not hold up the others.
const PIECES_PER_THREAD: usize = 16;

/// Numbers of the panels that are kept at hand for all rows: a part of the second-level cache.
const AT_HAND: usize = 96 << 10;

/// Numbers of `x` that stay in the second-level cache beside a panel and the next: panels are then taken one by one.
const X_AT_HAND: usize = 128 << 10;

/// A weight matrix `[outputs, inputs]`.
#[derive(Clone, Copy)]
pub(super) enum Weights<'a> {
    /// In panels.
    Panels(&'a Panels),
    /// As rows, with the number of outputs.
    Rows(&'a [f32], usize),
}

impl Weights<'_> {
    pub(super) fn outputs(&self) -> usize {
        match self {
            Self::Panels(panels) => panels.outputs(),
            Self::Rows(_, outputs) => *outputs,
        }
    }
}

/// A part of one product: the rows from `first_row` on, of which `out` holds the columns from panel `first_panel` on.
struct Piece<'w, 'o> {
    weights: Weights<'w>,
    first_row: usize,
    first_panel: usize,
    out: Vec<&'o mut [f32]>,
}

/// The products of `x` `[rows, inputs]` with each of some weights, each into its own `[rows, outputs]`.
pub(super) fn products(x: &[f32], inputs: usize, work: Vec<(Weights<'_>, &mut [f32])>) {
    let columns: usize = work.iter().map(|(_, out)| out.len()).sum();
    let threads = rayon::current_num_threads();
    let alone = threads == 1 || columns * inputs < PARALLEL_WORK;
    let wanted = if alone { 1 } else { threads * PIECES_PER_THREAD };
    let mut pieces = Vec::new();
    for (weights, out) in work {
        let share = (wanted * out.len()).div_ceil(columns.max(1)).max(1);
        cut(weights, out, share, &mut pieces);
    }
    if alone {
        pieces.into_iter().for_each(|piece| piece.run(x, inputs));
    } else {
        pieces.into_par_iter().with_max_len(1).for_each(|piece| piece.run(x, inputs));
    }
}

/// Cuts a product into about `wanted` pieces: by columns, and where there are too few of these by rows.
fn cut<'w, 'o>(weights: Weights<'w>, out: &'o mut [f32], wanted: usize, pieces: &mut Vec<Piece<'w, 'o>>) {
    let outputs = weights.outputs();
    if out.is_empty() {
        return;
    }
    let (rows, panels) = (out.len() / outputs, outputs.div_ceil(PANEL));
    let panels_each = panels.div_ceil(wanted);
    let columns = panels.div_ceil(panels_each);
    let rows_each = rows.div_ceil(wanted.div_ceil(columns)).next_multiple_of(MOST_ROWS);
    for (at, rows) in out.chunks_mut(rows_each * outputs).enumerate() {
        let mut parts: Vec<Vec<&mut [f32]>> = (0..columns).map(|_| Vec::with_capacity(rows_each)).collect();
        for row in rows.chunks_mut(outputs) {
            for (part, segment) in parts.iter_mut().zip(row.chunks_mut(panels_each * PANEL)) {
                part.push(segment);
            }
        }
        let piece = |(part, out)| Piece { weights, first_row: at * rows_each, first_panel: part * panels_each, out };
        pieces.extend(parts.into_iter().enumerate().map(piece));
    }
}

impl Piece<'_, '_> {
    fn run(mut self, x: &[f32], inputs: usize) {
        let columns = self.out.first().map_or(0, |row| row.len());
        let panels = self.first_panel..self.first_panel + columns.div_ceil(PANEL);
        let x = &x[self.first_row * inputs..][..self.out.len() * inputs];
        let at_hand = if x.len() <= X_AT_HAND { 1 } else { (AT_HAND / (PANEL * inputs.max(1))).clamp(1, panels.len()) };
        let mut scratch = Scratch::default();
        for first in panels.clone().step_by(at_hand) {
            let group = first..panels.end.min(first + at_hand);
            let next = group.end..(group.end + group.len());
            match self.weights {
                Weights::Panels(weights) => {
                    self.group(x, inputs, group, weights.span(next), |panel| weights.panel(panel));
                }
                Weights::Rows(rows, outputs) => {
                    scratch.fill(rows, outputs, inputs, group.clone());
                    let begin = (next.start * PANEL).min(outputs) * inputs;
                    let end = (next.end * PANEL).min(outputs) * inputs;
                    self.group(x, inputs, group, cast_slice(&rows[begin..end]), |panel| scratch.panel(panel - first));
                }
            }
        }
    }

    /// All rows times the panels of a group, while what comes after it is fetched from memory.
    fn group<'p>(
        &mut self,
        x: &[f32],
        inputs: usize,
        group: Range<usize>,
        ahead: &'p [u32],
        panel: impl Fn(usize) -> Panel<'p>,
    ) {
        let rows = self.out.len();
        let blocks = rows.div_ceil(MOST_ROWS);
        let each = ahead.len().div_ceil((blocks * group.len()).max(1)).next_multiple_of(LANES);
        let mut ahead = ahead.chunks(each.max(1));
        let mut first = 0;
        while first < rows {
            // Blocks of nearly one size: a last block of few rows would leave the registers empty.
            let count = (rows - first).div_ceil((rows - first).div_ceil(MOST_ROWS));
            let x = &x[first * inputs..][..count * inputs];
            for at in group.clone() {
                let column = (at - self.first_panel) * PANEL;
                let panel = panel(at);
                // After the last there is nothing to fetch but what is there.
                let task = Task { x, rows: count, panel, inputs, ahead: ahead.next().unwrap_or(panel.words()) };
                task.run(&mut self.out[first..first + count], column);
            }
            first += count;
        }
    }
}

#[cfg(test)]
mod tests;

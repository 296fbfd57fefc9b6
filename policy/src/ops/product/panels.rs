//! Weight matrices in the kernel's layout.

use super::PANEL;
use super::kernel::Panel;
use crate::ops::math::LANES;
use pulp::bytemuck::{cast_slice, cast_slice_mut};
use rayon::prelude::*;
use std::ops::Range;

/// Columns of the panel that begins at output `first`: whole vectors.
pub(super) fn panel_width(outputs: usize, first: usize) -> usize {
    outputs.saturating_sub(first).min(PANEL).next_multiple_of(LANES)
}

/// A weight matrix `[outputs, inputs]` as `[outputs / PANEL][inputs][PANEL]`. Outputs that only fill up the last panel have
/// weights of zero.
///
/// Where every weight is a bfloat16, as those of a published checkpoint mostly are, only the upper half of each is kept: a step
/// of few rows takes as long as the weights take to come from memory, and so half as long. The numbers, and with them all
/// results, are the same.
#[derive(Debug)]
pub(crate) struct Panels {
    outputs: usize,
    inputs: usize,
    /// Two weights a word, see [`Panel::Halves`], or the bits of one.
    halves: bool,
    words: Vec<u32>,
    /// Where the first panel begins in `words`: at a cache line.
    start: usize,
}

impl Panels {
    /// Copies a matrix given as rows.
    pub(crate) fn new(rows: &[f32], outputs: usize, inputs: usize) -> Self {
        let halves = rows.iter().all(|weight| weight.to_bits() & 0xFFFF == 0);
        let depth = if halves { inputs.div_ceil(2) } else { inputs };
        let count = outputs.next_multiple_of(LANES) * depth;
        let (words, start) = aligned(count);
        let mut panels = Self { outputs, inputs, halves, words, start };
        let all = &mut panels.words[start..][..count];
        all.par_chunks_mut((PANEL * depth).max(1)).enumerate().for_each(|(panel, out)| {
            if halves {
                let mut whole = vec![0.0; panel_width(outputs, panel * PANEL) * inputs];
                pack(rows, outputs, inputs, panel * PANEL, &mut whole);
                pair(&whole, out);
            } else {
                pack(rows, outputs, inputs, panel * PANEL, cast_slice_mut(out));
            }
        });
        panels
    }

    /// Rows of the matrix.
    pub(crate) fn outputs(&self) -> usize {
        self.outputs
    }

    /// Columns of the matrix.
    pub(crate) fn inputs(&self) -> usize {
        self.inputs
    }

    fn depth(&self) -> usize {
        if self.halves { self.inputs.div_ceil(2) } else { self.inputs }
    }

    pub(super) fn panel(&self, panel: usize) -> Panel<'_> {
        let words = self.span(panel..panel + 1);
        if self.halves { Panel::Halves(words) } else { Panel::Whole(cast_slice(words)) }
    }

    /// The panels of a range, as far as there are so many, one after another as they lie in memory.
    pub(super) fn span(&self, panels: Range<usize>) -> &[u32] {
        let depth = self.depth();
        let end = self.outputs.next_multiple_of(LANES) * depth;
        let at = |panel: usize| (panel * PANEL * depth).min(end);
        &self.words[self.start..][at(panels.start)..at(panels.end)]
    }

    /// Adds row `output` of the matrix to the end of `row`.
    pub(crate) fn row(&self, output: usize, row: &mut Vec<f32>) {
        let width = panel_width(self.outputs, output / PANEL * PANEL);
        let words =
            self.span(output / PANEL..output / PANEL + 1).chunks_exact(width).map(|words| words[output % PANEL]);
        if self.halves {
            let end = row.len() + self.inputs;
            row.extend(words.clone().map(|word| f32::from_bits(word << 16)));
            row.extend(words.map(|word| f32::from_bits(word & 0xFFFF_0000)));
            row.truncate(end);
        } else {
            row.extend(words.map(f32::from_bits));
        }
    }

    /// The matrix as rows.
    pub(crate) fn rows(&self) -> Vec<f32> {
        let mut rows = vec![0.0; self.outputs * self.inputs];
        if self.inputs > 0 {
            rows.par_chunks_mut(self.inputs).enumerate().for_each_init(Vec::new, |row, (output, out)| {
                row.clear();
                self.row(output, row);
                out.copy_from_slice(row);
            });
        }
        rows
    }
}

/// Puts the weights of inputs that lie half of all inputs apart into words, see [`Panel::Halves`].
fn pair(whole: &[f32], words: &mut [u32]) {
    let (lower, upper) = whole.split_at(words.len());
    words.iter_mut().zip(lower).for_each(|(word, weight)| *word = weight.to_bits() >> 16);
    words.iter_mut().zip(upper).for_each(|(word, weight)| *word |= weight.to_bits());
}

/// Memory for `count` numbers, and where in it a cache line begins.
fn aligned<T: Copy + Default>(count: usize) -> (Vec<T>, usize) {
    let numbers = vec![T::default(); count + LANES];
    // `align_offset` may decline to answer; then vectors straddle cache lines, which only costs time.
    let start = numbers.as_ptr().align_offset(LANES * size_of::<T>()).min(LANES);
    (numbers, start)
}

/// A few panels, laid out for one use.
#[derive(Default)]
pub(super) struct Scratch {
    numbers: Vec<f32>,
    start: usize,
    /// Where each panel lies.
    panels: Vec<Range<usize>>,
}

impl Scratch {
    /// Lays out the panels `group` of a matrix.
    pub(super) fn fill(&mut self, rows: &[f32], outputs: usize, inputs: usize, group: Range<usize>) {
        if self.numbers.len() < group.len() * PANEL * inputs + LANES {
            (self.numbers, self.start) = aligned(group.len() * PANEL * inputs);
        }
        self.panels.clear();
        let mut at = self.start;
        for panel in group {
            let end = at + panel_width(outputs, panel * PANEL) * inputs;
            pack(rows, outputs, inputs, panel * PANEL, &mut self.numbers[at..end]);
            self.panels.push(at..end);
            at = end;
        }
    }

    /// The panel at a place in the group.
    pub(super) fn panel(&self, at: usize) -> Panel<'_> {
        Panel::Whole(&self.numbers[self.panels[at].clone()])
    }
}

/// Lays out the panel that begins at output `first` in `out`, which has its size.
fn pack(rows: &[f32], outputs: usize, inputs: usize, first: usize, out: &mut [f32]) {
    if inputs == 0 {
        return;
    }
    let width = panel_width(outputs, first);
    for from in (0..width).step_by(LANES) {
        let count = outputs.saturating_sub(first + from).min(LANES);
        let rows = &rows[(first + from).min(outputs) * inputs..][..count * inputs];
        let whole = if count == LANES { transpose_whole(rows, inputs, &mut out[from..], width) } else { 0 };
        for (row, numbers) in rows.chunks_exact(inputs).enumerate() {
            for (k, x) in numbers.iter().enumerate().skip(whole) {
                out[k * width + from + row] = *x;
            }
        }
        for row in count..LANES {
            out[from + row..].iter_mut().step_by(width).for_each(|slot| *slot = 0.0);
        }
    }
}

/// Transposes 16 rows, 16 columns at a time, into columns `width` apart; returns how many columns it did.
fn transpose_whole(rows: &[f32], inputs: usize, out: &mut [f32], width: usize) -> usize {
    #[cfg(target_arch = "x86_64")]
    if let Some(v4) = pulp::x86::V4::try_new() {
        return v4.vectorize(
            #[inline(always)]
            || avx512::transpose(v4, rows, inputs, out, width),
        );
    }
    let _ = (rows, inputs, out, width);
    0
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::LANES;
    use pulp::Simd;
    use pulp::x86::V4;
    use std::arch::x86_64::{__m512, __m512d};

    /// See [`super::transpose_whole`].
    #[inline(always)]
    pub(super) fn transpose(v4: V4, rows: &[f32], inputs: usize, out: &mut [f32], width: usize) -> usize {
        let whole = inputs / LANES * LANES;
        for first in (0..whole).step_by(LANES) {
            let square: [__m512; LANES] = std::array::from_fn(
                #[inline(always)]
                |row| pulp::cast(V4::as_simd_f32s(&rows[row * inputs + first..][..LANES]).0[0]),
            );
            for (k, column) in square_transposed(v4, square).into_iter().enumerate() {
                V4::as_mut_simd_f32s(&mut out[(first + k) * width..][..LANES]).0[0] = pulp::cast(column);
            }
        }
        whole
    }

    /// The transpose of 16 x 16 numbers, in four rounds of 16 shuffles.
    #[inline(always)]
    fn square_transposed(v4: V4, a: [__m512; LANES]) -> [__m512; LANES] {
        let f = v4.avx512f;
        let wide = |x: __m512| -> __m512d { pulp::cast(x) };
        let narrow = |x: __m512d| -> __m512 { pulp::cast(x) };
        let mut b = a;
        for i in (0..LANES).step_by(2) {
            b[i] = f._mm512_unpacklo_ps(a[i], a[i + 1]);
            b[i + 1] = f._mm512_unpackhi_ps(a[i], a[i + 1]);
        }
        // Groups of four rows: afterwards c[4 g + j] holds, of rows 4 g.., the columns j, 4 + j, 8 + j and 12 + j.
        let mut c = b;
        for g in (0..LANES).step_by(4) {
            c[g] = narrow(f._mm512_unpacklo_pd(wide(b[g]), wide(b[g + 2])));
            c[g + 1] = narrow(f._mm512_unpackhi_pd(wide(b[g]), wide(b[g + 2])));
            c[g + 2] = narrow(f._mm512_unpacklo_pd(wide(b[g + 1]), wide(b[g + 3])));
            c[g + 3] = narrow(f._mm512_unpackhi_pd(wide(b[g + 1]), wide(b[g + 3])));
        }
        let mut d = c;
        for j in 0..4 {
            d[j] = f._mm512_shuffle_f32x4::<0x88>(c[j], c[4 + j]);
            d[4 + j] = f._mm512_shuffle_f32x4::<0xDD>(c[j], c[4 + j]);
            d[8 + j] = f._mm512_shuffle_f32x4::<0x88>(c[8 + j], c[12 + j]);
            d[12 + j] = f._mm512_shuffle_f32x4::<0xDD>(c[8 + j], c[12 + j]);
        }
        let mut e = d;
        for j in 0..4 {
            e[j] = f._mm512_shuffle_f32x4::<0x88>(d[j], d[8 + j]);
            e[8 + j] = f._mm512_shuffle_f32x4::<0xDD>(d[j], d[8 + j]);
            e[4 + j] = f._mm512_shuffle_f32x4::<0x88>(d[4 + j], d[12 + j]);
            e[12 + j] = f._mm512_shuffle_f32x4::<0xDD>(d[4 + j], d[12 + j]);
        }
        e
    }
}

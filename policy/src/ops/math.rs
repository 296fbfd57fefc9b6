/// Lanes of every vector loop: fixed, so that the order of additions is the same on every processor.
pub(crate) const LANES: usize = 16;

/// Runs `f` compiled for the widest vector instructions of this processor. What `f` calls must be `#[inline(always)]`.
///
/// Results do not depend on which are found: every loop has a fixed number of lanes and names its fused multiply-adds.
#[inline(always)]
pub(crate) fn simd<R>(f: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(v4) = pulp::x86::V4::try_new() {
            return v4.vectorize(f);
        }
        if let Some(v3) = pulp::x86::V3::try_new() {
            return v3.vectorize(f);
        }
    }
    f()
}

/// As [`simd`], for loops that name their vectors of 16 numbers.
#[inline(always)]
pub(super) fn dispatch<Op: pulp::WithSimd>(op: Op) -> Op::Output {
    #[cfg(target_arch = "x86_64")]
    {
        if let Some(v4) = pulp::x86::V4::try_new() {
            return pulp::Simd::vectorize(v4, op);
        }
        if let Some(v3) = pulp::x86::V3::try_new() {
            return with_avx2(v3, op);
        }
    }
    pulp::Simd::vectorize(pulp::Scalar512b, op)
}

/// Runs an operation on vectors of 16 numbers, each two of AVX2's. (`V3_512b::vectorize` would run it on vectors of 8.)
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn with_avx2<Op: pulp::WithSimd>(v3: pulp::x86::V3, op: Op) -> Op::Output {
    v3.vectorize(
        #[inline(always)]
        || op.with_simd(pulp::x86::V3_512b(v3)),
    )
}

/// e^x within 1.5e-7 of relative error, without branches, so that loops over it become vector code.
/// Below -87 the result is 0 (e^-87 is about 1e-38, f32's smallest normal number), above 88.7 infinity.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 leaves the rounded integer in the low bits of the significand.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_145_75;
    const LN2_LOW: f32 = 1.428_606_8e-6;
    let clamped = if x < -87.0 { -87.0 } else { x };
    let clamped = if clamped > 88.7 { 88.7 } else { clamped };
    let shifted = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = n.mul_add(-LN2_LOW, n.mul_add(-LN2_HIGH, clamped));
    // Taylor to the seventh power: |r| <= ln2 / 2, so the rest is below 6e-9.
    let mut p = 1.0 / 5040.0;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = r.mul_add(p, c);
    }
    // 2^n in two factors, since n can be 128 where p is below 1.
    let half = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let (low, high) = (half >> 1, half - (half >> 1));
    let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
    let value = p * power(low) * power(high);
    let value = if x < -87.0 { 0.0 } else { value };
    let value = if x > 88.7 { f32::INFINITY } else { value };
    if x.is_nan() { x } else { value }
}

/// Sums lanes in a fixed tree.
#[inline(always)]
pub(crate) fn sum_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] += lanes[i + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Sum of `a[i] * b[i]`: element `i` goes to lane `i % LANES`.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (mut a, mut b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    for (a, b) in (&mut a).zip(&mut b) {
        for i in 0..LANES {
            lanes[i] = a[i].mul_add(b[i], lanes[i]);
        }
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a.remainder()).zip(b.remainder()) {
        *lane = a.mul_add(*b, *lane);
    }
    sum_lanes(lanes)
}

/// Sum of `a[i] * b[i] * c[i]`, in the same lanes as [`dot`].
#[inline(always)]
pub(crate) fn dot3(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    let (mut a, mut b, mut c) = (a.chunks_exact(LANES), b.chunks_exact(LANES), c.chunks_exact(LANES));
    for ((a, b), c) in (&mut a).zip(&mut b).zip(&mut c) {
        for i in 0..LANES {
            lanes[i] = (a[i] * b[i]).mul_add(c[i], lanes[i]);
        }
    }
    for (((lane, a), b), c) in lanes.iter_mut().zip(a.remainder()).zip(b.remainder()).zip(c.remainder()) {
        *lane = (a * b).mul_add(*c, *lane);
    }
    sum_lanes(lanes)
}

/// The largest number of a row; NaN is passed over.
#[inline(always)]
pub(crate) fn max(row: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] > lanes[i] { chunk[i] } else { lanes[i] };
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane = if x > lane { *x } else { *lane };
    }
    lanes.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a })
}

/// The largest logit and the logarithm of `sum(exp(logit - largest))`, summed in f64 over fixed lanes.
/// The log-probability of `i` is `row[i] - largest - log_sum`: the sampler and the trainer both take it from here.
#[inline(always)]
pub(crate) fn softmax_parts(row: &[f32]) -> (f32, f32) {
    let largest = max(row);
    let mut lanes = [0f64; LANES];
    let mut chunks = row.chunks_exact(LANES);
    for chunk in &mut chunks {
        for i in 0..LANES {
            lanes[i] += f64::from(exp(chunk[i] - largest));
        }
    }
    for (lane, x) in lanes.iter_mut().zip(chunks.remainder()) {
        *lane += f64::from(exp(x - largest));
    }
    let sum: f64 = lanes.iter().sum();
    (largest, sum.ln() as f32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        let mut worst = 0f64;
        for i in 0..2_000_000 {
            let x = -87.0 + (i as f32) * (175.6 / 2e6);
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            worst = worst.max(((got - want) / want).abs());
        }
        assert!(worst < 1.5e-7, "{worst:e}");
        assert_eq!(exp(0.0), 1.0);
        assert_eq!([exp(-88.0), exp(f32::NEG_INFINITY), exp(89.0)], [0.0, 0.0, f32::INFINITY]);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn vector_code_and_plain_code_agree_bit_for_bit() {
        let row: Vec<f32> = (0..1003).map(|i| ((i * 7919) % 1013) as f32 / 97.0 - 5.0).collect();
        let plain = (softmax_parts(&row), dot(&row, &row), max(&row));
        assert_eq!(
            simd(
                #[inline(always)]
                || (softmax_parts(&row), dot(&row, &row), max(&row))
            ),
            plain
        );
        let exact: f64 = row.iter().map(|x| f64::from(x - plain.2).exp()).sum::<f64>().ln();
        assert!((f64::from(plain.0.1) - exact).abs() < 1e-6);
    }
}

use super::kernel::{Block, Narrow, Wide};
use super::*;
use pulp::Simd;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

fn random(seed: u64, count: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| (rng.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// Numbers of any size, and those of them that a bfloat16 holds: these are laid out in another form.
fn both_kinds(seed: u64, count: usize) -> [Vec<f32>; 2] {
    let whole = random(seed, count);
    let halves = whole.iter().map(|x| f32::from_bits(x.to_bits() & 0xFFFF_0000)).collect();
    [whole, halves]
}

/// The definition: one chain for every number.
fn chain(x: &[f32], weight: &[f32]) -> f32 {
    x.iter().zip(weight).fold(0.0, |sum, (x, w)| x.mul_add(*w, sum))
}

fn chains(x: &[f32], weights: &[f32], inputs: usize, outputs: usize) -> Vec<u32> {
    let row = |row: usize| &x[row * inputs..][..inputs];
    let rows = x.len() / inputs;
    (0..rows * outputs)
        .map(|at| chain(row(at / outputs), &weights[at % outputs * inputs..][..inputs]).to_bits())
        .collect()
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn product(x: &[f32], inputs: usize, weights: Weights<'_>) -> Vec<u32> {
    let mut out = vec![f32::NAN; x.len() / inputs * weights.outputs()];
    products(x, inputs, vec![(weights, &mut out)]);
    bits(&out)
}

/// Widths around whole vectors and panels, and those of real models.
const SHAPES: [(usize, usize); 12] = [
    (1, 1),
    (5, 3),
    (15, 16),
    (16, 17),
    (17, 31),
    (33, 40),
    (48, 48),
    (49, 33),
    (97, 65),
    (80, 160),
    (160, 448),
    (640, 160),
];

#[test]
fn every_number_is_one_chain_whatever_runs_beside_it() {
    let pools = [1, 2, 4].map(|threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap());
    let kinds = |(outputs, inputs)| both_kinds(2, outputs * inputs).map(|weight| (outputs, inputs, weight));
    for (outputs, inputs, weight) in SHAPES.into_iter().flat_map(kinds) {
        let x = random(1, 70 * inputs);
        let panels = Panels::new(&weight, outputs, inputs);
        let wanted = chains(&x, &weight, inputs, outputs);
        for rows in 1..=70 {
            let first = (7 * rows) % (71 - rows);
            let (x, wanted) = (&x[first * inputs..][..rows * inputs], &wanted[first * outputs..][..rows * outputs]);
            for pool in &pools {
                for weights in [Weights::Panels(&panels), Weights::Rows(&weight, outputs)] {
                    let got = pool.install(|| product(x, inputs, weights));
                    assert!(got == wanted, "{rows} rows of {outputs} x {inputs}");
                }
            }
        }
    }
}

#[test]
fn large_products_are_cut_into_pieces_that_fit() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    for (rows, outputs, inputs) in [(300, 600, 70), (1030, 33, 50), (3, 5000, 64), (900, 100, 2200)] {
        let (x, weight) = (random(3, rows * inputs), random(4, outputs * inputs));
        let panels = Panels::new(&weight, outputs, inputs);
        let wanted = chains(&x, &weight, inputs, outputs);
        for weights in [Weights::Panels(&panels), Weights::Rows(&weight, outputs)] {
            assert!(pool.install(|| product(&x, inputs, weights)) == wanted, "{rows} rows of {outputs} x {inputs}");
        }
    }
}

/// Products of one input run side by side, each into its own place.
#[test]
fn several_products_at_once() {
    let (inputs, rows) = (90, 37);
    let x = random(5, rows * inputs);
    let weights = [300, 64, 7].map(|outputs| (outputs, random(outputs as u64, outputs * inputs)));
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut out = weights.each_ref().map(|(outputs, _)| vec![0.0; rows * outputs]);
        let work = weights.iter().zip(&mut out).map(|((outputs, w), out)| (Weights::Rows(w, *outputs), &mut out[..]));
        pool.install(|| products(&x, inputs, work.collect()));
        for ((outputs, weight), out) in weights.iter().zip(&out) {
            assert!(bits(out) == chains(&x, weight, inputs, *outputs), "{outputs} outputs on {threads} threads");
        }
    }
}

#[test]
fn close_to_the_product_in_f64() {
    let (rows, outputs, inputs) = (9, 50, 1536);
    let (x, weight) = (random(6, rows * inputs), random(7, outputs * inputs));
    let got = product(&x, inputs, Weights::Panels(&Panels::new(&weight, outputs, inputs)));
    for (at, got) in got.into_iter().enumerate() {
        let (x, w) = (&x[at / outputs * inputs..][..inputs], &weight[at % outputs * inputs..][..inputs]);
        let exact: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
        assert!((f64::from(f32::from_bits(got)) - exact).abs() < 1e-4, "{at}");
    }
}

/// The code for processors with AVX-512, with AVX2 and with neither gives the same bits: those of [`chain`].
#[test]
fn every_kind_of_processor_gives_the_same_bits() {
    for inputs in [77, 78] {
        let numbers = random(8, ROWS * inputs);
        for weight in both_kinds(9, 40 * inputs) {
            let (panels, wanted) = (Panels::new(&weight, 40, inputs), chains(&numbers, &weight, inputs, 40));
            for_every_kind(&|name, run| {
                let mut out = [f32::NAN; ROWS * 40];
                let mut rows: Vec<&mut [f32]> = out.chunks_mut(40).collect();
                let x = std::array::from_fn(|row| &numbers[row * inputs..][..inputs]);
                run(Block { x, panel: panels.panel(0), ahead: panels.span(0..1), out: &mut rows, column: 0 });
                assert!(bits(&out) == wanted, "{name}");
            });
        }
    }
}

/// Rows of the block that every kind of processor multiplies.
const ROWS: usize = 7;

/// Something that multiplies a block.
type Run<'a> = &'a dyn Fn(Block<'_, '_, ROWS, 3>);

fn for_every_kind(check: &dyn Fn(&str, Run<'_>)) {
    check("plain, wide", &|block| pulp::Scalar512b.vectorize(Wide(block)));
    check("plain", &|block| pulp::Scalar512b.vectorize(Narrow(block)));
    #[cfg(target_arch = "x86_64")]
    {
        use crate::ops::math::with_avx2;
        if let Some(v3) = pulp::x86::V3::try_new() {
            check("AVX2, wide", &|block| with_avx2(v3, Wide(block)));
            check("AVX2", &|block| with_avx2(v3, Narrow(block)));
        }
        if let Some(v4) = pulp::x86::V4::try_new() {
            check("AVX-512", &|block| Simd::vectorize(v4, Wide(block)));
            check("AVX-512, narrow", &|block| Simd::vectorize(v4, Narrow(block)));
        }
    }
}

#[test]
fn panels_give_their_rows_back() {
    let kinds = |(outputs, inputs)| both_kinds(10, outputs * inputs).map(|weight| (outputs, inputs, weight));
    for (outputs, inputs, weight) in SHAPES.into_iter().flat_map(kinds) {
        let panels = Panels::new(&weight, outputs, inputs);
        assert_eq!(panels.rows(), weight, "{outputs} x {inputs}");
        let mut rows = Vec::new();
        (0..outputs).rev().for_each(|output| panels.row(output, &mut rows));
        let reversed: Vec<f32> = weight.chunks_exact(inputs).rev().flatten().copied().collect();
        assert_eq!(rows, reversed, "{outputs} x {inputs}");
    }
}

/// Weights of bfloat16 take half the memory; one that is none makes all of its matrix whole.
#[test]
fn weights_of_bfloat16_are_kept_as_such() {
    let [_, mut weight] = both_kinds(11, 96 * 64);
    weight[7] = f32::NAN;
    weight[8] = -0.0;
    weight[9] = f32::from_bits(0x0001_0000);
    let words = |weight: &[f32]| Panels::new(weight, 96, 64).span(0..2).len();
    assert_eq!(words(&weight), 96 * 64 / 2);
    let same = Panels::new(&weight, 96, 64).rows();
    assert_eq!(bits(&same), bits(&weight));
    weight[96 * 64 - 1] = f32::from_bits(1);
    assert_eq!(words(&weight), 96 * 64);
}

#[test]
fn nothing_times_something_is_nothing() {
    let mut out = vec![f32::NAN; 3 * 50];
    products(&[], 0, vec![(Weights::Rows(&[], 50), &mut out)]);
    assert!(out.iter().all(|x| *x == 0.0));
    products(&[], 4, vec![(Weights::Rows(&random(1, 200), 50), &mut [])]);
}

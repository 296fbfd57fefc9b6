//! Gradients of the whole decoder: finite differences for every kind of tensor, and sums over batches.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use candle_core::{Device, Tensor};
use common::{config, ids, packed};
use rao_policy::{Architecture, Config, Decoder, Packed};
use std::collections::BTreeMap;

const VOCABULARY: usize = 70;

fn batch() -> Packed {
    packed(&[ids(1, 12, VOCABULARY), ids(2, 1, VOCABULARY), ids(3, 33, VOCABULARY)])
}

/// A loss with both scores in it, of order one.
fn loss(decoder: &Decoder, packed: &Packed) -> Tensor {
    let scores = decoder.token_scores(packed).unwrap();
    let n = packed.targets();
    let weights: Vec<f32> = (0..n).map(|i| ((i * 37 % 11) as f32 - 4.0) / 20.0).collect();
    let weighted = (scores.logprobs * Tensor::new(weights, &Device::Cpu).unwrap()).unwrap().sum_all().unwrap();
    (weighted + (scores.entropies.sum_all().unwrap() * 0.05).unwrap()).unwrap()
}

fn gradients(decoder: &Decoder, packed: &Packed) -> BTreeMap<String, Vec<f32>> {
    let grads = loss(decoder, packed).backward().unwrap();
    let mut all = BTreeMap::new();
    for (name, var) in decoder.vars() {
        let grad = grads.get(var.as_tensor()).unwrap_or_else(|| panic!("{name} gets no gradient"));
        all.insert(name.clone(), grad.flatten_all().unwrap().to_vec1().unwrap());
    }
    all
}

/// The slope along the gradient of one tensor equals the gradient's length: with steps along it, f32 is exact enough.
#[test]
fn every_tensor_agrees_with_finite_differences() {
    let llama = Config { architecture: Architecture::Llama, tie_word_embeddings: false, ..config(VOCABULARY) };
    for config in [config(VOCABULARY), llama] {
        let (decoder, packed) = (Decoder::init(config, 3).unwrap(), batch());
        for (name, grad) in gradients(&decoder, &packed) {
            let var = &decoder.vars()[&name];
            let start = var.as_tensor().copy().unwrap();
            let length = grad.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
            assert!(length > 1e-5, "{name} has a gradient of {length:e}");
            let direction = Tensor::from_vec(grad, start.shape(), &Device::Cpu).unwrap();
            let rms = f64::from(start.sqr().unwrap().mean_all().unwrap().to_scalar::<f32>().unwrap()).sqrt();
            let step = 0.02 * rms * (start.elem_count() as f64).sqrt();
            let at = |offset: f64| {
                let moved = (&start + (&direction * (offset / length)).unwrap()).unwrap();
                var.set(&moved).unwrap();
                f64::from(loss(&decoder, &packed).to_scalar::<f32>().unwrap())
            };
            // Richardson's combination takes the third-order term away.
            let slope = |step: f64| (at(step) - at(-step)) / (2.0 * step);
            let slope = (4.0 * slope(step / 2.0) - slope(step)) / 3.0;
            var.set(&start).unwrap();
            assert!((slope - length).abs() < 0.01 * length, "{name}: slope {slope:e}, gradient {length:e}");
        }
    }
}

#[test]
fn a_batch_has_the_sum_of_its_sequences_gradients() {
    let decoder = Decoder::init(config(VOCABULARY), 3).unwrap();
    let sequences: Vec<Vec<u32>> =
        [40, 7, 90, 23].iter().enumerate().map(|(i, n)| ids(i as u64, *n, VOCABULARY)).collect();
    let gradients = |sequences: &[Vec<u32>]| {
        let loss = decoder.token_logprobs(&packed(sequences)).unwrap().sum_all().unwrap();
        let grads = loss.backward().unwrap();
        let all = decoder.vars().iter().map(|(name, var)| {
            let grad = grads.get(var.as_tensor()).unwrap().flatten_all().unwrap();
            (name.clone(), grad.to_vec1::<f32>().unwrap())
        });
        all.collect::<BTreeMap<_, _>>()
    };
    let whole = gradients(&sequences);
    let mut sums: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sequence in &sequences {
        for (name, grad) in gradients(std::slice::from_ref(sequence)) {
            let sum = sums.entry(name).or_insert_with(|| vec![0.0; grad.len()]);
            sum.iter_mut().zip(grad).for_each(|(sum, g)| *sum += f64::from(g));
        }
    }
    for (name, sum) in sums {
        let scale = sum.iter().fold(0f64, |m, x| m.max(x.abs()));
        for (a, b) in whole[&name].iter().zip(&sum) {
            assert!((f64::from(*a) - b).abs() < 1e-5 * scale, "{name}: {a} {b}");
        }
    }
}

/// Both ways to gradients give the same bits.
#[test]
fn a_pass_and_candles_graph_agree() {
    for tie_word_embeddings in [true, false] {
        let config = Config { tie_word_embeddings, ..config(VOCABULARY) };
        let (decoder, packed) = (Decoder::init(config, 3).unwrap(), batch());
        let pass = decoder.pass(&packed).unwrap();
        let scores = decoder.token_scores(&packed).unwrap();
        assert_eq!(scores.logprobs.to_vec1::<f32>().unwrap(), pass.logprobs());
        assert_eq!(scores.entropies.to_vec1::<f32>().unwrap(), pass.entropies());
        let n = packed.targets();
        let slopes: Vec<f32> = (0..n).map(|i| (i as f32 - 20.0) / 64.0).collect();
        let by = |scores: &Tensor, k: f32| {
            let slopes: Vec<f32> = slopes.iter().map(|s| s * k).collect();
            (scores * Tensor::new(slopes, &Device::Cpu).unwrap()).unwrap().sum_all().unwrap()
        };
        let grads = (by(&scores.logprobs, 1.0) + by(&scores.entropies, 0.5)).unwrap().backward().unwrap();
        let entropy_slopes: Vec<f32> = slopes.iter().map(|s| s * 0.5).collect();
        let direct = pass.gradients(&slopes, Some(&entropy_slopes)).unwrap();
        assert!(direct.keys().eq(decoder.vars().keys()));
        for (name, var) in decoder.vars() {
            let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(flat(grads.get(var.as_tensor()).unwrap()), flat(&direct[name]), "{name}");
        }
        assert!(pass.gradients(&slopes[1..], None).is_err());
    }
}

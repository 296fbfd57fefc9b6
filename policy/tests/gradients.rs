//! Gradients of the whole decoder: finite differences for every kind of tensor, and sums over batches.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use candle_core::{Device, Tensor};
use common::{config, ids, packed};
use rao_policy::{Architecture, Config, Decoder, Packed, Pass, PassOptions, distinct_tokens};
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

/// Trajectories as a group has them: one system prompt, tasks, forks, twins.
fn family() -> Packed {
    let system = ids(1, 37, VOCABULARY);
    let tasks = [ids(2, 9, VOCABULARY), ids(3, 20, VOCABULARY)];
    let mut sequences = Vec::new();
    for (at, task) in tasks.iter().enumerate() {
        for member in 0..4u64 {
            let mut tokens = [system.clone(), task.clone()].concat();
            // Members part at different places; two of them never do.
            tokens.extend(ids(10 + at as u64, 3 * member as usize, VOCABULARY));
            tokens.extend(ids(20 + member / 2 * 2, 11, VOCABULARY));
            sequences.push(tokens);
        }
    }
    sequences.push(sequences[5].clone());
    sequences.push(ids(9, 25, VOCABULARY));
    sequences.push(sequences[0][..50].to_vec());
    packed(&sequences)
}

fn close(a: &BTreeMap<String, Tensor>, b: &BTreeMap<String, Tensor>, tolerance: f32) {
    assert!(a.keys().eq(b.keys()));
    for (name, a) in a {
        let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let (a, b) = (flat(a), flat(&b[name]));
        let scale = b.iter().fold(0f32, |m, x| m.max(x.abs()));
        for (a, b) in a.iter().zip(&b) {
            assert!((a - b).abs() <= tolerance * scale, "{name}: {a} {b}, scale {scale}");
        }
    }
}

/// Shared beginnings computed once: every score has the same bits, every gradient is the same up to rounding.
#[test]
fn sharing_prefixes_changes_no_score_and_no_gradient() {
    let llama = Config { architecture: Architecture::Llama, tie_word_embeddings: false, ..config(VOCABULARY) };
    for config in [config(VOCABULARY), llama] {
        let (decoder, packed) = (Decoder::init(config, 3).unwrap(), family());
        let pass = |share_prefixes| {
            decoder.pass_with(&packed, PassOptions { share_prefixes, ..PassOptions::default() }).unwrap()
        };
        let (plain, shared) = (pass(false), pass(true));
        assert_eq!(plain.rows(), packed.tokens());
        assert_eq!(shared.rows(), distinct_tokens(packed.sequences.iter().map(|s| s.tokens.as_slice())));
        assert!(3 * shared.rows() < 2 * plain.rows(), "{} of {} rows", shared.rows(), plain.rows());
        assert_eq!(plain.logprobs(), shared.logprobs());
        assert_eq!(plain.entropies(), shared.entropies());
        let slopes: Vec<f32> = (0..packed.targets()).map(|i| ((i * 37 % 23) as f32 - 9.0) / 20.0).collect();
        let entropy_slopes: Vec<f32> = slopes.iter().rev().map(|s| s * 0.3).collect();
        let gradients = |pass: &Pass| pass.gradients(&slopes, Some(&entropy_slopes)).unwrap();
        close(&gradients(&shared), &gradients(&plain), 1e-5);
    }
}

/// What is computed again has the bits that it had.
#[test]
fn checkpoints_change_no_bit() {
    let (decoder, packed) = (Decoder::init(config(VOCABULARY), 3).unwrap(), family());
    let slopes: Vec<f32> = (0..packed.targets()).map(|i| (i % 7) as f32 - 3.0).collect();
    for share_prefixes in [false, true] {
        let [kept, again] = [false, true].map(|checkpoints| {
            let pass = decoder.pass_with(&packed, PassOptions { share_prefixes, checkpoints }).unwrap();
            (pass.logprobs().to_vec(), pass.gradients(&slopes, None).unwrap())
        });
        assert_eq!(kept.0, again.0);
        close(&kept.1, &again.1, 0.0);
    }
}

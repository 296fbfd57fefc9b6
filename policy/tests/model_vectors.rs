//! The decoder against Hugging Face transformers and PyTorch: logits, log-probabilities, five losses and all their gradients.
//!
//! Reads every folder in `$RAO_LOG_VECTORS/models`; without that variable the test says that it is skipped.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use candle_core::{DType, Device, Tensor};
use rao_policy::{Decoder, Packed, PackedSequence, PolicyError};
use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Architectures that must work; any other folder must be refused by name.
const SUPPORTED: [&str; 3] = ["LlamaForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"];

#[derive(Deserialize)]
struct Case {
    tokens: Vec<u32>,
    mask: Vec<f32>,
    coefficient: f32,
    old_logprobs: Vec<f32>,
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, got: &Tensor, want: &Tensor, absolute: f32, relative: f32) {
    let (got, want) = (flat(got), flat(want));
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(0f32, |m, x| m.max(x.abs()));
    for (g, w) in got.iter().zip(&want) {
        assert!((g - w).abs() <= absolute + relative * scale, "{what}: {g} for {w}, scale {scale}");
    }
}

fn packed(cases: &[Case]) -> Packed {
    let sequence =
        |case: &Case| PackedSequence { tokens: case.tokens.clone(), targets: (1..case.tokens.len()).collect() };
    Packed { sequences: cases.iter().map(sequence).collect() }
}

/// A per-token column of all cases, without each sequence's first token, which nothing predicts.
fn column(cases: &[Case], f: impl Fn(&Case, usize) -> f32) -> Tensor {
    let all: Vec<f32> = cases.iter().flat_map(|c| (1..c.tokens.len()).map(|t| f(c, t)).collect::<Vec<_>>()).collect();
    Tensor::new(all, &Device::Cpu).unwrap()
}

/// The losses of the vectors' README.
fn loss(kind: &str, lp: &Tensor, cases: &[Case]) -> candle_core::Result<Tensor> {
    let mask = column(cases, |c, t| c.mask[t]);
    let old = column(cases, |c, t| c.old_logprobs[t]);
    let mc = (&mask * column(cases, |c, _| c.coefficient))?;
    let ratio = (&mask * (lp - old)?)?.exp()?;
    let weighted = match kind {
        "sft" => (&mask * lp)?,
        "pg" => (mc * lp)?,
        "is" => (mc * ratio)?,
        "ppo" => (&ratio * &mc)?.minimum(&(ratio.clamp(0.8, 1.2)? * mc)?)?,
        _ => ((mc * ratio.clamp(0.0, 5.0)?.detach())? * lp)?,
    };
    let sum = weighted.sum_all()?.neg()?;
    if kind == "pg" { Ok(sum) } else { sum / f64::from(mask.sum_all()?.to_scalar::<f32>()?) }
}

/// The expected tensor of a weight. Experts are stacked there, and their gate and up matrices are one, gate rows first.
fn wanted(expected: &HashMap<String, Tensor>, prefix: &str, name: &str, rows: usize) -> Tensor {
    let Some((layer, rest)) = name.split_once("experts.") else { return expected[&format!("{prefix}.{name}")].clone() };
    let (expert, part) = rest.split_once('.').unwrap();
    let stack = |part: &str| expected[&format!("{prefix}.{layer}experts.{part}")].get(expert.parse().unwrap()).unwrap();
    match part {
        "gate_proj.weight" => stack("gate_up_proj").narrow(0, 0, rows).unwrap(),
        "up_proj.weight" => stack("gate_up_proj").narrow(0, rows, rows).unwrap(),
        _ => stack("down_proj"),
    }
}

fn check(dir: &Path) {
    let decoder = Decoder::load(dir).unwrap();
    let cases: Vec<Case> = serde_json::from_slice(&std::fs::read(dir.join("case.json")).unwrap()).unwrap();
    let expected: HashMap<String, Tensor> =
        candle_core::safetensors::load(dir.join("expected.safetensors"), &Device::Cpu).unwrap();
    let packed = packed(&cases);
    let (logits, logprobs) = (decoder.logits(&packed).unwrap(), decoder.token_logprobs(&packed).unwrap());
    let (mut row, mut target) = (0, 0);
    for (i, case) in cases.iter().enumerate() {
        let n = case.tokens.len();
        assert_close("logits", &logits.narrow(0, row, n).unwrap(), &expected[&format!("logits.{i}")], 1e-4, 0.0);
        let want = expected[&format!("logprobs.{i}")].narrow(0, 1, n - 1).unwrap();
        assert_close("logprobs", &logprobs.narrow(0, target, n - 1).unwrap(), &want, 1e-4, 0.0);
        (row, target) = (row + n, target + n - 1);
    }
    for kind in ["sft", "pg", "is", "ppo", "cispo"] {
        let value = loss(kind, &decoder.token_logprobs(&packed).unwrap(), &cases).unwrap();
        assert_close(kind, &value, &expected[&format!("loss.{kind}")], 1e-4, 1e-4);
        let grads = value.backward().unwrap();
        for (name, var) in decoder.vars() {
            let grad = grads.get(var.as_tensor()).unwrap_or_else(|| panic!("{name} gets no gradient"));
            let want = wanted(&expected, &format!("grad.{kind}"), name, var.dim(0).unwrap());
            assert_close(&format!("{kind} {name}"), grad, &want, 0.0, 1e-3);
        }
    }
}

#[test]
fn agrees_with_every_folder() {
    let Some(root) = std::env::var_os("RAO_LOG_VECTORS") else {
        println!("skipped: RAO_LOG_VECTORS is not set");
        return;
    };
    let entries = std::fs::read_dir(PathBuf::from(root).join("models")).unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "no model folders");
    let mut checked = 0;
    for dir in folders {
        let config: serde_json::Value =
            serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
        let name = config["architectures"][0].as_str().unwrap().to_owned();
        if SUPPORTED.contains(&name.as_str()) {
            check(&dir);
            checked += 1;
        } else {
            match Decoder::load(&dir) {
                Err(PolicyError::Architecture { name: refused }) => assert_eq!(refused, name),
                other => panic!("{name} must be refused by name, got {:?}", other.err()),
            }
        }
    }
    assert!(checked >= SUPPORTED.len(), "only {checked} folders are of a supported kind");
}

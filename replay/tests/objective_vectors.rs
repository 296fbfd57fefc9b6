//! The losses and the optimizer against PyTorch's numbers: every folder of `models/` in `RAO_LOG_VECTORS`.
#![expect(clippy::unwrap_used, reason = "a missing entry of a vector file is a failed test")]

use std::path::{Path, PathBuf};

use rao_replay::objective::{LOSSES, Objective};
use rao_replay::optimizer::{AdamW, AdamWSettings, Parameter};
use safetensors::SafeTensors;
use serde_json::Value;

fn folders() -> Vec<PathBuf> {
    let Some(root) = std::env::var_os("RAO_LOG_VECTORS").map(PathBuf::from) else {
        println!("skipped: RAO_LOG_VECTORS is not set");
        return Vec::new();
    };
    let root = root.join("models");
    let entries = std::fs::read_dir(&root).unwrap_or_else(|e| panic!("{}: {e}", root.display()));
    let mut folders: Vec<PathBuf> =
        entries.map(|entry| entry.unwrap().path()).filter(|path| path.join("case.json").exists()).collect();
    folders.sort();
    assert!(!folders.is_empty(), "no model vectors in {}", root.display());
    folders
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Option<Vec<f32>> {
    let tensor = file.tensor(name).ok()?;
    Some(tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// A weight's entry. Experts are stacked there, and their gate and up matrices are one, gate rows first.
fn entry(file: &SafeTensors<'_>, prefix: &str, name: &str) -> Option<Vec<f32>> {
    let Some((layer, rest)) = name.split_once("experts.") else { return floats(file, &format!("{prefix}.{name}")) };
    let (expert, part) = rest.split_once('.')?;
    let (stack, half) = match part {
        "gate_proj.weight" => ("gate_up_proj", Some(0)),
        "up_proj.weight" => ("gate_up_proj", Some(1)),
        _ => ("down_proj", None),
    };
    let stack = format!("{prefix}.{layer}experts.{stack}");
    let (all, count) = (floats(file, &stack)?, file.tensor(&stack).ok()?.shape()[0]);
    let matrix = all.chunks(all.len() / count).nth(expert.parse().ok()?)?;
    Some(half.map_or(matrix, |half| &matrix[half * matrix.len() / 2..][..matrix.len() / 2]).to_vec())
}

fn case(folder: &Path) -> Vec<Value> {
    serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap()
}

/// Of one sequence: coefficient, and for its masked tokens the model's and the stored log-probabilities.
fn sequence(value: &Value, logprobs: &[f32]) -> (f64, Vec<f32>, Vec<f32>) {
    let masked: Vec<usize> = value["mask"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .filter(|(_, m)| m.as_u64() == Some(1))
        .map(|(i, _)| i)
        .collect();
    let old = |i: &usize| value["old_logprobs"][*i].as_f64().unwrap() as f32;
    let current = masked.iter().map(|i| logprobs[*i]).collect();
    (value["coefficient"].as_f64().unwrap(), current, masked.iter().map(old).collect())
}

#[test]
fn the_five_losses_equal_the_reference() {
    for folder in folders() {
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let sequences: Vec<_> = case(&folder)
            .iter()
            .enumerate()
            .map(|(i, value)| sequence(value, &floats(&expected, &format!("logprobs.{i}")).unwrap()))
            .collect();
        let tokens = sequences.iter().map(|(_, current, _)| current.len() as u64).sum();
        for (loss, name) in LOSSES {
            let objective = Objective::new(loss);
            let shares = sequences.iter().map(|(c, current, stored)| {
                let stored: &[f32] = if objective.needs_stored() { stored } else { &[] };
                objective.share(*c, current, stored, tokens).unwrap().loss
            });
            let got: f64 = shares.sum();
            let wanted = f64::from(floats(&expected, &format!("loss.{name}")).unwrap()[0]);
            let error = (got - wanted).abs() / wanted.abs().max(1.0);
            assert!(error < 1e-5, "{}: {name}: got {got}, expected {wanted}", folder.display());
        }
    }
}

#[test]
fn an_adamw_step_equals_the_reference() {
    let settings = AdamWSettings { decay_vectors: true, clip_norm: 0.0, ..AdamWSettings::default() };
    for folder in folders() {
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let expected = SafeTensors::deserialize(&bytes).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let model = SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<&str> = model.names();
        names.sort_unstable();
        assert!(names.len() >= 10, "{}: only {} parameters to compare", folder.display(), names.len());
        let shapes = names.iter().map(|name| ((*name).to_owned(), model.tensor(name).unwrap().shape().to_vec()));
        let mut optimizer = AdamW::new(settings, shapes);
        let mut values: Vec<Vec<f32>> = names.iter().map(|name| floats(&model, name).unwrap()).collect();
        let gradients: Vec<Vec<f32>> = names.iter().map(|name| entry(&expected, "grad.cispo", name).unwrap()).collect();
        let mut parameters: Vec<Parameter<'_>> = names
            .iter()
            .zip(&mut values)
            .zip(&gradients)
            .map(|((name, values), gradient)| Parameter { name, values, gradient })
            .collect();
        optimizer.step(1e-2, &mut parameters).unwrap();
        for (name, values) in names.iter().zip(&values) {
            let wanted = entry(&expected, "adamw", name).unwrap();
            let error = values.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(error < 1e-6, "{}: {name}: off by {error}", folder.display());
        }
    }
}

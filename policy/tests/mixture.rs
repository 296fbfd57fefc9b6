//! Mixtures of experts: the same exactness as dense models, and the names and layouts that files use.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use candle_core::{Device, Tensor};
use common::{config, ids, packed};
use rao_policy::{
    Architecture, Chat, Completion, Config, Decoder, Experts, Limits, LocalPolicy, Packed, PackedSequence, Policy,
    Request, SampleKey, Sampler,
};
use std::collections::{BTreeMap, HashMap};

const VOCABULARY: usize = 300;

fn mixture() -> Config {
    let experts = Experts { count: 6, per_token: 2, width: 40, normalize: true, step: 1, dense: vec![1] };
    Config { architecture: Architecture::Qwen3Moe, experts: Some(experts), layers: 3, ..config(VOCABULARY) }
}

fn decoder() -> Decoder {
    let decoder = Decoder::init(mixture(), 5).unwrap();
    for var in decoder.vars().values() {
        var.set(&(var.as_tensor() * 1.9).unwrap()).unwrap();
    }
    decoder
}

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

fn sample(contexts: &[Vec<u32>], rows: std::ops::Range<usize>) -> Vec<Completion> {
    let mut policy = LocalPolicy::new("test", decoder(), Chat::bytes().unwrap(), Limits::default()).unwrap();
    let requests: Vec<Request<'_>> = rows
        .map(|row| Request {
            row: row as u64,
            context: &contexts[row],
            sampler: Sampler::whole(1.0, 20),
            window: 400,
            key: SampleKey([row as u8; 32]),
        })
        .collect();
    policy.sample(&requests).unwrap()
}

#[test]
fn rows_do_not_see_each_other_and_training_sees_the_same_bits() {
    let contexts: Vec<Vec<u32>> = [1, 40, 17, 3, 90, 5].iter().map(|n| ids(*n, *n as usize, VOCABULARY)).collect();
    let together = sample(&contexts, 0..6);
    for (row, in_company) in together.iter().enumerate() {
        let alone = sample(&contexts, row..row + 1).remove(0);
        assert_eq!(alone.tokens, in_company.tokens, "row {row}");
        assert_eq!(bits(&alone.logprobs), bits(&in_company.logprobs), "row {row}");
    }
    let sequences = contexts.iter().zip(&together).map(|(context, completion)| {
        let tokens = [context.clone(), completion.tokens.clone()].concat();
        PackedSequence { targets: (context.len()..tokens.len()).collect(), tokens }
    });
    let packed = Packed { sequences: sequences.collect() };
    let trained: Vec<f32> = decoder().token_logprobs(&packed).unwrap().to_vec1().unwrap();
    let sampled: Vec<f32> = together.iter().flat_map(|completion| completion.logprobs.clone()).collect();
    assert_eq!(bits(&trained), bits(&sampled));
}

#[test]
fn every_tensor_has_a_gradient_also_of_experts_that_nothing_went_through() {
    let decoder = decoder();
    let pass = decoder.pass(&packed(&[ids(1, 3, VOCABULARY)])).unwrap();
    let gradients = pass.gradients(&[1.0, 1.0], None).unwrap();
    assert!(gradients.keys().eq(decoder.vars().keys()));
    let largest = |name: &str| {
        gradients[name].flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().fold(0f32, |m, x| m.max(x.abs()))
    };
    let idle = (0..6).filter(|e| largest(&format!("model.layers.0.mlp.experts.{e}.up_proj.weight")) == 0.0).count();
    assert!((0..6).contains(&idle) && idle > 0, "three tokens cannot go through six pairs: {idle}");
    assert!(largest("model.layers.0.mlp.gate.weight") > 0.0);
}

/// A file as Qwen3-VL-MoE's are: other names, experts of a layer in one tensor, and a part that sees.
#[test]
fn the_text_part_of_a_seeing_model_is_the_same_model() {
    let decoder = decoder();
    let own: BTreeMap<String, Tensor> =
        decoder.vars().iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
    let mut file: HashMap<String, Tensor> = HashMap::new();
    file.insert(
        "model.visual.patch_embed.proj.weight".to_owned(),
        Tensor::zeros(4, candle_core::DType::F32, &Device::Cpu).unwrap(),
    );
    for (name, tensor) in &own {
        if !name.contains(".experts.") {
            file.insert(name.replacen("model.", "model.language_model.", 1), tensor.clone());
        }
    }
    for layer in [0, 2] {
        let expert = |e: usize, part: &str| own[&format!("model.layers.{layer}.mlp.experts.{e}.{part}.weight")].clone();
        let both = |e| Tensor::cat(&[expert(e, "gate_proj"), expert(e, "up_proj")], 0).unwrap().t().unwrap();
        let gate_up = Tensor::stack(&(0..6).map(both).collect::<Vec<_>>(), 0).unwrap();
        let down = Tensor::stack(&(0..6).map(|e| expert(e, "down_proj").t().unwrap()).collect::<Vec<_>>(), 0).unwrap();
        let name = format!("model.language_model.layers.{layer}.mlp.experts");
        file.insert(format!("{name}.gate_up_proj"), gate_up.contiguous().unwrap());
        file.insert(format!("{name}.down_proj"), down.contiguous().unwrap());
    }
    let dir = tempfile::tempdir().unwrap();
    let text: serde_json::Value = serde_json::from_slice(&decoder.config().to_json()).unwrap();
    let json = serde_json::json!({"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": text});
    std::fs::write(dir.path().join("config.json"), json.to_string()).unwrap();
    candle_core::safetensors::save(&file, dir.path().join("model.safetensors")).unwrap();
    let read = Decoder::load(dir.path()).unwrap();
    assert_eq!(read.digest().unwrap(), decoder.digest().unwrap());
    assert_eq!(read.config(), decoder.config());

    let stack = "model.language_model.layers.0.mlp.experts.down_proj";
    file.insert(stack.to_owned(), Tensor::zeros((6, 7, 8), candle_core::DType::F32, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&file, dir.path().join("model.safetensors")).unwrap();
    let error = Decoder::load(dir.path()).err().unwrap().to_string();
    assert!(error.contains("layers.0.mlp.experts.down_proj") && error.contains("[6, 7, 8]"), "{error}");
}

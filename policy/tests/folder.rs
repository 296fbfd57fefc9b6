//! Model folders: what is written is read back, and what is wrong is named.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use candle_core::{DType, Device, Tensor};
use common::{config, ids, packed};
use rao_policy::{Chat, Config, Decoder, Limits, LocalPolicy, Policy, PolicyError};
use std::collections::{BTreeMap, HashMap};

fn decoder() -> Decoder {
    let mut decoder = Decoder::init(config(300), 11).unwrap();
    decoder.set_version(17);
    decoder
}

#[test]
fn a_saved_folder_is_the_same_policy() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("ckpt-17");
    let (decoder, chat) = (decoder(), Chat::bytes().unwrap());
    decoder.save(&dir).unwrap();
    chat.save(&dir).unwrap();
    decoder.save(&dir).unwrap();
    let policy = LocalPolicy::load(&dir, Limits::default()).unwrap();
    let identity = policy.identity();
    assert_eq!((identity.name.as_str(), identity.version), ("ckpt-17", 17));
    assert_eq!(identity.weights, decoder.digest().unwrap());
    assert_eq!(policy.chat().digest(), chat.digest());
    assert_eq!(policy.into_decoder().unwrap().to_bytes().unwrap(), decoder.to_bytes().unwrap());
    let mut names: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"]);
}

#[test]
fn seeds_and_weights_decide_the_digest() {
    let digest = |seed| Decoder::init(config(300), seed).unwrap().digest().unwrap();
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
    let (decoder, before) = (decoder(), decoder().digest().unwrap());
    let copy = decoder.snapshot().unwrap();
    let var = &decoder.vars()["model.norm.weight"];
    var.set(&(var.as_tensor() + 1e-3).unwrap()).unwrap();
    assert_ne!(decoder.digest().unwrap(), before);
    assert_eq!((copy.digest().unwrap(), copy.version()), (before, 17));
}

#[test]
fn bf16_weights_are_widened() {
    let decoder = decoder();
    let narrow: HashMap<String, Tensor> = decoder
        .vars()
        .iter()
        .map(|(name, var)| (name.clone(), var.as_tensor().to_dtype(DType::BF16).unwrap()))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    candle_core::safetensors::save(&narrow, &path).unwrap();
    let read = Decoder::from_bytes(&decoder.config().to_json(), &std::fs::read(path).unwrap()).unwrap();
    for (name, var) in read.vars() {
        let want = narrow[name].to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(var.flatten_all().unwrap().to_vec1::<f32>().unwrap(), want, "{name}");
    }
    assert_eq!(read.version(), 0);
}

#[test]
fn faults_are_named() {
    let root = tempfile::tempdir().unwrap();
    let missing = |dir: &std::path::Path| LocalPolicy::load(dir, Limits::default()).err().unwrap().to_string();
    assert!(missing(&root.path().join("nowhere")).contains("nowhere"));
    decoder().save(root.path()).unwrap();
    assert!(missing(root.path()).contains("tokenizer.json"));

    let json = decoder().config().to_json();
    let cut = decoder().to_bytes().unwrap();
    let error = Decoder::from_bytes(&json, &cut[..cut.len() - 9]).err().unwrap();
    assert!(matches!(error, PolicyError::Weights { .. }), "{error}");

    let all = || -> BTreeMap<String, Tensor> {
        decoder().vars().iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect()
    };
    let fault = |edit: fn(&mut BTreeMap<String, Tensor>)| {
        let mut tensors = all();
        edit(&mut tensors);
        Decoder::new(config(300), tensors).err().unwrap().to_string()
    };
    let gate = "model.layers.1.mlp.gate_proj.weight";
    assert!(fault(|t| drop(t.remove("model.layers.1.mlp.gate_proj.weight"))).contains(gate));
    let wrong = fault(|t| {
        let small = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap();
        t.insert("model.layers.1.mlp.gate_proj.weight".to_owned(), small);
    });
    assert!(wrong.contains(gate) && wrong.contains("[72, 48]"), "{wrong}");
    assert!(fault(|t| drop(t.insert("extra".to_owned(), t["model.norm.weight"].clone()))).contains("extra"));

    let small = Decoder::init(Config { vocab_size: 258, ..config(300) }, 0).unwrap();
    let error = LocalPolicy::new("small", small, Chat::bytes().unwrap(), Limits::default()).err().unwrap();
    assert!(matches!(error, PolicyError::Vocabulary { tokenizer: 259, model: 258 }), "{error}");

    let mut batch = packed(&[ids(0, 5, 300)]);
    batch.sequences[0].targets = vec![5];
    assert!(decoder().token_logprobs(&batch).err().unwrap().to_string().contains("target position 5"));
    batch.sequences[0].targets = vec![2, 2];
    assert!(decoder().token_logprobs(&batch).is_err());
    batch.sequences[0].targets = vec![];
    assert_eq!(decoder().token_logprobs(&batch).unwrap().dims(), [0]);
}

#[test]
fn shards_are_one_model() {
    let (root, decoder) = (tempfile::tempdir().unwrap(), decoder());
    let write = |name: &str, wanted: &dyn Fn(usize) -> bool| {
        let part: HashMap<String, Tensor> = decoder
            .vars()
            .iter()
            .enumerate()
            .filter(|(at, _)| wanted(*at))
            .map(|(_, (name, var))| (name.clone(), var.as_detached_tensor()))
            .collect();
        candle_core::safetensors::save(&part, root.path().join(name)).unwrap();
    };
    let (first, second) = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors");
    let map: serde_json::Map<String, serde_json::Value> = decoder
        .vars()
        .keys()
        .enumerate()
        .map(|(at, name)| (name.clone(), serde_json::json!(if at < 9 { first } else { second })))
        .collect();
    let index = |map: &serde_json::Map<String, serde_json::Value>| {
        let json = serde_json::json!({"metadata": {"total_size": 1}, "weight_map": map});
        std::fs::write(root.path().join("model.safetensors.index.json"), json.to_string()).unwrap();
    };
    std::fs::write(root.path().join("config.json"), decoder.config().to_json()).unwrap();
    write(first, &|at| at < 9);
    write(second, &|at| at >= 9);
    index(&map);
    assert_eq!(Decoder::load(root.path()).unwrap().digest().unwrap(), decoder.digest().unwrap());

    let message = || Decoder::load(root.path()).err().unwrap().to_string();
    let name = decoder.vars().keys().nth(9).unwrap().as_str();
    write(second, &|at| at > 9);
    assert!(message().contains(name) && message().contains(second), "missing: {}", message());
    write(second, &|at| at >= 8);
    let twice = decoder.vars().keys().nth(8).unwrap().as_str();
    assert!(message().contains(twice) && message().contains(first), "in both: {}", message());
    write(second, &|at| at >= 9);
    let mut short = map.clone();
    short.remove(name);
    index(&short);
    assert!(message().contains(name) && message().contains("does not name it"), "unnamed: {}", message());
    let mut outside = map.clone();
    outside.insert(name.to_owned(), serde_json::json!("../other.safetensors"));
    index(&outside);
    assert!(message().contains("not a file beside it"), "{}", message());
    index(&map);
    std::fs::remove_file(root.path().join(second)).unwrap();
    assert!(message().contains(second));
}

//! Low-rank adapters: what they train, that they sample and train alike, and that their files are peft's.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use candle_core::{Device, Tensor};
use common::{config, ids, packed};
use rao_policy::{
    ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterConfig, Architecture, Chat, Config, Decoder, Limits, LocalPolicy, Packed,
    PackedSequence, Policy, Request, SampleKey, Sampler, TARGETS,
};

const VOCABULARY: usize = 300;

fn settings(targets: &[&str]) -> AdapterConfig {
    AdapterConfig { rank: 3, alpha: 6.0, targets: targets.iter().map(|t| (*t).to_owned()).collect() }
}

fn base() -> Decoder {
    let decoder = Decoder::init(config(VOCABULARY), 5).unwrap();
    for var in decoder.vars().values() {
        var.set(&(var.as_tensor() * 1.7).unwrap()).unwrap();
    }
    decoder
}

/// An adapter that does something.
fn adapted(targets: &[&str]) -> Decoder {
    let decoder = base().with_adapter(settings(targets), 7).unwrap();
    for (at, (name, var)) in decoder.vars().iter().enumerate() {
        if name.ends_with("lora_B.weight") {
            let numbers: Vec<f32> =
                ids(at as u64, var.elem_count(), 1000).iter().map(|n| *n as f32 / 5e3 - 0.1).collect();
            var.set(&Tensor::from_vec(numbers, var.shape(), &Device::Cpu).unwrap()).unwrap();
        }
    }
    decoder
}

fn logprobs(decoder: &Decoder, packed: &Packed) -> Vec<f32> {
    decoder.token_logprobs(packed).unwrap().to_vec1().unwrap()
}

fn batch() -> Packed {
    packed(&[ids(1, 40, VOCABULARY), ids(2, 17, VOCABULARY)])
}

#[test]
fn a_fresh_adapter_changes_nothing_and_only_its_matrices_are_trained() {
    let decoder = base().with_adapter(settings(&["q_proj", "v_proj", "down_proj"]), 7).unwrap();
    assert_eq!(logprobs(&decoder, &batch()), logprobs(&base(), &batch()));
    assert_ne!(decoder.digest().unwrap(), base().digest().unwrap());
    assert_eq!(decoder.vars().len(), 2 * 2 * 3, "layers, matrices, targets");
    assert_eq!(decoder.vars()["model.layers.1.self_attn.v_proj.lora_A.weight"].dims(), [3, 48]);
    assert_eq!(decoder.vars()["model.layers.1.self_attn.v_proj.lora_B.weight"].dims(), [40, 3]);
    let pass = decoder.pass(&batch()).unwrap();
    let gradients = pass.gradients(&vec![1.0; batch().targets()], None).unwrap();
    assert!(gradients.keys().eq(decoder.vars().keys()));
    for (name, gradient) in gradients {
        assert_eq!(gradient.dims(), decoder.vars()[&name].dims());
        // B is zero, and so is the gradient of A behind it.
        let size = gradient.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        assert_eq!(size > 0.0, name.ends_with("lora_B.weight"), "{name}");
    }
    let other = base().with_adapter(settings(&["q_proj"]), 8).unwrap();
    let a = "model.layers.0.self_attn.q_proj.lora_A.weight";
    let flat = |d: &Decoder| d.vars()[a].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_ne!(flat(&decoder), flat(&other), "the seed decides A");
    assert!(flat(&decoder).iter().all(|x| x.abs() <= 1.0 / 48f32.sqrt()));
}

#[test]
fn gradients_agree_with_finite_differences() {
    let llama = Config { architecture: Architecture::Llama, tie_word_embeddings: false, ..config(VOCABULARY) };
    for decoder in [adapted(&TARGETS), Decoder::init(llama, 3).unwrap().with_adapter(settings(&TARGETS), 1).unwrap()] {
        let (packed, count) = (batch(), batch().targets());
        let slopes: Vec<f32> = (0..count).map(|i| ((i * 37 % 11) as f32 - 4.0) / 20.0).collect();
        let loss = || -> f64 {
            logprobs(&decoder, &packed).iter().zip(&slopes).map(|(lp, s)| f64::from(*lp) * f64::from(*s)).sum()
        };
        for (name, gradient) in decoder.pass(&packed).unwrap().gradients(&slopes, None).unwrap() {
            let (var, start) = (&decoder.vars()[&name], decoder.vars()[&name].as_tensor().copy().unwrap());
            let length = f64::from(gradient.sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap()).sqrt();
            if length == 0.0 {
                continue;
            }
            let step = 0.05;
            let at = |offset: f64| {
                var.set(&(&start + (&gradient * (offset / length)).unwrap()).unwrap()).unwrap();
                loss()
            };
            let slope = |step: f64| (at(step) - at(-step)) / (2.0 * step);
            let slope = (4.0 * slope(step / 2.0) - slope(step)) / 3.0;
            var.set(&start).unwrap();
            assert!((slope - length).abs() < 0.01 * length, "{name}: slope {slope:e}, gradient {length:e}");
        }
    }
}

#[test]
fn sampled_and_trained_logprobs_have_the_same_bits() {
    let mut policy = LocalPolicy::new("test", adapted(&TARGETS), Chat::bytes().unwrap(), Limits::default()).unwrap();
    let contexts = [ids(1, 30, VOCABULARY), ids(2, 5, VOCABULARY), ids(3, 1, VOCABULARY)];
    let sampler = Sampler::whole(1.0, 20);
    let request = |(row, context)| Request { row, context, sampler, window: 400, key: SampleKey([row as u8; 32]) };
    let requests: Vec<Request<'_>> = (0..).zip(contexts.iter().map(Vec::as_slice)).map(request).collect();
    let done = policy.sample(&requests).unwrap();
    let sequence = |(context, done): (&Vec<u32>, &rao_policy::Completion)| PackedSequence {
        tokens: [context.clone(), done.tokens.clone()].concat(),
        targets: (context.len()..context.len() + done.tokens.len()).collect(),
    };
    let packed = Packed { sequences: contexts.iter().zip(&done).map(sequence).collect() };
    let sampled: Vec<f32> = done.iter().flat_map(|done| done.logprobs.clone()).collect();
    assert_eq!(logprobs(&policy.into_decoder().unwrap(), &packed), sampled);
    assert_ne!(logprobs(&base(), &packed), sampled, "the adapter did something");
}

#[test]
fn files_are_pefts_and_come_back_bit_for_bit() {
    let mut decoder = adapted(&["q_proj", "up_proj"]);
    decoder.set_version(12);
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in decoder.adapter_files(Some("some/base")).unwrap() {
        std::fs::write(dir.path().join(name), bytes).unwrap();
    }
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(dir.path().join(ADAPTER_CONFIG_FILE)).unwrap()).unwrap();
    for (key, value) in [("peft_type", "LORA"), ("task_type", "CAUSAL_LM"), ("base_model_name_or_path", "some/base")] {
        assert_eq!(json[key], value);
    }
    assert_eq!((json["r"].as_u64(), json["lora_alpha"].as_f64()), (Some(3), Some(6.0)));
    let stored = candle_core::safetensors::load(dir.path().join(ADAPTER_FILE), &Device::Cpu).unwrap();
    assert_eq!(stored.len(), 8);
    assert_eq!(stored["base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"].dims(), [72, 3]);

    let back = base().load_adapter(dir.path()).unwrap();
    assert_eq!(logprobs(&back, &batch()), logprobs(&decoder, &batch()));
    assert_eq!((back.digest().unwrap(), back.version()), (decoder.digest().unwrap(), 12));
    assert_eq!(back.snapshot().unwrap().digest().unwrap(), decoder.digest().unwrap());

    let other = Decoder::init(config(VOCABULARY), 6).unwrap().load_adapter(dir.path());
    assert!(other.err().unwrap().to_string().contains("other weights"));
    let again = back.with_adapter(settings(&["q_proj"]), 1);
    assert!(again.err().unwrap().to_string().contains("already has one"));
}

#[test]
fn merging_keeps_the_distribution() {
    let decoder = adapted(&TARGETS);
    let merged = decoder.merged().unwrap();
    assert!(merged.adapter().is_none());
    assert!(merged.vars().keys().eq(base().vars().keys()));
    let (a, b) = (logprobs(&decoder, &batch()), logprobs(&merged, &batch()));
    let plain = logprobs(&base(), &batch());
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    assert!(distance(&a, &b) < 1e-4, "{}", distance(&a, &b));
    assert!(distance(&a, &plain) > 1e-2, "{}", distance(&a, &plain));
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    let whole: serde_json::Value = serde_json::from_slice(&settings(&["q_proj"]).to_json(None)).unwrap();
    assert_eq!(AdapterConfig::from_json(whole.to_string().as_bytes()).unwrap(), (settings(&["q_proj"]), None));
    let message = |key: &str, value: serde_json::Value| {
        let mut json = whole.clone();
        json[key] = value;
        AdapterConfig::from_json(json.to_string().as_bytes()).unwrap_err().to_string()
    };
    for (key, value, word) in [
        ("peft_type", "IA3".into(), "IA3"),
        ("use_dora", true.into(), "use_dora"),
        ("use_rslora", true.into(), "use_rslora"),
        ("bias", "all".into(), "bias"),
        ("modules_to_save", serde_json::json!(["lm_head"]), "modules_to_save"),
        ("target_modules", ".*q_proj".into(), "target_modules"),
        ("target_modules", serde_json::json!(["embed_tokens"]), "embed_tokens"),
        ("r", 0.into(), "rank"),
        ("lora_alpha", serde_json::json!(-1.0), "alpha"),
    ] {
        let said = message(key, value);
        assert!(said.contains(word), "{key}: {said}");
    }
    let all = serde_json::json!({"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": "all-linear",
        "base_model_name_or_path": "x"});
    let (config, base) = AdapterConfig::from_json(all.to_string().as_bytes()).unwrap();
    assert_eq!((config.targets.len(), base.as_deref()), (TARGETS.len(), Some("x")));
}

/// `W + (alpha / rank) B A`, element by element in f64; and what is not targeted stays as it was.
#[test]
fn a_merged_matrix_is_the_formulas() {
    let targets = ["q_proj", "down_proj"];
    let decoder = adapted(&targets);
    let (config, merged, plain) = (settings(&targets), decoder.merged().unwrap(), base());
    assert_ne!((config.alpha / config.rank as f64, config.rank), (1.0, 1));
    let rows = |decoder: &Decoder, name: &str| decoder.vars()[name].to_vec2::<f32>().unwrap();
    for (name, var) in merged.vars() {
        let module = name.strip_suffix(".weight").unwrap();
        let Some(down) = decoder.vars().get(&format!("{module}.lora_A.weight")) else {
            let same = |var: &candle_core::Var| var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(same(var), same(&plain.vars()[name]), "{name}");
            continue;
        };
        assert!(targets.iter().any(|target| module.ends_with(target)));
        let (down, up) = (down.to_vec2::<f32>().unwrap(), rows(&decoder, &format!("{module}.lora_B.weight")));
        for ((got, w), b) in rows(&merged, name).iter().zip(rows(&plain, name)).zip(&up) {
            for (column, (got, w)) in got.iter().zip(w).enumerate() {
                let product: f64 = b.iter().zip(&down).map(|(b, a)| f64::from(*b) * f64::from(a[column])).sum();
                let wanted = f64::from(w) + config.alpha / config.rank as f64 * product;
                assert!((f64::from(*got) - wanted).abs() < 1e-5 * (1.0 + wanted.abs()), "{name}: {got} for {wanted}");
            }
        }
    }
}

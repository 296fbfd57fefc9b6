//! GGUF files: made here from a small model, read back as the same model; and as frozen quantized policies.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use candle_core::quantized::gguf_file::{Value, write};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use common::{config, ids, packed};
use rao_policy::{
    Architecture, Chat, Completion, Config, Decoder, Experts, Limits, LocalPolicy, Policy, PolicyError,
    QuantizedPolicy, Request, SampleKey, Sampler,
};
use std::collections::HashMap;
use std::path::Path;

const VOCABULARY: usize = 259;

fn model(architecture: Architecture) -> Decoder {
    let experts = Experts { count: 4, per_token: 2, width: 32, normalize: true, step: 1, dense: Vec::new() };
    let experts = (architecture == Architecture::Qwen3Moe).then_some(experts);
    let sizes = Config { head_dim: 16, hidden_size: 64, intermediate_size: 96, ..config(VOCABULARY) };
    let config = Config { architecture, experts, ..sizes };
    let decoder = Decoder::init(config, 3).unwrap();
    for var in decoder.vars().values() {
        var.set(&(var.as_tensor() * 1.5).unwrap()).unwrap();
    }
    decoder
}

fn theirs(name: &str) -> String {
    let parts = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers", "blk"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.experts.gate_proj", "ffn_gate_exps"),
        ("mlp.experts.up_proj", "ffn_up_exps"),
        ("mlp.experts.down_proj", "ffn_down_exps"),
        ("mlp.gate.", "ffn_gate_inp."),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    parts.iter().fold(name.to_owned(), |name, (ours, theirs)| name.replace(ours, theirs))
}

/// The rows of each head in the order of llama.cpp's rotation: first and second halves in turn.
fn interleave(tensor: &Tensor, head_dim: usize) -> Tensor {
    let (rows, inputs) = tensor.dims2().unwrap();
    let heads = tensor.reshape((rows / head_dim, 2, head_dim / 2, inputs)).unwrap();
    heads.transpose(1, 2).unwrap().contiguous().unwrap().reshape((rows, inputs)).unwrap()
}

/// Every tensor under llama.cpp's name. Those of a layer's experts lie in one, the first expert's first.
fn tensors(decoder: &Decoder) -> Vec<(String, Tensor)> {
    let config = decoder.config();
    let mut all: Vec<(String, Tensor)> = Vec::new();
    for (name, var) in decoder.vars() {
        let tensor = var.as_detached_tensor();
        if let Some((layer, rest)) = name.split_once(".experts.") {
            let (expert, part) = rest.split_once('.').unwrap();
            if expert == "0" {
                let of = |e: usize| decoder.vars()[&format!("{layer}.experts.{e}.{part}")].as_detached_tensor();
                let stack: Vec<Tensor> = (0..config.experts.as_ref().unwrap().count).map(of).collect();
                all.push((theirs(&format!("{layer}.experts.{part}")), Tensor::stack(&stack, 0).unwrap()));
            }
            continue;
        }
        let rotated = name.contains("q_proj") || name.contains("k_proj");
        let is_interleaved = rotated && config.architecture == Architecture::Llama;
        all.push((theirs(name), if is_interleaved { interleave(&tensor, config.head_dim) } else { tensor }));
    }
    all
}

fn metadata(kind: &str, config: &Config) -> Vec<(String, Value)> {
    let chat: serde_json::Value = serde_json::from_slice(Chat::bytes().unwrap().to_json()).unwrap();
    let mut tokens: Vec<(u64, String)> =
        chat["model"]["vocab"].as_object().unwrap().iter().map(|(t, id)| (id.as_u64().unwrap(), t.clone())).collect();
    tokens.sort();
    let count = |n: usize| Value::U32(n as u32);
    let mut all: Vec<(String, Value)> = [
        ("block_count", count(config.layers)),
        ("context_length", count(config.max_positions)),
        ("embedding_length", count(config.hidden_size)),
        ("feed_forward_length", count(config.intermediate_size)),
        ("attention.head_count", count(config.heads)),
        ("attention.head_count_kv", count(config.kv_heads)),
        ("attention.key_length", count(config.head_dim)),
        ("rope.dimension_count", count(config.head_dim)),
        ("rope.freq_base", Value::F32(config.rope_theta as f32)),
        ("attention.layer_norm_rms_epsilon", Value::F32(config.rms_norm_eps as f32)),
    ]
    .into_iter()
    .map(|(key, value)| (format!("{kind}.{key}"), value))
    .collect();
    if let Some(experts) = &config.experts {
        let numbers = [
            ("expert_count", experts.count),
            ("expert_used_count", experts.per_token),
            ("expert_feed_forward_length", experts.width),
        ];
        all.extend(numbers.map(|(key, value)| (format!("{kind}.{key}"), count(value))));
    }
    let kinds = (0..tokens.len()).map(|id| Value::I32(if id < 3 { 3 } else { 1 })).collect();
    let text = |text: &str| Value::String(text.to_owned());
    all.extend(
        [
            ("general.architecture", text(kind)),
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("smollm")),
            ("tokenizer.ggml.tokens", Value::Array(tokens.into_iter().map(|(_, t)| Value::String(t)).collect())),
            ("tokenizer.ggml.merges", Value::Array(Vec::new())),
            ("tokenizer.ggml.token_type", Value::Array(kinds)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
            (
                "tokenizer.chat_template",
                text("{% for m in messages %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}<|im_start|>assistant:"),
            ),
        ]
        .map(|(key, value)| (key.to_owned(), value)),
    );
    all
}

fn save(decoder: &Decoder, path: &Path, dtype: GgmlDType, edit: impl FnOnce(&mut Vec<(String, Value)>)) {
    let config = decoder.config();
    let kind = match config.architecture {
        Architecture::Llama => "llama",
        Architecture::Qwen3 => "qwen3",
        Architecture::Qwen3Moe => "qwen3moe",
    };
    let mut metadata = metadata(kind, config);
    edit(&mut metadata);
    let tensors: Vec<(String, QTensor)> = tensors(decoder)
        .into_iter()
        .map(|(name, tensor)| {
            let dtype = if tensor.rank() == 1 { GgmlDType::F32 } else { dtype };
            (name, QTensor::quantize(&tensor, dtype).unwrap())
        })
        .collect();
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    write(&mut std::fs::File::create(path).unwrap(), &metadata, &tensors).unwrap();
}

#[test]
fn a_file_is_read_back_as_the_same_model() {
    let dir = tempfile::tempdir().unwrap();
    for architecture in [Architecture::Llama, Architecture::Qwen3, Architecture::Qwen3Moe] {
        let (decoder, path) = (model(architecture), dir.path().join("small.gguf"));
        save(&decoder, &path, GgmlDType::F32, |_| ());
        let policy = LocalPolicy::load(&path, Limits::default()).unwrap();
        assert_eq!(policy.config(), decoder.config());
        assert_eq!(policy.identity().name, "small.gguf");
        let chat = policy.chat();
        assert_eq!(
            chat.decode(&chat.open("S", "a 12<|im_end|>").unwrap()),
            "<|im_start|>system:S<|im_end|><|im_start|>user:a 12<|im_end|><|im_end|><|im_start|>assistant:"
        );
        assert_eq!((chat.end_of_turn(), chat.vocab_size()), (2, VOCABULARY));
        // Its files make the same tokenizer again, as a checkpoint's do.
        assert_eq!(Chat::from_files(chat.files()).unwrap().open("S", "u").unwrap(), chat.open("S", "u").unwrap());
        assert_eq!(policy.into_decoder().unwrap().digest().unwrap(), decoder.digest().unwrap());
    }
}

/// The mixture of the reference vectors, written as llama.cpp writes it, has transformers' logits.
#[test]
fn a_mixture_of_experts_has_the_reference_logits() {
    let Some(root) = std::env::var_os("RAO_LOG_VECTORS") else {
        println!("skipped: RAO_LOG_VECTORS is not set");
        return;
    };
    let folder = Path::new(&root).join("models/qwen3-moe");
    let original = Decoder::load(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mixture.gguf");
    save(&original, &path, GgmlDType::F32, |_| ());
    let read = Decoder::from_gguf(&path).unwrap();
    assert_eq!(read.config(), original.config());
    assert_eq!(read.digest().unwrap(), original.digest().unwrap());
    let cases: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
    let expected: HashMap<String, Tensor> =
        candle_core::safetensors::load(folder.join("expected.safetensors"), &Device::Cpu).unwrap();
    for (i, case) in cases.iter().enumerate() {
        let tokens: Vec<u32> = case["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        let got = read.logits(&packed(&[tokens])).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let wanted = expected[&format!("logits.{i}")].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(got.len(), wanted.len());
        assert!(got.iter().zip(&wanted).all(|(got, wanted)| (got - wanted).abs() < 1e-4), "sequence {i}");
    }
}

/// In a stack of quantized experts every expert is what its matrix alone would be.
#[test]
fn quantized_experts_are_those_of_their_own_matrices() {
    let dir = tempfile::tempdir().unwrap();
    let (decoder, path) = (model(Architecture::Qwen3Moe), dir.path().join("mixture.gguf"));
    save(&decoder, &path, GgmlDType::Q8_0, |_| ());
    let read = Decoder::from_gguf(&path).unwrap();
    for (name, var) in decoder.vars().iter().filter(|(name, _)| name.contains(".experts.")) {
        let alone = QTensor::quantize(&var.as_detached_tensor(), GgmlDType::Q8_0).unwrap();
        let alone = alone.dequantize(&Device::Cpu).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(read.vars()[name].to_vec2::<f32>().unwrap(), alone, "{name}");
    }
    let policy = LocalPolicy::load(&path, Limits::default()).unwrap();
    assert_eq!(policy.config(), decoder.config());
    let error = QuantizedPolicy::load(&path, Limits::default()).err().unwrap().to_string();
    assert!(error.contains("mixture of experts"), "{error}");
}

#[test]
fn faults_of_mixtures_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (decoder, path) = (model(Architecture::Qwen3Moe), dir.path().join("wrong.gguf"));
    let message = |key: &'static str, value: Option<u32>| {
        save(&decoder, &path, GgmlDType::F32, |all| {
            all.retain(|(known, _)| known != key);
            all.extend(value.map(|value| (key.to_owned(), Value::U32(value))));
        });
        Decoder::from_gguf(&path).err().unwrap().to_string()
    };
    assert!(message("qwen3moe.expert_used_count", None).contains("expert_used_count"));
    assert!(message("qwen3moe.expert_count", None).contains("expert"));
    assert!(message("qwen3moe.expert_used_count", Some(5)).contains("num_experts_per_tok"));
    for count in [3, 5] {
        let told = message("qwen3moe.expert_count", Some(count));
        assert!(told.contains("ffn_down_exps.weight") && told.contains("holds 4 experts"), "{told}");
    }
    assert!(message("qwen3moe.expert_feed_forward_length", Some(16)).contains("experts.0."));
}

#[test]
fn faults_are_named() {
    let (dir, decoder) = (tempfile::tempdir().unwrap(), model(Architecture::Llama));
    let path = dir.path().join("wrong.gguf");
    let message = |edit: fn(&mut Vec<(String, Value)>)| {
        save(&decoder, &path, GgmlDType::F32, edit);
        let error = LocalPolicy::load(&path, Limits::default()).err().unwrap();
        assert!(matches!(error, PolicyError::Gguf { .. }), "{error}");
        error.to_string()
    };
    assert!(
        message(|all| all.push(("general.architecture".into(), Value::String("gemma3".into())))).contains("gemma3")
    );
    assert!(message(|all| all.push(("tokenizer.ggml.pre".into(), Value::String("tekken".into())))).contains("tekken"));
    assert!(
        message(|all| all.push(("tokenizer.ggml.model".into(), Value::String("llama".into())))).contains("byte-level")
    );
    assert!(
        message(|all| all.push(("llama.rope.scaling.type".into(), Value::String("longrope".into()))))
            .contains("longrope")
    );
    assert!(message(|all| all.push(("llama.expert_count".into(), Value::U32(8)))).contains("8 experts"));
    assert!(message(|all| all.retain(|(key, _)| key != "llama.block_count")).contains("block_count"));
    std::fs::write(&path, b"GGUF\x03\0\0\0").unwrap();
    assert!(LocalPolicy::load(&path, Limits::default()).err().unwrap().to_string().contains("wrong.gguf"));
}

fn sample(policy: &mut dyn Policy, contexts: &[Vec<u32>], rows: &[usize]) -> Vec<Completion> {
    let requests: Vec<Request<'_>> = rows
        .iter()
        .map(|row| Request {
            row: *row as u64,
            context: &contexts[*row],
            sampler: Sampler::whole(1.0, 8),
            window: 200,
            key: SampleKey([*row as u8; 32]),
        })
        .collect();
    policy.sample(&requests).unwrap()
}

#[test]
fn a_quantized_policy_is_exact_and_close_to_the_dequantized_model() {
    let dir = tempfile::tempdir().unwrap();
    for architecture in [Architecture::Llama, Architecture::Qwen3] {
        let path = dir.path().join("small.gguf");
        save(&model(architecture), &path, GgmlDType::Q8_0, |_| ());
        let load = || QuantizedPolicy::load(&path, Limits::default()).unwrap();
        let contexts: Vec<Vec<u32>> = [5, 12, 9].iter().map(|n| ids(*n, *n as usize, VOCABULARY)).collect();
        let mut warm = load();
        let together = sample(&mut warm, &contexts, &[0, 1, 2]);
        let reversed = sample(&mut load(), &contexts, &[2, 0, 1]);
        assert_eq!(reversed[1], together[0]);
        assert_eq!(reversed[0], together[2]);
        // The next turn, from the cache and from nothing.
        let longer: Vec<Vec<u32>> = contexts
            .iter()
            .zip(&together)
            .map(|(context, c)| [context.clone(), c.tokens.clone(), vec![7, 8]].concat())
            .collect();
        let next = sample(&mut warm, &longer, &[0, 1, 2]);
        assert_eq!(sample(&mut load(), &longer, &[0, 1, 2]), next);
        warm.release(1);
        assert_eq!(sample(&mut warm, &contexts, &[1])[0], together[1]);
        // The same file dequantized gives nearly the same log-probabilities: what differs is the rounding of activations.
        let decoder = Decoder::from_gguf(&path).unwrap();
        let sequences: Vec<Vec<u32>> =
            contexts.iter().zip(&together).map(|(c, t)| [c.clone(), t.tokens.clone()].concat()).collect();
        let scored: Vec<f32> = decoder.token_logprobs(&packed(&sequences)).unwrap().to_vec1().unwrap();
        let mut at = 0;
        for ((context, sequence), completion) in contexts.iter().zip(&sequences).zip(&together) {
            let own = &scored[at + context.len() - 1..at + sequence.len() - 1];
            for (a, b) in own.iter().zip(&completion.logprobs) {
                assert!((a - b).abs() < 0.15, "{architecture:?}: {a} {b}");
            }
            at += sequence.len() - 1;
        }
    }
}

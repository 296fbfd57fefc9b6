//! A GGUF file's tokenizer and template as the files of a model folder.

use super::broken;
use super::metadata::{text, whole};
use crate::{ChatFiles, PolicyError};
use candle_core::quantized::gguf_file::{Content, Value};
use serde_json::{Map, Value as Json, json};
use std::path::Path;

/// llama.cpp's token types: tokens of ordinary text (normal), those that stand for something else (control), and texts that are
/// found before merging (user-defined).
const NORMAL: u64 = 1;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;

pub(super) fn files(path: &Path, content: &Content) -> Result<ChatFiles, PolicyError> {
    let model = text(path, content, "tokenizer.ggml.model")?;
    if model != "gpt2" {
        let reason = format!("its tokenizer is of kind {model}; only byte-level BPE (gpt2) is supported");
        return Err(broken(path, reason));
    }
    let tokens = texts(path, content, "tokenizer.ggml.tokens")?;
    let merges = texts(path, content, "tokenizer.ggml.merges")?;
    let kinds = kinds(path, content, tokens.len())?;
    let steps = Steps::named(path, text(path, content, "tokenizer.ggml.pre").unwrap_or("default"))?;
    let token = |key: &str| {
        let id = content.metadata.get(&format!("tokenizer.ggml.{key}")).and_then(whole)?;
        tokens.get(usize::try_from(id).ok()?).copied()
    };
    let mut config = Map::new();
    for (key, name) in [("bos_token_id", "bos_token"), ("eos_token_id", "eos_token")] {
        if let Some(text) = token(key) {
            config.insert(name.to_owned(), json!(text));
        }
    }
    if let Some(Value::String(template)) = content.metadata.get("tokenizer.chat_template") {
        config.insert("chat_template".to_owned(), json!(template));
    }
    let merges: Vec<[&str; 2]> = merges
        .iter()
        .map(|merge| merge.split_once(' ').map(|(a, b)| [a, b]))
        .collect::<Option<_>>()
        .ok_or_else(|| broken(path, "a merge of its tokenizer is not two tokens".to_owned()))?;
    let tokenizer = definition(&tokens, &merges, &kinds, steps);
    let unwritable = |e: serde_json::Error| PolicyError::Tokenizer { reason: e.to_string() };
    Ok(ChatFiles {
        tokenizer: serde_json::to_vec(&tokenizer).map_err(unwritable)?,
        config: Some(serde_json::to_vec_pretty(&Json::Object(config)).map_err(unwritable)?),
        ..ChatFiles::default()
    })
}

/// What happens to a text before merging.
struct Steps {
    normalizer: Json,
    pre_tokenizers: Json,
    /// Whether a piece that is a token is taken as it is, without merging.
    whole_pieces: bool,
}

impl Steps {
    /// The steps that llama.cpp knows under a name. Its own default, for names that it does not know, is wrong for most of
    /// them, so such a name is refused.
    fn named(path: &Path, name: &str) -> Result<Self, PolicyError> {
        let bytes = |use_regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex});
        let split = |pattern: String| json!([{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, bytes(false)]);
        let words = |digits: &str| {
            format!(
                r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )
        };
        let steps = |normalizer, pre_tokenizers, whole_pieces| Ok(Self { normalizer, pre_tokenizers, whole_pieces });
        match name {
            "gpt-2" | "gpt2" => steps(Json::Null, json!([bytes(true)]), false),
            "smollm" => steps(Json::Null, json!([{"type": "Digits", "individual_digits": true}, bytes(true)]), false),
            "qwen2" => steps(json!({"type": "NFC"}), split(words(r"\p{N}")), false),
            "llama-bpe" | "llama3" | "llama-v3" => steps(Json::Null, split(words(r"\p{N}{1,3}")), true),
            other => {
                let reason = format!(
                    "how its tokenizer splits texts is named {other}; gpt-2, smollm, qwen2 and llama-bpe are supported"
                );
                Err(broken(path, reason))
            }
        }
    }
}

fn definition(tokens: &[&str], merges: &[[&str; 2]], kinds: &[u64], steps: Steps) -> Json {
    let vocabulary: Map<String, Json> =
        tokens.iter().enumerate().map(|(id, token)| ((*token).to_owned(), json!(id))).collect();
    let added: Vec<Json> = tokens
        .iter()
        .zip(kinds)
        .enumerate()
        .filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind))
        .map(|(id, (token, kind))| {
            json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": *kind == CONTROL})
        })
        .collect();
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": steps.normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps.pre_tokenizers}, "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": steps.whole_pieces, "vocab": vocabulary, "merges": merges},
    })
}

fn texts<'a>(path: &Path, content: &'a Content, key: &str) -> Result<Vec<&'a str>, PolicyError> {
    let text = |value: &'a Value| if let Value::String(text) = value { Some(text.as_str()) } else { None };
    match content.metadata.get(key) {
        Some(Value::Array(all)) => all.iter().map(text).collect::<Option<_>>(),
        _ => None,
    }
    .ok_or_else(|| broken(path, format!("it lacks {key}, or has it in another form")))
}

/// The tokens' kinds; all normal if the file does not say.
fn kinds(path: &Path, content: &Content, tokens: usize) -> Result<Vec<u64>, PolicyError> {
    let key = "tokenizer.ggml.token_type";
    let kinds = match content.metadata.get(key) {
        None => Some(vec![NORMAL; tokens]),
        Some(Value::Array(all)) if all.len() == tokens => all.iter().map(whole).collect(),
        Some(_) => None,
    };
    kinds.ok_or_else(|| broken(path, format!("its {key} does not fit its tokens")))
}

//! The tokenizer, and the chat format as exact ids.

mod files;
mod format;
mod values;

pub use files::ChatFiles;
pub use values::TemplateValues;

use crate::PolicyError;
use format::{Controls, Piece, Shipped};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use tokenizers::Tokenizer;

const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
/// Tokens that the chat format needs, in the order of their ids in tokenizers made here.
pub(crate) const SPECIALS: [&str; 3] = ["<|endoftext|>", START, END];

/// A tokenizer with a chat format: the model's own template, or without one the ChatML format
/// (`<|im_start|>role\n...<|im_end|>\n`). A conversation is rendered once and only ever extended.
///
/// Content never becomes a control token: whatever text a goal, a tool's answer or the model itself holds is encoded without
/// the tokenizer's added tokens. Cloning is cheap.
#[derive(Clone)]
pub struct Chat(Arc<Inner>, Arc<Format>);

struct Inner {
    files: ChatFiles,
    /// Knows no added tokens, so it can only give ids of plain text.
    content: Tokenizer,
    /// Bytes of each id; empty where there is none.
    bytes: Vec<Vec<u8>>,
    controls: Controls,
    /// The token that ends a turn.
    end: u32,
    /// All tokens that end a completion, in increasing order.
    ends: Vec<u32>,
}

enum Format {
    ChatMl { start: u32 },
    Shipped(Box<Shipped>),
}

impl Chat {
    /// Reads `tokenizer.json` of a model folder, and the files beside it that hold the chat template. A file is read as
    /// [`Chat::from_gguf`] does.
    ///
    /// # Errors
    /// As [`Chat::from_files`], and when a file is missing or unreadable.
    pub fn load(dir: &Path) -> Result<Self, PolicyError> {
        if dir.is_file() {
            return Self::from_gguf(dir);
        }
        Self::from_files(&ChatFiles::read(dir)?)
    }

    /// Reads the content of a `tokenizer.json`; the format is ChatML.
    ///
    /// # Errors
    /// When it is not a byte-level tokenizer, or lacks `<|im_start|>` or `<|im_end|>`.
    pub fn from_bytes(tokenizer_json: &[u8]) -> Result<Self, PolicyError> {
        Self::from_files(&ChatFiles { tokenizer: tokenizer_json.to_vec(), ..ChatFiles::default() })
    }

    /// Reads the contents of a model folder's files. A template is tried on a small conversation at once.
    ///
    /// # Errors
    /// When the tokenizer is not at byte level; when there is a template that cannot be used; when there is none, and the
    /// tokenizer lacks `<|im_start|>` or `<|im_end|>`.
    pub fn from_files(files: &ChatFiles) -> Result<Self, PolicyError> {
        let fault = |reason: String| PolicyError::Tokenizer { reason };
        let mut json: Value = serde_json::from_slice(&files.tokenizer).map_err(|e| fault(e.to_string()))?;
        if !mentions(&json["decoder"], "ByteLevel") {
            return Err(fault("it does not decode at byte level, so its tokens have no exact bytes".to_owned()));
        }
        let (added, described) = (added_tokens(&json), files.described()?);
        let find = |text: &str| added.iter().find(|(_, content)| *content == text).map(|(id, _)| *id);
        let control = |text: &str| {
            find(text).ok_or_else(|| {
                let needed = "without a chat template only models trained on the ChatML format can be used";
                fault(format!("it has no added token {text}: {needed}"))
            })
        };
        let controls = Controls::new(&added);
        let (format, end) = match &described.template {
            None => (Format::ChatMl { start: control(START)? }, control(END)?),
            Some(source) => {
                let named = |token: &Option<String>| token.clone().unwrap_or_default();
                let shipped = Shipped::new(source, &named(&described.bos), &named(&described.eos), &controls)?;
                let end = shipped.end;
                (Format::Shipped(Box::new(shipped)), end)
            }
        };
        for key in ["truncation", "padding", "post_processor"] {
            json[key] = Value::Null;
        }
        json["added_tokens"] = json!([]);
        let content = Tokenizer::from_bytes(json.to_string()).map_err(|e| fault(e.to_string()))?;
        let bytes = token_bytes(&content, &added);
        let mut ends = described.ends;
        ends.extend(described.eos.as_deref().and_then(find));
        ends.push(end);
        ends.sort_unstable();
        ends.dedup();
        let inner = Inner { files: files.clone(), content, bytes, controls, end, ends };
        Ok(Self(Arc::new(inner), Arc::new(format)))
    }

    /// A tokenizer of single bytes: ids 0 to 2 are `<|endoftext|>`, `<|im_start|>` and `<|im_end|>`, byte `b` is `3 + b`.
    ///
    /// # Errors
    /// None in practice; the built-in definition is read like any other.
    pub fn bytes() -> Result<Self, PolicyError> {
        Self::from_bytes(&definition(None, &[], &[])?)
    }

    /// The same tokenizer with values for variables of its chat template, such as `enable_thinking` of Qwen3's. Its files stay
    /// what they were: whoever reads them again gives the values again.
    ///
    /// # Errors
    /// When there is no template, or it has no such variable, or cannot be used with these values.
    pub fn with_template(&self, values: &TemplateValues) -> Result<Self, PolicyError> {
        if values.is_empty() {
            return Ok(self.clone());
        }
        let fault = |reason: &str| Err(PolicyError::TemplateValue { reason: reason.to_owned() });
        let Format::Shipped(shipped) = &*self.1 else {
            return fault("the policy has no chat template, so it has no variables to set; leave them out");
        };
        let shipped = shipped.with(values, &self.0.controls)?;
        if shipped.end != self.0.end {
            return fault("with these values another token ends the assistant's turn, which is not supported");
        }
        Ok(Self(Arc::clone(&self.0), Arc::new(Format::Shipped(Box::new(shipped)))))
    }

    /// Writes `tokenizer.json` and the other files that it was read from, byte for byte.
    ///
    /// # Errors
    /// When the folder or a file cannot be written.
    pub fn save(&self, dir: &Path) -> Result<(), PolicyError> {
        self.0.files.write(dir)
    }

    /// The files that it was read from.
    pub fn files(&self) -> &ChatFiles {
        &self.0.files
    }

    /// The content of `tokenizer.json`.
    pub fn to_json(&self) -> &[u8] {
        &self.0.files.tokenizer
    }

    /// blake3 digest of the content of `tokenizer.json`.
    pub fn digest(&self) -> [u8; 32] {
        *blake3::hash(self.to_json()).as_bytes()
    }

    /// How the model's template changes earlier turns, if it does. Here they are never changed: each turn is appended as the
    /// template writes a turn after the assistant's.
    pub fn rewrites_history(&self) -> Option<&str> {
        match &*self.1 {
            Format::ChatMl { .. } => None,
            Format::Shipped(shipped) => shipped.rewrites.as_deref(),
        }
    }

    /// The beginning of a conversation, up to where the assistant speaks.
    ///
    /// # Errors
    /// When the tokenizer cannot encode a text, or the template refuses the conversation.
    pub fn open(&self, system: &str, user: &str) -> Result<Vec<u32>, PolicyError> {
        match &*self.1 {
            Format::Shipped(shipped) => self.pieces(shipped.open(&self.0.controls, system, user)?),
            Format::ChatMl { start } => {
                let mut ids = self.turn(*start, "system", system)?;
                ids.extend(self.encode("\n")?);
                ids.extend(self.turn(*start, "user", user)?);
                ids.extend(self.assistant(*start)?);
                Ok(ids)
            }
        }
    }

    /// What follows the assistant's tokens: the end of its turn, unless it gave that itself, a user turn with `text`, and the
    /// opening of its next turn.
    ///
    /// # Errors
    /// When the tokenizer cannot encode the text, or the template refuses it.
    pub fn observe(&self, ended_with_end_of_turn: bool, text: &str) -> Result<Vec<u32>, PolicyError> {
        let ids = match &*self.1 {
            Format::Shipped(shipped) => self.pieces(shipped.next(&self.0.controls, text)?)?,
            Format::ChatMl { start } => {
                let mut ids = vec![self.0.end];
                ids.extend(self.encode("\n")?);
                ids.extend(self.turn(*start, "user", text)?);
                ids.extend(self.assistant(*start)?);
                ids
            }
        };
        let ended = ids.iter().position(|id| *id == self.0.end).filter(|_| ended_with_end_of_turn);
        Ok(ids.into_iter().skip(ended.map_or(0, |at| at + 1)).collect())
    }

    /// The ids of what an assistant says; never a control token.
    ///
    /// # Errors
    /// When the tokenizer cannot encode the text.
    pub fn encode_action(&self, text: &str) -> Result<Vec<u32>, PolicyError> {
        self.encode(text)
    }

    fn pieces(&self, pieces: Vec<Piece>) -> Result<Vec<u32>, PolicyError> {
        let mut ids = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Control(id) => ids.push(id),
                Piece::Text(text) => ids.extend(self.encode(&text)?),
            }
        }
        Ok(ids)
    }

    fn turn(&self, start: u32, role: &str, text: &str) -> Result<Vec<u32>, PolicyError> {
        let mut ids = vec![start];
        ids.extend(self.encode(&format!("{role}\n{text}"))?);
        ids.push(self.0.end);
        Ok(ids)
    }

    fn assistant(&self, start: u32) -> Result<Vec<u32>, PolicyError> {
        let mut ids = self.encode("\n")?;
        ids.push(start);
        ids.extend(self.encode("assistant\n")?);
        Ok(ids)
    }

    fn encode(&self, text: &str) -> Result<Vec<u32>, PolicyError> {
        let encoding = self.0.content.encode_fast(text, false);
        let encoding = encoding.map_err(|e| PolicyError::Tokenizer { reason: format!("cannot encode: {e}") })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of ids, control tokens as they are written; bytes that are not UTF-8 become U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().filter_map(|id| self.token_bytes(*id)).flatten().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes of a token; None for ids that the tokenizer does not have.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.0.bytes.get(id as usize).map(Vec::as_slice).filter(|bytes| !bytes.is_empty())
    }

    /// The id that ends a turn, such as `<|im_end|>`.
    pub fn end_of_turn(&self) -> u32 {
        self.0.end
    }

    /// Whether a completion ends with that id: the end of a turn, or another end that the model's files name.
    pub fn ends_completion(&self, id: u32) -> bool {
        self.0.ends.binary_search(&id).is_ok()
    }

    /// One more than the highest id.
    pub fn vocab_size(&self) -> usize {
        self.0.bytes.len()
    }
}

fn mentions(value: &Value, kind: &str) -> bool {
    match value {
        Value::Object(fields) => fields.iter().any(|(key, v)| (key == "type" && v == kind) || mentions(v, kind)),
        Value::Array(all) => all.iter().any(|v| mentions(v, kind)),
        _ => false,
    }
}

fn added_tokens(json: &Value) -> Vec<(u32, String)> {
    let all = json["added_tokens"].as_array().into_iter().flatten();
    all.filter_map(|token| {
        let id = u32::try_from(token["id"].as_u64()?).ok()?;
        Some((id, token["content"].as_str()?.to_owned()))
    })
    .collect()
}

/// Bytes of every id: of plain tokens through the byte alphabet, of added tokens as they are written.
fn token_bytes(content: &Tokenizer, added: &[(u32, String)]) -> Vec<Vec<u8>> {
    let bytes_of: BTreeMap<char, u8> = (0..=255).map(|byte| (byte_char(byte), byte)).collect();
    let vocabulary = content.get_vocab(false);
    let last = vocabulary.values().copied().chain(added.iter().map(|(id, _)| *id)).max();
    let mut all = vec![Vec::new(); last.map_or(0, |last| last as usize + 1)];
    for (text, id) in vocabulary {
        let mapped: Option<Vec<u8>> = text.chars().map(|c| bytes_of.get(&c).copied()).collect();
        all[id as usize] = mapped.unwrap_or_else(|| text.into_bytes());
    }
    for (id, text) in added {
        all[*id as usize] = text.clone().into_bytes();
    }
    all
}

/// The character that stands for a byte in byte-level vocabularies: printable Latin-1 bytes stand for themselves, the others
/// for the characters from U+0100 on, in order.
pub(crate) fn byte_char(byte: u8) -> char {
    let itself = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if itself(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !itself(*b)).count() as u32;
    char::from_u32(0x100 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// A `tokenizer.json`: the control tokens, the 256 bytes, then `tokens`, each made by the merge of the same index. `split`
/// isolates the matches of a regular expression before merging.
pub(crate) fn definition(
    split: Option<&str>,
    tokens: &[String],
    merges: &[(String, String)],
) -> Result<Vec<u8>, PolicyError> {
    let alphabet = (0..=255).map(|byte| byte_char(byte).to_string());
    let texts = SPECIALS.iter().map(|s| (*s).to_owned()).chain(alphabet).chain(tokens.iter().cloned());
    let vocabulary: Map<String, Value> = texts.enumerate().map(|(id, text)| (text, json!(id))).collect();
    let added: Vec<Value> = SPECIALS
        .iter()
        .enumerate()
        .map(|(id, content)| {
            json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let mut steps = Vec::new();
    if let Some(pattern) = split {
        steps.push(json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}));
    }
    steps.push(byte_level.clone());
    let value = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": vocabulary, "merges": merges}
    });
    let mut bytes = serde_json::to_vec_pretty(&value).map_err(|e| PolicyError::Tokenizer { reason: e.to_string() })?;
    bytes.push(b'\n');
    Ok(bytes)
}

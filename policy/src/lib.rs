//! Tokens in, tokens and log-probabilities out: decoders, tokenizer and sampler.
//!
//! One differentiable decoder ([`Decoder`]) serves both the trainer, which runs it over whole sequences
//! ([`Decoder::token_logprobs`]), and the sampler ([`LocalPolicy`]), which runs it token by token over key-value caches.
//! The two agree bit for bit, because a row of any of its operations is a function of that row alone: every number of a matrix
//! product is one chain of multiply-adds in one order, whatever runs beside it, and attention reduces over key positions in one
//! fixed order, in the same function, whether the keys come from a cache or from the sequence itself.
#![forbid(unsafe_code)]

mod chat;
mod completion;
mod config;
mod decoder;
mod error;
mod files;
mod footprint;
mod forward;
mod gguf;
mod kv;
mod laid_out;
mod local;
mod lora;
mod memory;
mod mini;
mod ops;
mod packed;
mod parallel;
mod pass;
mod pool;
mod quantized;
mod sample;
mod sampling;
pub mod served;
mod template;
mod train_tokenizer;
mod trie;
mod weights;

pub use chat::{Chat, ChatFiles, TemplateValues};
pub use completion::Stops;
pub use config::{Architecture, Config, Experts, RopeScaling};
pub use decoder::{Decoder, TokenScores};
pub use error::PolicyError;
pub use footprint::Parameters;
pub use local::{CacheUse, Limits, LocalPolicy};
pub use lora::{ADAPTER_CONFIG_FILE, ADAPTER_FILE, AdapterConfig, TARGETS, adapter_base};
pub use mini::{MINI, mini, mini_chat};
pub use packed::{Packed, PackedSequence};
pub use parallel::side_by_side;
pub use pass::{Pass, PassOptions};
pub use quantized::QuantizedPolicy;
pub use sample::{Completion, Identity, Policy, Request, SampleKey, Sampler, Stop};
pub use train_tokenizer::{TokenizerSpec, train_tokenizer};
pub use trie::distinct_tokens;

use std::path::PathBuf;

/// What can go wrong between a model folder and a sampled token. Every message names the thing, the reason and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// A model folder or one of its files is not there.
    #[error(
        "no {what} at {}: a model folder holds config.json, tokenizer.json and model.safetensors; check the path",
        path.display()
    )]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Where.
        path: PathBuf,
    },
    /// A file could not be read or written.
    #[error("cannot {action} {}: {source}; check its permissions and the free disk space", path.display())]
    File {
        /// `read`, `write`, ...
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// `config.json` cannot be understood.
    #[error("config.json: {reason}; take the file that came with the weights")]
    Config {
        /// What is wrong with it.
        reason: String,
    },
    /// The model is of a kind that is not implemented.
    #[error(
        "model architecture {name} is not supported; supported are LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM, \
         and the text parts of Qwen3VLForConditionalGeneration and Qwen3VLMoeForConditionalGeneration"
    )]
    Architecture {
        /// The architecture's name in `config.json`.
        name: String,
    },
    /// A setting of a supported architecture is not implemented.
    #[error("config.json: {setting} = {value} is not supported; choose a model without it")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// Its value.
        value: String,
    },
    /// The weights file cannot be understood.
    #[error("weights: {reason}; the file may be cut short or of another format, fetch or make it again")]
    Weights {
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor is missing, surplus, or of the wrong shape or type.
    #[error("weights: tensor {name}: {reason}; config.json and model.safetensors must come from the same model")]
    Tensor {
        /// The tensor's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A GGUF file cannot be used.
    #[error("{}: {reason}; take another file of the model, or its Hugging Face folder", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A chat template cannot be used.
    #[error("chat template: {reason}; take the template that came with the model")]
    Template {
        /// What is wrong with it.
        reason: String,
    },
    /// A value for a chat template's variable cannot be used.
    #[error("chat_template_kwargs: {reason}")]
    TemplateValue {
        /// What is wrong with it.
        reason: String,
    },
    /// An adapter cannot be used.
    #[error("adapter: {reason}")]
    Adapter {
        /// Why not, and what to do.
        reason: String,
    },
    /// A matrix of an adapter is missing, surplus, or of the wrong shape.
    #[error(
        "adapter: tensor {name}: {reason}; adapter_config.json, its matrices and the base model must belong together"
    )]
    AdapterTensor {
        /// The matrix's name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// `tokenizer.json` cannot be understood or lacks a token that the chat format needs.
    #[error("tokenizer.json: {reason}; take the file that came with the weights")]
    Tokenizer {
        /// What is wrong with it.
        reason: String,
    },
    /// The tokenizer has ids that the model has no row for.
    #[error(
        "tokenizer.json has {tokenizer} tokens but config.json's vocab_size is {model}: \
         they must come from the same model"
    )]
    Vocabulary {
        /// One more than the tokenizer's highest id.
        tokenizer: usize,
        /// The model's `vocab_size`.
        model: usize,
    },
    /// A batch, sequence or request that cannot be run.
    #[error("{what}: {reason}")]
    Input {
        /// The thing at fault.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The model's numbers are no longer finite.
    #[error(
        "the model gave non-finite logits for {what}: its weights are damaged or training diverged; use an earlier checkpoint"
    )]
    NonFinite {
        /// Where.
        what: String,
    },
    /// A server cannot be used, or what it answered is not taken.
    #[error(transparent)]
    Served(#[from] crate::served::ServedError),
    /// candle could not run an operation.
    #[error("tensor operation failed: {0}")]
    Candle(#[from] candle_core::Error),
}

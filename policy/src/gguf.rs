//! Models in GGUF files: llama.cpp's format, in which weights, settings, tokenizer and chat template are one file.
//!
//! Weights are dequantized to f32, so that the model can be trained like any other. Frozen policies that keep the quantized
//! numbers are [`crate::QuantizedPolicy`].

mod metadata;
mod tensors;
mod tokenizer;

use crate::{Chat, Config, Decoder, PolicyError};
use candle_core::quantized::gguf_file::Content;
use metadata::Metadata;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// An open GGUF file whose beginning has been read.
pub(crate) struct Gguf {
    pub(crate) path: PathBuf,
    pub(crate) content: Content,
    pub(crate) reader: BufReader<File>,
    pub(crate) config: Config,
    /// Whether queries and keys are stored for rotations of neighbouring numbers.
    interleaved: bool,
}

impl Gguf {
    /// Opens a file and reads what stands before its tensors.
    ///
    /// # Errors
    /// When it is missing or no GGUF file, or holds a model or setting that is not supported.
    pub(crate) fn open(path: &Path) -> Result<Self, PolicyError> {
        let fault = |source| PolicyError::File { action: "open", path: path.to_owned(), source };
        let mut reader = BufReader::new(File::open(path).map_err(fault)?);
        let content = Content::read(&mut reader).map_err(|e| broken(path, e.to_string()))?;
        let metadata = Metadata::new(path, &content)?;
        let config = metadata.config(&content)?;
        let interleaved = metadata.interleaved();
        Ok(Self { path: path.to_owned(), content, reader, config, interleaved })
    }

    /// The model, dequantized; version 0.
    pub(crate) fn decoder(&mut self) -> Result<Decoder, PolicyError> {
        let tensors = tensors::dequantized(self)?;
        Decoder::new(self.config.clone(), tensors)
    }

    /// The tokenizer and the chat template.
    pub(crate) fn chat(&self) -> Result<Chat, PolicyError> {
        Chat::from_files(&tokenizer::files(&self.path, &self.content)?)
    }
}

impl Decoder {
    /// Reads a GGUF file of the Llama or Qwen3 family, dequantized to f32; version 0.
    ///
    /// # Errors
    /// When the file cannot be read, or holds a model, setting or tensor that is not supported.
    pub fn from_gguf(path: &Path) -> Result<Self, PolicyError> {
        Gguf::open(path)?.decoder()
    }
}

impl Chat {
    /// Reads tokenizer and chat template of a GGUF file.
    ///
    /// # Errors
    /// When the file cannot be read, or its tokenizer is of a kind that is not supported.
    pub fn from_gguf(path: &Path) -> Result<Self, PolicyError> {
        Gguf::open(path)?.chat()
    }
}

fn broken(path: &Path, reason: String) -> PolicyError {
    PolicyError::Gguf { path: path.to_owned(), reason }
}

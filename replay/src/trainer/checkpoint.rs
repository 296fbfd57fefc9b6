//! Checkpoint folders: written whole or not at all.
//!
//! A folder holds `model.safetensors`, `config.json` and `tokenizer.json` (a model folder like any other), or in place of the
//! first two an adapter in peft's layout, and `optimizer.safetensors` and `trainer.json`, which names the digests of the
//! others. It is written beside its destination, flushed, and swapped in by renames; a folder that a crash left between the
//! two renames is put back when it is next opened.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rao_store::Digest;
use serde::{Deserialize, Serialize};

use super::{Settings, TrainError};

/// The checkpoint's own file.
pub const STATE_FILE: &str = "trainer.json";
/// The optimizer's moments.
pub const OPTIMIZER_FILE: &str = "optimizer.safetensors";
/// The weights.
pub const MODEL_FILE: &str = "model.safetensors";
/// The model's shape.
pub const CONFIG_FILE: &str = "config.json";
/// The tokenizer, byte for byte as it was loaded.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// What a checkpoint remembers besides weights and moments.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Layout of this file.
    pub format: u32,
    /// Optimizer steps that the weights have seen, in whatever training.
    pub version: u64,
    /// Optimizer steps of this training: those that the moments and the schedule count.
    pub step: u64,
    /// The settings.
    pub settings: Settings,
    /// Digest of the settings that a resumed training must share.
    pub settings_digest: String,
    /// `sft`: digest of the trajectories that `taken` counts in; empty before the first step.
    pub data: String,
    /// `sft`: trajectories taken since the training began. With the seed it says where every epoch stands.
    pub taken: u64,
    /// Digest of the weights' tensors.
    pub weights: String,
    /// Digests of the other files' bytes.
    pub files: BTreeMap<String, String>,
}

pub(crate) const FORMAT: u32 = 1;

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> TrainError {
    let path = path.to_owned();
    move |source| TrainError::Io { path, source }
}

fn beside(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(suffix);
    dir.with_file_name(name)
}

/// Reads a file of the folder.
pub(crate) fn read(dir: &Path, name: &str) -> Result<Vec<u8>, TrainError> {
    let path = dir.join(name);
    fs::read(&path).map_err(io(&path))
}

/// Puts back a folder that a crash left between two renames.
pub(crate) fn settle(dir: &Path) -> Result<(), TrainError> {
    let previous = beside(dir, ".previous");
    if !dir.exists() && previous.is_dir() {
        fs::rename(&previous, dir).map_err(io(&previous))?;
    }
    Ok(())
}

/// A folder that is being written beside its place.
pub(crate) struct Folder {
    dir: PathBuf,
    partial: PathBuf,
    /// Digests of the files that the state names.
    files: BTreeMap<String, String>,
}

impl Folder {
    /// An empty folder beside `dir`.
    pub(crate) fn begin(dir: &Path) -> Result<Self, TrainError> {
        settle(dir)?;
        let partial = beside(dir, ".partial");
        for stale in [&partial, &beside(dir, ".previous")] {
            if stale.exists() {
                fs::remove_dir_all(stale).map_err(io(stale))?;
            }
        }
        fs::create_dir_all(&partial).map_err(io(&partial))?;
        Ok(Self { dir: dir.to_owned(), partial, files: BTreeMap::new() })
    }

    /// Writes a file that the state names.
    pub(crate) fn put(&mut self, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
        put(&self.partial.join(name), bytes)?;
        self.files.insert(name.to_owned(), Digest::of(bytes).to_string());
        Ok(())
    }

    /// As [`Folder::put`], for a file that `write` makes piece by piece.
    pub(crate) fn write(
        &mut self,
        name: &str,
        write: impl FnOnce(&Path) -> Result<(), TrainError>,
    ) -> Result<(), TrainError> {
        let path = self.partial.join(name);
        write(&path)?;
        sync(&path)?;
        self.files.insert(name.to_owned(), digest_of(&path)?.to_string());
        Ok(())
    }

    /// Writes a file that the state does not name; `name` may lie in a folder.
    pub(crate) fn other(&self, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
        let path = self.partial.join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(io(parent))?;
        }
        put(&path, bytes)
    }

    /// Writes the state and puts the folder into its place.
    pub(crate) fn finish(self, mut state: State) -> Result<(), TrainError> {
        let Self { dir, partial, files } = self;
        state.files = files;
        let unwritable = |error: serde_json::Error| TrainError::Checkpoint {
            path: dir.clone(),
            reason: error.to_string(),
            broken: false,
        };
        let mut json = serde_json::to_vec_pretty(&state).map_err(unwritable)?;
        json.push(b'\n');
        put(&partial.join(STATE_FILE), &json)?;
        sync(&partial)?;
        let previous = beside(&dir, ".previous");
        if dir.exists() {
            fs::rename(&dir, &previous).map_err(io(&dir))?;
        }
        fs::rename(&partial, &dir).map_err(io(&partial))?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync(parent)?;
        }
        if previous.exists() {
            fs::remove_dir_all(&previous).map_err(io(&previous))?;
        }
        Ok(())
    }
}

/// blake3 of a file, read piece by piece.
fn digest_of(path: &Path) -> Result<Digest, TrainError> {
    let mut hasher = blake3::Hasher::new();
    let mut file = fs::File::open(path).map_err(io(path))?;
    std::io::copy(&mut file, &mut hasher).map_err(io(path))?;
    Ok(Digest(*hasher.finalize().as_bytes()))
}

fn put(path: &Path, bytes: &[u8]) -> Result<(), TrainError> {
    let mut file = fs::File::create(path).map_err(io(path))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(io(path))
}

/// Flushes a file or a folder.
fn sync(path: &Path) -> Result<(), TrainError> {
    fs::File::open(path).and_then(|file| file.sync_all()).map_err(io(path))
}

/// Reads the state and checks that the folder's files are the ones it names.
pub(crate) fn read_state(dir: &Path) -> Result<State, TrainError> {
    let path = dir.join(STATE_FILE);
    if !path.exists() {
        let reason = "it has no trainer.json, so there is no training to resume; start a fresh one from its weights";
        return Err(TrainError::Checkpoint { path: dir.to_owned(), reason: reason.to_owned(), broken: false });
    }
    let broken = |reason: String| TrainError::Checkpoint { path: path.clone(), reason, broken: true };
    let state: State = serde_json::from_slice(&read(dir, STATE_FILE)?)
        .map_err(|error| broken(format!("{error}; use another checkpoint, or start fresh from its weights")))?;
    if state.format != FORMAT {
        return Err(broken(format!(
            "format {} is not {FORMAT}; use the version of rao-log that wrote it",
            state.format
        )));
    }
    for (name, digest) in &state.files {
        if digest_of(&dir.join(name))?.to_string() != *digest {
            return Err(broken(format!(
                "`{name}` is not the file that was saved with it; use another checkpoint, or start fresh from its weights"
            )));
        }
    }
    Ok(state)
}

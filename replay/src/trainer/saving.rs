//! From a trainer to a checkpoint folder and back.

use std::path::Path;

use super::checkpoint;
use super::run::{Trainer, shapes};
use super::{Resources, Settings, TrainError};
use crate::optimizer::AdamW;

impl Trainer {
    /// A training as [`Trainer::save`] left it: continues bit for bit.
    ///
    /// # Errors
    /// When the folder is no checkpoint, its files contradict one another, or the settings differ from the checkpoint's
    /// in more than `steps`.
    pub fn resume(dir: &Path, settings: Settings, resources: Resources) -> Result<Self, TrainError> {
        checkpoint::settle(dir)?;
        let state = checkpoint::read_state(dir)?;
        let broken = |reason: &str, broken| {
            let reason = format!("{reason}; use another checkpoint, or start fresh from its weights");
            TrainError::Checkpoint { path: dir.to_owned(), reason, broken }
        };
        if state.settings_digest != settings.digest().to_string() {
            return Err(broken("it was trained with other settings", false));
        }
        let mut trainer = Trainer::fresh(dir, settings, resources)?;
        if trainer.weights.to_string() != state.weights {
            return Err(broken("its weights are not those that trainer.json names", true));
        }
        let moments = checkpoint::read(dir, checkpoint::OPTIMIZER_FILE)?;
        trainer.optimizer = AdamW::from_bytes(trainer.settings.optimizer, shapes(&trainer.decoder), &moments)?;
        if trainer.optimizer.step_count() != state.step {
            return Err(broken("optimizer and trainer.json disagree about the step", true));
        }
        if trainer.decoder.version() != state.version {
            return Err(broken("weights and trainer.json disagree about the version", true));
        }
        trainer.data = state.data.parse().ok();
        trainer.taken = state.taken;
        Ok(trainer)
    }

    /// Saves everything that [`Trainer::resume`] needs into a folder that `record` can use as a model. The folder is
    /// replaced as a whole, or not at all.
    ///
    /// # Errors
    /// When a file cannot be written; a folder that was there before stays.
    pub fn save(&self, dir: &Path) -> Result<(), TrainError> {
        self.save_with(dir, &[])
    }

    /// As [`Trainer::save`], with other files beside the checkpoint's own: by relative path. They are not part of what a
    /// resumed training reads.
    ///
    /// # Errors
    /// As [`Trainer::save`].
    pub fn save_with(&self, dir: &Path, others: &[(String, Vec<u8>)]) -> Result<(), TrainError> {
        let state = checkpoint::State {
            format: checkpoint::FORMAT,
            version: self.decoder.version(),
            step: self.optimizer.step_count(),
            settings_digest: self.settings.digest().to_string(),
            settings: self.settings.clone(),
            data: self.data.map(|digest| digest.to_string()).unwrap_or_default(),
            taken: self.taken,
            weights: self.weights.to_string(),
            files: std::collections::BTreeMap::new(),
        };
        let mut folder = checkpoint::Folder::begin(dir)?;
        if self.decoder.adapter().is_some() {
            for (name, bytes) in self.decoder.adapter_files(self.base.as_deref())? {
                folder.put(name, &bytes)?;
            }
        } else {
            folder.write(checkpoint::MODEL_FILE, |path| Ok(self.decoder.write_weights(path)?))?;
            folder.put(checkpoint::CONFIG_FILE, &self.decoder.config().to_json())?;
        }
        for (name, bytes) in self.chat.named() {
            folder.put(name, bytes)?;
        }
        folder.write(checkpoint::OPTIMIZER_FILE, |path| Ok(self.optimizer.write(path)?))?;
        for (name, bytes) in others {
            folder.other(name, bytes)?;
        }
        folder.finish(state)
    }
}

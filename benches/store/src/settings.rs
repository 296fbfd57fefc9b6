//! What is measured, and where.

use std::fs;
use std::path::PathBuf;

use crate::Outcome;

pub struct Settings {
    /// Events of one round of appends.
    pub events: usize,
    pub rounds: usize,
    pub dir: PathBuf,
    pub gigabytes: f64,
    only: Option<Vec<String>>,
}

impl Settings {
    pub fn from_args(args: impl Iterator<Item = String>) -> Outcome<Self> {
        let mut settings =
            Settings { events: 65_536, rounds: 5, dir: "store-rivals-data".into(), gigabytes: 1.0, only: None };
        let mut args = args.peekable();
        while let Some(flag) = args.next() {
            let value = args.next().ok_or_else(|| format!("{flag} needs a value"))?;
            match flag.as_str() {
                "--events" => settings.events = value.parse()?,
                "--rounds" => settings.rounds = value.parse()?,
                "--dir" => settings.dir = value.into(),
                "--gigabytes" => settings.gigabytes = value.parse()?,
                "--only" => settings.only = Some(value.split(',').map(str::to_owned).collect()),
                _ => return Err(format!("unknown flag {flag}: see the head of src/main.rs").into()),
            }
        }
        settings.events =
            settings.events.max(crate::append::PER_COMMIT) / crate::append::PER_COMMIT * crate::append::PER_COMMIT;
        settings.rounds = settings.rounds.max(1);
        Ok(settings)
    }

    pub fn wants(&self, part: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|name| name == part))
    }

    /// An empty folder below the measuring folder.
    pub fn fresh_dir(&self, name: &str) -> Outcome<PathBuf> {
        let dir = self.dir.join(name);
        if dir.exists() {
            fs::remove_dir_all(&dir)?;
        }
        fs::create_dir_all(&dir)?;
        Ok(dir)
    }
}

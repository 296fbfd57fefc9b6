//! What the command line says of an environment: its data, and options of its own by name.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use crate::EnvError;

/// What an environment is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EnvSettings {
    /// A file or folder in one of the environment's own formats; without one its tasks are generated.
    pub data: Option<PathBuf>,
    /// The environment's own options.
    pub options: Options,
    /// The key of a search service, for environments that ask one.
    pub search_key: Option<Secret>,
}

/// A key: sent to its service, and shown nowhere.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a key.
    #[must_use]
    pub fn new(key: String) -> Self {
        Secret(key)
    }

    /// The key itself.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Options by name, as the command line gives them. The environment checks names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// One more option; a later value replaces an earlier one.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// The options, all of which `env` must know.
    ///
    /// # Errors
    /// [`EnvError::UnknownOption`] for the first that it does not.
    pub fn known(&self, env: &'static str, names: &[&str]) -> Result<&Self, EnvError> {
        match self.0.keys().find(|given| !names.contains(&given.as_str())) {
            None => Ok(self),
            Some(given) => Err(EnvError::UnknownOption {
                given: given.clone(),
                env,
                nearest: nearest(given, names),
                known: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            }),
        }
    }

    /// An option's text, if it was given.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// An option's value, if it was given.
    ///
    /// # Errors
    /// What the type says of the text.
    pub fn read<T>(&self, name: &'static str) -> Result<Option<T>, EnvError>
    where
        T: FromStr,
        T::Err: Into<OptionError>,
    {
        let parsed = self.get(name).map(|text| {
            text.parse().map_err(|error: T::Err| match error.into() {
                OptionError::Env(error) => error,
                OptionError::Text(reason) => EnvError::Setting { name, reason: format!("`{text}`: {reason}") },
            })
        });
        parsed.transpose()
    }
}

/// Why an option's text is no value.
#[derive(Debug)]
pub enum OptionError {
    /// A whole error.
    Env(EnvError),
    /// A reason, to be told with the option's name and text.
    Text(String),
}

impl From<EnvError> for OptionError {
    fn from(error: EnvError) -> Self {
        OptionError::Env(error)
    }
}

macro_rules! from_parse_errors {
    ($($error:ty),*) => { $(impl From<$error> for OptionError {
        fn from(error: $error) -> Self {
            OptionError::Text(error.to_string())
        }
    })* };
}

from_parse_errors!(std::num::ParseIntError, std::num::ParseFloatError, std::str::ParseBoolError);

impl From<std::convert::Infallible> for OptionError {
    fn from(never: std::convert::Infallible) -> Self {
        match never {}
    }
}

/// The known name that differs least from `given`, if any is close: at most one edit in two characters.
fn nearest(given: &str, known: &[&str]) -> Option<String> {
    let best = known.iter().map(|name| (edits(given, name), *name)).min()?;
    (best.0 * 2 <= given.chars().count()).then(|| best.1.to_owned())
}

/// Insertions, deletions and substitutions between two words.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut left = i + 1;
        let mut next = vec![left];
        for (y, pair) in b.iter().zip(row.windows(2)) {
            let (above_left, above) = match pair {
                [above_left, above] => (*above_left, *above),
                _ => (usize::MAX, usize::MAX),
            };
            left = (above_left + usize::from(x != *y)).min(above + 1).min(left + 1);
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_the_nearest_one() {
        let options = Options::default().with("limt", "5");
        let error = options.known("oolong", &["limit", "strict"]).unwrap_err().to_string();
        assert!(error.contains("`limt`; did you mean `limit`?"), "{error}");
        let options = Options::default().with("limit", "five");
        let error = options.read::<u32>("limit").unwrap_err().to_string();
        assert!(error.contains("limit: `five`"), "{error}");
        assert_eq!(Options::default().with("limit", "5").read::<u32>("limit").unwrap(), Some(5));
        assert_eq!(edits("kitten", "sitting"), 3);
    }
}

use std::path::Path;
use std::sync::Arc;

use crate::error::LogError;

/// Why bytes are not an archive, or not all of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// It is too short, or does not begin and end as an archive does.
    #[error("it is no archive, or only a part of one: {reason}")]
    NotOne {
        /// What is wrong.
        reason: &'static str,
    },
    /// A later program wrote it.
    #[error("it has {what}, which this program does not know; use a newer rao-log")]
    Newer {
        /// What is too new.
        what: String,
    },
    /// Something in it contradicts its checksum or itself.
    #[error("{place}: {reason}")]
    Damaged {
        /// Where, such as `segment 3 at byte 512`.
        place: String,
        /// What is wrong.
        reason: String,
    },
}

impl ArchiveError {
    pub(crate) fn damaged(place: impl Into<String>, reason: impl Into<String>) -> Self {
        ArchiveError::Damaged { place: place.into(), reason: reason.into() }
    }

    pub(crate) fn in_file(self, path: &Path) -> LogError {
        LogError::Archive { path: path.to_owned(), source: Arc::new(self) }
    }
}

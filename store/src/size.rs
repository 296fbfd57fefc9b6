//! How much of the journal a stream takes.

use crate::error::LogError;
use crate::frame::HEADER_LEN;
use crate::id::{Seq, Stream};
use crate::prefix::PREFIX_LEN;
use crate::source::EventSource;

/// What a stream takes in a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSize {
    /// Its events, shared ones among them.
    pub events: u64,
    /// Bytes of its frames. What it shares by reference takes one small frame; a long text counts wherever it occurs.
    pub bytes: u64,
}

/// What a stream takes in the journal, or would take there if it lies in an archive. No body is read.
///
/// # Errors
/// Whatever reading the headers meets.
pub fn stream_size(source: &dyn EventSource, stream: Stream) -> Result<StreamSize, LogError> {
    let mut size = StreamSize::default();
    if let Some(shared) = source.shared(stream) {
        size = StreamSize { events: shared.count, bytes: (HEADER_LEN + PREFIX_LEN) as u64 };
    }
    for header in source.headers(stream, Seq(size.events)) {
        size.events += 1;
        size.bytes += HEADER_LEN as u64 + u64::from(header?.body_len);
    }
    Ok(size)
}

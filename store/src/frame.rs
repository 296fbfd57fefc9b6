//! The frame: the fixed bytes around an event's body. `docs/format.md` is the specification; this is its one reader
//! and writer.
//!
//! All integers in a frame are little-endian.

use crate::error::LogError;
use crate::event::{Kind, MAX_BODY};
use crate::id::{Address, Digest, RolloutId, RunId, Seq, Stream};

/// The first four bytes of every frame.
pub(crate) const MAGIC: [u8; 4] = *b"RAOE";
/// The frame layout that this program writes, and the newest that it reads.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes before the body.
pub const HEADER_LEN: usize = 92;
/// Set on the first frame of every commit: whatever lies before it in the journal was durable when it was written.
pub(crate) const FLAG_COMMIT: u16 = 1;
/// Set on an event's frame from whose body long texts are taken out.
pub(crate) const FLAG_SHORT: u16 = 2;
/// Set on a frame that is such a text, and no event.
pub(crate) const FLAG_PAYLOAD: u16 = 4;
/// Set on a frame that says which events a stream shares with another one, and stands for them.
pub(crate) const FLAG_PREFIX: u16 = 8;
const KNOWN_FLAGS: u16 = FLAG_COMMIT | FLAG_SHORT | FLAG_PAYLOAD | FLAG_PREFIX;

const AT_VERSION: usize = 4;
const AT_KIND: usize = 6;
const AT_LAYOUT: usize = 8;
const AT_FLAGS: usize = 10;
const AT_STREAM: usize = 12;
const AT_RESERVED: usize = 13;
const AT_RUN: usize = 16;
const AT_ROLLOUT: usize = 32;
const AT_LENGTH: usize = 36;
const AT_SEQ: usize = 40;
const AT_TIME: usize = 48;
const AT_PREVIOUS: usize = 56;
const AT_CRC: usize = 88;

/// Why bytes are not a frame of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Fewer bytes than the header has, or than it says the frame has.
    #[error("it ends after {have} of {need} bytes")]
    Short {
        /// Bytes there are.
        have: u64,
        /// Bytes the frame needs.
        need: u64,
    },
    /// It does not begin as a frame does.
    #[error("no event begins here")]
    Magic,
    /// The checksum differs.
    #[error("its checksum is {found:08x}, not {stored:08x} as stored")]
    Checksum {
        /// Computed over the bytes.
        found: u32,
        /// Read from the frame.
        stored: u32,
    },
    /// The length, stream kind or a reserved byte has a value that no writer gives it.
    #[error("its header has an impossible {field}")]
    Field {
        /// The field.
        field: &'static str,
    },
    /// The checksum is right and a later program wrote it.
    #[error("it has {what}")]
    Newer {
        /// What is too new.
        what: String,
    },
}

/// One event as it is stored: a checked header and the encoded body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    bytes: Vec<u8>,
    stream: Stream,
}

impl Frame {
    /// Takes the exact bytes of one frame and checks length, checksum, version and fields.
    ///
    /// # Errors
    /// A [`FrameError`] naming the first thing that is wrong.
    pub fn parse(bytes: Vec<u8>) -> Result<Frame, FrameError> {
        let view = View::parse(&bytes)?;
        if view.bytes.len() != bytes.len() {
            return Err(FrameError::Field { field: "length" });
        }
        if view.form() != Form::Whole {
            return Err(FrameError::Field { field: "form" });
        }
        let stream = view.stream;
        Ok(Frame { bytes, stream })
    }

    /// The frame of a view that has been checked, and that is all of `bytes`.
    pub(crate) fn checked(bytes: Vec<u8>, stream: Stream) -> Frame {
        Frame { bytes, stream }
    }

    /// The stream and position.
    #[must_use]
    pub fn address(&self) -> Address {
        Address { stream: self.stream, seq: self.view().seq() }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub fn at_us(&self) -> u64 {
        self.view().at_us()
    }

    /// The event's kind.
    ///
    /// # Errors
    /// [`LogError::Newer`] if a later program wrote it.
    pub fn kind(&self) -> Result<Kind, LogError> {
        let code = self.view().kind_code();
        Kind::from_code(code)
            .ok_or_else(|| LogError::Newer { place: self.address().to_string(), what: format!("event kind {code}") })
    }

    /// The version of the kind's layout.
    #[must_use]
    pub fn layout(&self) -> u16 {
        self.view().layout()
    }

    /// The chain digest of the stream before this event; 32 zero bytes for the first.
    #[must_use]
    pub fn previous(&self) -> Digest {
        self.view().previous()
    }

    /// The chain digest of the stream after this event: blake3 over the frame's bytes.
    #[must_use]
    pub fn chain(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// The encoded body.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }

    /// Header and body as stored.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn view(&self) -> View<'_> {
        View { bytes: &self.bytes, stream: self.stream }
    }
}

/// What a stored frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// An event.
    Whole,
    /// An event without its long texts.
    Short,
    /// A long text.
    Payload,
    /// The first events of a stream, by reference.
    Prefix,
}

/// A checked frame in a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    bytes: &'a [u8],
    stream: Stream,
}

impl<'a> View<'a> {
    /// Checks the frame at the start of `bytes`, which may be longer.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<View<'a>, FrameError> {
        let length = frame_len(bytes)?;
        let frame = usize::try_from(length).ok().and_then(|length| bytes.get(..length));
        let Some(frame) = frame else {
            return Err(FrameError::Short { have: bytes.len() as u64, need: length });
        };
        let stored = u32_at(frame, AT_CRC);
        let found = checksum(frame);
        if stored != found {
            return Err(FrameError::Checksum { found, stored });
        }
        // Only what passed its checksum can be newer; anything else is damage.
        let version = u16_at(frame, AT_VERSION);
        if version > FORMAT_VERSION {
            return Err(FrameError::Newer { what: format!("format version {version}") });
        }
        let flags = u16_at(frame, AT_FLAGS);
        if flags & !KNOWN_FLAGS != 0 {
            return Err(FrameError::Newer { what: format!("the flags {flags:#06x}") });
        }
        if version == 0 {
            return Err(FrameError::Field { field: "format version" });
        }
        if (flags & !FLAG_COMMIT).count_ones() > 1 {
            return Err(FrameError::Field { field: "form" });
        }
        let stream = claimed_stream(frame).ok_or(FrameError::Field { field: "stream" })?;
        Ok(View { bytes: frame, stream })
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    pub(crate) fn seq(&self) -> Seq {
        Seq(u64_at(self.bytes, AT_SEQ))
    }

    pub(crate) fn at_us(&self) -> u64 {
        u64_at(self.bytes, AT_TIME)
    }

    pub(crate) fn kind_code(&self) -> u16 {
        u16_at(self.bytes, AT_KIND)
    }

    pub(crate) fn layout(&self) -> u16 {
        u16_at(self.bytes, AT_LAYOUT)
    }

    pub(crate) fn begins_commit(&self) -> bool {
        u16_at(self.bytes, AT_FLAGS) & FLAG_COMMIT != 0
    }

    /// What the frame is.
    pub(crate) fn form(&self) -> Form {
        let flags = u16_at(self.bytes, AT_FLAGS);
        if flags & FLAG_PREFIX != 0 {
            Form::Prefix
        } else if flags & FLAG_PAYLOAD != 0 {
            Form::Payload
        } else if flags & FLAG_SHORT != 0 {
            Form::Short
        } else {
            Form::Whole
        }
    }

    /// The chain digest before the event; of a payload, its own digest.
    pub(crate) fn previous(&self) -> Digest {
        Digest(array_at(self.bytes, AT_PREVIOUS))
    }

    pub(crate) fn crc(&self) -> u32 {
        u32_at(self.bytes, AT_CRC)
    }

    pub(crate) fn body(&self) -> &'a [u8] {
        self.bytes.get(HEADER_LEN..).unwrap_or_default()
    }

    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// What the bytes at a damaged place claim to be, for a report. Nothing of it is to be trusted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    pub(crate) stream: Option<Stream>,
    pub(crate) seq: Seq,
    pub(crate) kind: Option<Kind>,
    /// Its digest, if it says that it is a payload.
    pub(crate) payload: Option<Digest>,
    /// Whether it says that it stands for shared events.
    pub(crate) prefix: bool,
}

pub(crate) fn claim(bytes: &[u8]) -> Option<Claim> {
    if bytes.len() < HEADER_LEN {
        return None;
    }
    let kind = Kind::from_code(u16_at(bytes, AT_KIND));
    let is_payload = u16_at(bytes, AT_FLAGS) & FLAG_PAYLOAD != 0;
    let prefix = u16_at(bytes, AT_FLAGS) & FLAG_PREFIX != 0;
    let payload = is_payload.then(|| Digest(array_at(bytes, AT_PREVIOUS)));
    Some(Claim { stream: claimed_stream(bytes), seq: Seq(u64_at(bytes, AT_SEQ)), kind, payload, prefix })
}

/// The whole length that the header at the start of `bytes` states, checked for plausibility only.
pub(crate) fn frame_len(bytes: &[u8]) -> Result<u64, FrameError> {
    if bytes.len() < HEADER_LEN {
        return Err(FrameError::Short { have: bytes.len() as u64, need: HEADER_LEN as u64 });
    }
    if bytes.get(..MAGIC.len()) != Some(MAGIC.as_slice()) {
        return Err(FrameError::Magic);
    }
    let body = u32_at(bytes, AT_LENGTH);
    if body as usize > MAX_BODY {
        return Err(FrameError::Field { field: "length" });
    }
    Ok(HEADER_LEN as u64 + u64::from(body))
}

/// What the header at the start of `bytes` says of an event. Its checksum is not looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    /// `None` if there is no such stream.
    pub(crate) stream: Option<Stream>,
    pub(crate) seq: Seq,
    pub(crate) at_us: u64,
    pub(crate) kind_code: u16,
    pub(crate) crc: u32,
    /// The frame's length.
    pub(crate) len: u32,
    /// The length of the event's body, which is longer than the frame's where the frame is short.
    pub(crate) body_len: u32,
}

/// Looks at a header; `None` if it is no event's.
pub(crate) fn glance(bytes: &[u8]) -> Option<Glance> {
    let len = u32::try_from(frame_len(bytes).ok()?).ok()?;
    let flags = u16_at(bytes, AT_FLAGS);
    if flags & (FLAG_PAYLOAD | FLAG_PREFIX) != 0 {
        return None;
    }
    let is_short = flags & FLAG_SHORT != 0;
    // A short frame's body begins with the length of the whole one.
    let whole = bytes.get(HEADER_LEN..HEADER_LEN + 4).map(|bytes| u32_at(bytes, 0));
    let body_len = if is_short { whole? } else { len - HEADER_LEN as u32 };
    let (seq, at_us, kind_code) = (Seq(u64_at(bytes, AT_SEQ)), u64_at(bytes, AT_TIME), u16_at(bytes, AT_KIND));
    Some(Glance { stream: claimed_stream(bytes), seq, at_us, kind_code, crc: u32_at(bytes, AT_CRC), len, body_len })
}

/// What a frame is made of, besides the body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) stream: Stream,
    pub(crate) seq: Seq,
    pub(crate) at_us: u64,
    pub(crate) kind: u16,
    pub(crate) layout: u16,
    pub(crate) begins_commit: bool,
    pub(crate) previous: Digest,
}

/// Appends an event's frame to `out` and returns its checksum. The body must not be longer than [`MAX_BODY`].
pub(crate) fn write(out: &mut Vec<u8>, parts: &Parts, body: &[u8]) -> u32 {
    write_form(out, parts, Form::Whole, body)
}

/// Appends the frame that stands for an event whose long texts lie in payload frames.
pub(crate) fn write_short(out: &mut Vec<u8>, parts: &Parts, short_body: &[u8]) -> u32 {
    write_form(out, parts, Form::Short, short_body)
}

/// Appends a payload's frame. It belongs to no stream.
pub(crate) fn write_payload(out: &mut Vec<u8>, digest: Digest, at_us: u64, begins_commit: bool, payload: &[u8]) {
    let stream = Stream::Run(RunId([0; 16]));
    let parts = Parts { stream, seq: Seq(0), at_us, kind: 0, layout: 1, begins_commit, previous: digest };
    // The event itself follows at least: a buffer that grows by doubling would copy the payload for it.
    out.reserve(HEADER_LEN + payload.len() + (64 << 10));
    write_form(out, &parts, Form::Payload, payload);
}

/// Appends the frame that stands for the first events of `stream`.
pub(crate) fn write_prefix(out: &mut Vec<u8>, stream: Stream, at_us: u64, begins_commit: bool, body: &[u8]) -> u32 {
    let previous = Digest([0; 32]);
    let parts = Parts { stream, seq: Seq(0), at_us, kind: 0, layout: 1, begins_commit, previous };
    write_form(out, &parts, Form::Prefix, body)
}

/// The checksum and the digest of the frame that [`write`] would write.
pub(crate) fn digest(parts: &Parts, body: &[u8]) -> (u32, Digest) {
    let mut header = Vec::with_capacity(HEADER_LEN);
    let crc = write_header(&mut header, parts, Form::Whole, body);
    (crc, Digest::of_both(&header, body))
}

/// Writes the header of an event's frame into the first [`HEADER_LEN`] bytes of `frame`, whose body stands behind them.
pub(crate) fn head(frame: &mut [u8], parts: &Parts) {
    if let Some((place, body)) = frame.split_at_mut_checked(HEADER_LEN) {
        let mut header = Vec::with_capacity(HEADER_LEN);
        write_header(&mut header, parts, Form::Whole, body);
        place.copy_from_slice(&header);
    }
}

fn write_form(out: &mut Vec<u8>, parts: &Parts, form: Form, body: &[u8]) -> u32 {
    out.reserve(HEADER_LEN + body.len());
    let crc = write_header(out, parts, form, body);
    out.extend_from_slice(body);
    crc
}

fn write_header(out: &mut Vec<u8>, parts: &Parts, form: Form, body: &[u8]) -> u32 {
    let start = out.len();
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
    out.extend_from_slice(&parts.kind.to_le_bytes());
    out.extend_from_slice(&parts.layout.to_le_bytes());
    let form = match form {
        Form::Whole => 0,
        Form::Short => FLAG_SHORT,
        Form::Payload => FLAG_PAYLOAD,
        Form::Prefix => FLAG_PREFIX,
    };
    let flags = form | if parts.begins_commit { FLAG_COMMIT } else { 0 };
    out.extend_from_slice(&flags.to_le_bytes());
    let (code, run, rollout) = stream_parts(parts.stream);
    out.extend_from_slice(&[code, 0, 0, 0]);
    out.extend_from_slice(&run.0);
    out.extend_from_slice(&rollout.to_le_bytes());
    out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    out.extend_from_slice(&parts.seq.0.to_le_bytes());
    out.extend_from_slice(&parts.at_us.to_le_bytes());
    out.extend_from_slice(&parts.previous.0);
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(out.get(start..).unwrap_or_default());
    hasher.update(body);
    let crc = hasher.finalize();
    out.extend_from_slice(&crc.to_le_bytes());
    crc
}

/// The crc32 over header (without its own four bytes) and body.
fn checksum(frame: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(frame.get(..AT_CRC).unwrap_or_default());
    hasher.update(frame.get(HEADER_LEN..).unwrap_or_default());
    hasher.finalize()
}

fn stream_parts(stream: Stream) -> (u8, RunId, u32) {
    match stream {
        Stream::Run(run) => (0, run, 0),
        Stream::Rollout(run, RolloutId(rollout)) => (1, run, rollout),
        Stream::Training(run) => (2, run, 0),
    }
}

fn stream_from_parts(code: u8, run: RunId, rollout: u32) -> Option<Stream> {
    match (code, rollout) {
        (0, 0) => Some(Stream::Run(run)),
        (1, rollout) => Some(Stream::Rollout(run, RolloutId(rollout))),
        (2, 0) => Some(Stream::Training(run)),
        _ => None,
    }
}

fn claimed_stream(bytes: &[u8]) -> Option<Stream> {
    if bytes.get(AT_RESERVED..AT_RUN) != Some(&[0, 0, 0]) {
        return None;
    }
    stream_from_parts(*bytes.get(AT_STREAM)?, RunId(array_at(bytes, AT_RUN)), u32_at(bytes, AT_ROLLOUT))
}

/// A stream's key: run id, kind code, rollout number big-endian, so that keys sort by run, then as [`Stream`]s of a run do.
pub(crate) type StreamKey = [u8; 21];
/// An event's key: the stream's, then the sequence number big-endian.
pub(crate) type EventKey = [u8; 29];

pub(crate) fn stream_key(stream: Stream) -> StreamKey {
    let (code, run, rollout) = stream_parts(stream);
    let mut key = [0; 21];
    let parts = run.0.into_iter().chain([code]).chain(rollout.to_be_bytes());
    key.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    key
}

pub(crate) fn event_key(stream: Stream, seq: Seq) -> EventKey {
    let mut key = [0; 29];
    let parts = stream_key(stream).into_iter().chain(seq.0.to_be_bytes());
    key.iter_mut().zip(parts).for_each(|(to, from)| *to = from);
    key
}

pub(crate) fn stream_of_key(key: &[u8]) -> Option<Stream> {
    let rollout = key.get(17..21)?.try_into().ok()?;
    stream_from_parts(*key.get(16)?, RunId(key.get(..16)?.try_into().ok()?), u32::from_be_bytes(rollout))
}

pub(crate) fn address_of_key(key: &[u8]) -> Option<Address> {
    let seq = Seq(u64::from_be_bytes(key.get(21..)?.try_into().ok()?));
    Some(Address { stream: stream_of_key(key)?, seq })
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    // Callers have checked that a whole header is there; zeros would only ever fail the checksum.
    bytes.get(at..at + N).and_then(|part| part.try_into().ok()).unwrap_or([0; N])
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

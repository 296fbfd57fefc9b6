//! The full check of an archive.

use std::path::Path;
use std::sync::Arc;

use super::ArchiveSummary;
use super::read::ArchiveReader;
use crate::digest::{chain_content, content_digest_of_run};
use crate::error::LogError;
use crate::event::{Body, Kind};
use crate::files::{Files, RealFiles};
use crate::id::{Digest, RunId, Seq, Stream};
use crate::report::{Finding, FindingClass};
use crate::source::{EventSource, Filter, Head, decode};

const PART: usize = 1 << 20;

/// What [`verify_archive`] found.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArchiveReport {
    /// Everything that is wrong.
    pub findings: Vec<Finding>,
    /// What the archive says of itself.
    pub summary: ArchiveSummary,
}

/// Checks every byte and every event of an archive: the file digest, checksums, dense numbers, hash chains and content
/// digests against the footer, that each body can be decoded, and the content digest that the run recorded of itself.
///
/// # Errors
/// As [`ArchiveReader::open`]. Damage behind a readable footer is not an error here but a finding.
pub fn verify_archive(path: &Path) -> Result<ArchiveReport, LogError> {
    verify_archive_with(Arc::new(RealFiles), path)
}

/// As [`verify_archive`], with another file layer.
///
/// # Errors
/// As [`verify_archive`].
pub fn verify_archive_with(files: Arc<dyn Files>, path: &Path) -> Result<ArchiveReport, LogError> {
    let archive = ArchiveReader::open_with(files, path)?;
    Ok(ArchiveReport { findings: check(&archive)?, summary: archive.summary() })
}

pub(super) fn check(archive: &ArchiveReader) -> Result<Vec<Finding>, LogError> {
    let mut findings = Vec::new();
    if file_digest(archive)? != archive.summary().digest {
        let mut finding =
            Finding::new(FindingClass::InteriorDamage, "the file's digest is not the one in it".to_owned());
        finding.file = Some(archive.shown());
        findings.push(finding);
    }
    let run = archive.run();
    for stream in archive.streams(run) {
        check_stream(archive, stream, &mut findings)?;
    }
    if findings.is_empty() {
        findings.extend(check_content(archive, run)?);
    }
    Ok(findings)
}

fn file_digest(archive: &ArchiveReader) -> Result<Digest, LogError> {
    let (mut hasher, mut at, end) = (blake3::Hasher::new(), 0, archive.digested_len());
    while at < end {
        let part = archive.read(at, usize::try_from(end - at).unwrap_or(PART).min(PART))?;
        if part.is_empty() {
            break;
        }
        hasher.update(&part);
        at += part.len() as u64;
    }
    Ok(Digest(*hasher.finalize().as_bytes()))
}

fn check_stream(archive: &ArchiveReader, stream: Stream, findings: &mut Vec<Finding>) -> Result<(), LogError> {
    let found = |class, seq, kind, detail: String| {
        let mut finding = Finding::new(class, detail).of(stream, seq);
        finding.file = Some(archive.shown());
        finding.kind = kind;
        finding
    };
    let Some(stated) = archive.head(stream) else { return Ok(()) };
    let (mut head, before) = (Head::EMPTY, findings.len());
    for frame in archive.frames(stream, Seq(0), &Filter::all()) {
        let frame = match frame {
            Ok(frame) => frame,
            Err(LogError::Damaged { seq, place, reason, .. }) => {
                findings.push(found(FindingClass::InteriorDamage, seq, None, format!("{reason} ({place})")));
                continue;
            }
            Err(error) => return Err(error),
        };
        let (kind, seq) = (frame.kind()?, frame.address().seq);
        match decode(&frame) {
            Ok(_) => {}
            Err(LogError::Body { source, .. }) => {
                findings.push(found(FindingClass::InteriorDamage, seq, Some(kind), source.to_string()));
            }
            Err(error) => return Err(error),
        }
        head.count = seq.0 + 1;
        head.chain = frame.chain();
        if kind.is_content() {
            head.content = chain_content(head.content, kind, frame.layout(), frame.body());
        }
    }
    // Segments have checked the chain; the content digest cannot be computed over a hole.
    if findings.len() == before && head != stated {
        let detail = "the stream's digests are not those in the archive's footer".to_owned();
        findings.push(found(FindingClass::ContentDisagreement, Seq(stated.count.saturating_sub(1)), None, detail));
    }
    Ok(())
}

/// The run's recorded content digest is that of its events.
fn check_content(archive: &ArchiveReader, run: RunId) -> Result<Option<Finding>, LogError> {
    let stream = Stream::Run(run);
    let Some(end) = archive.events(stream, Seq(0), &Filter::kinds([Kind::RunFinished])).next() else {
        return Ok(None);
    };
    let event = end?;
    let Body::RunFinished(finished) = &event.body else { return Ok(None) };
    let detail = match content_digest_of_run(archive, run) {
        Ok(digest) if digest == finished.content => return Ok(None),
        Ok(digest) => format!("the run recorded the content digest {}, its events have {digest}", finished.content),
        Err(error) => error.to_string(),
    };
    let mut finding = Finding::new(FindingClass::ContentDisagreement, detail).of(stream, event.seq);
    finding.file = Some(archive.shown());
    finding.kind = Some(Kind::RunFinished);
    Ok(Some(finding))
}

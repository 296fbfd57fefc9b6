//! Checks a log directory without changing it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::digest::content_digest_of_run;
use crate::dropped::DroppedRun;
use crate::error::LogError;
use crate::event::{Body, Kind};
use crate::files::{Files, RealFiles};
use crate::frame::{HEADER_LEN, stream_of_key};
use crate::id::{RunId, Seq, Stream};
use crate::prefix::damage_of_bases;
use crate::reader::Reader;
use crate::report::{Finding, FindingClass};
use crate::source::{EventSource, Filter, Head};

/// What [`verify()`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Everything that is wrong, in the order of the journal.
    pub findings: Vec<Finding>,
    /// Each stream's end: the journal's in order, then those of archives.
    pub streams: Vec<(Stream, Head)>,
    /// Runs, recorded and training.
    pub runs: u64,
    /// Intact events.
    pub events: u64,
    /// Bytes of the journal.
    pub bytes: u64,
    /// Files of the journal.
    pub files: u64,
    /// Sealed archives.
    pub archives: u64,
    /// Bytes of the archives.
    pub archive_bytes: u64,
    /// Streams that share their first events with another one by reference.
    pub forks: u64,
    /// Those events, counted for each stream. They are among `events`.
    pub shared: u64,
    /// Long texts that the journal stores on their own, each once.
    pub payloads: u64,
    /// Their bytes.
    pub payload_bytes: u64,
    /// Runs that were dropped from the log. None of their events counts above.
    pub dropped: Vec<DroppedRun>,
}

impl VerifyReport {
    /// True if something that was acknowledged is damaged, missing or exchanged. A torn tail alone is not damage.
    #[must_use]
    pub fn is_damaged(&self) -> bool {
        self.findings.iter().any(Finding::is_damage)
    }
}

/// Checks every event of the log in `dir`: checksums, dense numbers, hash chains, that each body can be decoded,
/// agreement with the manifest, and the content digests that finished runs recorded of themselves.
///
/// Nothing is changed and no lock is taken, so it may run beside a writer; what that writer is just appending may then
/// show as a torn tail. The ordered store is not looked at: it is a copy, compared whenever the log is opened for writing.
///
/// # Errors
/// [`LogError::NoLog`], [`LogError::Newer`] or [`LogError::Io`]. Damage is not an error here but a finding.
pub fn verify(dir: &Path) -> Result<VerifyReport, LogError> {
    verify_with(Arc::new(RealFiles), dir)
}

/// As [`verify()`], with another file layer.
///
/// # Errors
/// As [`verify()`].
pub fn verify_with(files: Arc<dyn Files>, dir: &Path) -> Result<VerifyReport, LogError> {
    let (reader, opened) = Reader::open_full(&files, dir)?;
    let mut report = VerifyReport { findings: opened.findings, ..VerifyReport::default() };
    let heads = reader.scan().heads.iter();
    report.streams = heads.filter_map(|(key, head)| Some((stream_of_key(key)?, *head))).collect();
    report.events = reader.scan().events;
    (report.files, report.bytes) = reader.size()?;
    let journal_streams = report.streams.clone();
    for archive in reader.sealed().archives() {
        let summary = archive.summary();
        report.archives += 1;
        report.archive_bytes += summary.bytes;
        report.events += summary.events;
        report.findings.extend(archive.check()?);
    }
    report.streams.extend(reader.sealed().streams());
    let prefixes = &reader.scan().prefixes;
    report.forks = prefixes.len() as u64;
    report.shared = prefixes.values().fold(0, |sum: u64, prefix| sum.saturating_add(prefix.count));
    // What archives hold damaged is known only now.
    let shared = damage_of_bases(prefixes, reader.sealed(), &report.findings);
    let new: Vec<Finding> = shared.into_iter().filter(|finding| !knows(&report.findings, finding)).collect();
    report.findings.extend(new);
    report.events = report.events.saturating_sub(unreadable(&reader, &report.findings)?);
    report.payloads = reader.scan().payloads.len() as u64;
    report.payload_bytes = reader.scan().payloads.values().map(|place| u64::from(place.len) - HEADER_LEN as u64).sum();
    report.dropped.clone_from(&reader.sealed().dropped);
    let runs = reader.runs();
    report.runs = runs.len() as u64;
    let damaged: BTreeSet<Stream> = report.findings.iter().filter_map(|finding| finding.stream).collect();
    for (stream, _) in &journal_streams {
        check_bodies(&reader, *stream, &mut report.findings)?;
    }
    for run in runs {
        let is_sealed = reader.sealed().of(run).is_some();
        if !is_sealed && !damaged.iter().any(|stream| stream.run() == run) {
            report.findings.extend(check_content(&reader, run)?);
        }
    }
    Ok(report)
}

fn knows(findings: &[Finding], other: &Finding) -> bool {
    findings.iter().any(|finding| (finding.stream, finding.seq) == (other.stream, other.seq))
}

/// How many events that streams share by reference cannot be read.
fn unreadable(reader: &Reader, findings: &[Finding]) -> Result<u64, LogError> {
    let mut lost = 0;
    for stream in findings.iter().filter_map(|finding| finding.stream).collect::<BTreeSet<Stream>>() {
        let Some(shared) = reader.shared(stream) else { continue };
        let mut there = 0;
        for header in reader.headers(stream, Seq(0)) {
            match header {
                Ok(header) if header.seq.0 >= shared.count => break,
                Ok(_) => there += 1,
                Err(LogError::Damaged { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        lost += shared.count.saturating_sub(there);
    }
    Ok(lost)
}

/// Every body decodes. Holes are known from the scan.
fn check_bodies(reader: &Reader, stream: Stream, findings: &mut Vec<Finding>) -> Result<(), LogError> {
    // Shared ones are looked at where they stand.
    let own = reader.shared(stream).map_or(0, |shared| shared.count);
    for frame in reader.frames(stream, Seq(own), &Filter::all()) {
        let frame = match frame {
            Ok(frame) => frame,
            Err(LogError::Damaged { .. }) => continue,
            Err(error) => return Err(error),
        };
        match crate::source::decode(&frame) {
            Ok(_) => {}
            Err(LogError::Body { address, source }) => {
                let mut finding = Finding::new(FindingClass::InteriorDamage, source.to_string());
                finding.kind = frame.kind().ok();
                findings.push(finding.of(address.stream, address.seq));
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The run's recorded content digest is that of its events.
fn check_content(reader: &Reader, run: RunId) -> Result<Option<Finding>, LogError> {
    let stream = Stream::Run(run);
    let Some(end) = reader.events(stream, Seq(0), &Filter::kinds([Kind::RunFinished])).next() else { return Ok(None) };
    let event = match end {
        Ok(event) => event,
        // Reported already.
        Err(LogError::Body { .. } | LogError::Damaged { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Body::RunFinished(finished) = &event.body else { return Ok(None) };
    let detail = match content_digest_of_run(reader, run) {
        Ok(digest) if digest == finished.content => return Ok(None),
        Ok(digest) => format!("the run recorded the content digest {}, its events have {digest}", finished.content),
        Err(error) => error.to_string(),
    };
    let mut finding = Finding::new(FindingClass::ContentDisagreement, detail).of(stream, event.seq);
    finding.kind = Some(Kind::RunFinished);
    Ok(Some(finding))
}

//! Catching up with a log and following it while another process writes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::error::LogError;
use crate::event::Event;
use crate::files::RealFiles;
use crate::id::{Address, RunId, Seq, Stream};
use crate::manifest::Manifest;
use crate::reader::Reader;
use crate::report::OpenReport;
use crate::source::{EventSource, Filter, Header, HeaderIter};

/// What a scan of a reader gives.
type Items<'a, T> = Box<dyn Iterator<Item = Result<T, LogError>> + Send + 'a>;

/// Which events a [`Follower`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those of every run.
    Log,
    /// Those of every stream of a run.
    Run(RunId),
    /// Those of one stream.
    Stream(Stream),
}

/// A cursor that gives every wanted event of a log once: first what is there, then, at each [`Follower::poll`], what has
/// been appended since.
///
/// Inside a stream events come in order. Between streams the order is that of the streams' keys in each poll. A later
/// follower that is told the last event seen of each stream with [`Follower::resume_behind`] goes on exactly there,
/// also if the run was sealed in between.
///
/// Events may be given that are written but not yet acknowledged. If the writer's machine stops before they are, they
/// are gone when it is back.
#[derive(Debug)]
pub struct Follower {
    dir: PathBuf,
    reader: Reader,
    wanted: Wanted,
    filter: Filter,
    /// The next position of each stream.
    next: BTreeMap<Stream, Seq>,
}

impl Follower {
    /// Opens the log in `dir` for following, from the beginning of every wanted stream.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open(dir: &Path, wanted: Wanted, filter: Filter) -> Result<(Follower, OpenReport), LogError> {
        let (reader, report) = Reader::open(dir)?;
        Ok((Follower { dir: dir.to_owned(), reader, wanted, filter, next: BTreeMap::new() }, report))
    }

    /// Leaves out the events of a stream up to and including this one.
    pub fn resume_behind(&mut self, address: Address) {
        self.next.insert(address.stream, Seq(address.seq.0.saturating_add(1)));
    }

    /// Gives the wanted events that have not been given yet, until there are no more or `give` breaks off. A damaged
    /// event is given once as the error that it is, in its place.
    ///
    /// # Errors
    /// As [`Reader::refresh`]. What was given stays given.
    pub fn poll(
        &mut self,
        give: &mut dyn FnMut(Result<Event, LogError>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        self.poll_by(|reader, stream, from, filter| reader.events(stream, from, filter), |event| event.seq, give)
    }

    /// The same for headers alone: no body is read, so a filter by node has no effect.
    ///
    /// # Errors
    /// As [`Reader::refresh`]. What was given stays given.
    pub fn poll_headers(
        &mut self,
        give: &mut dyn FnMut(Result<Header, LogError>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        self.poll_by(wanted_headers, |header| header.seq, give)
    }

    fn poll_by<T>(
        &mut self,
        scan: impl for<'r> Fn(&'r Reader, Stream, Seq, &Filter) -> Items<'r, T>,
        seq: impl Fn(&T) -> Seq,
        give: &mut dyn FnMut(Result<T, LogError>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, LogError> {
        self.refresh()?;
        for stream in self.streams() {
            let next = self.next.get(&stream).copied().unwrap_or(Seq(0));
            let count = self.reader.head(stream).map_or(0, |head| head.count);
            if next.0 >= count {
                continue;
            }
            for item in scan(&self.reader, stream, next, &self.filter) {
                let behind = match &item {
                    Ok(item) => Some(seq(item)),
                    Err(LogError::Damaged { seq, .. }) => Some(*seq),
                    Err(_) => None,
                };
                if let Some(seq) = behind {
                    self.next.insert(stream, Seq(seq.0 + 1));
                }
                if give(item).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            self.next.insert(stream, Seq(count));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// The last event behind which each stream stands, for [`Follower::resume_behind`].
    #[must_use]
    pub fn positions(&self) -> Vec<Address> {
        let seen = self.next.iter().filter(|(_, next)| next.0 > 0);
        seen.map(|(stream, next)| Address { stream: *stream, seq: Seq(next.0 - 1) }).collect()
    }

    fn streams(&self) -> Vec<Stream> {
        match self.wanted {
            Wanted::Log => self.reader.runs().into_iter().flat_map(|run| self.reader.streams(run)).collect(),
            Wanted::Run(run) => self.reader.streams(run),
            Wanted::Stream(stream) => vec![stream],
        }
    }

    /// Takes in what is new. A run that has been sealed or dropped is no longer where it was, so the log is then opened
    /// anew.
    fn refresh(&mut self) -> Result<(), LogError> {
        let known = self.reader.sealed();
        let moved = match Manifest::read(&RealFiles, &self.dir)? {
            Some(Ok(manifest)) => {
                manifest.sealed.iter().any(|entry| !known.entries.contains(entry))
                    || manifest.dropped.iter().any(|dropped| !known.knows_dropped(dropped.run))
            }
            _ => false,
        };
        if moved {
            (self.reader, _) = Reader::open(&self.dir)?;
        } else {
            self.reader.refresh()?;
        }
        Ok(())
    }
}

/// The headers of a stream that the filter admits by their kind.
fn wanted_headers<'r>(reader: &'r Reader, stream: Stream, from: Seq, filter: &Filter) -> HeaderIter<'r> {
    let filter = filter.clone();
    let is_wanted =
        move |header: &Result<Header, LogError>| header.as_ref().map_or(true, |header| filter.admits(header.kind));
    Box::new(reader.headers(stream, from).filter(is_wanted))
}

//! Sessions that replays keep for later ones: they save cells and change nothing.

use std::path::Path;
use std::sync::Arc;

use rao_engine::repl::{Keeping, KeptSessions};
use rao_replay::check::{Check, Means};
use rao_store::event::{Body, CellStarted};
use rao_store::{Digest, EventSource, Filter, Seq, Stream};

use crate::stage::{Played, RUN, checked, config, env, open, plan, record_in, repl};

/// Three cells; the event that starts the last one is where replays begin.
fn recorded(dir: &Path) -> (Arc<rao_store::Log>, u64) {
    let actor = Played::cells(&[(
        "0",
        &["x = [view_inventory()]", "x.append(len(x))\nprint(len(x))", "print(x[1])\nfinish(x[1])"],
    )]);
    let log = open(dir);
    record_in(&log, &plan(1, 1, config()), &mut *actor.again());
    let events = log.events(Stream::Rollout(RUN, rao_store::RolloutId(0)), Seq(0), &Filter::all()).map(Result::unwrap);
    let is_last = |body: &Body| matches!(body, Body::CellStarted(CellStarted { step: 2, .. }));
    let from = events.into_iter().find(|event| is_last(&event.body)).unwrap().seq.0;
    (log, from)
}

fn keeping(folder: &Path) -> (Means, Arc<KeptSessions>) {
    let sessions = Arc::new(KeptSessions::new(folder));
    (Means { env: Some(env()), repl: Keeping::of(repl(), &sessions), actor: None }, sessions)
}

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all
}

#[test]
fn a_second_replay_from_the_same_place_takes_up_the_session_that_the_first_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (log, from) = recorded(dir.path());
    let folder = dir.path().join("sessions");
    for (check, taken) in [(Check::Tools, 0), (Check::Tools, 1), (Check::Cells, 1)] {
        let (mut means, sessions) = keeping(&folder);
        let result = checked(&*log, RUN, 0, check, from, &mut means);
        assert_eq!((result.divergence, result.skipped), (None, from));
        assert_eq!((sessions.taken(), files(&folder).len()), (taken, 1), "{check:?}");
    }
    // One step earlier: a session of another history, kept beside the first.
    let (mut means, sessions) = keeping(&folder);
    let events = log.events(Stream::Rollout(RUN, rao_store::RolloutId(0)), Seq(0), &Filter::all()).map(Result::unwrap);
    let second =
        events.into_iter().find(|e| matches!(&e.body, Body::CellStarted(cell) if cell.step == 1)).unwrap().seq.0;
    assert_eq!(checked(&*log, RUN, 0, Check::Tools, second, &mut means).divergence, None);
    assert_eq!((sessions.taken(), files(&folder).len()), (0, 2));
}

#[test]
fn what_is_kept_can_be_lost_damaged_or_wrong_and_decides_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, from) = recorded(dir.path());
    let folder = dir.path().join("sessions");
    let replay = || {
        let (mut means, sessions) = keeping(&folder);
        let result = checked(&*log, RUN, 0, Check::Tools, from, &mut means);
        assert_eq!((result.divergence, result.skipped), (None, from));
        sessions.taken()
    };
    assert_eq!((replay(), replay()), (0, 1));
    let [file] = &files(&folder)[..] else { panic!("one session") };
    let good = std::fs::read(file).unwrap();

    for cut in [0, 31, 40, good.len() - 1] {
        std::fs::write(file, &good[..cut]).unwrap();
        // A session is not written down in the same bytes each time; what counts is that it can be taken up.
        assert_eq!((replay(), replay()), (0, 1), "cut to {cut} bytes, then kept anew");
    }
    // Whole bytes that are no session.
    let with_digest = |snapshot: &[u8]| [&Digest::of(snapshot).0[..], snapshot].concat();
    std::fs::write(file, with_digest(b"no session at all")).unwrap();
    assert_eq!(replay(), 0);
    // A session, but not this one: what it makes differs, and is looked at again without it.
    let functions = [rao_engine::repl::Function::sync("view_inventory"), rao_engine::repl::Function::sync("finish")];
    let mut wrong = repl().open(&functions, &config().cell, 1).unwrap();
    wrong.start("x = [1, 'wrong']").unwrap();
    std::fs::write(file, with_digest(&wrong.snapshot().unwrap())).unwrap();
    assert_eq!(replay(), 1, "it was taken up, and not believed");
}

//! What the scenarios share besides the test kit: replaying, and cutting logs off.

use rao_engine::Actor;
use rao_engine::record::Plan;
use rao_replay::check::{Check, Checked, Means, Request, replay_rollout};
use rao_store::{EventSource, RolloutId, RunId, Seq, Stream};

pub(crate) use rao_testkit::{
    Late, Played, RUN, Wired, bodies, config, copied, env, host, open, plan, plan_in, record_in, repl, resume_in,
    sampled, scripted,
};

pub(crate) const ALL: [Check; 4] = [Check::Fold, Check::Cells, Check::Tools, Check::Tokens];

pub(crate) fn means(actor: Box<dyn Actor>) -> Means {
    Means { env: Some(env()), repl: repl(), actor: Some(actor) }
}

pub(crate) fn checked(
    log: &dyn EventSource,
    run: RunId,
    rollout: u32,
    check: Check,
    from: u64,
    means: &mut Means,
) -> Checked {
    replay_rollout(log, run, RolloutId(rollout), &Request { check, from: Seq(from) }, means).unwrap()
}

/// Replays a rollout at every check from every event.
pub(crate) fn replay_everything(log: &dyn EventSource, means: &mut Means) {
    let events = log.head(Stream::Rollout(RUN, RolloutId(0))).unwrap().count;
    for check in ALL {
        for from in 0..events {
            let result = checked(log, RUN, 0, check, from, means);
            assert!(result.divergence.is_none(), "{check:?} from {from}: {}", result.divergence.unwrap());
            assert_eq!((result.skipped, result.compared), (from, events - from), "{check:?} from {from}");
        }
    }
}

/// Cuts a rollout's log off behind every `step`th event: what is there replays, and resuming gives the whole again.
pub(crate) fn cut_and_resume(log: &dyn EventSource, plan: &Plan, actor: &Played, step: usize) {
    let stream = Stream::Rollout(RUN, RolloutId(0));
    let whole = bodies(log, stream);
    let content = log.head(stream).unwrap().content;
    for cut in (1..whole.len()).step_by(step) {
        let dir = tempfile::tempdir().unwrap();
        let part = copied(log, dir.path(), &whole[..cut]);
        let mut means = means(actor.again());
        for check in ALL {
            let result = checked(&*part, RUN, 0, check, 0, &mut means);
            assert!(result.divergence.is_none(), "{check:?}, cut at {cut}: {}", result.divergence.unwrap());
            assert!(!result.complete);
            assert_eq!(result.compared, cut as u64, "{check:?}, cut at {cut}");
        }
        resume_in(&part, RUN, plan, &mut *actor.again());
        assert_eq!(part.head(stream).unwrap().content, content, "resumed behind event {cut}");
    }
}

/// The same where the order is a fact, so that a resumed rollout need not go on as it did: what was there stays, and the
/// whole replays at every check.
pub(crate) fn cut_and_finish(
    log: &dyn EventSource,
    plan: &Plan,
    means: &mut Means,
    actor: &dyn Fn() -> Box<dyn Actor>,
    step: usize,
) {
    let stream = Stream::Rollout(RUN, RolloutId(0));
    let whole = bodies(log, stream);
    for cut in (1..whole.len()).step_by(step) {
        let dir = tempfile::tempdir().unwrap();
        let part = copied(log, dir.path(), &whole[..cut]);
        let mut all = |is_complete: bool| {
            for check in ALL {
                let result = checked(&*part, RUN, 0, check, 0, means);
                assert!(result.divergence.is_none(), "{check:?}, cut at {cut}: {}", result.divergence.unwrap());
                assert_eq!((result.complete, result.compared), (is_complete, result.events), "{check:?}, cut at {cut}");
            }
        };
        all(false);
        resume_in(&part, RUN, plan, &mut *actor());
        all(true);
        assert_eq!(bodies(&*part, stream)[..cut], whole[..cut], "resumed behind event {cut}");
    }
}

/// The same with another plan for every resumption, and other means to replay with: what was cut off replays, and resuming
/// gives the whole again.
pub(crate) fn cut_and_resume_in(
    log: &dyn EventSource,
    plan: &dyn Fn() -> Plan,
    actor: &Played,
    means: &mut Means,
    step: usize,
) {
    let stream = Stream::Rollout(RUN, RolloutId(0));
    let whole = bodies(log, stream);
    for cut in (1..whole.len()).step_by(step) {
        let dir = tempfile::tempdir().unwrap();
        let part = copied(log, dir.path(), &whole[..cut]);
        for check in ALL {
            let result = checked(&*part, RUN, 0, check, 0, means);
            assert!(result.divergence.is_none(), "{check:?}, cut at {cut}: {}", result.divergence.unwrap());
            assert_eq!((result.complete, result.compared), (false, cut as u64), "{check:?}, cut at {cut}");
        }
        resume_in(&part, RUN, &plan(), &mut *actor.again());
        assert_eq!(bodies(&*part, stream), whole, "resumed behind event {cut}");
    }
}

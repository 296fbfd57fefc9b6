//! Forks: what they share, what they change, and that they are rollouts like others.

use std::sync::Arc;

use rao_engine::fork::{self, Base};
use rao_engine::record::Plan;
use rao_engine::{Actor, Tree};
use rao_envs::Script;
use rao_replay::check::{Check, manifest};
use rao_store::event::{Body, Event, ForkBase, Kind};
use rao_store::{EventSource, Expected, Filter, Log, RolloutId, RunId, Seq, Stream};

use crate::stage::{
    ALL, Played, RUN, bodies, checked, config, host, means, open, plan, record_in, resume_in, sampled, scripted,
};

fn at(run: RunId, rollout: u32, seq: u64) -> ForkBase {
    ForkBase { run, rollout: RolloutId(rollout), seq: Seq(seq) }
}

fn ready(log: &Log, place: ForkBase, members: u32, seed: Option<u64>) -> (Base, Plan) {
    let (_, config) = manifest(log, place.run).unwrap();
    let base = Base::read(log, place).unwrap();
    let seed = seed.unwrap_or(base.started.seed);
    let plan =
        Plan { tasks: vec![base.task().unwrap()], group_size: members, seed, ..crate::stage::plan(1, 1, config) };
    (base, plan)
}

/// Forks as run number `id` and carries the forks to their end.
fn forked(log: &Arc<Log>, id: u8, place: ForkBase, members: u32, seed: Option<u64>, actor: &mut dyn Actor) -> RunId {
    let run = RunId([id; 16]);
    let (like, _) = manifest(&**log, place.run).unwrap();
    let (base, plan) = ready(log, place, members, seed);
    let own = fork::manifest(&like, members, plan.seed, &actor.identity());
    fork::begin(log, run, &base, own, host(), &plan).unwrap();
    resume_in(log, run, &plan, actor);
    run
}

fn stream(run: RunId, rollout: u32) -> Stream {
    Stream::Rollout(run, RolloutId(rollout))
}

#[test]
fn with_seed_and_policy_kept_a_fork_from_any_event_goes_on_as_its_base() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 2, config()), &mut *scripted(Script::Noisy));
    let whole = bodies(&*log, stream(RUN, 1));
    let mut means = means(scripted(Script::Noisy));
    for seq in 0..whole.len() - 1 {
        let run = forked(&log, 100 + seq as u8, at(RUN, 1, seq as u64), 1, None, &mut *scripted(Script::Noisy));
        let fork = bodies(&*log, stream(run, 0));
        assert_eq!(fork[..=seq], whole[..=seq], "forked from {seq}");
        let Body::RolloutStarted(own) = &fork[seq + 1] else { panic!("no beginning behind {seq}") };
        assert_eq!(own.fork_base, Some(at(RUN, 1, seq as u64)));
        assert_eq!(fork[seq + 2..], whole[seq + 1..], "forked from {seq}");
        for check in ALL {
            let result = checked(&*log, run, 0, check, 0, &mut means);
            assert!(result.divergence.is_none(), "{check:?}: {}", result.divergence.unwrap());
            let given = if check == Check::Fold { 0 } else { seq as u64 + 2 };
            assert_eq!((result.skipped, result.complete), (given, true));
            assert_eq!(result.compared, fork.len() as u64 - given);
        }
    }
}

#[test]
fn forks_differ_by_seed_and_policy_and_can_be_forked_again() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *sampled(5));
    let base = bodies(&*log, stream(RUN, 0));
    let first = base.iter().position(|body| body.kind() == Kind::ActionSampled).unwrap() as u64;
    // Other weights go on from the base's first action; three members, three seeds.
    let run = forked(&log, 8, at(RUN, 0, first), 3, Some(99), &mut *sampled(6));
    let tokens = |run, rollout| -> Vec<_> {
        let actions = bodies(&*log, stream(run, rollout)).into_iter();
        actions
            .filter_map(|body| if let Body::ActionSampled(action) = body { Some(action.tokens) } else { None })
            .collect()
    };
    let all: Vec<_> = (0..3).map(|member| tokens(run, member)).collect();
    assert!(all.iter().all(|own| own[0] == tokens(RUN, 0)[0]), "the prefix stays");
    assert!(all[0][1..] != all[1][1..] && all[1][1..] != all[2][1..], "each has a seed of its own");
    // A fork of a fork: its own two beginnings, then this one.
    let middle = bodies(&*log, stream(run, 1)).len() as u64 / 2;
    let again = forked(&log, 9, at(run, 1, middle), 1, Some(7), &mut *sampled(6));
    let beginnings = bodies(&*log, stream(again, 0)).iter().filter(|body| body.kind() == Kind::RolloutStarted).count();
    assert_eq!(beginnings, 3);
    // From inside what it shares with its own base: the base's beginning, then its own.
    let early = forked(&log, 10, at(run, 1, first - 1), 1, Some(7), &mut *sampled(6));
    let beginnings = bodies(&*log, stream(early, 0)).iter().filter(|body| body.kind() == Kind::RolloutStarted).count();
    assert_eq!(beginnings, 2);
    let mut means = means(sampled(6));
    for (run, members) in [(run, 3), (again, 1), (early, 1)] {
        for member in 0..members {
            for check in ALL {
                let result = checked(&*log, run, member, check, 0, &mut means);
                assert!(result.divergence.is_none(), "{check:?}: {}", result.divergence.unwrap());
            }
        }
    }
}

#[test]
fn a_shared_session_keeps_its_random_numbers_and_a_new_one_has_the_forks() {
    let program = || {
        Played::new(|ask| match (ask.node.to_string().as_str(), ask.step) {
            ("0", 0) => "import random\nx = random.random()\nprint(x)".to_owned(),
            ("0", 1) => format!("print(random.random() != x, await launch_subagent({}))", ask.goal.targets),
            ("0.0", 0) => "import random\nfinish(random.random())".to_owned(),
            _ => "finish(x)".to_owned(),
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut program());
    let shown = |run| -> Vec<String> {
        let outputs = bodies(&*log, stream(run, 0)).into_iter();
        outputs.filter_map(|body| if let Body::CellFinished(cell) = body { Some(cell.stdout) } else { None }).collect()
    };
    let first = bodies(&*log, stream(RUN, 0)).iter().position(|body| body.kind() == Kind::CellFinished).unwrap();
    let run = forked(&log, 8, at(RUN, 0, first as u64), 1, Some(99), &mut program());
    let (base, fork) = (shown(RUN), shown(run));
    assert_eq!(base[0], fork[0]);
    assert!(base[2].starts_with("True") && fork[2].starts_with("True"), "{base:?} {fork:?}");
    assert_ne!(base[2], fork[2], "the child's random numbers follow the fork's seed");
    let mut means = means(Box::new(program()));
    for check in ALL {
        assert!(checked(&*log, run, 0, check, 0, &mut means).divergence.is_none());
    }
    assert_eq!(bodies(&*log, stream(run, 0)).last().unwrap().kind(), Kind::RolloutFinished);
}

#[test]
fn siblings_in_flight_go_on_from_where_they_stood() {
    let program = || {
        Played::new(|ask| match (ask.node.to_string().as_str(), ask.step) {
            ("0", 0) => {
                let goal = ask.goal.targets.to_string();
                format!("print(await asyncio.gather(launch_subagent({goal}), launch_subagent({goal})))")
            }
            ("0.0" | "0.1", 0) => "y = 1".to_owned(),
            (node, _) => format!("finish('{node}')"),
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut program());
    let whole = bodies(&*log, stream(RUN, 0));
    // Behind the first child's second action: the second child's is still to come.
    let second = |body: &Body| matches!(body, Body::ActionSampled(a) if a.node.to_string() == "0.0" && a.step == 1);
    let seq = whole.iter().position(second).unwrap();
    let actor = program();
    let asked = actor.asked.clone();
    let run = forked(&log, 8, at(RUN, 0, seq as u64), 1, Some(99), &mut { actor });
    let expected = [("0.1", 1), ("0", 1)].map(|(node, step)| (node.to_owned(), step));
    assert_eq!(*asked.lock().unwrap(), expected);
    let events: Vec<_> = log.events(stream(run, 0), Seq(0), &Filter::all()).map(Result::unwrap).collect();
    let tree = Tree::fold(&events).unwrap();
    assert_eq!(tree.root().unwrap().steps[0].output.as_ref().unwrap().stdout, "['0.0', '0.1']\n");
}

#[test]
fn a_fork_cut_off_anywhere_in_its_beginning_is_completed() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *scripted(Script::Oracle));
    let place = at(RUN, 0, 12);
    let whole = forked(&log, 8, place.clone(), 2, None, &mut *scripted(Script::Oracle));
    let content = |run, member| log.head(stream(run, member)).unwrap().content;
    let (like, _) = manifest(&*log, RUN).unwrap();
    for left in [0, 1, 7, 13, 14, 20] {
        let run = RunId([100 + left; 16]);
        let mut actor = scripted(Script::Oracle);
        let (base, plan) = ready(&log, place.clone(), 2, None);
        let own = fork::manifest(&like, 2, plan.seed, &actor.identity());
        log.append(Stream::Run(run), Expected::Any, vec![own.clone().into(), host().into()]).unwrap();
        let part: Vec<Body> = bodies(&*log, stream(whole, 0)).into_iter().take(usize::from(left)).collect();
        if !part.is_empty() {
            log.append(stream(run, 0), Expected::Any, part).unwrap();
        }
        fork::begin(&log, run, &base, own, host(), &plan).unwrap();
        resume_in(&log, run, &plan, &mut *actor);
        assert_eq!(
            (content(run, 0), content(run, 1)),
            (content(whole, 0), content(whole, 1)),
            "{left} events were left"
        );
    }
}

#[test]
fn a_shared_event_that_differs_from_the_base_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *scripted(Script::Oracle));
    let run = forked(&log, 8, at(RUN, 0, 12), 1, None, &mut *scripted(Script::Oracle));
    let mut changed = bodies(&*log, stream(run, 0));
    let place = changed.iter_mut().position(|body| match body {
        Body::CellFinished(cell) => {
            cell.stdout.push('!');
            true
        }
        _ => false,
    });
    log.append(stream(run, 1), Expected::Any, changed).unwrap();
    let mut means = means(scripted(Script::Oracle));
    for check in ALL {
        let divergence = checked(&*log, run, 1, check, 0, &mut means).divergence.unwrap();
        assert_eq!((divergence.seq.0, divergence.field.as_str()), (place.unwrap() as u64, "stdout"), "{check:?}");
        assert!(divergence.cause.unwrap().contains("is a copy of"));
    }
}

#[test]
fn what_cannot_be_forked_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *scripted(Script::Oracle));
    let end = log.head(stream(RUN, 0)).unwrap().count - 1;
    let ended = Base::read(&*log, at(RUN, 0, end)).unwrap_err().to_string();
    assert!(ended.contains("has ended there"), "{ended}");
    let missing = Base::read(&*log, at(RUN, 0, end + 1)).unwrap_err().to_string();
    assert!(missing.contains("there is no event"), "{missing}");
    // A second beginning has its place, and keeps the task.
    let whole = bodies(&*log, stream(RUN, 0));
    let Body::RolloutStarted(started) = &whole[0] else { panic!("no beginning") };
    let fork = |seq: Option<u64>, task: &str| rao_store::event::RolloutStarted {
        fork_base: seq.map(|seq| at(RUN, 0, seq)),
        task: task.to_owned(),
        ..started.clone()
    };
    let folded = |second: rao_store::event::RolloutStarted| {
        let bodies = whole[..6].iter().cloned().chain([second.into()]);
        let events =
            (0..).zip(bodies).map(|(seq, body)| Event { stream: stream(RUN, 0), seq: Seq(seq), at_us: 0, body });
        Tree::fold(&events.collect::<Vec<_>>()).map_err(|error| error.to_string())
    };
    assert_eq!(folded(fork(Some(5), &started.task)).unwrap().given(), 7);
    assert!(folded(fork(None, &started.task)).unwrap_err().contains("has started already"));
    assert!(folded(fork(Some(4), &started.task)).unwrap_err().contains("begins at the next one"));
    assert!(folded(fork(Some(5), "{}")).unwrap_err().contains("keeps its base's task"));
    let (base, plan) = ready(&log, at(RUN, 0, 5), 1, None);
    let (mut own, _) = manifest(&*log, RUN).unwrap();
    own.policy.tokenizer = rao_store::Digest([1; 32]);
    let refused = fork::begin(&log, RunId([9; 16]), &base, own, host(), &plan).unwrap_err().to_string();
    assert!(refused.contains("tokenizer"), "{refused}");
    assert!(log.head(Stream::Run(RunId([9; 16]))).is_none(), "nothing was written");
}

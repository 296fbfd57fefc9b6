//! Recording with the real parts, then replaying at every depth and from every event.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use rao_engine::record::{Plan, record, resume};
use rao_engine::{Actor, EngineError};
use rao_envs::textcraft::{TextCraft, TextCraftConfig, Verify};
use rao_envs::{Environment, Script};
use rao_replay::check::{Check, Checked, Means, Request, replay_rollout};
use rao_store::event::{Answer, Body};
use rao_store::{EventSource, Expected, Filter, Log, Options, RolloutId, Seq, Stream};
use rao_testkit::{RUN, host, record_in, repl, sampled, scripted};

fn env(verify: Verify) -> Arc<dyn Environment> {
    Arc::new(TextCraft::new(TextCraftConfig { verify, ..TextCraftConfig::default() }).unwrap())
}

fn plan(tasks: usize, group_size: u32) -> Plan {
    rao_testkit::plan(tasks, group_size, rao_testkit::config())
}

/// With the ordered store, which most other tests leave out.
fn open(dir: &Path) -> Arc<Log> {
    Arc::new(Log::open(dir, Options::new(Arc::new(|| 1))).unwrap().0)
}

fn means(actor: Option<Box<dyn Actor>>) -> Means {
    Means { env: Some(env(Verify::Delta)), repl: repl(), actor }
}

fn checked(log: &Log, rollout: u32, check: Check, from: u64, means: &mut Means) -> Checked {
    replay_rollout(log, RUN, RolloutId(rollout), &Request { check, from: Seq(from) }, means).unwrap()
}

const ALL: [Check; 4] = [Check::Fold, Check::Cells, Check::Tools, Check::Tokens];

#[test]
fn every_check_passes_from_every_event() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(3, 2), &mut *scripted(Script::Noisy));
    let mut means = means(Some(scripted(Script::Noisy)));
    for rollout in 0..6 {
        let events = log.head(Stream::Rollout(RUN, RolloutId(rollout))).unwrap().count;
        for check in ALL {
            let step = if rollout == 0 { 1 } else { 7 };
            for from in (0..events).step_by(step) {
                let result = checked(&log, rollout, check, from, &mut means);
                assert!(result.divergence.is_none(), "{check:?} from {from}: {}", result.divergence.unwrap());
                assert_eq!((result.skipped, result.compared), (from, events - from));
                assert!(result.complete);
            }
        }
    }
}

#[test]
fn nothing_is_called_before_the_start_and_each_check_calls_only_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1), &mut *scripted(Script::Oracle));
    let mut means = means(Some(scripted(Script::Oracle)));
    let calls = |check, from, means: &mut Means| {
        let result = checked(&log, 0, check, from, means);
        (result.tool_calls, result.policy_calls, result.judge_calls)
    };
    assert_eq!(calls(Check::Fold, 0, &mut means), (0, 0, 0));
    assert_eq!(calls(Check::Cells, 0, &mut means), (0, 0, 0));
    let (tools, policy, judge) = calls(Check::Tools, 0, &mut means);
    assert!(tools > 0 && judge > 0 && policy == 0);
    let (_, policy, _) = calls(Check::Tokens, 0, &mut means);
    assert!(policy > 0);
    let end = log.head(Stream::Rollout(RUN, RolloutId(0))).unwrap().count - 1;
    assert_eq!(calls(Check::Tokens, end, &mut means), (0, 0, 0), "only the rollout's end is left");
}

#[test]
fn sampled_tokens_are_sampled_again_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(2, 3), &mut *sampled(5));
    let mut same = means(Some(sampled(5)));
    for rollout in 0..6 {
        let result = checked(&log, rollout, Check::Tokens, 0, &mut same);
        assert!(result.divergence.is_none(), "{}", result.divergence.unwrap());
    }
    let mut other = means(Some(sampled(6)));
    let divergence = checked(&log, 0, Check::Tokens, 0, &mut other).divergence.unwrap();
    assert_eq!(divergence.kind, "action_sampled");
    assert!(divergence.cause.as_deref().unwrap().contains("the policy differs"), "{divergence}");
    assert!(checked(&log, 0, Check::Tools, 0, &mut other).divergence.is_none());
}

#[test]
fn digests_depend_neither_on_neighbours_nor_on_width() {
    let digests = |plan: &Plan, actor: &mut dyn Actor| -> BTreeMap<u32, _> {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        record_in(&log, plan, actor);
        let streams = plan.rollouts().into_iter();
        streams.map(|r| (r.0, log.head(Stream::Rollout(RUN, r)).unwrap().content)).collect()
    };
    let all = digests(&plan(3, 2), &mut *sampled(5));
    let narrow = digests(&Plan { width: 1, ..plan(3, 2) }, &mut *sampled(5));
    assert_eq!(all, narrow);
    let only = digests(&Plan { only: Some(vec![RolloutId(4)]), ..plan(3, 2) }, &mut *sampled(5));
    assert_eq!(only.get(&4), all.get(&4));
}

/// Copies a rollout into a new log, with one event changed.
fn tampered(log: &Log, dir: &Path, change: &mut dyn FnMut(&mut Body) -> bool) -> (Arc<Log>, u64) {
    let copy = open(dir);
    for stream in log.streams(RUN) {
        let mut bodies = Vec::new();
        for event in log.events(stream, Seq(0), &Filter::all()) {
            bodies.push(event.unwrap().body);
        }
        let mut at = None;
        if matches!(stream, Stream::Rollout(..)) {
            at = bodies.iter_mut().position(&mut *change);
        }
        copy.append(stream, Expected::Any, bodies).unwrap();
        if let Some(at) = at {
            return (copy, at as u64);
        }
    }
    panic!("nothing was changed");
}

/// The stronger checks find each change at its event; the weaker ones cannot know.
#[test]
fn each_change_is_found_at_its_event_by_the_checks_that_can_know() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1), &mut *scripted(Script::Oracle));
    type Change = fn(&mut Body) -> bool;
    let cases: [(&str, Change, Check); 5] = [
        (
            "a reward",
            |body| {
                if let Body::RewardAssigned(r) = body {
                    r.reward += 1e-9;
                    true
                } else {
                    false
                }
            },
            Check::Fold,
        ),
        (
            "an output",
            |body| {
                if let Body::CellFinished(c) = body {
                    c.stdout.push('!');
                    true
                } else {
                    false
                }
            },
            Check::Cells,
        ),
        (
            "a verdict's source",
            |body| {
                if let Body::Verdict(v) = body {
                    v.source.push('!');
                    true
                } else {
                    false
                }
            },
            Check::Tools,
        ),
        (
            "a prompt's text",
            |body| {
                if let Body::ContextExtended(c) = body {
                    c.text.push('!');
                    true
                } else {
                    false
                }
            },
            Check::Tools,
        ),
        (
            "an action's token",
            |body| {
                if let Body::ActionSampled(a) = body {
                    a.tokens[3].0 += 1;
                    true
                } else {
                    false
                }
            },
            Check::Tokens,
        ),
    ];
    for (what, change, first) in cases {
        let dir = tempfile::tempdir().unwrap();
        let (copy, at) = tampered(&log, dir.path(), &mut { change });
        let mut means = means(Some(scripted(Script::Oracle)));
        for check in ALL {
            let divergence = checked(&copy, 0, check, 0, &mut means).divergence;
            // A changed reward is found by every check: all of them make rewards again.
            match divergence {
                None => assert!(check < first, "{check:?} does not find {what}"),
                Some(found) => assert_eq!((found.seq.0, check >= first), (at, true), "{check:?} on {what}: {found}"),
            }
        }
    }
}

#[test]
fn a_changed_answer_is_found_by_tools_and_shown_with_its_neighbours() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1), &mut *scripted(Script::Oracle));
    let other = tempfile::tempdir().unwrap();
    let change = &mut |body: &mut Body| match body {
        Body::CallAnswered(answered) => match &mut answered.answers[0].1 {
            Answer::Value(value) if value.contains("in_inventory") => {
                *value = value.replacen("\"in_inventory\":0", "\"in_inventory\":1", 1);
                true
            }
            _ => false,
        },
        _ => false,
    };
    let (copy, at) = tampered(&log, other.path(), change);
    let divergence = checked(&copy, 0, Check::Tools, 0, &mut means(None)).divergence.unwrap();
    assert_eq!((divergence.seq.0, divergence.kind.as_str()), (at, "call_answered"));
    assert!(divergence.field.starts_with("answers[0]"), "{}", divergence.field);
    assert!(divergence.to_string().contains("before it"));
}

#[test]
fn another_environment_is_named_as_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1), &mut *scripted(Script::Oracle));
    let mut means = Means { env: Some(env(Verify::Ledger)), repl: repl(), actor: None };
    let divergence = checked(&log, 0, Check::Tools, 0, &mut means).divergence.unwrap();
    assert_eq!(divergence.kind, "verdict");
    assert!(divergence.cause.unwrap().contains("environment's settings differ"));
}

#[test]
fn an_interrupted_run_resumes_to_the_digest_of_an_uninterrupted_one() {
    let random: fn() -> Box<dyn Actor> = || sampled(5);
    let noisy: fn() -> Box<dyn Actor> = || scripted(Script::Noisy);
    // A random model soon repeats itself and is stopped by the loop guard, so its rollouts take few rounds.
    for (actor, interruptions) in [(random, [1, 2, 3]), (noisy, [1, 4, 6])] {
        let whole = tempfile::tempdir().unwrap();
        let plan = plan(3, 2);
        let expected = record_in(&open(whole.path()), &plan, &mut *actor());
        for rounds in interruptions {
            let dir = tempfile::tempdir().unwrap();
            stop_after(rounds, &open(dir.path()), &plan, &mut *actor());
            let log = open(dir.path());
            let partial = checked(&log, 0, Check::Tokens, 0, &mut means(Some(actor())));
            assert!(partial.divergence.is_none(), "{}", partial.divergence.unwrap());
            let go_on = &mut |_| ControlFlow::Continue(());
            let resumed = resume(&log, RUN, &plan, &mut *actor(), &repl(), go_on).unwrap();
            assert_eq!(resumed, expected, "stopped after {rounds} rounds");
        }
    }
}

fn stop_after(rounds: u32, log: &Arc<Log>, plan: &Plan, actor: &mut dyn Actor) {
    let mut left = rounds;
    let stop = &mut |_| {
        left -= 1;
        if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let stopped = record(log, RUN, plan, host(), actor, &repl(), stop);
    assert!(matches!(stopped, Err(EngineError::Stopped)), "the run ended before round {rounds}");
}

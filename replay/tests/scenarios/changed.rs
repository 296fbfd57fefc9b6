//! Logs with an event too many, one too few, or two in each other's place: each is found where it is.

use rao_policy::Chat;
use rao_replay::check::{Check, Divergence};
use rao_store::event::{Answer, Body, CallAnswered, CallIssued};
use rao_store::{EventSource, Expected, RolloutId, Stream};

use crate::stage::{ALL, Played, RUN, bodies, checked, config, copied, means, open, plan, record_in};

fn recorded(cell: &'static str, test: impl Fn(&[Body], &dyn Fn(&[Body]) -> Vec<Option<Divergence>>)) {
    let actor = Played::new(move |ask| match (ask.node.to_string().as_str(), ask.step) {
        ("0", 0) => cell.replace("GOAL", &ask.goal.targets.to_string()),
        (node, _) => format!("finish('{node}')"),
    });
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *actor.again());
    let found = |changed: &[Body]| {
        let dir = tempfile::tempdir().unwrap();
        let copy = copied(&*log, dir.path(), changed);
        let mut means = means(actor.again());
        ALL.map(|check| checked(&*copy, RUN, 0, check, 0, &mut means).divergence).to_vec()
    };
    test(&bodies(&*log, Stream::Rollout(RUN, RolloutId(0))), &found);
}

fn call(body: &Body) -> Option<&CallIssued> {
    if let Body::CallIssued(call) = body { Some(call) } else { None }
}

/// The place of the call with that number in the root's first cell.
fn place(bodies: &[Body], number: u32) -> usize {
    bodies.iter().position(|body| call(body).is_some_and(|call| call.step == 0 && call.call == number)).unwrap()
}

/// Every check but `fold`, which takes calls as they are, must find the first difference at `at`.
fn all_at(found: &[Option<Divergence>], at: usize, what: &str) {
    for (check, divergence) in ALL.iter().zip(found) {
        match divergence {
            Some(divergence) => assert_eq!(divergence.seq.0, at as u64, "{what}, {check:?}: {divergence}"),
            None => assert_eq!(*check, Check::Fold, "{what} is not found by {check:?}"),
        }
    }
}

const CALLS: &str = "a = view_inventory()\nb = get_info(['x'])\nc = view_inventory()\nprint(len(c))";

#[test]
fn a_call_that_the_log_lacks_is_found_where_it_is_made() {
    recorded(CALLS, |whole, found| {
        // The last of three calls and its answer are gone from the log.
        let at = place(whole, 2);
        let mut changed = whole.to_vec();
        changed.drain(at..at + 2);
        let found = found(&changed);
        all_at(&found, at, "one too few");
        let divergence = found[1].clone().unwrap();
        assert_eq!((divergence.kind.as_str(), divergence.field.as_str()), ("cell_finished", "kind"));
        assert!(divergence.got.contains("call_issued") && divergence.got.contains("view_inventory"), "{divergence}");
    });
}

#[test]
fn a_call_that_only_the_log_has_is_found_where_it_stands() {
    recorded(CALLS, |whole, found| {
        // A fourth call behind the third's answer.
        let at = place(whole, 2) + 2;
        let third = call(&whole[at - 2]).unwrap().clone();
        let (node, step) = (third.node.clone(), third.step);
        let extra = CallIssued { call: 3, ..third };
        let answer = CallAnswered { node, step, answers: vec![(3, Answer::Value("{}".into()))] };
        let mut changed = whole.to_vec();
        changed.splice(at..at, [Body::from(extra), Body::from(answer)]);
        let found = found(&changed);
        all_at(&found, at, "one too many");
        let divergence = found[1].clone().unwrap();
        assert_eq!((divergence.kind.as_str(), divergence.field.as_str()), ("call_issued", "kind"));
        assert!(divergence.got.contains("cell_finished"), "{divergence}");
    });
}

#[test]
fn two_calls_in_each_others_place_are_found_at_the_first() {
    recorded(CALLS, |whole, found| {
        let (first, second) = (place(whole, 0), place(whole, 1));
        let (a, b) = (call(&whole[first]).unwrap().clone(), call(&whole[second]).unwrap().clone());
        let mut changed = whole.to_vec();
        changed[first] = CallIssued { name: b.name.clone(), args: b.args.clone(), ..a.clone() }.into();
        changed[second] = CallIssued { name: a.name, args: a.args, ..b }.into();
        let found = found(&changed);
        all_at(&found, first, "two swapped");
        let divergence = found[2].clone().unwrap();
        assert_eq!((divergence.kind.as_str(), divergence.field.as_str()), ("call_issued", "name"));
        assert!(divergence.expected.contains("get_info") && divergence.got.contains("view_inventory"), "{divergence}");
    });
}

#[test]
fn two_answers_in_each_others_place_are_found_at_the_first() {
    let gather = "print(await asyncio.gather(launch_subagent(GOAL), launch_subagent(GOAL)))";
    recorded(gather, |whole, found| {
        let at = whole.iter().position(|body| matches!(body, Body::CallAnswered(a) if a.answers.len() == 2)).unwrap();
        let mut changed = whole.to_vec();
        if let Body::CallAnswered(answered) = &mut changed[at] {
            answered.answers.swap(0, 1);
        }
        let found = found(&changed);
        all_at(&found, at, "swapped answers");
        assert!(found[1].as_ref().unwrap().field.starts_with("answers[0]"), "{:?}", found[1]);
    });
}

#[test]
fn a_token_that_differs_is_shown_with_its_neighbours_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let actor = || Played::new(|_| "finish('an answer')".to_owned());
    record_in(&log, &plan(1, 1, config()), &mut actor());
    let mut changed = bodies(&*log, Stream::Rollout(RUN, RolloutId(0)));
    let at = changed.iter().position(|body| matches!(body, Body::ActionSampled(_))).unwrap();
    // One id per byte: the `w` of "answer" becomes a `z`.
    if let Body::ActionSampled(action) = &mut changed[at] {
        let place = action.text.find('w').unwrap();
        let ids = Chat::bytes().unwrap().encode_action("z").unwrap();
        action.tokens[place].0 = ids[0];
    }
    let other = tempfile::tempdir().unwrap();
    let copy = copied(&*log, other.path(), &changed);
    let divergence = checked(&*copy, RUN, 0, Check::Tokens, 0, &mut means(Box::new(actor()))).divergence.unwrap();
    assert!(divergence.field.starts_with("tokens["), "{divergence}");
    let (expected, got) = divergence.decoded.clone().unwrap();
    assert!(expected.ends_with("an ans⟦zer')</p"), "{expected}");
    assert!(got.ends_with("an ans⟦wer')</p"), "{got}");
    assert!(divergence.to_string().contains("an ans⟦wer"), "{divergence}");
}

#[test]
fn another_interpreter_or_prelude_is_named_as_the_cause() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let actor = Played::new(|_| "print(1)\nfinish('done')".to_owned());
    record_in(&log, &plan(1, 1, config()), &mut *actor.again());
    let other = tempfile::tempdir().unwrap();
    let copy = open(other.path());
    for stream in log.streams(RUN) {
        let mut changed = bodies(&*log, stream);
        for body in &mut changed {
            match body {
                Body::RunStarted(started) => started.repl = "monty 1.4.0 prelude 00000000".into(),
                Body::CellFinished(cell) => cell.stdout = "one\n".into(),
                _ => {}
            }
        }
        copy.append(stream, Expected::Any, changed).unwrap();
    }
    let mut means = means(actor.again());
    assert!(checked(&*copy, RUN, 0, Check::Fold, 0, &mut means).divergence.is_none());
    let divergence = checked(&*copy, RUN, 0, Check::Cells, 0, &mut means).divergence.unwrap();
    assert_eq!((divergence.kind.as_str(), divergence.field.as_str()), ("cell_finished", "stdout"));
    assert!(divergence.cause.unwrap().contains("prelude 00000000"));
}

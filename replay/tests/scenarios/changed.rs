//! Logs with an event too many, one too few, or two in each other's place: each is found where it is.

use std::collections::BTreeSet;
use std::sync::Arc;

use candle_core::Tensor;
use rao_engine::repl::{CellLimits, Function, Monty, Repl, ReplEngine, ReplError};
use rao_engine::{Actor, Sampled};
use rao_policy::{Chat, Config, Decoder, Limits, LocalPolicy, Sampler};
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

/// The embedded interpreter with something defined in every session before its first cell: another prelude.
struct OtherPrelude(&'static str);

impl ReplEngine for OtherPrelude {
    fn identity(&self) -> String {
        format!("{} changed", Monty::new().identity())
    }

    fn open(&self, functions: &[Function], limits: &CellLimits, seed: u64) -> Result<Box<dyn Repl>, ReplError> {
        let mut session = Monty::new().open(functions, limits, seed)?;
        session.start(self.0)?;
        Ok(session)
    }

    fn restore(&self, functions: &[Function], limits: &CellLimits, bytes: &[u8]) -> Result<Box<dyn Repl>, ReplError> {
        Monty::new().restore(functions, limits, bytes)
    }
}

#[test]
fn a_changed_prelude_is_found_at_the_first_cell_that_shows_it() {
    let actor =
        Played::cells(&[("0", &["print(round(2.4))", "print(max(1, 2))", "print(max(3, 4))", "finish(max(5, 6))"])]);
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *actor.again());
    let whole = bodies(&*log, Stream::Rollout(RUN, RolloutId(0)));
    let at = whole.iter().position(|body| matches!(body, Body::CellFinished(cell) if cell.step == 1)).unwrap();
    let mut means = means(actor.again());
    means.repl = Arc::new(OtherPrelude("def max(a, b):\n    return a"));
    for check in ALL {
        match checked(&*log, RUN, 0, check, 0, &mut means).divergence {
            None => assert_eq!(check, Check::Fold),
            Some(found) => {
                assert_eq!((found.seq.0, found.field.as_str()), (at as u64, "stdout"), "{check:?}: {found}");
                assert!(found.cause.unwrap().contains("changed"));
            }
        }
    }
    // What does not use it is the same under both.
    means.repl = Arc::new(OtherPrelude("def min(a, b):\n    return a"));
    assert!(checked(&*log, RUN, 0, Check::Tokens, 0, &mut means).divergence.is_none());
}

/// A model whose embeddings are not those of its last layer, so that one of them can change what only one token touches.
fn untied(changed: Option<u32>) -> Box<dyn Actor> {
    let chat = Chat::bytes().unwrap();
    let json = format!(
        r#"{{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": {}, "hidden_size": 16, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "tie_word_embeddings": false, "max_position_embeddings": 8192, "hidden_act": "silu",
        "attention_bias": false}}"#,
        chat.vocab_size()
    );
    let decoder = Decoder::init(Config::from_json(json.as_bytes()).unwrap(), 5).unwrap();
    if let Some(token) = changed {
        let var = decoder.vars().get("model.embed_tokens.weight").unwrap();
        let mut rows = var.to_vec2::<f32>().unwrap();
        rows[token as usize][3] += 0.5;
        let (height, width) = (rows.len(), rows[0].len());
        let flat: Vec<f32> = rows.into_iter().flatten().collect();
        var.set(&Tensor::from_vec(flat, (height, width), var.device()).unwrap()).unwrap();
    }
    let policy = LocalPolicy::new("untied", decoder, chat.clone(), Limits::default()).unwrap();
    let settings = config();
    let sampler = Sampler::whole(settings.temperature, settings.max_tokens);
    Box::new(Sampled::new(Box::new(policy), Arc::new(chat), sampler, settings.context))
}

#[test]
fn a_changed_weight_is_found_at_the_first_action_that_it_touches() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut *untied(None));
    let whole = bodies(&*log, Stream::Rollout(RUN, RolloutId(0)));
    // A token that the node first reads behind its first action.
    let mut read = BTreeSet::new();
    let mut actions = Vec::new();
    let mut late = None;
    for (at, body) in whole.iter().enumerate() {
        match body {
            Body::ContextExtended(more) => {
                let fresh = more.tokens.iter().map(|token| token.0).find(|token| !read.contains(token));
                if !actions.is_empty() && late.is_none() {
                    late = fresh;
                }
                read.extend(more.tokens.iter().map(|token| token.0));
            }
            Body::ActionSampled(action) => {
                read.extend(action.tokens.iter().map(|token| token.0));
                actions.push(at as u64);
            }
            _ => {}
        }
        if late.is_some() {
            break;
        }
    }
    let touched = whole.iter().enumerate().skip(actions[actions.len() - 1] as usize + 1);
    let next =
        touched.filter(|(_, body)| matches!(body, Body::ActionSampled(_))).map(|(at, _)| at as u64).next().unwrap();
    let mut same = means(untied(None));
    assert!(checked(&*log, RUN, 0, Check::Tokens, 0, &mut same).divergence.is_none());
    let mut other = means(untied(late));
    for check in ALL {
        match checked(&*log, RUN, 0, check, 0, &mut other).divergence {
            None => assert!(check < Check::Tokens, "{check:?}"),
            Some(found) => {
                assert_eq!(
                    (check, found.seq.0, found.kind.as_str()),
                    (Check::Tokens, next, "action_sampled"),
                    "{found}"
                );
                assert!(found.cause.unwrap().contains("the policy differs"));
            }
        }
    }
}

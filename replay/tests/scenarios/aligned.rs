//! Two trees held against each other.

use std::collections::BTreeSet;

use rao_engine::Tree;
use rao_envs::Script;
use rao_replay::diff::{Pair, align, first};
use rao_store::{EventSource, Filter, RolloutId, Seq, Stream};

use crate::stage::{Played, RUN, config, open, plan, record_in, scripted};

fn trees(log: &dyn EventSource, count: u32) -> Vec<Tree> {
    let events = |rollout| log.events(Stream::Rollout(RUN, RolloutId(rollout)), Seq(0), &Filter::all());
    (0..count).map(|rollout| Tree::fold(&events(rollout).map(Result::unwrap).collect::<Vec<_>>()).unwrap()).collect()
}

/// The tree of a root that launches children for these amounts of its first target, side by side.
fn launching(amounts: &'static [u32]) -> Tree {
    let mut actor = Played::new(move |ask| match (ask.node.to_string().as_str(), ask.step) {
        ("0", 0) => {
            let goal = ask.goal.targets.to_string();
            let item = goal.split('"').nth(1).unwrap();
            let calls: Vec<String> =
                amounts.iter().map(|amount| format!("launch_subagent({{'{item}': {amount}}})")).collect();
            format!("print(await asyncio.gather({}))", calls.join(", "))
        }
        _ => "finish('done')".to_owned(),
    });
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(1, 1, config()), &mut actor);
    trees(&*log, 1).remove(0)
}

/// Children's pairs as ordinals.
fn ordinals(pairs: &[Pair]) -> Vec<(Option<u32>, Option<u32>)> {
    let last = |path: &Option<rao_store::NodePath>| path.as_ref().and_then(|path| path.ordinals().last().copied());
    pairs.iter().skip(1).map(|pair| (last(&pair.a), last(&pair.b))).collect()
}

#[test]
fn children_are_aligned_by_goal_then_by_the_call_that_launched_them() {
    let aligned = |a, b| ordinals(&align(&launching(a), &launching(b)));
    let (some, none) = (|n| Some(n), None);
    assert_eq!(aligned(&[1, 2], &[1, 2]), [(some(0), some(0)), (some(1), some(1))]);
    assert_eq!(aligned(&[1, 2], &[1, 3, 2]), [(some(0), some(0)), (none, some(1)), (some(1), some(2))]);
    assert_eq!(aligned(&[1, 3, 2], &[1, 2]), [(some(0), some(0)), (some(1), none), (some(2), some(1))]);
    assert_eq!(aligned(&[1, 2], &[2, 1]), [(some(0), some(1)), (some(1), some(0))], "in each other's place");
    assert_eq!(aligned(&[1, 2], &[1, 4]), [(some(0), some(0)), (some(1), some(1))], "another goal for the same call");
    let pairs = align(&launching(&[1, 2]), &launching(&[1, 4]));
    assert_eq!(pairs.iter().map(|pair| pair.same_goal).collect::<Vec<_>>(), [true, true, false]);
    let parting = first(&pairs).unwrap().parting.clone().unwrap();
    assert_eq!((parting.step, parting.what.as_str()), (0, "action"));
}

#[test]
fn a_tree_is_the_same_as_itself_and_no_node_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record_in(&log, &plan(3, 3, config()), &mut *scripted(Script::Noisy));
    let trees = trees(&*log, 9);
    let mut parted = 0;
    for a in &trees {
        let own = align(a, a);
        assert!(own.iter().all(|pair| pair.a == pair.b && pair.same_goal && pair.parting.is_none()));
        for b in &trees {
            let pairs = align(a, b);
            let side =
                |get: fn(&Pair) -> Option<&rao_store::NodePath>| pairs.iter().filter_map(get).collect::<Vec<_>>();
            let (left, right) = (side(|pair| pair.a.as_ref()), side(|pair| pair.b.as_ref()));
            assert_eq!(left.iter().collect::<BTreeSet<_>>().len(), left.len(), "no node twice");
            assert_eq!((left.len(), right.iter().collect::<BTreeSet<_>>().len()), (a.len(), b.len()));
            parted += usize::from(first(&pairs).is_some());
        }
    }
    assert!(parted > 30, "{parted} of 72 pairs part");
}

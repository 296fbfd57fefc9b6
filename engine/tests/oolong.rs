//! Whole rollouts of Oolong: the oracle on real dialogue and on generated windows, the noisy policy, the two kinds of
//! agents where the text is longer than the window.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use rao_engine::record::Plan;
use rao_engine::repl::CellLimits;
use rao_engine::{EngineConfig, Tree};
use rao_envs::judge::Panel;
use rao_envs::oolong::{Oolong, OolongConfig};
use rao_envs::{Environment, PromptStyle, Script, Selection, Split, Task};
use rao_store::event::{Outcome, RefusalReason};
use rao_store::{EventSource, Filter, RolloutId, Seq, Stream};
use rao_testkit::{RUN, config, open, record_in, scripted};

fn settings(env: &dyn Environment, style: PromptStyle) -> EngineConfig {
    let defaults = env.defaults(&[]);
    EngineConfig {
        max_depth: defaults.max_depth,
        max_steps: defaults.max_steps,
        max_nodes: 128,
        context: defaults.context,
        lambda: defaults.lambda,
        prompt: style,
        cell: CellLimits {
            time_ms: 20_000,
            output_chars: defaults.output_chars,
            reject_while: true,
            ..CellLimits::default()
        },
        ..config()
    }
}

/// The trees of a recording, and its mean success.
fn trees(env: Arc<dyn Environment>, tasks: Vec<Task>, config: EngineConfig, script: Script) -> (Vec<Tree>, f64) {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let plan = Plan { env, tasks, group_size: 1, config, seed: 1, only: None, width: 4, panel: Panel::default() };
    let recorded = record_in(&log, &plan, &mut *scripted(script));
    let tree = |rollout: RolloutId| {
        let events = log.events(Stream::Rollout(RUN, rollout), Seq(0), &Filter::all()).map(Result::unwrap);
        Tree::fold(&events.collect::<Vec<_>>()).unwrap()
    };
    let count = plan.rollouts().len();
    (plan.rollouts().into_iter().map(tree).collect(), recorded.success / count as f64)
}

fn selection(presets: &[&str], split: Split, count: Option<usize>) -> Selection {
    Selection { presets: presets.iter().map(|name| (*name).to_owned()).collect(), split, count, seed: 5 }
}

/// Every kind of question about each of the five real episodes, once, unless `RAO_LOG_OOLONG_ALL` asks for every question.
#[test]
fn the_oracle_answers_questions_about_real_episodes_within_8k_tokens() {
    let Some(root) = std::env::var_os("RAO_LOG_DATA") else {
        println!("skipped: RAO_LOG_DATA is not set");
        return;
    };
    let data = PathBuf::from(root).join("crd3");
    assert!(data.is_dir(), "{} is not there", data.display());
    let env = Arc::new(Oolong::new(OolongConfig { data: Some(data), ..OolongConfig::default() }).unwrap());
    let (all, mut kinds, mut chosen) = (std::env::var_os("RAO_LOG_OOLONG_ALL"), BTreeSet::new(), Vec::new());
    for split in [Split::Train, Split::Val] {
        for task in env.tasks(&selection(&["1ep"], split, None)).unwrap() {
            let asked = &task.body["asked"];
            let finish = asked["finish"].as_str().unwrap_or("percent").to_owned();
            let kind = format!("{} {} {finish}", asked["query"]["kind"], task.body["origin"]);
            if all.is_some() || kinds.insert(kind) {
                chosen.push(task);
            }
        }
    }
    assert!(chosen.len() >= 40, "{}", chosen.len());
    let config = settings(&*env, PromptStyle::Full);
    let (trees, success) = trees(env, chosen, config, Script::Oracle);
    assert_eq!(success, 1.0);
    let (mut longest, mut nodes) = (0, 0);
    for tree in &trees {
        assert!(tree.len() > 15, "a long text is handed on");
        for node in tree.nodes() {
            assert_eq!(node.success(), Some(1.0), "node {} of {:?}: {:?}", node.path, tree.started, node.verdicts);
            longest = longest.max(node.tokens.len());
            nodes += 1;
        }
    }
    println!("{} rollouts, {nodes} nodes, the longest context has {longest} tokens of a byte each", trees.len());
    assert!(longest <= 8_192, "{longest}");
}

#[test]
fn the_oracle_answers_every_generated_question() {
    let env: Arc<dyn Environment> = Arc::new(Oolong::new(OolongConfig::default()).unwrap());
    let tasks = env.tasks(&selection(&["2k", "8k"], Split::Train, Some(60))).unwrap();
    let config = settings(&*env, PromptStyle::Brief);
    let (trees, success) = trees(env, tasks, config, Script::Oracle);
    for tree in &trees {
        for node in tree.nodes() {
            assert_eq!(node.success(), Some(1.0), "node {} of {:?}: {:?}", node.path, tree.started, node.verdicts);
        }
    }
    assert_eq!(success, 1.0);
    assert!(trees.iter().flat_map(Tree::nodes).all(|node| node.success() == Some(1.0)));
    let root = trees[1].root().unwrap();
    let (_, reward) = root.reward.clone().unwrap();
    assert_eq!((reward.own, reward.child_mean, reward.reward), (1.0, 1.0, 1.4));
    assert_eq!(trees.iter().map(|tree| tree.finished.as_ref().unwrap().max_depth.0).max(), Some(1));
    let verdict = &root.verdicts[0];
    assert!(verdict.evidence.contains("\"chunks/gap\":0") && verdict.evidence.contains("\"chunks/overlap\":0"));
}

#[test]
fn long_windows_take_two_levels() {
    let env: Arc<dyn Environment> = Arc::new(Oolong::new(OolongConfig::default()).unwrap());
    let tasks = env.tasks(&selection(&["128k"], Split::Train, Some(2))).unwrap();
    let config = settings(&*env, PromptStyle::Full);
    let (trees, success) = trees(env, tasks, config, Script::Oracle);
    assert_eq!(success, 1.0);
    for tree in &trees {
        assert_eq!(tree.finished.as_ref().unwrap().max_depth.0, 2);
        assert!(tree.nodes().all(|node| node.tokens.len() < 16_384));
    }
}

#[test]
fn where_the_text_is_longer_than_the_window_only_the_recursive_agent_succeeds() {
    let env: Arc<dyn Environment> = Arc::new(Oolong::new(OolongConfig::default()).unwrap());
    let tasks = env.tasks(&selection(&["8k"], Split::Val, Some(8))).unwrap();
    let recursive = settings(&*env, PromptStyle::Brief);
    let flat = EngineConfig { recursive: false, max_steps: 200, ..recursive.clone() };
    let (_, with) = trees(Arc::clone(&env), tasks.clone(), recursive, Script::Oracle);
    let (without, rate) = trees(Arc::clone(&env), tasks.clone(), flat.clone(), Script::Oracle);
    println!("32,000 characters in a window of 16,384 tokens: recursive {with}, flat {rate}");
    assert_eq!((with, rate), (1.0, 0.0));
    assert!(without.iter().all(|tree| tree.root().unwrap().outcome == Some(Outcome::ContextOverflow)));
    // With room for the text the flat agent does as well.
    let wide = EngineConfig { context: 65_536, ..flat };
    assert_eq!(trees(env, tasks, wide, Script::Oracle).1, 1.0);
}

#[test]
fn the_noisy_policy_errs_in_many_ways() {
    let env: Arc<dyn Environment> = Arc::new(Oolong::new(OolongConfig::default()).unwrap());
    let tasks = env.tasks(&selection(&["2k", "8k"], Split::Train, Some(60))).unwrap();
    let config = settings(&*env, PromptStyle::Brief);
    let (trees, success) = trees(env, tasks, config, Script::Noisy);
    assert!(success > 0.3 && success < 0.97, "{success}");
    let nodes = || trees.iter().flat_map(Tree::nodes);
    let fractional = nodes().filter(|node| node.success().is_some_and(|own| own > 0.0 && own < 1.0)).count();
    assert!(fractional > 5, "graded scores: {fractional}");
    let sources: BTreeSet<&str> =
        nodes().flat_map(|node| &node.verdicts).map(|verdict| verdict.source.as_str()).collect();
    assert_eq!(sources, BTreeSet::from(["oolong/dnd", "oolong/query", "root"]));
    for node in nodes() {
        let (_, reward) = node.reward.clone().unwrap();
        assert!(reward.own >= 0.0 && reward.own <= 1.0 && reward.reward <= 1.4);
    }
    let refused =
        nodes().flat_map(|node| &node.steps).flat_map(|step| &step.calls).filter(|call| call.refused.is_some());
    assert!(refused.count() > 0, "{:?}", RefusalReason::Goal);
}

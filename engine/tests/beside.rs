//! Judges and slow calls beside the rollouts: what overlaps, what stands still, and what a stop leaves.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rao_engine::record::{Plan, Recorded, record};
use rao_engine::{EngineConfig, EngineError, Judges, Scheduler};
use rao_envs::judge::Panel;
use rao_store::event::Body;
use rao_store::{EventSource, Filter, RolloutId, Seq, Stream};
use rao_testkit::{Asking, Deliberate, Played, RUN, Wired, config, host, open, plan_in, record_in, repl, resume_in};

const BOTH: [Scheduler; 2] = [Scheduler::Rounds, Scheduler::Arrival];
const FOREVER: Duration = Duration::from_secs(3600);

fn settings(scheduler: Scheduler, panel: &Panel) -> EngineConfig {
    EngineConfig { scheduler, judges: Some(Judges::of(panel)), ..config() }
}

fn judged(scheduler: Scheduler, rollouts: u32, judge: &Deliberate) -> Plan {
    let panel = judge.panel();
    Plan { panel: panel.clone(), ..plan_in(Arc::new(Asking::new()), 1, rollouts, settings(scheduler, &panel)) }
}

/// A root with six children, each with an answer of its own that names its rollout.
fn family() -> Played {
    Played::new(|ask| match (ask.node.to_string().as_str(), ask.step) {
        ("0", 0) => {
            format!("r = await asyncio.gather(*[launch_subagent({}) for _ in range(6)])", ask.goal.targets)
        }
        (node, _) => format!("finish('{node} of {}')", ask.seed),
    })
}

fn recorded(dir: &Path, plan: &Plan) -> (Recorded, Duration) {
    let begin = Instant::now();
    let done = record_in(&open(dir), plan, &mut family());
    (done, begin.elapsed())
}

#[test]
fn verdicts_overlap_under_both_schedulers() {
    for scheduler in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let judge = Deliberate::new(|_| Duration::from_millis(300));
        let (done, took) = recorded(dir.path(), &judged(scheduler, 2, &judge));
        assert_eq!((done.rollouts, done.nodes), (2, 14));
        // Two rollouts of six children at once, and their roots.
        assert!(judge.seen.most.load(Ordering::SeqCst) >= 12, "{scheduler:?}: {:?}", judge.seen.most);
        assert!(took < Duration::from_millis(14 * 300 / 2), "{scheduler:?}: {took:?}");
    }
}

#[test]
fn a_slow_verdict_holds_up_nobody_else() {
    for scheduler in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        // The children of one rollout take long to judge.
        let slow = rao_engine::seed::rollout(11, &plan_in(Arc::new(Asking::new()), 1, 1, config()).tasks[0].id, 0);
        let judge = Deliberate::new(move |question| {
            let is_slow = question.answer_text().is_some_and(|answer| answer.ends_with(&slow.to_string()));
            Duration::from_millis(if is_slow { 1_500 } else { 1 })
        });
        let begin = Instant::now();
        let mut first = None;
        let watch = &mut |standing: rao_engine::rounds::Standing| {
            if standing.finished == 1 && first.is_none() {
                first = Some(begin.elapsed());
            }
            ControlFlow::Continue(())
        };
        record(&log, RUN, &judged(scheduler, 2, &judge), host(), &mut family(), &repl(), watch).unwrap();
        assert!(first.unwrap() < Duration::from_millis(1_400), "{scheduler:?}: {first:?}");
        assert!(begin.elapsed() >= Duration::from_millis(1_500));
        // The slow rollout's root went on with its children's values long before.
        let events: Vec<Body> =
            log.events(Stream::Rollout(RUN, RolloutId(0)), Seq(0), &Filter::all()).map(|e| e.unwrap().body).collect();
        let action = events.iter().rposition(|body| matches!(body, Body::ActionSampled(_))).unwrap();
        let verdict = events.iter().position(|body| matches!(body, Body::Verdict(_))).unwrap();
        assert!(action < verdict, "{scheduler:?}");
    }
}

#[test]
fn a_stopped_run_gives_its_questions_up_and_is_resumed() {
    for scheduler in BOTH {
        let dir = tempfile::tempdir().unwrap();
        let whole = recorded(&dir.path().join("whole"), &judged(scheduler, 2, &Deliberate::scrambled(1))).0;
        let log = open(&dir.path().join("log"));
        let silent = Deliberate::new(|_| FOREVER);
        let begin = Instant::now();
        let watch = &mut |_| match silent.seen.now.load(Ordering::SeqCst) {
            12.. => ControlFlow::Break(()),
            _ => ControlFlow::Continue(()),
        };
        let plan = judged(scheduler, 2, &silent);
        let stopped = record(&log, RUN, &plan, host(), &mut family(), &repl(), watch);
        assert!(matches!(stopped, Err(EngineError::Stopped)), "{stopped:?}");
        assert!(begin.elapsed() < Duration::from_secs(5), "nobody waits for the judge");
        drop(plan);
        let patience = Instant::now();
        while silent.seen.now.load(Ordering::SeqCst) > 0 {
            assert!(patience.elapsed() < Duration::from_secs(5), "questions were not given up");
            std::thread::sleep(Duration::from_millis(5));
        }
        let resumed = resume_in(&log, RUN, &judged(scheduler, 2, &Deliberate::scrambled(2)), &mut family());
        assert_eq!((resumed.rollouts, resumed.nodes, resumed.success), (2, 14, 2.0));
        if scheduler == Scheduler::Rounds {
            assert_eq!(resumed.content, whole.content);
        }
    }
}

#[test]
fn a_run_with_a_slow_call_is_stopped_at_once_and_resumed() {
    const CALLS: &[(&str, &[&str])] =
        &[("0", &["a = look_up(1500)\nb = await search(1)\nfinish([a, b, count_calls()])"])];
    let plan = || plan_in(Arc::new(Wired::new()), 1, 2, config());
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let begin = Instant::now();
    let watch = &mut |standing: rao_engine::rounds::Standing| match standing.actions {
        2 if begin.elapsed() > Duration::from_millis(300) => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    };
    let stopped = record(&log, RUN, &plan(), host(), &mut Played::cells(CALLS), &repl(), watch);
    assert!(matches!(stopped, Err(EngineError::Stopped)), "{stopped:?}");
    assert!(begin.elapsed() < Duration::from_millis(1_200), "nobody waits for the call");
    let begin = Instant::now();
    resume_in(&log, RUN, &plan(), &mut Played::cells(CALLS));
    assert!(begin.elapsed() < Duration::from_millis(2_800), "the calls of two rollouts run side by side");
    let events = log.events(Stream::Rollout(RUN, RolloutId(0)), Seq(0), &Filter::all());
    let finished = events.map(|event| event.unwrap().body);
    let value = finished.filter_map(|body| if let Body::NodeFinished(end) = body { end.value } else { None }).next();
    assert_eq!(value.unwrap(), r#"["look_up (1500)","search (1)",2]"#);
}

//! What the tests of the store share: events of every shape, a clock that counts, and copies of directories.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rao_store::event::{
    ActionSampled, Answer, Body, CallAnswered, CallIssued, CellFinished, CellStarted, ContextExtended, CreditAssigned,
    Event, ForkBase, HostFacts, LimitKind, LogProbKind, LossKind, NodeFinished, NodeSpawned, Note, Outcome,
    PolicyIdentity, RefusalReason, RewardAssigned, Role, RolloutFinished, RolloutStarted, RunFinished, RunStarted,
    SamplerSettings, SpawnRefused, StopReason, TrainFinished, TrainStarted, TrainStep, TrajectoryScored, Verdict,
};
use rao_store::{
    Address, Clock, Depth, Digest, EventSource, Expected, Filter, HEADER_LEN, Log, LogError, LogProb, NodePath,
    OpenReport, Options, PolicyVersion, RolloutId, RunId, Seq, Stream, TokenId, content_digest_of_run,
};

/// A clock that starts at 1,000,000 us and ticks by one at each reading.
pub(crate) fn counting_clock() -> Clock {
    let now = AtomicU64::new(1_000_000);
    Arc::new(move || now.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn options() -> Options {
    Options::new(counting_clock())
}

/// Without sled: for tests that open hundreds of logs and are not about it.
pub(crate) fn plain_options() -> Options {
    let mut options = options();
    options.ordered_store = false;
    options
}

pub(crate) fn open(dir: &Path) -> (Log, OpenReport) {
    Log::open(dir, options()).unwrap()
}

/// Run number `n`; a higher number sorts later.
pub(crate) fn run(n: u8) -> RunId {
    let mut id = [0; 16];
    id[0] = 1;
    id[5] = n;
    id[6] = 0x70;
    id[15] = n.wrapping_mul(37);
    RunId(id)
}

pub(crate) fn rollout(n: u8, r: u32) -> Stream {
    Stream::Rollout(run(n), RolloutId(r))
}

pub(crate) fn note(text: impl Into<String>) -> Body {
    Note { text: text.into() }.into()
}

pub(crate) fn reward(own: f64) -> Body {
    let node = NodePath::root().child(1);
    RewardAssigned { node, own, children: 2, child_mean: 0.5, lambda: 0.25, reward: own + 0.125 }.into()
}

pub(crate) fn action(tokens: u32, logprobs: u32) -> Body {
    ActionSampled {
        node: NodePath::root(),
        step: 3,
        text: "<python>finish(1)</python>".to_owned(),
        at: 17,
        tokens: (0..tokens).map(|token| TokenId(token * 7)).collect(),
        logprobs: (0..logprobs).map(|i| LogProb(-0.5 - i as f32)).collect(),
        logprob_kind: LogProbKind::Model,
        sampler: SamplerSettings::whole(1.0, 64),
        stop: StopReason::CellEnd,
        policy_version: PolicyVersion(2),
    }
    .into()
}

pub(crate) fn policy() -> PolicyIdentity {
    PolicyIdentity {
        kind: "scripted".to_owned(),
        name: "oracle".to_owned(),
        weights: None,
        tokenizer: Digest::of(b"tokenizer"),
        version: PolicyVersion(0),
    }
}

pub(crate) fn run_started() -> Body {
    RunStarted {
        env: "textcraft".to_owned(),
        env_config: r#"{"preset":"tiny"}"#.to_owned(),
        engine_config: "{}".to_owned(),
        policy: policy(),
        repl: "monty".to_owned(),
        seed: 7,
        group_size: 2,
        tasks: 1,
        rollouts: vec![RolloutId(0), RolloutId(1)],
        durability: "durable".to_owned(),
    }
    .into()
}

/// An event whose kind and size follow from `i`: some tiny, some beyond every inlining threshold.
pub(crate) fn varied(i: u64) -> Body {
    match i % 6 {
        0 => note(format!("remark {i}")),
        1 => reward(i as f64 / 64.0),
        2 => action((i % 40) as u32, (i % 40) as u32),
        3 => ContextExtended {
            node: NodePath::root(),
            step: i as u32,
            role: Role::Observation,
            text: "observation ".repeat((i % 90) as usize),
            at: 5,
            tokens: (0..(i % 300) as u32).map(TokenId).collect(),
        }
        .into(),
        4 => CallAnswered {
            node: NodePath::root(),
            step: 1,
            answers: vec![
                (1, Answer::Value("[1, 2]".to_owned())),
                (0, Answer::Raised { kind: "ValueError".to_owned(), message: format!("no {i}") }),
            ],
        }
        .into(),
        _ => HostFacts { program: "0.1.0".to_owned(), facts: vec![("threads".to_owned(), i.to_string())] }.into(),
    }
}

/// Records a whole small run: its manifest, two rollouts with rewards, and its end.
pub(crate) fn record_run(log: &Log, n: u8) -> Result<(), LogError> {
    let own = Stream::Run(run(n));
    let facts = HostFacts { program: "test".to_owned(), facts: vec![("run".to_owned(), n.to_string())] };
    log.append(own, Expected::Exactly(Seq(0)), vec![run_started(), facts.into()])?;
    for r in 0..2 {
        let stream = rollout(n, r);
        log.append(stream, Expected::Exactly(Seq(0)), vec![note("begin"), action(5, 5)])?;
        log.append(stream, Expected::Any, vec![reward(0.5), reward(1.0)])?;
        let end = RolloutFinished { nodes: 2, steps: 3, tokens: 5, max_depth: Depth(1), success: 1.0 };
        log.append(stream, Expected::Any, vec![end.into()])?;
    }
    let content = content_digest_of_run(log, run(n))?;
    log.append(own, Expected::Exactly(Seq(2)), vec![RunFinished { rollouts: 2, content }.into()])?;
    Ok(())
}

/// Every event of a source, stream by stream; holes are left out.
pub(crate) fn everything(source: &dyn EventSource) -> Vec<Event> {
    let mut events = Vec::new();
    for run in source.runs() {
        for stream in source.streams(run) {
            events.extend(source.events(stream, Seq(0), &Filter::all()).filter_map(Result::ok));
        }
    }
    events
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// One event of every kind, in the order of the kinds' numbers.
pub(crate) fn one_of_each() -> Vec<Body> {
    let (root, child) = (NodePath::root(), NodePath::root().child(0));
    let address = Address { stream: rollout(1, 0), seq: Seq(7) };
    let digest = Digest::of(b"golden");
    vec![
        run_started(),
        HostFacts { program: "0.1.0".to_owned(), facts: vec![("cpu".to_owned(), "x86_64".to_owned())] }.into(),
        RolloutStarted {
            task_id: "tiny-0".to_owned(),
            difficulty: "tiny".to_owned(),
            task: "{}".to_owned(),
            group: 1,
            member: 2,
            seed: 3,
            policy: policy(),
            fork_base: Some(ForkBase { run: run(1), rollout: RolloutId(0), seq: Seq(4) }),
        }
        .into(),
        NodeSpawned {
            node: child.clone(),
            call: Some((0, 1)),
            goal: "craft a torch".to_owned(),
            targets: r#"{"torch": 1}"#.to_owned(),
            context: "".into(),
            depth: Depth(1),
            budget: 25,
        }
        .into(),
        SpawnRefused {
            node: root.clone(),
            step: 1,
            call: 0,
            reason: RefusalReason::Depth,
            goal: "dig".to_owned(),
            text: "too deep".to_owned(),
        }
        .into(),
        ContextExtended {
            node: root.clone(),
            step: 0,
            role: Role::Prompt,
            text: "you craft".to_owned(),
            at: 0,
            tokens: vec![TokenId(1), TokenId(70_000)],
        }
        .into(),
        action(3, 3),
        CellStarted { node: root.clone(), step: 0, code: "print(1)".to_owned() }.into(),
        CallIssued { node: root.clone(), step: 0, call: 0, name: "craft".to_owned(), args: "{}".to_owned() }.into(),
        varied(4),
        CellFinished {
            node: root.clone(),
            step: 0,
            stdout: "1\n".to_owned(),
            error: Some("ValueError".to_owned()),
            limit: Some(LimitKind::Time),
            rejected: false,
        }
        .into(),
        NodeFinished { node: child, outcome: Outcome::Finished, value: Some("1".to_owned()), steps: 2, tokens: 9 }
            .into(),
        Verdict {
            node: root.clone(),
            source: "textcraft/delta".to_owned(),
            score: 1.0,
            evidence: "{}".to_owned(),
            evidence_digest: digest,
            judge: None,
        }
        .into(),
        reward(0.75),
        RolloutFinished { nodes: 2, steps: 3, tokens: 9, max_depth: Depth(1), success: 1.0 }.into(),
        RunFinished { rollouts: 2, content: digest }.into(),
        TrainStarted {
            config: "{}".to_owned(),
            loss: LossKind::Cispo,
            weights: digest,
            tokenizer: digest,
            runs: vec![(run(1), digest)],
        }
        .into(),
        CreditAssigned {
            step: 0,
            source: address,
            run: run(1),
            rollout: RolloutId(0),
            node: root.clone(),
            depth: Depth(0),
            reward: 1.5,
            baseline: 0.5,
            advantage: 1.0,
            count: 4,
            weight: 0.25,
            tokens: 9,
        }
        .into(),
        TrajectoryScored {
            step: 0,
            run: run(1),
            rollout: RolloutId(0),
            node: root,
            logprobs: vec![-0.5, -1.25],
            loss: -0.125,
        }
        .into(),
        TrainStep {
            step: 0,
            batch: digest,
            trajectories: 4,
            tokens: 36,
            loss: -0.5,
            learning_rate: 1e-4,
            gradient_norm: 2.0,
            mean_ratio: 1.0,
            clip_fraction: 0.0,
            weights_before: digest,
            weights_after: Digest::of(b"after"),
        }
        .into(),
        TrainFinished { steps: 1, weights: digest }.into(),
        note("the end"),
    ]
}

/// Where the golden logs are kept: one folder for each format version.
pub(crate) fn golden_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

/// Writes the golden logs of the present format version: one intact, the others damaged in one way each.
pub(crate) fn write_golden(to: &Path) {
    let intact = to.join("intact");
    let (log, _) = Log::open(&intact, plain_options()).unwrap();
    record_run(&log, 1).unwrap();
    log.append(rollout(2, 0), Expected::Any, one_of_each()).unwrap();
    log.append(Stream::Training(run(3)), Expected::Any, vec![note("training")]).unwrap();
    let (head, content) = (log.head(rollout(2, 0)).unwrap(), content_digest_of_run(&log, run(1)).unwrap());
    let digests = format!("chain {}\ncontent {}\nrun {content}\n", head.chain, head.content);
    fs::write(to.join("digests.txt"), digests).unwrap();
    log.close().unwrap();
    fs::remove_file(intact.join("LOCK")).unwrap();
    let journal = fs::read(intact.join(JOURNAL)).unwrap();
    let damaged = |name: &str, journal: &[u8]| {
        copy_dir(&intact, &to.join(name));
        fs::write(to.join(name).join(JOURNAL), journal).unwrap();
    };
    let mut flipped = journal.clone();
    flipped[golden_flip(&journal)] ^= 0x04;
    damaged("flipped", &flipped);
    damaged("cut", &journal[..journal.len() - 30]);
    let mut torn = journal.clone();
    // The beginning of a commit that never was.
    torn.extend_from_slice(&journal[..150]);
    damaged("torn", &torn);
    damaged("no-manifest", &journal);
    fs::remove_file(to.join("no-manifest/MANIFEST")).unwrap();
}

/// Writes the golden archives of the present format version, and gives the events in the intact one.
pub(crate) fn write_golden_archives(to: &Path) -> Vec<Event> {
    let dir = to.join("log");
    let (log, _) = Log::open(&dir, plain_options()).unwrap();
    let own = Stream::Run(run(1));
    log.append(own, Expected::Any, vec![run_started()]).unwrap();
    log.append(rollout(1, 0), Expected::Any, one_of_each()).unwrap();
    log.append(rollout(1, 7), Expected::Any, (0..40).map(varied).collect()).unwrap();
    log.append(rollout(1, 7), Expected::Any, vec![note("long ".repeat(30_000)), note("long ".repeat(30_000))]).unwrap();
    let content = content_digest_of_run(&log, run(1)).unwrap();
    log.append(own, Expected::Any, vec![RunFinished { rollouts: 2, content }.into()]).unwrap();
    let events = everything(&log);
    rao_store::archive::export(&log, run(1), &to.join("intact.raolog")).unwrap();
    drop(log);
    fs::remove_dir_all(&dir).unwrap();
    let intact = fs::read(to.join("intact.raolog")).unwrap();
    let mut flipped = intact.clone();
    // In the long text's block, which comes first.
    flipped[30] ^= 0x10;
    fs::write(to.join("flipped.raolog"), flipped).unwrap();
    fs::write(to.join("cut.raolog"), &intact[..intact.len() - 5]).unwrap();
    events
}

/// Where the golden logs with long texts and a dropped run are kept.
pub(crate) fn golden_texts_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/texts-v1")
}

/// Writes the golden logs that have a long text in three events of run 1, and from which run 2 was dropped: `intact`,
/// `flipped` (a bit of the text) and `unfinished` (as a crash leaves it before the run is removed). Gives their events.
pub(crate) fn write_golden_texts(to: &Path) -> Vec<Event> {
    let intact = to.join("intact");
    let long = "long ".repeat(13_200);
    let (log, _) = Log::open(&intact, plain_options()).unwrap();
    log.append(rollout(1, 0), Expected::Any, vec![note("short"), note(long.clone()), reward(0.5)]).unwrap();
    record_run(&log, 2).unwrap();
    let answers = vec![(0, Answer::Value("1".to_owned())), (1, Answer::Value(long.clone()))];
    log.append(
        rollout(1, 1),
        Expected::Any,
        vec![CallAnswered { node: NodePath::root(), step: 1, answers }.into(), note(format!("{long}end")), note(long)],
    )
    .unwrap();
    log.close().unwrap();
    copy_dir(&intact, &to.join("unfinished"));
    let rule = rao_store::prune::Rule { keep: Some(0), older_than_us: None };
    rao_store::prune::prune(&intact, rule, 2_000_000, &|_, _| Vec::new(), plain_options()).unwrap();
    let manifest = fs::read(intact.join("MANIFEST")).unwrap();
    let mut manifest = rao_store::Manifest::decode(&manifest).unwrap();
    manifest.dropped.iter_mut().for_each(|dropped| dropped.unfinished = true);
    fs::write(to.join("unfinished/MANIFEST"), manifest.encode()).unwrap();
    fs::write(to.join("unfinished/journal/0000000001.log"), "").unwrap();
    for name in ["intact", "unfinished"] {
        fs::remove_file(to.join(name).join("LOCK")).unwrap();
    }
    copy_dir(&intact, &to.join("flipped"));
    let mut journal = fs::read(intact.join(JOURNAL)).unwrap();
    journal[5_000] ^= 0x02;
    fs::write(to.join("flipped").join(JOURNAL), journal).unwrap();
    everything(&rao_store::Reader::open(&intact).unwrap().0)
}

/// Where the golden logs whose streams share their beginnings are kept.
pub(crate) fn golden_shared_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/shared-v1")
}

/// Writes the golden logs with prefix frames: `intact`, `flipped` (a bit of an event of the base) and `prefix` (a bit of
/// the first prefix frame). Gives their events, and the ends of the streams in words.
pub(crate) fn write_golden_shared(to: &Path) -> (Vec<Event>, String) {
    let intact = to.join("intact");
    let (log, _) = Log::open(&intact, plain_options()).unwrap();
    let base = rollout(1, 0);
    log.append(base, Expected::Any, (0..5).map(varied).collect()).unwrap();
    let share = |streams: &[Stream], base, count| {
        log.share_prefix(streams, base, count)
            .into_iter()
            .map(rao_store::Ticket::wait)
            .for_each(|ack| assert!(ack.is_ok()));
    };
    share(&[rollout(2, 0)], base, 3);
    share(&[rollout(2, 1)], base, 5);
    log.append(rollout(2, 0), Expected::Exactly(Seq(3)), vec![note("own"), reward(0.5)]).unwrap();
    share(&[rollout(3, 0)], rollout(2, 0), 4);
    log.append(rollout(3, 0), Expected::Exactly(Seq(4)), vec![note("of a fork")]).unwrap();
    let streams = [base, rollout(2, 0), rollout(2, 1), rollout(3, 0)];
    let ends = streams.map(|stream| {
        let head = log.head(stream).unwrap();
        format!("{stream} count {} chain {} content {}\n", head.count, head.chain, head.content)
    });
    log.close().unwrap();
    fs::remove_file(intact.join("LOCK")).unwrap();
    let journal = fs::read(intact.join(JOURNAL)).unwrap();
    let first = HEADER_LEN + u32::from_le_bytes(journal[36..40].try_into().unwrap()) as usize;
    let prefix = (0..journal.len()).find(|at| journal[*at..].starts_with(b"RAOE") && journal[at + 10] & 8 != 0);
    for (name, at) in [("flipped", first + 60), ("prefix", prefix.unwrap() + HEADER_LEN + 40)] {
        copy_dir(&intact, &to.join(name));
        let mut damaged = journal.clone();
        damaged[at] ^= 4;
        fs::write(to.join(name).join(JOURNAL), damaged).unwrap();
    }
    (everything(&rao_store::Reader::open(&intact).unwrap().0), ends.concat())
}

pub(crate) const JOURNAL: &str = "journal/0000000000.log";

/// A byte in the body of the second event of the intact golden log.
pub(crate) fn golden_flip(journal: &[u8]) -> usize {
    let first = u32::from_le_bytes(journal[36..40].try_into().unwrap()) as usize;
    2 * HEADER_LEN + first + 9
}

//! The trainer over small real logs: exactness, resumption, threads, streaming, refusals, and recomputation from the log.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod support;

use std::path::Path;

use rao_replay::credit::{BaselineRule, RewardRule};
use rao_replay::trainer::{
    Batching, Class, Flow, Gradient, LogSink, LoraSettings, MODEL_FILE, Metrics, NoSink, OPTIMIZER_FILE, Outcome,
    Piece, Resources, STATE_FILE, Settings, SftFilter, StepReport, Terms, TrainError, TrainReport, Trainer,
    Trajectories, credit_table, gradient, rederive,
};
use rao_store::event::{Body, Kind, LossKind};
use rao_store::{Address, EventSource, Expected, Filter, Log, Reader, RunId, Seq, Stream};
use support::{LAMBDA, Recording, decoder, open, record, run_id, tokenizer};

const BATCHING: Batching = Batching { micro_tokens: 256, share_prefixes: true, checkpoints: false, lanes: 1 };

fn settings(loss: LossKind) -> Settings {
    let mut settings = Settings { steps: 1, micro_tokens: 256, batch_trajectories: 3, ..Settings::default() };
    settings.objective.loss = loss;
    settings.schedule.learning_rate = 1e-2;
    settings.schedule.warmup = 3;
    settings
}

fn trainer(seed: u64, settings: &Settings) -> Trainer {
    Trainer::new(decoder(seed), tokenizer(), settings.clone(), Resources::default()).unwrap()
}

fn train(trainer: &mut Trainer, log: &dyn EventSource, runs: &[RunId]) -> Result<TrainReport, TrainError> {
    trainer.train(log, runs, &mut NoSink, &mut |_, _| Ok(Flow::Continue))
}

/// A log with one ordinary run, made by the decoder of seed 1.
fn ordinary(dir: &Path) -> (Log, RunId) {
    let (log, recording) = (open(dir), Recording::new(1));
    record(&log, &decoder(1), recording);
    (log, recording.run)
}

fn training_events(log: &Log, run: RunId) -> Vec<Body> {
    log.events(Stream::Training(run), Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
}

#[test]
fn on_policy_the_trainer_has_the_samplers_own_logprobs_and_the_log_gives_every_number_again() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    for (number, loss) in [LossKind::Pg, LossKind::Is, LossKind::Ppo, LossKind::Cispo].into_iter().enumerate() {
        let training = run_id(100 + number as u8);
        let settings = Settings { minibatches: 2, epochs: 2, ..settings(loss) };
        let mut trainer = trainer(1, &settings);
        let mut steps: Vec<StepReport> = Vec::new();
        let mut sink = LogSink::new(&log, training);
        let report = trainer
            .train(&log, &[run], &mut sink, &mut |_, step| {
                steps.push(step.clone());
                Ok(Flow::Continue)
            })
            .unwrap();
        log.flush().unwrap();
        assert!(report.on_policy);
        assert_eq!((report.steps, steps.len()), (4, 4));
        assert_eq!((steps[0].equal, steps[0].mean_ratio, steps[0].clip_fraction), (steps[0].tokens, 1.0, 0.0));
        assert!(steps[2].equal < steps[2].tokens, "after a step the ratios have moved");
        assert_ne!(steps[0].weights_before, steps[0].weights_after);
        assert_eq!(steps[1].weights_before, steps[0].weights_after);
        let again = rederive(&log, training).unwrap();
        assert_eq!(again.mismatch, None);
        assert_eq!((again.steps, again.losses, again.credits), (4, 2 * report.trajectories, 2 * report.trajectories));
        let tokens: u64 = steps.iter().map(|step| step.tokens).sum();
        assert_eq!(again.tokens, tokens);
    }
}

#[test]
fn a_stored_number_that_the_log_does_not_give_is_found_and_named() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let mut sink = LogSink::new(&log, run_id(100));
    trainer(1, &settings(LossKind::Cispo)).train(&log, &[run], &mut sink, &mut |_, _| Ok(Flow::Continue)).unwrap();
    log.flush().unwrap();
    let bodies = training_events(&log, run_id(100));
    let mut number = 100;
    for (kind, what) in [
        (Kind::CreditAssigned, "advantage"),
        (Kind::TrajectoryScored, "loss"),
        (Kind::TrainStep, "mean ratio"),
        (Kind::TrainStep, "batch"),
    ] {
        number += 1;
        let at = bodies.iter().rposition(|body| body.kind() == kind).unwrap();
        let mut forged = bodies.clone();
        let nudge = |value: &mut f64| *value = f64::from_bits(value.to_bits() ^ 1);
        match &mut forged[at] {
            Body::CreditAssigned(credit) => nudge(&mut credit.advantage),
            Body::TrajectoryScored(scored) => nudge(&mut scored.loss),
            Body::TrainStep(step) if what == "batch" => step.batch.0[0] ^= 1,
            Body::TrainStep(step) => nudge(&mut step.mean_ratio),
            _ => unreachable!(),
        }
        log.append(Stream::Training(run_id(number)), Expected::Any, forged).unwrap();
        log.flush().unwrap();
        let mismatch = rederive(&log, run_id(number)).unwrap().mismatch.unwrap();
        let address = Address { stream: Stream::Training(run_id(number)), seq: Seq(at as u64) };
        assert_eq!((mismatch.address, mismatch.what.as_str()), (address, what), "{mismatch}");
    }
}

fn files(dir: &Path) -> Vec<Vec<u8>> {
    [MODEL_FILE, OPTIMIZER_FILE, STATE_FILE].map(|name| std::fs::read(dir.join(name)).unwrap()).to_vec()
}

/// Five steps at once, and three, a restart and two, on pools of different sizes: the same bytes everywhere.
fn resumes(loss: LossKind) {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    let steps = |trainer: &mut Trainer, count: u64| {
        // Supervised steps belong to one call, reinforcement takes one a call.
        if loss == LossKind::Sft {
            trainer.set_steps(count);
            train(trainer, &log, &[run]).unwrap();
        } else {
            for _ in 0..count {
                train(trainer, &log, &[run]).unwrap();
            }
        }
    };
    let settings = settings(loss);
    let mut saved = Vec::new();
    for threads in [1, 2] {
        let place = dir.path().join(format!("whole-{threads}"));
        pool(threads).install(|| {
            let mut whole = trainer(1, &settings);
            steps(&mut whole, 5);
            whole.set_steps(1);
            whole.save(&place).unwrap();
        });
        saved.push(files(&place));
    }
    let (half, end) = (dir.path().join("half"), dir.path().join("end"));
    pool(2).install(|| {
        let mut first = trainer(1, &settings);
        steps(&mut first, 3);
        first.save(&half).unwrap();
    });
    pool(1).install(|| {
        let mut second = Trainer::resume(&half, settings.clone(), Resources::default()).unwrap();
        assert_eq!((second.optimizer_step(), second.decoder().version()), (3, 3));
        steps(&mut second, 2);
        second.set_steps(1);
        second.save(&end).unwrap();
    });
    saved.push(files(&end));
    assert!(saved[0] == saved[1], "1 and 2 threads give different bytes");
    assert!(saved[0] == saved[2], "a restart gives different bytes");
    let untouched = dir.path().join("untouched");
    trainer(1, &settings).save(&untouched).unwrap();
    assert_ne!(files(&untouched)[0], saved[0][0]);
}

#[test]
fn reinforcement_resumes_bit_for_bit_whatever_the_threads() {
    resumes(LossKind::Cispo);
}

#[test]
fn supervised_training_resumes_bit_for_bit_whatever_the_threads() {
    resumes(LossKind::Sft);
}

#[test]
fn a_full_batch_gradient_is_the_sum_of_its_streamed_micro_batches() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Cispo);
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let (model, tokens) = (decoder(2), batch.tokens());
    let lengths: Vec<u64> = batch.entries.iter().map(|entry| entry.length).collect();
    let of = |micro_tokens, lanes, share_prefixes| {
        let mut pieces = Trajectories::new(&log, &batch.entries).zip(&batch.entries).map(|(read, entry)| {
            let read = read?;
            Ok(Piece {
                run,
                rollout: entry.rollout,
                node: entry.node.clone(),
                coefficient: entry.coefficient(),
                sequence: rao_policy::PackedSequence { tokens: read.tokens, targets: read.targets },
                stored: read.stored,
            })
        });
        let batching = Batching { micro_tokens, share_prefixes, checkpoints: lanes == 2, lanes };
        let objective = &settings.objective;
        let terms = Terms { objective, loss_tokens: tokens, reference: None, kl_coefficient: 0.0 };
        let mut outcomes = Vec::new();
        let mut seen = |more: Vec<Outcome>| {
            outcomes.extend(more);
            Ok(())
        };
        let (gradient, sums) = gradient(&model, &terms, &lengths, &mut pieces, &batching, &mut seen).unwrap();
        (gradient, sums, outcomes)
    };
    let (whole, sums, outcomes) = of(1 << 30, 1, false);
    assert_eq!((sums.micro_batches, sums.model_tokens), (1, sums.summed_tokens));
    let close = |parts: &Gradient| {
        for ((name, whole), parts) in model.vars().keys().zip(&whole.0).zip(&parts.0) {
            let scale = whole.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            let error = whole.iter().zip(parts).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(scale > 0.0 && error <= 1e-5 * scale, "{name}: {error} of {scale}");
        }
    };
    for share_prefixes in [false, true] {
        let (parts, again, same) = of(100, 1, share_prefixes);
        assert!(again.micro_batches > 5);
        assert_eq!(sums.loss.to_bits(), again.loss.to_bits(), "the loss does not know of micro-batches");
        assert_eq!(outcomes, same, "nor does an outcome, or their order");
        for lanes in [2, 3] {
            let (side_by_side, _, same) = of(100, lanes, share_prefixes);
            assert_eq!(parts, side_by_side, "lanes and checkpoints decide nothing");
            assert_eq!(outcomes, same);
        }
        close(&parts);
    }
    let (shared, distinct, same) = of(1 << 30, 1, true);
    assert_eq!(outcomes, same);
    assert_eq!((distinct.micro_batches, distinct.summed_tokens), (1, sums.summed_tokens));
    assert!(distinct.model_tokens < sums.model_tokens, "{} of {}", distinct.model_tokens, sums.model_tokens);
    close(&shared);
}

#[test]
fn the_credit_table_needs_no_weights_and_follows_the_equations() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let recording = Recording { scripted: true, cut: Some(5), ..Recording::new(1) };
    record(&log, &decoder(1), recording);
    let batch = credit_table(&log, &[recording.run], &settings(LossKind::Cispo)).unwrap();
    assert_eq!((batch.groups, batch.left_out.incomplete), (2, 1));
    let places: Vec<_> = batch.entries.iter().map(|entry| (entry.rollout, entry.node.clone())).collect();
    assert!(places.is_sorted() && places.iter().any(|(_, node)| node.depth().0 == 2));
    let roots: Vec<_> = batch.entries.iter().filter(|entry| entry.depth.0 == 0).collect();
    assert_eq!(roots[3].baseline, roots[4].reward, "of the second group two trees are left");
    assert_eq!(roots[0].baseline, (roots[1].reward + roots[2].reward) / 2.0);
    for entry in &batch.entries {
        assert_eq!(entry.reward, entry.own + LAMBDA * entry.child_mean);
        assert_eq!(entry.count, batch.entries.iter().filter(|other| other.depth == entry.depth).count() as u64);
    }
    let weights: f64 = batch.entries.iter().map(|entry| entry.weight).sum();
    assert!((weights - batch.entries.len() as f64).abs() < 1e-9);
    let other = Settings { lambda: Some(0.0), ..settings(LossKind::Cispo) };
    let plain = credit_table(&log, &[recording.run], &other).unwrap();
    assert!(plain.entries.iter().all(|entry| entry.reward == entry.own));
}

fn refusal(recording: Recording, settings: &Settings) -> TrainError {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    record(&log, &decoder(1), recording);
    train(&mut trainer(1, settings), &log, &[recording.run]).unwrap_err()
}

#[test]
fn what_cannot_be_trained_right_is_refused_by_name() {
    let ordinary = Recording::new(1);
    let cispo = settings(LossKind::Cispo);
    let error = refusal(Recording { scripted: true, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::NoLogprobs { .. }) && error.to_string().contains("--loss sft"), "{error}");
    let error = refusal(Recording { temperature: 0.0, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Temperature { .. }) && error.class() == Class::Usage, "{error}");
    let error = refusal(Recording { broken_prefix: true, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Prefix { .. }) && error.class() == Class::Integrity, "{error}");
    let error = refusal(Recording { wrong_reward: true, ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Reward { what: "reward", .. }) && error.class() == Class::Integrity, "{error}");
    let error = refusal(Recording { groups: 1, members: 2, cut: Some(1), ..ordinary }, &cispo);
    assert!(matches!(error, TrainError::Nothing(_)) && error.class() == Class::Incomplete, "{error}");
    assert!(error.to_string().contains("1 unfinished rollouts"), "{error}");
}

#[test]
fn another_tokenizer_an_unknown_run_and_bad_settings_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let cispo = settings(LossKind::Cispo);
    let mut other = Trainer::new(decoder(1), b"{}".to_vec(), cispo.clone(), Resources::default()).unwrap();
    let error = train(&mut other, &log, &[run]).unwrap_err();
    assert!(matches!(error, TrainError::Tokenizer { .. }), "{error}");
    let error = train(&mut trainer(1, &cispo), &log, &[run, run]).unwrap_err();
    assert!(error.to_string().contains("twice"), "{error}");
    assert!(train(&mut trainer(1, &cispo), &log, &[run_id(9)]).is_err());
    assert!(matches!(rederive(&log, run_id(9)), Err(TrainError::Nothing(_))));
    let bad = Settings { minibatches: 0, ..cispo };
    let error = Trainer::new(decoder(1), tokenizer(), bad, Resources::default()).err().unwrap();
    assert!(error.to_string().contains("minibatches"), "{error}");
}

#[test]
fn one_flipped_byte_of_a_reward_stops_training() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let stream = Stream::Rollout(run, rao_store::RolloutId(2));
    let reward = log.events(stream, Seq(0), &Filter::kinds([Kind::RewardAssigned])).next().unwrap().unwrap();
    log.close().unwrap();
    let needle = reward.body.encode().unwrap();
    let journal = std::fs::read_dir(dir.path().join("journal")).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&journal).unwrap();
    let places: Vec<usize> =
        bytes.windows(needle.len()).enumerate().filter(|(_, w)| *w == needle).map(|(i, _)| i).collect();
    for place in places {
        bytes[place + needle.len() - 3] ^= 0x10;
    }
    std::fs::write(&journal, bytes).unwrap();
    let (reader, _) = Reader::open(dir.path()).unwrap();
    let error = train(&mut trainer(1, &settings(LossKind::Cispo)), &reader, &[run]).unwrap_err();
    assert_eq!(error.class(), Class::Integrity, "{error}");
    assert!(error.to_string().contains('#'), "the event is named: {error}");
}

#[test]
fn supervised_training_learns_verified_nodes_from_memory_or_log_alike() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let recording = Recording { scripted: true, ..Recording::new(1) };
    record(&log, &decoder(1), recording);
    let settings = Settings { steps: 40, ..settings(LossKind::Sft) };
    let good = |filter| {
        let settings = Settings { steps: 1, sft_filter: filter, ..settings.clone() };
        train(&mut trainer(3, &settings), &log, &[recording.run]).unwrap().trajectories
    };
    let all = credit_table(&log, &[recording.run], &settings).unwrap().entries;
    assert_eq!(good(SftFilter::All), all.len() as u64);
    assert_eq!(good(SftFilter::Verified), all.iter().filter(|entry| entry.own == 1.0).count() as u64);
    let mut weights = Vec::new();
    for cache_bytes in [0, 300, 1 << 20] {
        let mut losses = Vec::new();
        let resources = Resources { cache_bytes, ..Resources::default() };
        let mut trainer = Trainer::new(decoder(3), tokenizer(), settings.clone(), resources).unwrap();
        let mut watch = |_: &Trainer, step: &StepReport| {
            losses.push(step.loss);
            Ok(Flow::Continue)
        };
        weights.push(trainer.train(&log, &[recording.run], &mut NoSink, &mut watch).unwrap().weights);
        assert!(losses[39] < 0.6 * losses[0], "{losses:?}");
    }
    assert!(weights[0] == weights[1] && weights[1] == weights[2], "where tokens are kept decides nothing");
}

#[test]
fn a_checkpoint_is_whole_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let settings = settings(LossKind::Cispo);
    let place = dir.path().join("checkpoint");
    let mut first = trainer(1, &settings);
    train(&mut first, &log, &[run]).unwrap();
    first.save(&place).unwrap();
    first.save(&place).unwrap();
    let resume = |settings: &Settings| Trainer::resume(&place, settings.clone(), Resources::default());
    assert_eq!(resume(&settings).unwrap().weights(), first.weights());
    // A crash between the two renames of a save leaves the old folder beside its place.
    std::fs::rename(&place, dir.path().join("checkpoint.previous")).unwrap();
    assert_eq!(resume(&settings).unwrap().weights(), first.weights());
    let error = resume(&Settings { seed: 9, ..settings.clone() }).err().unwrap();
    assert!(error.class() == Class::Usage && error.to_string().contains("other settings"), "{error}");
    assert!(resume(&Settings { steps: 77, ..settings.clone() }).is_ok());
    let moments = place.join(OPTIMIZER_FILE);
    let mut bytes = std::fs::read(&moments).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&moments, bytes).unwrap();
    let error = resume(&settings).err().unwrap();
    assert!(error.class() == Class::Integrity && error.to_string().contains(OPTIMIZER_FILE), "{error}");
    let fresh = Trainer::fresh(&place, settings.clone(), Resources::default()).unwrap();
    assert_eq!((fresh.optimizer_step(), fresh.decoder().version()), (0, 1));
    std::fs::remove_file(place.join(STATE_FILE)).unwrap();
    assert!(resume(&settings).err().unwrap().to_string().contains("start a fresh one"));
    let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(!files.iter().any(|name| name.to_string_lossy().contains("partial")), "{files:?}");
}

#[test]
fn two_runs_make_one_batch_and_an_observer_can_stop() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let runs: Vec<RunId> = [1, 2]
        .into_iter()
        .map(|number| {
            record(&log, &decoder(u64::from(number)), Recording { groups: 1, ..Recording::new(number) });
            run_id(number)
        })
        .collect();
    let settings = Settings { epochs: 5, ..settings(LossKind::Ppo) };
    let batch = credit_table(&log, &runs, &settings).unwrap();
    assert_eq!((batch.groups, batch.runs.len()), (2, 2), "equal group numbers of two runs stay apart");
    let mut trainer = trainer(1, &settings);
    let report = trainer
        .train(&log, &runs, &mut NoSink, &mut |_, step| Ok(if step.step == 1 { Flow::Stop } else { Flow::Continue }))
        .unwrap();
    assert_eq!((report.steps, report.on_policy), (2, false), "the second run was sampled by other weights");
    let last = report.last.unwrap();
    assert_eq!((last.version, last.learning_rate), (2, 1e-2 * 2.0 / 3.0));
    assert!(trainer.decoder().vars().values().all(|var| {
        let values = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        values.iter().all(|value| value.is_finite())
    }));
}

#[test]
fn the_gradients_of_all_losses_equal_the_reference() {
    let Some(root) = std::env::var_os("RAO_LOG_VECTORS") else {
        println!("skipped: RAO_LOG_VECTORS is not set");
        return;
    };
    let mut compared = 0;
    for name in ["llama", "llama-tied", "qwen3"] {
        let folder = Path::new(&root).join("models").join(name);
        let model = rao_policy::Decoder::load(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        let case: Vec<serde_json::Value> =
            serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
        let expected = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let expected = safetensors::SafeTensors::deserialize(&expected).unwrap();
        for (loss, loss_name) in rao_replay::objective::LOSSES {
            let objective = rao_replay::objective::Objective::new(loss);
            let pieces: Vec<Piece> = case.iter().map(|value| vector_piece(value, loss)).collect();
            let tokens = pieces.iter().map(|piece| piece.sequence.targets.len() as u64).sum();
            let lengths: Vec<u64> = pieces.iter().map(|piece| piece.sequence.tokens.len() as u64).collect();
            let mut given = pieces.into_iter().map(Ok);
            let terms = Terms { objective: &objective, loss_tokens: tokens, reference: None, kl_coefficient: 0.0 };
            let batching = Batching { micro_tokens: lengths.iter().sum::<u64>() / 2, ..BATCHING };
            let (got, sums) = gradient(&model, &terms, &lengths, &mut given, &batching, &mut |_| Ok(())).unwrap();
            assert!(sums.micro_batches > 1);
            for (tensor, got) in model.vars().keys().zip(&got.0) {
                let wanted = expected.tensor(&format!("grad.{loss_name}.{tensor}")).unwrap();
                let wanted: Vec<f32> =
                    wanted.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
                let scale = wanted.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
                let error = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(
                    got.len() == wanted.len() && error <= 1e-3 * scale,
                    "{name} {loss_name} {tensor}: {error} of {scale}"
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 200);
}

fn vector_piece(value: &serde_json::Value, loss: LossKind) -> Piece {
    let list = |key: &str| value[key].as_array().unwrap().clone();
    let targets: Vec<usize> =
        list("mask").iter().enumerate().filter(|(_, mask)| mask.as_u64() == Some(1)).map(|(at, _)| at).collect();
    let old = list("old_logprobs");
    let stored = targets.iter().map(|at| old[*at].as_f64().unwrap() as f32);
    Piece {
        run: run_id(0),
        rollout: rao_store::RolloutId(0),
        node: rao_store::NodePath::root(),
        coefficient: value["coefficient"].as_f64().unwrap(),
        stored: if loss == LossKind::Sft { Vec::new() } else { stored.collect() },
        sequence: rao_policy::PackedSequence {
            tokens: list("tokens").iter().map(|id| id.as_u64().unwrap() as u32).collect(),
            targets,
        },
    }
}

/// Trains one step under a reward rule and gives its entries.
fn entries_under(reward: RewardRule, baseline: BaselineRule) -> Vec<rao_replay::trainer::Entry> {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = Settings { reward, baseline, ..settings(LossKind::Cispo) };
    let mut sink = LogSink::new(&log, run_id(100));
    trainer(1, &settings).train(&log, &[run], &mut sink, &mut |_, _| Ok(Flow::Continue)).unwrap();
    log.flush().unwrap();
    assert_eq!(rederive(&log, run_id(100)).unwrap().mismatch, None, "the log gives the ablation's numbers again");
    credit_table(&log, &[run], &settings).unwrap().entries
}

#[test]
fn ablations_reward_nodes_by_their_rule() {
    let plain = entries_under(RewardRule::Own, BaselineRule::LeaveOneOut);
    let root_of = |entry: &rao_replay::trainer::Entry, all: &[rao_replay::trainer::Entry]| {
        all.iter().find(|other| other.rollout == entry.rollout && other.depth.0 == 0).unwrap().clone()
    };
    let sparse = entries_under(RewardRule::Root, BaselineRule::LeaveOneOut);
    assert!(sparse.iter().all(|entry| entry.reward == root_of(entry, &sparse).own));
    assert!(sparse.iter().any(|entry| entry.reward != entry.own), "some child differs from its root");
    let count = entries_under(RewardRule::Count, BaselineRule::GroupMean);
    for (entry, plain) in count.iter().zip(&plain) {
        let bonus = LAMBDA * entry.child_mean * f64::from(entry.children);
        assert!((entry.reward - entry.own - bonus).abs() < 1e-12);
        assert!(entry.children > 1 || entry.reward == plain.reward);
    }
    assert!(count.iter().any(|entry| entry.children > 1 && entry.child_mean > 0.0));
    let roots: Vec<f64> = count[..].iter().filter(|e| e.depth.0 == 0).map(|e| e.reward).take(3).collect();
    assert_eq!(count[0].baseline, (0.0 + roots[0] + roots[1] + roots[2]) / 3.0);
}

/// Three steps, a restart, two more: the bytes of five. Only the adapter is trained and saved; the base stays as it was.
#[test]
fn an_adapter_trains_and_resumes_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(&dir.path().join("log"));
    let base = dir.path().join("base");
    trainer(1, &settings(LossKind::Cispo)).save(&base).unwrap();
    let lora = LoraSettings { rank: 2, alpha: 4.0, targets: vec!["q_proj".into(), "up_proj".into()] };
    let settings = Settings { lora: Some(lora), ..settings(LossKind::Cispo) };
    let fresh = || Trainer::fresh(&base, settings.clone(), Resources::default()).unwrap();
    let names = ["adapter_model.safetensors", "adapter_config.json", OPTIMIZER_FILE, STATE_FILE];
    let files = |name: &str| names.map(|file| std::fs::read(dir.path().join(name).join(file)).unwrap());
    let steps = |trainer: &mut Trainer, count| (0..count).for_each(|_| drop(train(trainer, &log, &[run]).unwrap()));
    let mut whole = fresh();
    let first = train(&mut whole, &log, &[run]).unwrap();
    let equal = first.last.unwrap();
    assert_eq!(equal.equal, equal.tokens, "a fresh adapter changes no log-probability");
    steps(&mut whole, 4);
    whole.save(&dir.path().join("whole")).unwrap();
    let mut half = fresh();
    steps(&mut half, 3);
    half.save(&dir.path().join("half")).unwrap();
    let mut rest = Trainer::resume(&dir.path().join("half"), settings.clone(), Resources::default()).unwrap();
    assert_eq!((rest.optimizer_step(), rest.weights()), (3, half.weights()));
    steps(&mut rest, 2);
    rest.save(&dir.path().join("rest")).unwrap();
    assert!(files("whole") == files("rest"), "a restart gives other bytes");
    assert!(!dir.path().join("whole").join(MODEL_FILE).exists(), "the base is named, not copied");
    assert_ne!(whole.weights(), fresh().weights());
    // Without settings the adapter of the folder goes on being trained; other settings are refused.
    let plain = Settings { lora: None, ..settings.clone() };
    let on = Trainer::fresh(&dir.path().join("whole"), plain, Resources::default()).unwrap();
    assert_eq!((on.weights(), on.settings().lora.clone()), (whole.weights(), settings.lora.clone()));
    let other = LoraSettings { rank: 3, ..settings.lora.clone().unwrap() };
    let error =
        Trainer::fresh(&dir.path().join("whole"), Settings { lora: Some(other), ..settings }, Resources::default());
    assert!(error.err().unwrap().to_string().contains("other settings"));
}

#[test]
fn a_reference_is_compared_with_and_pulls_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let digest = |seed| rao_store::Digest(decoder(seed).digest().unwrap()).to_string();
    let with = |reference: u64, kl_coefficient| {
        let settings = Settings { reference: Some(digest(reference)), kl_coefficient, ..settings(LossKind::Cispo) };
        let mut trainer = trainer(1, &settings);
        trainer.set_reference(decoder(reference)).unwrap();
        let report = train(&mut trainer, &log, &[run]).unwrap();
        (report.last.unwrap(), trainer.weights())
    };
    let (same, _) = with(1, 0.0);
    assert_eq!(same.kl, Some(0.0), "the policy itself");
    let (measured, weights) = with(2, 0.0);
    assert!(measured.kl.unwrap() > 0.0);
    let mut alone = trainer(1, &settings(LossKind::Cispo));
    let report = train(&mut alone, &log, &[run]).unwrap();
    assert_eq!((report.last.unwrap().kl, alone.weights()), (None, weights), "at 0 it is only measured");
    let (pulled, moved) = with(2, 0.5);
    assert_eq!((pulled.kl, pulled.loss), (measured.kl, measured.loss), "the loss is told without the KL term");
    assert_ne!(moved, weights);
    let named = Settings { reference: Some(digest(2)), ..settings(LossKind::Cispo) };
    assert!(train(&mut trainer(1, &named), &log, &[run]).unwrap_err().to_string().contains("none was given"));
    assert!(trainer(1, &named).set_reference(decoder(3)).is_err());
    let nothing = Settings { kl_coefficient: 0.1, ..settings(LossKind::Cispo) };
    assert!(Trainer::new(decoder(1), tokenizer(), nothing, Resources::default()).is_err());
}

/// The KL term's gradient is that of its mean over the loss tokens: central differences along it.
#[test]
fn the_kl_terms_gradient_agrees_with_finite_differences() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = settings(LossKind::Pg);
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let lengths: Vec<u64> = batch.entries.iter().map(|entry| entry.length).collect();
    let (model, reference, tokens) = (decoder(2), decoder(3), batch.tokens());
    let of = || {
        let mut pieces = Trajectories::new(&log, &batch.entries).zip(&batch.entries).map(|(read, entry)| {
            let read = read?;
            Ok(Piece {
                run,
                rollout: entry.rollout,
                node: entry.node.clone(),
                // No policy loss: what is left is the KL term.
                coefficient: 0.0,
                sequence: rao_policy::PackedSequence { tokens: read.tokens, targets: read.targets },
                stored: read.stored,
            })
        });
        let objective = &settings.objective;
        let terms = Terms { objective, loss_tokens: tokens, reference: Some(&reference), kl_coefficient: 1.0 };
        gradient(&model, &terms, &lengths, &mut pieces, &BATCHING, &mut |_| Ok(())).unwrap()
    };
    let (whole, _) = of();
    let name = "model.layers.0.mlp.down_proj.weight";
    let at = model.vars().keys().position(|key| key == name).unwrap();
    let (var, direction) = (&model.vars()[name], &whole.0[at]);
    let length = direction.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>().sqrt();
    let start = var.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let kl_at = |offset: f64| {
        let moved: Vec<f32> = start
            .iter()
            .zip(direction)
            .map(|(p, g)| (f64::from(*p) + offset * f64::from(*g) / length) as f32)
            .collect();
        var.set(&candle_core::Tensor::from_vec(moved, var.dims(), var.device()).unwrap()).unwrap();
        of().1.mean_kl()
    };
    let step = 0.02;
    let slope = (kl_at(step) - kl_at(-step)) / (2.0 * step);
    assert!(length > 0.0 && (slope - length).abs() < 0.02 * length, "slope {slope:e}, gradient {length:e}");
}

#[test]
fn a_gradient_that_is_not_finite_is_named_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let model = decoder(1);
    // A finite weight whose gradient overflows: the activations behind it are scaled down by the next matrix.
    let scale = |name: &str, factor: f64| {
        let var = &model.vars()[name];
        var.set(&(var.as_tensor() * factor).unwrap()).unwrap();
    };
    scale("model.layers.0.mlp.down_proj.weight", 1e-37);
    scale("model.layers.0.mlp.up_proj.weight", 1e38);
    let before = model.digest().unwrap();
    let settings = Settings { lambda: Some(1000.0), ..settings(LossKind::Pg) };
    let mut trainer = Trainer::new(model, tokenizer(), settings, Resources::default()).unwrap();
    let mut sink = LogSink::new(&log, run_id(100));
    let error = trainer.train(&log, &[run], &mut sink, &mut |_, _| Ok(Flow::Continue)).unwrap_err();
    let told = error.to_string();
    assert!(told.contains("model.layers.0.mlp.") && told.contains("not finite"), "{told}");
    assert_eq!(trainer.decoder().digest().unwrap(), before);
    log.flush().unwrap();
    let kinds: Vec<Kind> = training_events(&log, run_id(100)).iter().map(Body::kind).collect();
    assert_eq!(kinds, [Kind::TrainStarted], "the step left no trace");
}

#[test]
fn a_steps_figures_stand_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (log, run) = ordinary(dir.path());
    let settings = Settings { minibatches: 2, ..settings(LossKind::Cispo) };
    let mut steps = Vec::new();
    let mut sink = LogSink::new(&log, run_id(100));
    let report = trainer(1, &settings)
        .train(&log, &[run], &mut sink, &mut |_, step| {
            steps.push(step.clone());
            Ok(Flow::Continue)
        })
        .unwrap();
    log.flush().unwrap();
    let stored: Vec<Metrics> = training_events(&log, run_id(100))
        .iter()
        .filter_map(|body| if let Body::Note(note) = body { Metrics::from_note(note) } else { None })
        .collect();
    assert_eq!(stored.len(), 2);
    for (stored, step) in stored.iter().zip(&steps) {
        assert_eq!((stored.loss, stored.entropy, &stored.groups), (step.loss, step.entropy, &step.groups));
        assert_eq!(Metrics::from_line(&stored.to_line()).as_ref(), Some(stored));
        let squares: f64 = stored.groups.0.values().map(|group| group.gradient.powi(2)).sum();
        assert!((squares.sqrt() - step.gradient_norm).abs() < 1e-9, "groups make up the whole");
        assert!(stored.groups.0.values().all(|group| group.update > 0.0));
        assert!(step.entropy > 0.0 && step.model_tokens < step.summed_tokens);
    }
    let batch = credit_table(&log, &[run], &settings).unwrap();
    let summary = stored[0].batch.as_ref().unwrap();
    assert_eq!((summary, &stored[1].batch), (&report.summary, &None));
    let roots: Vec<_> = batch.entries.iter().filter(|entry| entry.depth.0 == 0).collect();
    assert_eq!(summary.reward.count, roots.len() as u64);
    let mean = roots.iter().map(|entry| entry.reward).sum::<f64>() / roots.len() as f64;
    assert!((summary.reward.mean - mean).abs() < 1e-12);
    assert_eq!(summary.success_by_depth[&1].count, batch.entries.iter().filter(|e| e.depth.0 == 1).count() as u64);
    assert_eq!(summary.success_by_difficulty.len(), 1);
}

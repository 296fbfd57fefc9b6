//! Settings, trainers and logs that the tests share.

use std::path::Path;

use rao_replay::trainer::{
    Batching, Entry, Flow, LogSink, NoSink, Piece, Resources, Settings, StepReport, TrainError, TrainReport, Trainer,
    Trajectories,
};
use rao_store::event::{Body, LossKind};
use rao_store::{EventSource, Filter, Log, RunId, Seq, Stream};

use crate::support::{Recording, decoder, open, record, tokenizer};

pub(crate) const BATCHING: Batching =
    Batching { micro_tokens: 256, share_prefixes: true, checkpoints: false, lanes: 1 };

pub(crate) fn settings(loss: LossKind) -> Settings {
    let mut settings = Settings { steps: 1, micro_tokens: 256, batch_trajectories: 3, ..Settings::default() };
    settings.objective.loss = loss;
    settings.schedule.learning_rate = 1e-2;
    settings.schedule.warmup = 3;
    settings
}

pub(crate) fn trainer(seed: u64, settings: &Settings) -> Trainer {
    Trainer::new(decoder(seed), tokenizer(), settings.clone(), Resources::default()).unwrap()
}

pub(crate) fn train(trainer: &mut Trainer, log: &dyn EventSource, runs: &[RunId]) -> Result<TrainReport, TrainError> {
    trainer.train(log, runs, &mut NoSink, &mut |_, _| Ok(Flow::Continue))
}

/// A log with one ordinary run, made by the decoder of seed 1.
pub(crate) fn ordinary(dir: &Path) -> (Log, RunId) {
    let (log, recording) = (open(dir), Recording::new(1));
    record(&log, &decoder(1), recording);
    (log, recording.run)
}

pub(crate) fn training_events(log: &Log, run: RunId) -> Vec<Body> {
    log.events(Stream::Training(run), Seq(0), &Filter::all()).map(|event| event.unwrap().body).collect()
}

/// A log with the run that a recording describes, made by the decoder of seed 1.
pub(crate) fn log_of(dir: &Path, recording: Recording) -> Log {
    let log = open(dir);
    record(&log, &decoder(1), recording);
    log
}

/// Trains on a run and keeps what is done as the training run `training`.
pub(crate) fn train_logged(
    trainer: &mut Trainer,
    log: &Log,
    run: RunId,
    training: RunId,
) -> (TrainReport, Vec<StepReport>) {
    let mut steps = Vec::new();
    let mut sink = LogSink::new(log, training);
    let mut watch = |_: &Trainer, step: &StepReport| {
        steps.push(step.clone());
        Ok(Flow::Continue)
    };
    let report = trainer.train(log, &[run], &mut sink, &mut watch).unwrap();
    log.flush().unwrap();
    (report, steps)
}

/// The trajectories of a batch's entries, as the loss takes them.
pub(crate) fn pieces<'a>(log: &'a Log, entries: &'a [Entry]) -> impl Iterator<Item = Result<Piece, TrainError>> + 'a {
    Trajectories::new(log, entries).zip(entries).map(|(read, entry)| {
        let read = read?;
        Ok(Piece {
            run: entry.run,
            rollout: entry.rollout,
            node: entry.node.clone(),
            coefficient: entry.coefficient(),
            sequence: rao_policy::PackedSequence { tokens: read.tokens, targets: read.targets },
            stored: read.stored,
        })
    })
}

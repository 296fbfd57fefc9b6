//! A training's figures beside its checkpoint: `metrics.jsonl` and `plots/` with what log, weights and settings decide,
//! `timings.jsonl` and `timings.svg` with what the clock says.

use std::path::Path;
use std::time::Instant;

use rao_replay::plots::{Curve, Plot, draw, plots};
use rao_replay::trainer::{Metrics, StepReport};
use serde::{Deserialize, Serialize};

use super::exit::Failure;
use super::memory;

/// A line for each optimizer step.
pub(crate) const METRICS_FILE: &str = "metrics.jsonl";
/// Wall-clock figures of each step.
const TIMINGS_FILE: &str = "timings.jsonl";

/// Wall-clock figures of a step.
#[derive(Serialize, Deserialize)]
struct Timing {
    version: u64,
    seconds: f64,
    /// CPU seconds of all threads, where the system says so.
    #[serde(default)]
    cpu_seconds: Option<f64>,
    /// Tokens of the trajectories, shared or not, in a second: what training gets done.
    tokens_per_second: f64,
    /// Tokens that the model was run on in a second.
    model_tokens_per_second: f64,
    /// The most memory that the process has had so far, where the system says so.
    peak_bytes: Option<u64>,
}

/// The figures of a training that goes on.
pub(crate) struct Recorder {
    all: Vec<Metrics>,
    timings: Vec<Timing>,
    last: Instant,
    last_cpu: Option<f64>,
}

impl Recorder {
    /// For a training that begins.
    pub(crate) fn new() -> Self {
        Recorder { all: Vec::new(), timings: Vec::new(), last: Instant::now(), last_cpu: None }
    }

    /// For a training that goes on from the checkpoint in `folder`; figures that are not there are left out.
    pub(crate) fn resume(folder: &Path) -> Self {
        let lines = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        Recorder {
            all: lines(METRICS_FILE).lines().filter_map(Metrics::from_line).collect(),
            timings: lines(TIMINGS_FILE).lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            last: Instant::now(),
            last_cpu: None,
        }
    }

    /// Starts the next step's clock.
    pub(crate) fn start(&mut self) {
        (self.last, self.last_cpu) = (Instant::now(), memory::cpu_seconds());
    }

    /// Notes a step.
    #[expect(clippy::cast_precision_loss, reason = "a step has far fewer than 2^53 tokens")]
    pub(crate) fn add(&mut self, step: &StepReport) {
        let seconds = self.last.elapsed().as_secs_f64();
        let cpu = memory::cpu_seconds();
        let cpu_seconds = cpu.zip(self.last_cpu).map(|(now, then)| now - then);
        (self.last, self.last_cpu) = (Instant::now(), cpu);
        let rate = |tokens: u64| tokens as f64 / seconds.max(1e-9);
        self.timings.push(Timing {
            version: step.version,
            seconds,
            cpu_seconds,
            tokens_per_second: rate(step.summed_tokens),
            model_tokens_per_second: rate(step.model_tokens),
            peak_bytes: memory::peak(),
        });
        self.all.push(Metrics::new(step));
    }

    /// The files for the checkpoint's folder.
    pub(crate) fn files(&self) -> Result<Vec<(String, Vec<u8>)>, Failure> {
        if self.all.is_empty() {
            return Ok(Vec::new());
        }
        let lines = |lines: Vec<String>| lines.into_iter().flat_map(|line| (line + "\n").into_bytes()).collect();
        let mut files: Vec<(String, Vec<u8>)> = vec![
            (METRICS_FILE.to_owned(), lines(self.all.iter().map(Metrics::to_line).collect())),
            (
                TIMINGS_FILE.to_owned(),
                lines(self.timings.iter().filter_map(|t| serde_json::to_string(t).ok()).collect()),
            ),
        ];
        for plot in plots(&self.all) {
            files.push((format!("plots/{}.svg", plot.file), drawn(&plot)?));
        }
        files.push(("timings.svg".to_owned(), drawn(&self.speed())?));
        Ok(files)
    }

    #[expect(clippy::cast_precision_loss, reason = "no training has 2^53 steps")]
    fn speed(&self) -> Plot {
        let curve = |name: &str, value: fn(&Timing) -> f64| Curve {
            name: name.to_owned(),
            points: self.timings.iter().map(|t| (t.version as f64, value(t))).collect(),
        };
        let useful = curve("tokens of trajectories", |t| t.tokens_per_second);
        let run = curve("tokens run", |t| t.model_tokens_per_second);
        Plot { file: "timings", title: "Tokens a second", curves: vec![useful, run] }
    }
}

fn drawn(plot: &Plot) -> Result<Vec<u8>, Failure> {
    let failed = |error: rao_replay::plots::PlotError| Failure::new(super::exit::Code::Other, error.to_string());
    Ok(draw(plot).map_err(failed)?.into_bytes())
}

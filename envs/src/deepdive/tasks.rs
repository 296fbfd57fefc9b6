//! Which questions there are: generated walks, MuSiQue's, and the DeepDive data set's.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::DeepDive;
use super::chain::Hop;
use super::dataset::{DiveQuestion, fifth};
use super::kg::GraphConfig;
use super::musique::MusiqueQuestion;
use super::settings::ENV;
use crate::rng::{Rng, derive};
use crate::{EnvError, Selection, Split, Task};

/// The lengths of generated questions, in hops, by preset.
pub const WALKS: [(&str, usize); 4] = [("2hop", 2), ("4hop", 4), ("6hop", 6), ("9hop", 9)];

/// The lengths of MuSiQue's questions.
pub const MUSIQUE_PRESETS: [&str; 3] = ["2hop", "3hop", "4hop"];

/// The preset of the DeepDive data set's questions.
pub const DEEPDIVE_PRESET: &str = "deepdive";

/// Questions that a generated world serves.
const PER_WORLD: u64 = 16;

/// Where a task's pages are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Pages {
    /// In a generated world.
    Graph(GraphConfig),
    /// In the passages that come with the questions, by digest.
    Corpus(String),
    /// Wherever the settings say.
    Search,
}

/// The shape of a task's body: all that is needed to open it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    pub(super) question: String,
    pub(super) answer: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) aliases: Vec<String>,
    /// Empty where it is not known how the answer is found.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) hops: Vec<Hop>,
    pub(super) pages: Pages,
}

impl Body {
    fn task(&self, id: String, difficulty: &str) -> Task {
        Task { id, difficulty: difficulty.to_owned(), body: json!(self) }
    }
}

/// What the environment's questions are.
pub(super) enum Source {
    Walks,
    Musique(Vec<MusiqueQuestion>, String),
    Dive(Vec<DiveQuestion>),
}

impl Source {
    pub(super) fn presets(&self) -> Vec<&'static str> {
        match self {
            Self::Walks => WALKS.iter().map(|walk| walk.0).collect(),
            Self::Musique(..) => MUSIQUE_PRESETS.to_vec(),
            Self::Dive(_) => vec![DEEPDIVE_PRESET],
        }
    }
}

/// The tasks of a selection. Presets without an end take turns; questions of data form one pool, in file order at seed 0
/// and shuffled by any other.
pub(super) fn select(env: &DeepDive, selection: &Selection) -> Result<Vec<Task>, EnvError> {
    let known = env.source.presets();
    let unknown = |given: &str| EnvError::UnknownPreset { given: given.to_owned(), env: ENV, known: known.join(", ") };
    if let Some(preset) = selection.presets.iter().find(|preset| !known.contains(&preset.as_str())) {
        return Err(unknown(preset));
    }
    if selection.presets.is_empty() {
        return Err(unknown(""));
    }
    let mut pool: Vec<Task> = match &env.source {
        Source::Walks => return walks(env, selection),
        Source::Musique(questions, corpus) => {
            let chosen = |question: &&MusiqueQuestion| {
                fifth(&question.question) == selection.split && selection.presets.contains(&length(question))
            };
            questions.iter().filter(chosen).map(|question| musique_task(question, corpus)).collect()
        }
        Source::Dive(questions) => {
            questions.iter().filter(|question| question.split == selection.split).map(dive_task).collect()
        }
    };
    if selection.seed != 0 {
        Rng::new("deepdive order", &[&selection.seed.to_le_bytes()]).shuffle(&mut pool);
    }
    if let Some(wanted) = selection.count {
        if pool.len() < wanted {
            return Err(EnvError::TooFewTasks { wanted, found: pool.len(), env: ENV });
        }
        pool.truncate(wanted);
    }
    Ok(pool)
}

fn length(question: &MusiqueQuestion) -> String {
    format!("{}hop", question.hops.len())
}

fn musique_task(question: &MusiqueQuestion, corpus: &str) -> Task {
    let body = Body {
        question: question.question.clone(),
        answer: question.answer.clone(),
        aliases: question.aliases.clone(),
        hops: question.hops.clone(),
        pages: Pages::Corpus(corpus.to_owned()),
    };
    body.task(format!("musique.{}", question.id), &length(question))
}

fn dive_task(question: &DiveQuestion) -> Task {
    let body = Body {
        question: question.question.clone(),
        answer: question.answer.clone(),
        aliases: Vec::new(),
        hops: Vec::new(),
        pages: Pages::Search,
    };
    body.task(format!("deepdive.{}", question.id), DEEPDIVE_PRESET)
}

fn walks(env: &DeepDive, selection: &Selection) -> Result<Vec<Task>, EnvError> {
    let Some(count) = selection.count else {
        let reason = "these presets are generated without an end; say how many tasks".to_owned();
        return Err(EnvError::Setting { name: "tasks", reason });
    };
    let mut tasks = Vec::with_capacity(count);
    for index in 0..count {
        let turn = index % selection.presets.len().max(1);
        let round = (index / selection.presets.len().max(1)) as u64;
        if let Some(preset) = selection.presets.get(turn) {
            tasks.push(walk_task(env, preset, selection, round)?);
        }
    }
    Ok(tasks)
}

/// The `round`-th question of a preset. Worlds of training and validation have seeds that never meet: even and odd.
fn walk_task(env: &DeepDive, preset: &str, selection: &Selection, round: u64) -> Result<Task, EnvError> {
    let hops = WALKS.iter().find(|walk| walk.0 == preset).map_or(2, |walk| walk.1);
    let val = selection.split == Split::Val;
    let parts: [&[u8]; 3] = [&selection.seed.to_le_bytes(), preset.as_bytes(), &(round / PER_WORLD).to_le_bytes()];
    let world_seed = derive("deepdive world", &parts) & !1 | u64::from(val);
    let config = GraphConfig::new(world_seed);
    let seed = derive("deepdive question", &[&world_seed.to_le_bytes(), preset.as_bytes(), &round.to_le_bytes()]);
    let walk = env.world(&config)?.walk(hops, seed)?;
    let body = Body {
        question: walk.question,
        answer: walk.answer,
        aliases: Vec::new(),
        hops: walk.hops,
        pages: Pages::Graph(config),
    };
    let split = if val { "val" } else { "train" };
    Ok(body.task(format!("{preset}.{split}.{seed:016x}"), preset))
}

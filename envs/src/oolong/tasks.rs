//! Which tasks there are, and how their texts are found again.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::corpus::{self, Series};
use super::question::{Asked, Stored, about_dialogue, about_events};
use super::rows::{self, Place, Row, Scoring};
use super::synth::{self, PRESETS, Preset, Recipe};
use super::transcript::{self, Episode};
use super::{ENV, Held, OolongConfig, Source, digest};
use crate::rng::{Rng, derive};
use crate::{EnvError, Selection, Split, Task, Text};

/// What a task's body holds.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    pub(super) origin: Origin,
    pub(super) question: String,
    pub(super) answer: String,
    pub(super) scoring: Scoring,
    /// The question as data, where its answer was computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) asked: Option<Stored>,
    /// Digest of the text; rows, whose texts are not read when tasks are chosen, have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<String>,
}

/// Where a task's text comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Origin {
    /// The generator.
    Synthetic(Recipe),
    /// Episodes of a series.
    Corpus {
        /// The series.
        series: String,
        /// Their numbers.
        episodes: Vec<u32>,
    },
    /// A row.
    Row {
        /// Where it stands.
        place: Place,
        /// The id of its text.
        window: String,
    },
}

impl Origin {
    /// Under which name a text is kept.
    pub(super) fn key(&self) -> String {
        match self {
            Origin::Synthetic(recipe) => format!("synthetic {} {} {}", recipe.seed, recipe.chars, recipe.episodes),
            Origin::Corpus { series, episodes } => format!("corpus {series} {episodes:?}"),
            Origin::Row { place, window } => format!("row {} {window}", place.file),
        }
    }
}

impl Body {
    pub(super) fn from_json(json: &Json) -> Result<Body, String> {
        Body::deserialize(json).map_err(|error| error.to_string())
    }

    fn to_json(&self) -> Json {
        // Strings and numbers only: it cannot fail.
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Makes or reads a text.
pub(super) fn make(source: &Source, origin: &Origin) -> Result<Held, EnvError> {
    match (origin, source) {
        (Origin::Synthetic(recipe), _) => {
            let window = synth::generate(recipe);
            Ok(Held { text: window.text.clone(), window: Some(Arc::new(window)) })
        }
        (Origin::Corpus { series, episodes }, Source::Corpus(all)) => {
            let missing = || not_there(format!("series {series} with episodes {episodes:?}"));
            let series = all.iter().find(|known| known.name == *series).ok_or_else(missing)?;
            let chosen: Vec<Episode> =
                series.episodes.iter().filter(|episode| episodes.contains(&episode.number)).cloned().collect();
            if chosen.len() != episodes.len() {
                return Err(missing());
            }
            Ok(Held { text: transcript::window(&series.players, &chosen).into(), window: None })
        }
        (Origin::Row { place, .. }, Source::Rows(files)) => {
            let named = |file: &&PathBuf| file.file_name().is_some_and(|name| name.to_string_lossy() == place.file);
            let file = files.iter().find(named).ok_or_else(|| not_there(format!("the file {}", place.file)))?;
            Ok(Held { text: Text::from(rows::text_at(file, place.at)?), window: None })
        }
        _ => Err(not_there("data of the kind that the task was made from".to_owned())),
    }
}

fn not_there(what: String) -> EnvError {
    EnvError::NeedsData { what }
}

fn split_name(split: Split) -> &'static str {
    match split {
        Split::Train => "train",
        Split::Val => "val",
    }
}

/// The chosen tasks.
pub(super) fn select(source: &Source, config: &OolongConfig, selection: &Selection) -> Result<Vec<Task>, EnvError> {
    match source {
        Source::Synthetic => synthetic(selection),
        Source::Corpus(series) => {
            let sizes = sizes(&selection.presets)?;
            Ok(take(dialogue(series, &sizes, selection.split), selection))
        }
        Source::Rows(files) => {
            let sizes = sizes(&selection.presets)?;
            let mut all = Vec::new();
            for file in files {
                rows::scan(file, &mut |row| {
                    let fits = row.length.is_none_or(|length| length <= config.max_context);
                    if fits && row.split() == selection.split && of_size(&sizes, &row) {
                        all.push(row_task(row));
                    }
                })?;
            }
            Ok(take(all, selection))
        }
    }
    .and_then(|tasks| enough(tasks, selection))
}

fn enough(tasks: Vec<Task>, selection: &Selection) -> Result<Vec<Task>, EnvError> {
    let wanted = selection.count.unwrap_or(1);
    if tasks.len() < wanted { Err(EnvError::TooFewTasks { wanted, found: tasks.len(), env: ENV }) } else { Ok(tasks) }
}

/// The first `count` in an order that the seed decides.
fn take(mut tasks: Vec<Task>, selection: &Selection) -> Vec<Task> {
    let mut rng = Rng::new("oolong order", &[&selection.seed.to_le_bytes()]);
    rng.shuffle(&mut tasks);
    tasks.truncate(selection.count.unwrap_or(usize::MAX));
    tasks
}

/// The numbers of episodes that presets such as `1ep` name; empty for `all`.
fn sizes(presets: &[String]) -> Result<Vec<usize>, EnvError> {
    let mut sizes = Vec::new();
    for preset in presets {
        let size = preset.strip_suffix("ep").and_then(|number| number.parse().ok()).filter(|size| *size > 0);
        match (preset.as_str(), size) {
            ("all", _) => return Ok(Vec::new()),
            (_, Some(size)) => sizes.push(size),
            _ => {
                let known = "with --data 1ep, 2ep, .. (windows of that many episodes) or all".to_owned();
                return Err(EnvError::UnknownPreset { given: preset.clone(), env: ENV, known });
            }
        }
    }
    Ok(sizes)
}

fn of_size(sizes: &[usize], row: &Row) -> bool {
    // Synthetic rows have no episodes: every size takes them.
    sizes.is_empty() || row.episodes.is_empty() || sizes.contains(&row.episodes.len())
}

fn row_task(row: Row) -> Task {
    let difficulty = if row.episodes.is_empty() { row.kind.clone() } else { format!("{}ep", row.episodes.len()) };
    let body = Body {
        origin: Origin::Row { place: row.place, window: row.window },
        question: row.question,
        answer: row.answer,
        scoring: row.scoring,
        asked: None,
        digest: None,
    };
    Task { id: format!("oolong.row.{}", row.id), difficulty, body: body.to_json() }
}

/// Every question about every run of episodes of the wanted sizes. Campaign 1 is for evaluation, as the authors have it,
/// and so is every third of the other series.
fn dialogue(all: &[Series], sizes: &[usize], split: Split) -> Vec<Task> {
    let mut tasks = Vec::new();
    for (number, series) in all.iter().enumerate() {
        let is_val = match series.name.strip_prefix("campaign") {
            Some(campaign) => campaign == "1",
            None => number % 3 == 2,
        };
        if is_val != (split == Split::Val) {
            continue;
        }
        let most = series.episodes.len();
        for size in (1..=most).filter(|size| sizes.is_empty() || sizes.contains(size)) {
            for episodes in series.episodes.windows(size) {
                tasks.extend(window_tasks(series, episodes));
            }
        }
    }
    tasks
}

fn window_tasks(series: &Series, episodes: &[Episode]) -> Vec<Task> {
    let numbers: Vec<u32> = episodes.iter().map(|episode| episode.number).collect();
    let text = transcript::window(&series.players, episodes);
    let digest = digest(&text);
    let task = |asked: Asked| {
        let answer = asked.gold(&text, &[]);
        let body = Body {
            origin: Origin::Corpus { series: series.name.clone(), episodes: numbers.clone() },
            question: asked.text.clone(),
            answer,
            scoring: Scoring::Dnd,
            asked: Some(asked.stored()),
            digest: Some(digest.clone()),
        };
        let id = corpus::question_id(&series.name, &asked.text, &numbers);
        Task { id: format!("oolong.{id}"), difficulty: format!("{}ep", numbers.len()), body: body.to_json() }
    };
    about_dialogue(&text, episodes.len()).into_iter().map(task).collect()
}

fn synthetic(selection: &Selection) -> Result<Vec<Task>, EnvError> {
    let known = || PRESETS.map(|preset| preset.name).join(", ");
    let mut presets = Vec::new();
    for name in &selection.presets {
        let preset = PRESETS.iter().find(|preset| preset.name == name);
        let unknown = || EnvError::UnknownPreset { given: name.clone(), env: ENV, known: known() };
        presets.push(preset.ok_or_else(unknown)?);
    }
    let Some(count) = selection.count else {
        let reason = "generated tasks have no end: give a number, or data with an end".to_owned();
        return Err(EnvError::Setting { name: "tasks", reason });
    };
    let mut tasks = Vec::with_capacity(count);
    for index in 0..count {
        if let Some(preset) = presets.get(index % presets.len().max(1)) {
            tasks.push(synthetic_task(preset, selection, index as u64));
        }
    }
    Ok(tasks)
}

fn synthetic_task(preset: &Preset, selection: &Selection, index: u64) -> Task {
    let split = split_name(selection.split);
    let parts: [&[u8]; 4] =
        [preset.name.as_bytes(), split.as_bytes(), &selection.seed.to_le_bytes(), &index.to_le_bytes()];
    let seed = derive("oolong task", &parts);
    let mut rng = Rng::new("oolong question", &[&seed.to_le_bytes()]);
    let (fewest, most) = preset.episodes;
    let episodes = rng.range(u64::from(fewest), u64::from(most)) as u32;
    let recipe = Recipe { seed, chars: preset.chars, episodes };
    let window = synth::generate(&recipe);
    let (mut asked, mut answer) = (None, String::new());
    // A question without an answer, such as for spells that several cast, is drawn again.
    for _ in 0..16 {
        let drawn = about_events(&mut rng, &window.rolls, &window.spells, episodes as usize);
        answer = drawn.gold(&window.text, window.records(drawn.query.noun));
        asked = Some(drawn);
        if !answer.is_empty() {
            break;
        }
    }
    let body = Body {
        origin: Origin::Synthetic(recipe),
        question: asked.as_ref().map(|asked| asked.text.clone()).unwrap_or_default(),
        answer,
        scoring: Scoring::Dnd,
        asked: asked.as_ref().map(Asked::stored),
        digest: Some(digest(&window.text)),
    };
    Task {
        id: format!("oolong.synthetic.{}.{split}.{seed:016x}", preset.name),
        difficulty: preset.name.to_owned(),
        body: body.to_json(),
    }
}

//! Which tasks there are: questions from files, and questions made from a mailbox.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::generate::{Maker, Preset};
use super::mailbox::Mailbox;
use super::query::Query;
use super::questions::{Asked, Questions};
use super::{ENV, split_name};
use crate::rng::{Rng, derive};
use crate::{EnvError, Selection, Split, Task};

/// How many inboxes are asked about, as upstream: 20 for training and 8 for validation.
const INBOXES: usize = 28;

/// Of so many inboxes in order, the first are for training.
const TRAIN_INBOXES: usize = 20;

/// An inbox needs this many mails to be asked about.
const MIN_MAILS: usize = 30;

/// With fewer inboxes than this, both splits ask about all of them, and the questions are divided instead.
const FEW_INBOXES: usize = 7;

/// Of the questions about shared inboxes, every fifth is for validation.
const VAL_SHARE: u64 = 5;

/// How often a question is made anew because it was there already, or is of the other split.
const REPEATS: u64 = 40;

/// The shape of a task's body: all that is needed to open it again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    /// The mailbox, by digest.
    pub(super) mailbox: String,
    /// Whose mail is asked about.
    pub(super) inbox: String,
    /// The day on which it is asked.
    pub(super) query_date: String,
    pub(super) question: String,
    pub(super) answer: String,
    pub(super) message_ids: Vec<String>,
    /// The question's form, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) query: Option<Query>,
}

impl Body {
    pub(super) fn from_json(json: &Json) -> Result<Self, String> {
        serde_json::from_value(json.clone()).map_err(|error| format!("its body is not a {ENV} task ({error})"))
    }
}

/// What tasks are taken from.
pub(super) struct Pool<'a> {
    pub(super) mailbox: &'a Mailbox,
    pub(super) questions: Option<&'a Questions>,
}

/// The inboxes that generated questions are about, and whether they are divided between the splits.
struct Inboxes {
    train: Vec<String>,
    val: Vec<String>,
    divided: bool,
}

impl Inboxes {
    fn of(mailbox: &Mailbox) -> Self {
        let large = mailbox.addresses().into_iter().filter(|(_, mails)| *mails >= MIN_MAILS);
        let mut names: Vec<String> = large.take(INBOXES).map(|(name, _)| name.to_owned()).collect();
        if names.len() < FEW_INBOXES {
            return Self { train: names.clone(), val: names, divided: false };
        }
        Rng::new("mail inboxes", &[mailbox.digest().as_bytes()]).shuffle(&mut names);
        let val = names.split_off(names.len() * TRAIN_INBOXES / INBOXES);
        Self { train: names, val, divided: true }
    }

    fn of_split(&self, split: Split) -> &[String] {
        match split {
            Split::Train => &self.train,
            Split::Val => &self.val,
        }
    }

    /// Whether a question belongs to a split.
    fn admits(&self, split: Split, inbox: &str, text: &str) -> bool {
        let val = derive("mail split", &[inbox.as_bytes(), text.as_bytes()]).is_multiple_of(VAL_SHARE);
        self.divided || val == (split == Split::Val)
    }
}

impl Pool<'_> {
    /// The tasks of a selection. Those from files are in file order at seed 0, else shuffled by the seed; generated ones
    /// have no end, and several presets take turns.
    pub(super) fn select(&self, selection: &Selection) -> Result<Vec<Task>, EnvError> {
        let presets = selection.presets.iter().map(|name| Preset::find(name)).collect::<Result<Vec<_>, _>>()?;
        if presets.is_empty() {
            return Preset::find("").map(|_| Vec::new());
        }
        match self.questions {
            Some(questions) => self.asked(questions, &presets, selection),
            None => self.generated(&presets, selection),
        }
    }

    fn asked(&self, questions: &Questions, presets: &[Preset], selection: &Selection) -> Result<Vec<Task>, EnvError> {
        let chosen = |asked: &&Asked| {
            asked.split == selection.split && presets.contains(&Preset::of_mails(asked.message_ids.len()))
        };
        let mut chosen: Vec<&Asked> = questions.asked.iter().filter(chosen).collect();
        if selection.seed != 0 {
            Rng::new("mail order", &[&selection.seed.to_le_bytes()]).shuffle(&mut chosen);
        }
        if let Some(wanted) = selection.count {
            if chosen.len() < wanted {
                return Err(EnvError::TooFewTasks { wanted, found: chosen.len(), env: ENV });
            }
            chosen.truncate(wanted);
        }
        Ok(chosen.into_iter().map(|asked| self.asked_task(asked)).collect())
    }

    fn asked_task(&self, asked: &Asked) -> Task {
        let preset = Preset::of_mails(asked.message_ids.len()).name;
        let body = Body {
            mailbox: self.mailbox.digest().to_owned(),
            inbox: asked.inbox_address.clone(),
            query_date: asked.query_date.clone(),
            question: asked.question.clone(),
            answer: asked.answer.clone(),
            message_ids: asked.message_ids.clone(),
            query: None,
        };
        let id = format!("{preset}.{}.{}", split_name(asked.split), asked.id);
        Task { id, difficulty: preset.to_owned(), body: json!(body) }
    }

    fn generated(&self, presets: &[Preset], selection: &Selection) -> Result<Vec<Task>, EnvError> {
        let Some(count) = selection.count else {
            let reason = "questions are generated without an end; say how many tasks".to_owned();
            return Err(EnvError::Setting { name: "tasks", reason });
        };
        let inboxes = Inboxes::of(self.mailbox);
        let query_date = self.day_after();
        let mut seen = BTreeSet::new();
        let mut tasks = Vec::with_capacity(count);
        for index in 0..count {
            let Some(preset) = presets.get(index % presets.len()) else { break };
            let made = self.make(*preset, selection, (index / presets.len()) as u64, &inboxes, &mut seen);
            let (inbox, made) = made.ok_or(EnvError::TooFewTasks { wanted: count, found: tasks.len(), env: ENV })?;
            let question = made.query.text();
            let digest = blake3::hash(question.as_bytes()).to_hex();
            let who = inbox.split('@').next().unwrap_or(&inbox);
            let id = format!("{}.{}.{who}.{}", preset.name, split_name(selection.split), &digest[..12]);
            let body = Body {
                mailbox: self.mailbox.digest().to_owned(),
                inbox,
                query_date: query_date.clone(),
                question,
                answer: made.gold.answer,
                message_ids: made.gold.message_ids,
                query: Some(made.query),
            };
            tasks.push(Task { id, difficulty: preset.name.to_owned(), body: json!(body) });
        }
        Ok(tasks)
    }

    /// The `index`-th question of a preset that is not among those before it.
    fn make(
        &self,
        preset: Preset,
        selection: &Selection,
        index: u64,
        inboxes: &Inboxes,
        seen: &mut BTreeSet<(String, String)>,
    ) -> Option<(String, super::generate::Made)> {
        for attempt in 0..REPEATS {
            let split = split_name(selection.split).as_bytes();
            let (seed, index, attempt) = (selection.seed.to_le_bytes(), index.to_le_bytes(), attempt.to_le_bytes());
            let parts: [&[u8]; 5] = [&seed, preset.name.as_bytes(), split, &index, &attempt];
            let mut rng = Rng::new("mail question", &parts);
            let inbox = rng.pick(inboxes.of_split(selection.split))?.clone();
            let Some(made) = Maker::new(self.mailbox, &inbox).make(preset, &mut rng) else { continue };
            let text = made.query.text();
            if inboxes.admits(selection.split, &inbox, &text) && seen.insert((inbox.clone(), text)) {
                return Some((inbox, made));
            }
        }
        None
    }

    /// The day after the newest mail: when generated questions are asked.
    fn day_after(&self) -> String {
        let newest = self.mailbox.emails().iter().map(|email| email.day()).max().unwrap_or("1970-01-01");
        super::generate::next_day(newest).unwrap_or_else(|| newest.to_owned())
    }
}

//! Questions with computed answers: about any dialogue, and about the events of synthetic windows.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::query::{Answer, Finish, Noun, Query, Record, Verb};
use super::transcript;
use crate::rng::Rng;

/// Phrases that are looked for in real dialogue; one that nobody says is asked for too.
const PHRASES: [&str; 8] = [
    "how do you want to do this",
    "natural 20",
    "oh my god",
    "thank you",
    "my lord",
    "i don't know",
    "what is",
    "roll",
];

/// How many of the busiest speakers are asked for by name.
const SPEAKERS: usize = 8;

/// A question about a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// As it is put.
    pub text: String,
    /// What has to be found out, piece by piece.
    pub query: Query,
    /// How the answer is made of that.
    pub finish: Finish,
    /// Only up to the end of this episode, counted from 1 within the window.
    pub up_to: Option<usize>,
}

/// A question as tasks hold it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    text: String,
    query: Json,
    finish: Finish,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    up_to: Option<usize>,
}

impl Asked {
    fn new(text: impl Into<String>, query: Query) -> Self {
        Asked { text: text.into(), query, finish: Finish::Plain, up_to: None }
    }

    fn finish(mut self, finish: Finish) -> Self {
        self.finish = finish;
        self
    }

    fn up_to(mut self, episodes: usize) -> Self {
        self.up_to = Some(episodes);
        self
    }

    /// As tasks hold it.
    #[must_use]
    pub fn stored(&self) -> Stored {
        let Asked { text, query, finish, up_to } = self.clone();
        Stored { text, query: query.to_json(), finish, up_to }
    }

    /// From a task.
    ///
    /// # Errors
    /// When the stored query is none.
    pub fn from_stored(stored: &Stored) -> Result<Asked, String> {
        let query = Query::from_json(&stored.query).map_err(|error| error.to_string())?;
        Ok(Asked { text: stored.text.clone(), query, finish: stored.finish.clone(), up_to: stored.up_to })
    }

    /// The bytes of the window that count.
    #[must_use]
    pub fn scope(&self, window: &str) -> usize {
        self.up_to.and_then(|episodes| transcript::episode_end(window, episodes)).unwrap_or(window.len())
    }

    /// The records that count, of a window whose events are known.
    fn records(&self, window: &str, events: &[Record]) -> Vec<Record> {
        let end = self.scope(window);
        if self.query.noun.is_in_text() {
            return self.query.records_in(window.get(..end).unwrap_or(window));
        }
        events.iter().filter(|record| record.at < end).cloned().collect()
    }

    /// The gold answer.
    #[must_use]
    pub fn gold(&self, window: &str, events: &[Record]) -> String {
        self.finish.gold(&self.query.answer(self.records(window, events).iter()))
    }
}

fn here(episodes: usize) -> &'static str {
    if episodes == 1 { "in this episode" } else { "in these episodes" }
}

fn with_phrase(verb: Verb, phrase: &str) -> Query {
    Query { phrase: Some(phrase.to_owned()), ..Query::new(verb, Noun::Phrase) }
}

/// Every question about a window of real dialogue, in a fixed order. Names and phrases are those of the window.
#[must_use]
pub fn about_dialogue(window: &str, episodes: usize) -> Vec<Asked> {
    let here = here(episodes);
    let turns = Query::new(Verb::Tally, Noun::Turns).by("speaker");
    let words = Query::new(Verb::Tally, Noun::Words).by("speaker");
    let speakers = busiest(&turns.answer(turns.records_in(window).iter()));
    let mut out = vec![
        Asked::new(format!("Total number of lines of dialogue {here}?"), Query::new(Verb::Count, Noun::Turns)),
        Asked::new(
            format!("Which speaker has the most lines of dialogue {here}? If several share the number, list them all."),
            turns.clone(),
        )
        .finish(Finish::Most),
        Asked::new(
            format!(
                "Which speaker has the fewest lines of dialogue {here}? If several share the number, list them all."
            ),
            turns.clone(),
        )
        .finish(Finish::Least),
        Asked::new(format!("Which speaker says the most words {here}?"), words.clone()).finish(Finish::Most),
        Asked::new(format!("How many different speakers are there {here}?"), turns.clone()).finish(Finish::Names),
    ];
    for n in [3, 5] {
        for (verb, which) in [(Verb::First, "first"), (Verb::Last, "last")] {
            let query = Query { n: Some(n), distinct: true, ..Query::new(verb, Noun::Turns).by("speaker") };
            out.push(Asked::new(format!("Who are the {which} {n} different speakers {here}, in order?"), query));
        }
    }
    for speaker in speakers.iter().take(SPEAKERS) {
        let count = Query::new(Verb::Count, Noun::Turns).only("speaker", speaker);
        out.push(Asked::new(format!("Number of lines of dialogue by {speaker} {here}?"), count.clone()));
        let share =
            format!("What percentage of the lines of dialogue {here} is by {speaker}? Round to the nearest integer.");
        out.push(Asked::new(share, turns.clone()).finish(Finish::Percent(speaker.clone())));
        let said = Query::new(Verb::Count, Noun::Words).only("speaker", speaker);
        out.push(Asked::new(format!("How many words does {speaker} say {here}?"), said));
        for k in 1..episodes {
            let text = format!("Number of lines of dialogue by {speaker} up to the end of episode {k} of these?");
            out.push(Asked::new(text, count.clone()).up_to(k));
        }
    }
    for phrase in PHRASES {
        let count = with_phrase(Verb::Count, phrase);
        out.push(Asked::new(format!("How many times is the phrase \"{phrase}\" said {here}?"), count));
        let tally = with_phrase(Verb::Tally, phrase).by("speaker");
        if matches!(tally.answer(tally.records_in(window).iter()), Answer::Tally(said) if !said.is_empty()) {
            let text = format!(
                "Who says the phrase \"{phrase}\" most often {here}? If several share the number, list them all."
            );
            out.push(Asked::new(text, tally).finish(Finish::Most));
            let first = Query { n: Some(1), ..with_phrase(Verb::First, phrase).by("speaker") };
            out.push(Asked::new(format!("Who is the first to say the phrase \"{phrase}\" {here}?"), first));
        }
    }
    out
}

fn busiest(tally: &Answer) -> Vec<String> {
    let Answer::Tally(tally) = tally else { return Vec::new() };
    let mut names: Vec<(&String, &u64)> = tally.iter().collect();
    names.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), (*name).clone()));
    names.into_iter().map(|(name, _)| name.clone()).collect()
}

/// A question about the events of a synthetic window; what it asks for is drawn with `rng` from what is there.
#[must_use]
pub(super) fn about_events(rng: &mut Rng, rolls: &[Record], spells: &[Record], episodes: usize) -> Asked {
    let here = here(episodes);
    let of = |rng: &mut Rng, records: &[Record], field: &str| -> Option<String> {
        let all: BTreeMap<&str, ()> = records
            .iter()
            .flat_map(|record| {
                record.fields.iter().filter(|(name, _)| *name == field).map(|(_, value)| (value.as_str(), ()))
            })
            .collect();
        rng.pick(&all.into_keys().collect::<Vec<_>>()).map(|value| (*value).to_owned())
    };
    let count = Query::new(Verb::Count, Noun::Rolls);
    let tally = |by: &str| Query::new(Verb::Tally, Noun::Rolls).by(by);
    let spell_tally = |by: &str| Query::new(Verb::Tally, Noun::Spells).by(by);
    let cast = Query::new(Verb::Count, Noun::Spells);
    // As many tries as it takes to draw a question whose names are there.
    for _ in 0..64 {
        let drawn = match rng.below(18) {
            0 => Some(Asked::new(format!("Total number of rolls {here}?"), count.clone())),
            1 => of(rng, rolls, "character").map(|name| {
                Asked::new(
                    format!("Total number of rolls by the character {name} {here}?"),
                    count.clone().only("character", &name),
                )
            }),
            2 => of(rng, rolls, "player").map(|name| {
                Asked::new(
                    format!("Total number of rolls by the player {name} {here}?"),
                    count.clone().only("player", &name),
                )
            }),
            3 => of(rng, rolls, "type").map(|name| {
                Asked::new(format!("Number of rolls of type {name} {here}?"), count.clone().only("type", &name))
            }),
            4 => of(rng, rolls, "natural").map(|value| {
                let text = format!("Number of rolls of natural value {value} {here}?");
                Asked::new(text, count.clone().only("natural", &value))
            }),
            5 => Some(Asked::new(
                format!("How many natural twenties were rolled {here}?"),
                count.clone().only("natural", "20"),
            )),
            6 => Some(Asked::new(
                format!("How many natural ones were rolled {here}?"),
                count.clone().only("natural", "1"),
            )),
            7 => of(rng, rolls, "type").map(|name| {
                let text =
                    format!("What percentage of the rolls {here} were of type {name}? Round to the nearest integer.");
                Asked::new(text, tally("type")).finish(Finish::Percent(name))
            }),
            8 => of(rng, rolls, "character").map(|name| {
                let text = format!(
                    "What percentage of the rolls {here} were by the character {name}? Round to the nearest integer."
                );
                Asked::new(text, tally("character")).finish(Finish::Percent(name))
            }),
            9 => {
                let text = format!("What is the most common roll type {here}? If several are, list them all.");
                Some(Asked::new(text, tally("type")).finish(Finish::Most))
            }
            10 => {
                let text = format!("What is the least common roll type {here}? If several are, list them all.");
                Some(Asked::new(text, tally("type")).finish(Finish::Least))
            }
            11 => {
                let text =
                    format!("What is the most common natural value rolled {here}? If several are, list them all.");
                Some(Asked::new(text, tally("natural")).finish(Finish::Most))
            }
            12 => {
                let n = rng.range(2, 5) as usize;
                let (verb, which) = if rng.below(2) == 0 { (Verb::First, "first") } else { (Verb::Last, "last") };
                let query = Query { n: Some(n), ..Query::new(verb, Noun::Spells).by("spell") };
                // A list that names a spell twice could not be answered for a full score: see `score_dnd`.
                let names_each_once = match query.answer(spells.iter()) {
                    Answer::List(names) => names.iter().collect::<BTreeSet<_>>().len() == names.len(),
                    _ => true,
                };
                names_each_once
                    .then(|| Asked::new(format!("What are the {which} {n} spells cast {here}, in order?"), query))
            }
            13 => of(rng, spells, "character").map(|name| {
                let text = format!("Number of spells cast by the character {name} {here}?");
                Asked::new(text, cast.clone().only("character", &name))
            }),
            14 => Some(Asked::new(format!("How many cantrips were cast {here}?"), cast.clone().only("cantrip", "yes"))),
            15 => {
                let text = format!("How many spells were cast at a higher level than their own {here}?");
                Some(Asked::new(text, cast.clone().only("upcast", "yes")))
            }
            16 => {
                let text = format!("Which spells were cast by more than one character {here}? List them.");
                Some(Asked::new(text, spell_tally("spell+character")).finish(Finish::Shared))
            }
            _ if episodes > 1 => {
                let k = rng.range(1, episodes as u64 - 1) as usize;
                let text = format!("What is the cumulative number of rolls at the end of episode {k} of these?");
                Some(Asked::new(text, count.clone()).up_to(k))
            }
            _ => {
                let text = format!("What is the most common spell cast {here}? If several are, list them all.");
                Some(Asked::new(text, spell_tally("spell")).finish(Finish::Most))
            }
        };
        let enough = |asked: &Asked| asked.query.noun == Noun::Rolls || !spells.is_empty();
        if let Some(asked) = drawn.filter(enough) {
            return asked;
        }
    }
    Asked::new(format!("Total number of rolls {here}?"), count)
}

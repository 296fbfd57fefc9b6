//! What is asked of a text, as data: countable things, and how the answers for the pieces of a text make the answer for the
//! whole.
//!
//! A [`Query`] has an exact answer for every piece of a text: a count, a tally (name to count) or a list. The answer for
//! the whole is the sum, the sum by name, or the pieces' lists one after the other. A [`Finish`] makes the answer to a
//! question of the whole's: the most frequent name, a percentage, a list of names.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::transcript;
use crate::Value;

/// A countable thing in a text: where it stands, its weight in counts, and its properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The byte at which it counts: a piece of the text has the record if it has this byte.
    pub at: usize,
    /// How much it counts.
    pub weight: u64,
    /// Properties by name.
    pub fields: Vec<(&'static str, String)>,
}

impl Record {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    /// Several properties joined by a plus sign, such as `spell+character`, give `spell by character`.
    fn key(&self, by: &str) -> Option<String> {
        let parts: Option<Vec<&str>> = by.split('+').map(|name| self.field(name)).collect();
        parts.map(|parts| parts.join(" by "))
    }
}

/// How records become an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verb {
    /// Their weights added up: an integer.
    Count,
    /// The same by a property: a dictionary.
    Tally,
    /// A property of the first ones, in order: a list.
    First,
    /// A property of the last ones, in order: a list.
    Last,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Noun {
    /// Lines of dialogue.
    Turns,
    /// Words of dialogue.
    Words,
    /// Places where a phrase is said.
    Phrase,
    /// Dice that were rolled.
    Rolls,
    /// Spells that were cast.
    Spells,
}

impl Noun {
    /// Whether any text has records of this kind, or only one whose events are known.
    #[must_use]
    pub fn is_in_text(self) -> bool {
        matches!(self, Noun::Turns | Noun::Words | Noun::Phrase)
    }

    /// The properties of its records.
    #[must_use]
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            Noun::Turns | Noun::Words | Noun::Phrase => &["speaker"],
            Noun::Rolls => &["character", "player", "type", "total", "natural"],
            Noun::Spells => &["character", "player", "spell", "base", "cast", "cantrip", "upcast"],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Noun::Turns => "turns",
            Noun::Words => "words",
            Noun::Phrase => "phrase",
            Noun::Rolls => "rolls",
            Noun::Spells => "spells",
        }
    }
}

/// A question that has an exact answer for every piece of a text. As JSON:
/// `{"kind": "count_rolls", "character": "Fjord"}`, `{"kind": "tally_turns", "by": "speaker"}`,
/// `{"kind": "first_spells", "by": "spell", "n": 3}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// How the answer is made.
    pub verb: Verb,
    /// Of what.
    pub noun: Noun,
    /// The property that a tally or a list shows.
    pub by: Option<String>,
    /// How many items a list has at most.
    pub n: Option<usize>,
    /// Whether each name stands in a list once: where it comes first, or in lists of the last, where it comes last.
    pub distinct: bool,
    /// The phrase that is looked for, in small letters.
    pub phrase: Option<String>,
    /// Only records with these properties.
    pub filters: BTreeMap<String, String>,
}

/// Why data is no query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct QueryError(pub String);

impl Query {
    /// A query without filters.
    #[must_use]
    pub fn new(verb: Verb, noun: Noun) -> Self {
        Query { verb, noun, by: None, n: None, distinct: false, phrase: None, filters: BTreeMap::new() }
    }

    /// The same by a property.
    #[must_use]
    pub fn by(mut self, field: &str) -> Self {
        self.by = Some(field.to_owned());
        self
    }

    /// The same for records with a property.
    #[must_use]
    pub fn only(mut self, field: &str, value: &str) -> Self {
        self.filters.insert(field.to_owned(), value.to_owned());
        self
    }

    /// The query's JSON.
    #[must_use]
    pub fn to_json(&self) -> Json {
        let verb = match self.verb {
            Verb::Count => "count",
            Verb::Tally => "tally",
            Verb::First => "first",
            Verb::Last => "last",
        };
        let mut out = json!({ "kind": format!("{verb}_{}", self.noun.name()) });
        let mut put = |name: &str, value: Json| {
            if let Some(fields) = out.as_object_mut() {
                fields.insert(name.to_owned(), value);
            }
        };
        if let Some(by) = &self.by {
            put("by", json!(by));
        }
        if let Some(n) = self.n {
            put("n", json!(n));
        }
        if self.distinct {
            put("distinct", json!(true));
        }
        if let Some(phrase) = &self.phrase {
            put("phrase", json!(phrase));
        }
        for (name, value) in &self.filters {
            put(name, json!(value));
        }
        out
    }

    /// The query as a Python dictionary.
    #[must_use]
    pub fn to_python(&self) -> String {
        Value::from_json(&self.to_json()).map_or_else(|_| "None".to_owned(), |value| value.repr())
    }

    /// Reads a query.
    ///
    /// # Errors
    /// What is wrong with it, for the agent that wrote it.
    pub fn from_json(json: &Json) -> Result<Query, QueryError> {
        let wrong = |text: String| Err(QueryError(text));
        let Some(fields) = json.as_object() else { return wrong("query must be a dict with a kind".into()) };
        let kind = fields.get("kind").and_then(Json::as_str).unwrap_or_default();
        let (verb, noun) = kind.split_once('_').unwrap_or((kind, ""));
        let verb = match verb {
            "count" => Verb::Count,
            "tally" => Verb::Tally,
            "first" => Verb::First,
            "last" => Verb::Last,
            _ => return wrong(format!("unknown query kind {kind:?}: write count_, tally_, first_ or last_ and what")),
        };
        let noun = match noun {
            "turns" => Noun::Turns,
            "words" => Noun::Words,
            "phrase" => Noun::Phrase,
            "rolls" => Noun::Rolls,
            "spells" => Noun::Spells,
            _ => {
                return wrong(format!(
                    "unknown query kind {kind:?}: it must end in turns, words, phrase, rolls or spells"
                ));
            }
        };
        let mut query = Query::new(verb, noun);
        for (name, value) in fields.iter().filter(|(name, _)| *name != "kind") {
            query.read_field(name, value)?;
        }
        if query.by.is_none() && verb != Verb::Count {
            return wrong(format!("{kind} needs `by`, one of {}", noun.fields().join(", ")));
        }
        if noun == Noun::Phrase && query.phrase.is_none() {
            return wrong(format!("{kind} needs `phrase`"));
        }
        Ok(query)
    }

    fn read_field(&mut self, name: &str, value: &Json) -> Result<(), QueryError> {
        let text = value.as_str().map(str::to_owned).or_else(|| value.as_i64().map(|number| number.to_string()));
        let known = self.noun.fields();
        match (name, text) {
            ("n", _) => self.n = value.as_u64().and_then(|n| usize::try_from(n).ok()),
            ("distinct", _) => self.distinct = value.as_bool().unwrap_or_default(),
            ("phrase", Some(text)) if self.noun == Noun::Phrase => self.phrase = Some(text.to_lowercase()),
            ("by", Some(text)) if text.split('+').all(|field| known.contains(&field)) => self.by = Some(text),
            (name, Some(text)) if known.contains(&name) => {
                self.filters.insert(name.to_owned(), text);
            }
            _ => {
                let text = format!("query has no use for {name}={value}: its fields are {}", known.join(", "));
                return Err(QueryError(text));
            }
        }
        Ok(())
    }

    /// The answer for records in the order of the text.
    #[must_use]
    pub fn answer<'a>(&self, records: impl DoubleEndedIterator<Item = &'a Record>) -> Answer {
        let mut chosen = records.filter(|record| {
            self.filters.iter().all(|(name, value)| record.field(name).is_some_and(|known| known == value))
        });
        let by = self.by.as_deref().unwrap_or_default();
        match self.verb {
            Verb::Count => Answer::Count(chosen.map(|record| record.weight).sum()),
            Verb::Tally => {
                let mut tally = BTreeMap::new();
                for record in chosen {
                    if let Some(key) = record.key(by) {
                        *tally.entry(key).or_insert(0) += record.weight;
                    }
                }
                Answer::Tally(tally)
            }
            Verb::First => Answer::List(self.cut(&mut chosen.filter_map(|record| record.key(by)))),
            Verb::Last => {
                let mut list = self.cut(&mut chosen.by_ref().rev().filter_map(|record| record.key(by)));
                list.reverse();
                Answer::List(list)
            }
        }
    }

    fn cut(&self, names: &mut dyn Iterator<Item = String>) -> Vec<String> {
        let most = self.n.unwrap_or(usize::MAX);
        let mut out = Vec::new();
        while out.len() < most {
            match names.next() {
                None => break,
                Some(name) if self.distinct && out.contains(&name) => {}
                Some(name) => out.push(name),
            }
        }
        out
    }

    /// The answer for a whole text from those for its pieces, in order.
    #[must_use]
    pub fn merge(&self, parts: &[Answer]) -> Answer {
        match self.verb {
            Verb::Count => {
                Answer::Count(parts.iter().map(|part| if let Answer::Count(n) = part { *n } else { 0 }).sum())
            }
            Verb::Tally => {
                let mut all = BTreeMap::new();
                for part in parts {
                    let Answer::Tally(tally) = part else { continue };
                    for (name, count) in tally {
                        *all.entry(name.clone()).or_insert(0) += count;
                    }
                }
                Answer::Tally(all)
            }
            Verb::First | Verb::Last => {
                let lists =
                    parts.iter().filter_map(|part| if let Answer::List(list) = part { Some(list) } else { None });
                let all: Vec<String> = lists.flatten().cloned().collect();
                if self.verb == Verb::First {
                    return Answer::List(self.cut(&mut all.into_iter()));
                }
                let mut list = self.cut(&mut all.into_iter().rev());
                list.reverse();
                Answer::List(list)
            }
        }
    }

    /// The records of this query's kind that any text has.
    #[must_use]
    pub fn records_in(&self, text: &str) -> Vec<Record> {
        let mut out = Vec::new();
        for line in transcript::lines(text) {
            let mut push = |at: usize, weight: usize| {
                let fields = vec![("speaker", line.speaker.to_owned())];
                out.push(Record { at, weight: weight as u64, fields });
            };
            match (self.noun, &self.phrase) {
                (Noun::Turns, _) => push(line.at, 1),
                (Noun::Words, _) => push(line.at, line.words.split_whitespace().count()),
                (Noun::Phrase, Some(phrase)) => {
                    let said = line.words.to_lowercase();
                    (0..said.matches(phrase.as_str()).count()).for_each(|_| push(line.at, 1));
                }
                (Noun::Phrase, None) | (Noun::Rolls | Noun::Spells, _) => {}
            }
        }
        out
    }
}

/// An exact answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A number.
    Count(u64),
    /// Numbers by name.
    Tally(BTreeMap<String, u64>),
    /// Names in order.
    List(Vec<String>),
}

impl Answer {
    /// As a Python value.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let int = |count: &u64| Value::Int(i64::try_from(*count).unwrap_or(i64::MAX));
        match self {
            Answer::Count(count) => int(count),
            Answer::Tally(tally) => Value::dict(tally.iter().map(|(name, count)| (name.clone(), int(count)))),
            Answer::List(names) => Value::List(names.iter().map(|name| Value::str(name.clone())).collect()),
        }
    }

    /// How right a value is, in \[0, 1\]: a number by its distance (0.75 to its power), a dictionary by the share of names
    /// whose count is right, a list by equality.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "tallies are short")]
    pub fn score(&self, value: &Value) -> f64 {
        match (self, value) {
            (Answer::Count(count), Value::Int(given)) => super::score::near(i128::from(*count), i128::from(*given)),
            (Answer::Tally(tally), Value::Dict(pairs)) => {
                let right = pairs.iter().filter(|(name, given)| {
                    let count = name.as_str().and_then(|name| tally.get(name));
                    count.is_some_and(|count| *given == Value::Int(i64::try_from(*count).unwrap_or(i64::MAX)))
                });
                let (right, missing) = (right.count(), tally.keys().filter(|name| !has(pairs, name)).count());
                let names = pairs.len() + missing;
                if names == 0 { 1.0 } else { right as f64 / names as f64 }
            }
            (Answer::List(_), Value::List(_)) => f64::from(u8::from(self.to_value() == *value)),
            (Answer::List(names), Value::Tuple(items)) => {
                f64::from(u8::from(Answer::List(names.clone()).to_value() == Value::List(items.clone())))
            }
            _ => 0.0,
        }
    }
}

fn has(pairs: &[(Value, Value)], name: &str) -> bool {
    pairs.iter().any(|(key, _)| key.as_str() == Some(name))
}

/// How the answer to a question is made of the query's answer for the whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The number itself, or the list's items.
    Plain,
    /// The names with the highest count; all of them if several share it.
    Most,
    /// The names with the lowest count.
    Least,
    /// How many names there are.
    Names,
    /// A name's share of all, in percent, rounded to an integer, halves to the even one.
    Percent(String),
    /// The names that stand with more than one other in a tally by two properties: the spells cast by several characters.
    Shared,
}

impl Finish {
    /// The gold answer as the data set writes it.
    #[must_use]
    pub fn gold(&self, whole: &Answer) -> String {
        match (self, whole) {
            (Finish::Plain, Answer::Count(count)) => count.to_string(),
            (Finish::Plain, Answer::List(names)) => names.join(", "),
            (Finish::Most, Answer::Tally(tally)) => extreme(tally, tally.values().max()),
            (Finish::Least, Answer::Tally(tally)) => extreme(tally, tally.values().min()),
            (Finish::Names, Answer::Tally(tally)) => tally.len().to_string(),
            (Finish::Percent(name), Answer::Tally(tally)) => percent(tally, name).to_string(),
            (Finish::Shared, Answer::Tally(tally)) => {
                let first = |key: &String| key.split(" by ").next().unwrap_or_default().to_owned();
                let mut names = BTreeMap::<String, u32>::new();
                for key in tally.keys() {
                    *names.entry(first(key)).or_default() += 1;
                }
                let shared: Vec<String> =
                    names.into_iter().filter(|(_, characters)| *characters > 1).map(|(name, _)| name).collect();
                shared.join(", ")
            }
            _ => String::new(),
        }
    }
}

fn extreme(tally: &BTreeMap<String, u64>, count: Option<&u64>) -> String {
    let names: Vec<&str> = tally.iter().filter(|(_, own)| Some(*own) == count).map(|(name, _)| name.as_str()).collect();
    names.join(", ")
}

#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "counts far below 2^53; at most 100")]
fn percent(tally: &BTreeMap<String, u64>, name: &str) -> i64 {
    let whole: u64 = tally.values().sum();
    if whole == 0 {
        return 0;
    }
    let part = tally.get(name).copied().unwrap_or_default();
    (100.0 * part as f64 / whole as f64).round_ties_even() as i64
}

//! Final answers, and what they earn.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::query::NO_ANSWER;
use crate::Value;

/// How a root's success is reckoned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RewardKind {
    /// 1 if the answer is right, else 0, as in Recursive Agent Optimization.
    #[default]
    Rao,
    /// The graded reward of the original ART-E, brought into [0, 1] by [`unit()`].
    ArtE,
}

/// What a node gave to `finish`: `{"answer": .., "sources": [..]}`, as JSON text or as a dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Final {
    /// The answer.
    pub answer: String,
    /// Message ids that it rests on.
    pub sources: Vec<String>,
}

impl Final {
    /// Reads what was given to `finish`; `None` if it has another shape. A number counts as its text, missing sources as
    /// none.
    pub fn read(value: &Value) -> Option<Self> {
        let json = match value {
            Value::Str(text) => serde_json::from_str(text.trim()).ok()?,
            Value::Dict(_) => value.to_json(),
            _ => return None,
        };
        let Json::Object(map) = json else { return None };
        let answer = match map.get("answer")? {
            Json::String(text) => text.clone(),
            Json::Number(number) => number.to_string(),
            _ => return None,
        };
        let sources = match map.get("sources") {
            None | Some(Json::Null) => Vec::new(),
            Some(Json::Array(ids)) => ids.iter().map(|id| id.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            Some(_) => return None,
        };
        Some(Self { answer, sources })
    }

    /// Whether it says that the answer is not known.
    pub fn gives_up(&self) -> bool {
        folded(&self.answer) == folded(NO_ANSWER)
    }
}

/// A text in lower case with its white space folded, which is how answers are compared.
pub fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Why a rollout of the original ART-E would have ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BadCall {
    /// No call, or one that cannot be parsed.
    Unparsable,
    /// A tool that does not exist.
    Name,
    /// Arguments that the tool does not take.
    Args,
}

/// How an attempt at an answer came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// A right answer.
    Right,
    /// A wrong one.
    Wrong,
    /// "I don't know" where there is an answer, or no answer at all.
    None,
    /// Ended by a bad call.
    Bad(BadCall),
}

/// What the original reward looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rubric {
    /// Whether a search ever showed a mail that holds the answer.
    pub ever_found_right_email: bool,
    /// Whether such a mail was read.
    pub ever_read_right_email: bool,
    /// How often a mail was to be read that does not exist.
    pub read_invalid: u32,
    /// Whether every mail that holds the answer is among the sources.
    pub sources_correct: bool,
    /// How many sources were given.
    pub num_sources: usize,
    /// Steps taken.
    pub turns: usize,
}

/// The turns of the original; a step more costs nothing more.
const TURNS: f64 = 10.0;

/// The least that [`art_e`] gives.
pub const LEAST: f64 = -2.0;

/// What [`art_e`] stays below.
pub const MOST: f64 = 1.5;

/// The reward of the original ART-E, in [-2, 1.5).
///
/// 0.1 each for having found and read a right mail, for never reading an invalid id and for right sources; on top of that
/// -2, -1.9 or -1.8 for a bad call, -1 for a wrong answer, 0 for none. A right answer gives 1, 0.3 more for right sources,
/// 0.1 shared among the sources, and up to 0.1 for few turns.
pub fn art_e(attempt: Attempt, rubric: &Rubric) -> f64 {
    let tenth = |yes: bool| if yes { 0.1 } else { 0.0 };
    let partial = tenth(rubric.ever_found_right_email)
        + tenth(rubric.ever_read_right_email)
        + tenth(rubric.read_invalid == 0)
        + tenth(rubric.sources_correct);
    match attempt {
        Attempt::Bad(BadCall::Unparsable) => -2.0 + partial,
        Attempt::Bad(BadCall::Name) => -1.9 + partial,
        Attempt::Bad(BadCall::Args) => -1.8 + partial,
        Attempt::Wrong => -1.0 + partial,
        Attempt::None => partial,
        Attempt::Right => {
            let sources = if rubric.sources_correct { 0.3 } else { 0.0 };
            let few = if rubric.num_sources > 0 { 0.1 / rubric.num_sources as f64 } else { 0.0 };
            let fast = 0.1 * (1.0 - (rubric.turns as f64 / TURNS).min(1.0));
            1.0 + sources + few + fast
        }
    }
}

/// The reward as a success: `[-2, 1.5]` onto `[0, 1]`, since the log keeps no other. Differences keep their proportions,
/// so that advantages only change by a factor.
pub fn unit(reward: f64) -> f64 {
    ((reward - LEAST) / (MOST - LEAST)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rubric(found: bool, read: bool, invalid: u32, right: bool, sources: usize, turns: usize) -> Rubric {
        Rubric {
            ever_found_right_email: found,
            ever_read_right_email: read,
            read_invalid: invalid,
            sources_correct: right,
            num_sources: sources,
            turns,
        }
    }

    #[test]
    fn the_original_reward_term_by_term() {
        let all = rubric(true, true, 0, true, 1, 5);
        let nothing = rubric(false, false, 1, false, 0, 10);
        let rows = [
            (Attempt::Right, all, 1.0 + 0.3 + 0.1 + 0.05),
            (Attempt::Right, rubric(true, true, 0, true, 4, 10), 1.0 + 0.3 + 0.025),
            (Attempt::Right, rubric(true, true, 0, false, 2, 40), 1.0 + 0.05),
            (Attempt::Right, nothing, 1.0),
            (Attempt::Wrong, all, -0.6),
            (Attempt::Wrong, nothing, -1.0),
            (Attempt::None, rubric(true, false, 0, false, 0, 10), 0.2),
            (Attempt::None, nothing, 0.0),
            (Attempt::Bad(BadCall::Unparsable), nothing, -2.0),
            (Attempt::Bad(BadCall::Name), nothing, -1.9),
            (Attempt::Bad(BadCall::Args), all, -1.4),
        ];
        for (attempt, rubric, expected) in rows {
            let given = art_e(attempt, &rubric);
            assert!((given - expected).abs() < 1e-12, "{attempt:?} {rubric:?}: {given} is not {expected}");
            assert!((0.0..=1.0).contains(&unit(given)));
        }
        assert_eq!((unit(LEAST), unit(MOST), unit(-0.25)), (0.0, 1.0, 0.5));
    }

    #[test]
    fn final_answers_are_json_text_or_a_dictionary() {
        let text = |text: &str| Final::read(&Value::str(text));
        let read = text(r#" {"answer": "Yes", "sources": ["<a>", "<b>"]} "#).unwrap();
        assert_eq!((read.answer.as_str(), read.sources.len()), ("Yes", 2));
        assert_eq!(text(r#"{"answer": 12}"#).unwrap(), Final { answer: "12".into(), sources: vec![] });
        let dict = Value::dict([("answer", Value::str("x")), ("sources", Value::List(vec![Value::str("<a>")]))]);
        assert_eq!(Final::read(&dict).unwrap().sources, ["<a>"]);
        for bad in
            ["", "Yes", "[1]", r#"{"sources": []}"#, r#"{"answer": "x", "sources": "a"}"#, r#"{"answer": ["x"]}"#]
        {
            assert_eq!(text(bad), None, "{bad}");
        }
        assert_eq!(Final::read(&Value::None), None);
        assert!(text(r#"{"answer": "i  DON'T know"}"#).unwrap().gives_up());
    }
}

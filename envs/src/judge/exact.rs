//! Judges that compare an answer with the right one.

use std::collections::BTreeMap;

use serde_json::json;

use super::normal::{f1, same_answer};
use super::panel::source;
use super::{Judge, JudgeError, JudgeIdentity, Question};
use crate::Judgement;

/// Version of the comparison's rules: raised whenever an answer could be judged otherwise.
const VERSION: &str = "1";

/// 1 if the answer is the right one or an alias of it, after [`normalize`](super::normalize); else 0.
#[derive(Clone, Copy, Debug, Default)]
pub struct Exact;

/// The overlap of words (F1) with the nearest right answer: 1 from the threshold on, 0 below it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct F1 {
    /// In (0, 1].
    pub threshold: f64,
}

fn identity(kind: &str, settings: BTreeMap<String, serde_json::Value>) -> JudgeIdentity {
    JudgeIdentity { kind: kind.to_owned(), model: None, settings, template: VERSION.to_owned() }
}

fn truths(question: &Question) -> impl Iterator<Item = &str> {
    question.truth.iter().chain(&question.aliases).map(String::as_str)
}

impl Judge for Exact {
    fn identity(&self) -> JudgeIdentity {
        identity("exact", BTreeMap::new())
    }

    fn judge(&self, question: &Question) -> Result<Judgement, JudgeError> {
        let answer = question.answer_text();
        let hit = answer.as_deref().is_some_and(|answer| truths(question).any(|truth| same_answer(truth, answer)));
        Ok(Judgement {
            score: f64::from(u8::from(hit)),
            source: source(&self.identity(), question),
            evidence: json!({ "truth": question.truth, "answer": answer }),
        })
    }

    fn needs_truth(&self) -> bool {
        true
    }
}

impl Judge for F1 {
    fn identity(&self) -> JudgeIdentity {
        identity("f1", BTreeMap::from([("threshold".to_owned(), json!(self.threshold))]))
    }

    fn judge(&self, question: &Question) -> Result<Judgement, JudgeError> {
        let answer = question.answer_text();
        let overlap = |answer: &str| truths(question).map(|truth| f1(truth, answer)).fold(0.0, f64::max);
        let best = answer.as_deref().map_or(0.0, overlap);
        Ok(Judgement {
            score: f64::from(u8::from(best >= self.threshold)),
            source: source(&self.identity(), question),
            evidence: json!({ "truth": question.truth, "answer": answer, "f1": best }),
        })
    }

    fn needs_truth(&self) -> bool {
        true
    }
}

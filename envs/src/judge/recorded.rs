//! A judge that only repeats what another one said.

use std::collections::{BTreeMap, BTreeSet};

use super::{Judge, JudgeError, JudgeIdentity, Question};
use crate::Judgement;

/// Answers from verdicts on record, under the identity of the judge that gave them. Anything changed is a miss.
#[derive(Clone, Debug)]
pub struct Recorded {
    identity: JudgeIdentity,
    /// By the digest of the verdict's identity.
    verdicts: BTreeMap<String, Judgement>,
    questions: BTreeSet<String>,
    rubrics: BTreeSet<String>,
}

impl Recorded {
    /// A judge that repeats `verdicts`, all of which `identity` gave. Those whose evidence names no identity, as that of
    /// an environment's own verdicts, are passed over.
    #[must_use]
    pub fn new(identity: JudgeIdentity, verdicts: impl IntoIterator<Item = Judgement>) -> Self {
        let mut recorded =
            Recorded { identity, verdicts: BTreeMap::new(), questions: BTreeSet::new(), rubrics: BTreeSet::new() };
        for verdict in verdicts {
            let field = |name: &str| verdict.evidence.get(name).and_then(|value| value.as_str()).map(str::to_owned);
            let (Some(key), Some(question), Some(rubric)) = (field("identity"), field("question"), field("rubric"))
            else {
                continue;
            };
            recorded.questions.insert(question);
            recorded.rubrics.insert(rubric);
            // The first verdict is the one that counted.
            recorded.verdicts.entry(key).or_insert(verdict);
        }
        recorded
    }

    /// How many different verdicts are on record.
    #[must_use]
    pub fn len(&self) -> usize {
        self.verdicts.len()
    }

    /// True if nothing is on record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.verdicts.is_empty()
    }

    fn what_changed(&self, question: &Question) -> String {
        if self.verdicts.is_empty() {
            return format!("there is no verdict of judge {} at all", self.identity.to_json());
        }
        if self.questions.contains(&question.digest()) {
            return format!("the rubric `{}` is another one than when this was judged", question.rubric);
        }
        if !self.rubrics.contains(question.rubric) {
            return format!("nothing was judged by the rubric `{}`", question.rubric);
        }
        let goal: String = question.goal.chars().take(80).collect();
        format!("the node with the goal {goal:?} did, saw or answered something else than every node that was judged")
    }
}

impl Judge for Recorded {
    fn identity(&self) -> JudgeIdentity {
        self.identity.clone()
    }

    fn judge(&self, question: &Question) -> Result<Judgement, JudgeError> {
        match self.verdicts.get(&self.identity.verdict_digest(question)) {
            Some(verdict) => Ok(verdict.clone()),
            None => Err(JudgeError::Miss { changed: self.what_changed(question) }),
        }
    }
}

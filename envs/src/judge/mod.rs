//! Judges: who says how well a node did where the environment itself cannot.
//!
//! An [`Episode`](crate::Episode) either judges a node itself or names a [`Question`]. The run's [`Panel`] has a seat for
//! questions about roots and one for questions about children, and gives the verdict. A verdict's identity is the judge's
//! identity, the rubric and the question, each by digest: a panel asks the same identity once, and whatever changes makes
//! another identity. Judges that compute answer at once; those outside this process are asked beside everything else
//! ([`Inquiry`]).

mod exact;
mod inquiry;
mod llm;
mod normal;
mod panel;
mod recorded;
pub mod rubrics;
mod spec;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

pub use exact::{Exact, F1};
pub use inquiry::{Inquiry, Remote, Reply, Request, Sitting};
pub use llm::{Llm, LlmError, LlmSettings, Secret, Warn};
pub(crate) use normal::MONTHS;
pub use normal::{f1, normalize, same_answer};
pub use panel::{Panel, Ruling, Seat, proxy};
pub use recorded::Recorded;
pub use spec::{Spec, SpecError};

use crate::{Judgement, Text, Value};

/// One action of a node and what its cell showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    /// The action as sampled.
    pub action: String,
    /// Output and error as the agent read them.
    pub output: String,
}

/// How a node ended, as its judge sees it.
#[derive(Clone, Copy, Debug)]
pub struct Ending<'a> {
    /// What it gave to `finish`, if it did.
    pub value: Option<&'a Value>,
    /// Its actions.
    pub history: &'a [Act],
    /// Why it ended without `finish`, if it did.
    pub error: Option<&'a str>,
}

impl<'a> Ending<'a> {
    /// An ending with that value and nothing known of the way to it.
    #[must_use]
    pub fn with(value: Option<&'a Value>) -> Self {
        Ending { value, history: &[], error: None }
    }
}

/// How success is found.
#[derive(Clone, Debug, PartialEq)]
pub enum Assessment {
    /// The environment itself knows.
    Judged(Judgement),
    /// A judge is to be asked.
    Ask(Box<Question>),
}

impl Assessment {
    /// The environment's own judgement, if there is one.
    #[must_use]
    pub fn judged(self) -> Option<Judgement> {
        match self {
            Assessment::Judged(judgement) => Some(judgement),
            Assessment::Ask(_) => None,
        }
    }
}

/// Which seat of the panel a question goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The judge of roots.
    Root,
    /// The judge of children.
    Child,
}

/// What a judge is asked. Everything that a verdict may depend on stands here.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Whom it is for.
    pub role: Role,
    /// The rubric's name, such as `oolong/child`; [`rubrics::text`] has its text.
    pub rubric: &'static str,
    /// The node's goal as it read it.
    pub goal: String,
    /// What the node worked on, if its judge may see it.
    pub context: Option<Text>,
    /// The right answer, if it is known.
    pub truth: Option<String>,
    /// Other forms of the right answer.
    pub aliases: Vec<String>,
    /// What the node answered; `None` if it did not.
    pub answer: Option<Value>,
    /// What the node did.
    pub history: Vec<Act>,
    /// Why it ended without an answer, if it did.
    pub error: Option<String>,
    /// What the environment itself saw of the node, for people to read. It goes into the verdict's evidence, under
    /// `environment`. No judge sees it, so no identity depends on it.
    pub notes: Option<Json>,
}

impl Question {
    /// The answer as text: a string as it is, any other value as Python shows it.
    #[must_use]
    pub fn answer_text(&self) -> Option<String> {
        self.answer.as_ref().map(Value::to_text)
    }

    /// Digest of everything that the question says to its judge, in hexadecimal.
    #[must_use]
    pub fn digest(&self) -> String {
        let context = self.context.as_ref().map(|text| blake3::hash(text.as_bytes()).to_hex().to_string());
        let history: Vec<_> = self.history.iter().map(|act| json!([act.action, act.output])).collect();
        let whole = json!({
            "role": self.role,
            "goal": self.goal,
            "context": context,
            "truth": self.truth,
            "aliases": self.aliases,
            "answer": self.answer.as_ref().map(Value::to_json),
            "history": history,
            "error": self.error,
        });
        blake3::hash(whole.to_string().as_bytes()).to_hex().to_string()
    }
}

/// Who a judge is: whatever of it a verdict depends on. Its canonical JSON stands in manifests and verdicts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JudgeIdentity {
    /// Such as `exact`, `f1`, `root` or `llm`.
    pub kind: String,
    /// The model's name, of a judge that is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Settings by name: a threshold, a temperature.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, Json>,
    /// Digest of the prompt template or, of a computed judge, its version.
    pub template: String,
}

impl JudgeIdentity {
    /// The canonical JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Strings, numbers and a sorted map: serializing them cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Whether the judge computes its verdicts from the question alone, so that a replay can make them again.
    #[must_use]
    pub fn is_computed(&self) -> bool {
        matches!(self.kind.as_str(), "exact" | "f1" | "root")
    }

    /// Digest of a verdict's identity: this judge, the rubric and the question.
    #[must_use]
    pub fn verdict_digest(&self, question: &Question) -> String {
        let rubric = rubrics::digest(question.rubric);
        let whole = json!([self, question.rubric, rubric, question.digest()]);
        blake3::hash(whole.to_string().as_bytes()).to_hex().to_string()
    }
}

/// Gives verdicts.
pub trait Judge: Send + Sync {
    /// Who it is.
    fn identity(&self) -> JudgeIdentity;

    /// Judges, and waits until it has. The evidence says what the judgement rests on; the panel adds the question's
    /// identity.
    ///
    /// A judge that cannot reach its model, or cannot read its reply, gives score 0, says so in the evidence and warns: it
    /// does not fail the rollout.
    ///
    /// # Errors
    /// Only where the verdict had to be on record and is not.
    fn judge(&self, question: &Question) -> Result<Judgement, JudgeError>;

    /// Whether it can judge only where the right answer is known. Without one, children then get the root's success, and
    /// roots 0.
    fn needs_truth(&self) -> bool {
        false
    }

    /// The same judge as one that is asked beside everything else, where its answers come from outside this process.
    fn remote(&self) -> Option<&dyn Remote> {
        None
    }
}

/// Why there is no verdict.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JudgeError {
    /// A recorded judge has nothing on record for this question.
    #[error(
        "no recorded verdict fits: {changed}; ask a judge anew with `rao-log rejudge`, or record with another --judge"
    )]
    Miss {
        /// What differs from the verdicts on record.
        changed: String,
    },
    /// A judge let a question go.
    #[error("a judge dropped a question without answering it; go on with `rao-log record --resume`")]
    Dropped,
}

/// A judge that several may hold.
pub type SharedJudge = Arc<dyn Judge>;

//! The judges of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;

use super::{Assessment, Exact, Judge, JudgeError, JudgeIdentity, Question, Role, SharedJudge};
use crate::Judgement;

/// Who judges children.
#[derive(Clone)]
pub enum Seat {
    /// A judge.
    Judge(SharedJudge),
    /// Nobody: a child's success is the root's, assigned when the root ends.
    Root,
}

/// How a node is judged.
#[derive(Clone, Debug, PartialEq)]
pub enum Ruling {
    /// The verdict.
    Given {
        /// Score, source and evidence.
        judgement: Judgement,
        /// The judge's identity as canonical JSON; `None` where the environment judged by itself.
        judge: Option<String>,
    },
    /// The node's success will be the root's.
    AsRoot,
}

/// The judges of roots and of children, and what they said so far.
#[derive(Clone)]
pub struct Panel {
    root: SharedJudge,
    child: Seat,
    /// By the digest of the verdict's identity: the same is never asked twice.
    said: Arc<Mutex<BTreeMap<String, Judgement>>>,
}

/// The identity of the rule that a child's success is the root's.
#[must_use]
pub fn proxy() -> JudgeIdentity {
    JudgeIdentity { kind: "root".into(), model: None, settings: BTreeMap::new(), template: "1".into() }
}

impl Default for Panel {
    fn default() -> Self {
        Panel::new(Arc::new(Exact), Seat::Root)
    }
}

impl fmt::Debug for Panel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (root, child) = self.identities();
        f.debug_struct("Panel").field("root", &root).field("child", &child).finish()
    }
}

impl Panel {
    /// A panel.
    #[must_use]
    pub fn new(root: SharedJudge, child: Seat) -> Self {
        Panel { root, child, said: Arc::default() }
    }

    /// Who judges roots, and who children.
    #[must_use]
    pub fn identities(&self) -> (JudgeIdentity, JudgeIdentity) {
        let child = match &self.child {
            Seat::Judge(judge) => judge.identity(),
            Seat::Root => proxy(),
        };
        (self.root.identity(), child)
    }

    /// Takes verdicts that were given before, so that their questions are not asked again. Those whose evidence names no
    /// identity are passed over.
    pub fn remember(&self, verdicts: impl IntoIterator<Item = Judgement>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for verdict in verdicts {
            let key = verdict.evidence.get("identity").and_then(|key| key.as_str()).map(str::to_owned);
            if let Some(key) = key {
                said.entry(key).or_insert(verdict);
            }
        }
    }

    /// Whether a question has its verdict already.
    #[must_use]
    pub fn knows(&self, question: &Question) -> bool {
        let identity = match (question.role, &self.child) {
            (Role::Root, _) => self.root.identity(),
            (Role::Child, Seat::Judge(judge)) => judge.identity(),
            (Role::Child, Seat::Root) => return false,
        };
        let key = identity.verdict_digest(question);
        self.said.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&key)
    }

    /// The verdict on a node, or who will give it.
    ///
    /// # Errors
    /// When a verdict that had to be on record is not.
    pub fn rule(&self, assessment: Assessment) -> Result<Ruling, JudgeError> {
        let question = match assessment {
            Assessment::Judged(judgement) => return Ok(Ruling::Given { judgement, judge: None }),
            Assessment::Ask(question) => question,
        };
        let judge = match (question.role, &self.child) {
            (Role::Root, _) => &self.root,
            (Role::Child, Seat::Judge(judge)) => judge,
            (Role::Child, Seat::Root) => return Ok(Ruling::AsRoot),
        };
        let identity = judge.identity();
        if judge.needs_truth() && question.truth.is_none() {
            if question.role == Role::Child {
                return Ok(Ruling::AsRoot);
            }
            let evidence = json!({ "reason": "the right answer is not known" });
            let judgement = Judgement { score: 0.0, source: source(&identity, &question), evidence };
            return Ok(Ruling::Given {
                judgement: signed(judgement, &identity, &question),
                judge: Some(identity.to_json()),
            });
        }
        let judgement = self.ask(&**judge, &identity, &question)?;
        Ok(Ruling::Given { judgement, judge: Some(identity.to_json()) })
    }

    fn ask(&self, judge: &dyn Judge, identity: &JudgeIdentity, question: &Question) -> Result<Judgement, JudgeError> {
        let key = identity.verdict_digest(question);
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
        if let Some(said) = said {
            return Ok(said);
        }
        let judgement = signed(judge.judge(question)?, identity, question);
        self.said.lock().unwrap_or_else(PoisonError::into_inner).insert(key, judgement.clone());
        Ok(judgement)
    }
}

/// A verdict's source: the judge's kind and the rubric, such as `llm/oolong/child`.
pub(super) fn source(identity: &JudgeIdentity, question: &Question) -> String {
    format!("{}/{}", identity.kind, question.rubric)
}

/// The judgement with what it was asked: digests of the question and of the verdict's whole identity.
fn signed(mut judgement: Judgement, identity: &JudgeIdentity, question: &Question) -> Judgement {
    judgement.score = if judgement.score.is_finite() { judgement.score.clamp(0.0, 1.0) } else { 0.0 };
    if !judgement.evidence.is_object() {
        judgement.evidence = json!({ "evidence": judgement.evidence });
    }
    if let Some(fields) = judgement.evidence.as_object_mut() {
        fields.insert("rubric".into(), question.rubric.into());
        fields.insert("question".into(), question.digest().into());
        fields.insert("identity".into(), identity.verdict_digest(question).into());
    }
    judgement
}

//! The judges of a run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::inquiry::{Inquiry, Ledger};
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

/// The field of a verdict's evidence that holds what the environment saw.
const NOTES: &str = "environment";

/// How a node is judged.
#[derive(Debug)]
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
    /// Somebody outside this process is to be asked, which takes a while. Given even where the verdict is known already,
    /// so that the order of a run's events does not depend on what was asked before.
    Asked(Inquiry),
}

/// The judges of roots and of children, and what they said so far.
#[derive(Clone)]
pub struct Panel {
    root: SharedJudge,
    child: Seat,
    /// The same is never asked twice.
    ledger: Arc<Ledger>,
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
        Panel { root, child, ledger: Arc::default() }
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

    /// Whether somebody outside this process judges: only then is there anything to [remember](Panel::remember).
    #[must_use]
    pub fn is_remote(&self) -> bool {
        let child = match &self.child {
            Seat::Judge(judge) => judge.remote().is_some(),
            Seat::Root => false,
        };
        child || self.root.remote().is_some()
    }

    /// Takes verdicts that were given before, so that their questions are not asked again. Those whose evidence names no
    /// identity are passed over.
    pub fn remember(&self, verdicts: impl IntoIterator<Item = Judgement>) {
        for verdict in verdicts {
            let key = verdict.evidence.get("identity").and_then(|key| key.as_str()).map(str::to_owned);
            if let Some(key) = key {
                // What the environment saw was that of another node.
                self.ledger.note(key, verdict.with_notes(None));
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
        self.ledger.said(&identity.verdict_digest(question)).is_some()
    }

    /// The verdict on a node, or who will give it. Never waits.
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
        let lacks_truth = judge.needs_truth() && question.truth.is_none();
        if lacks_truth && question.role == Role::Child {
            return Ok(Ruling::AsRoot);
        }
        let signature = Signature::of(&identity, &question);
        let failed = |reason: &str| {
            let evidence = json!({ "reason": reason });
            signature.sign(Judgement { score: 0.0, source: source(&identity, &question), evidence })
        };
        let judgement = if lacks_truth {
            failed("the right answer is not known")
        } else if judge.remote().is_some() && question.answer.is_none() {
            // Nobody need be asked what success that is, and a lenient model could say something else.
            failed("the agent ended without an answer")
        } else if judge.remote().is_some() {
            let inquiry = Inquiry::new(question, Arc::clone(judge), signature, Arc::clone(&self.ledger));
            return Ok(Ruling::Asked(inquiry));
        } else {
            self.ask(&**judge, &signature, &question)?
        };
        let judgement = judgement.with_notes(question.notes.as_ref());
        Ok(Ruling::Given { judgement, judge: Some(signature.judge) })
    }

    fn ask(&self, judge: &dyn Judge, signature: &Signature, question: &Question) -> Result<Judgement, JudgeError> {
        if let Some(said) = self.ledger.said(&signature.identity) {
            return Ok(said);
        }
        let judgement = signature.sign(judge.judge(question)?);
        self.ledger.note(signature.identity.clone(), judgement.clone());
        Ok(judgement)
    }
}

/// A verdict's source: the judge's kind and the rubric, such as `llm/oolong/child`.
pub(super) fn source(identity: &JudgeIdentity, question: &Question) -> String {
    format!("{}/{}", identity.kind, question.rubric)
}

/// What a judgement is signed with: who judged, and digests of the question and of the verdict's whole identity.
#[derive(Clone, Debug)]
pub(super) struct Signature {
    /// The judge's identity as canonical JSON.
    pub(super) judge: String,
    /// Digest of the verdict's identity.
    pub(super) identity: String,
    question: String,
    rubric: &'static str,
}

impl Signature {
    fn of(judge: &JudgeIdentity, question: &Question) -> Self {
        Signature {
            judge: judge.to_json(),
            identity: judge.verdict_digest(question),
            question: question.digest(),
            rubric: question.rubric,
        }
    }

    /// The judgement with what it was asked; without anything that the environment saw.
    pub(super) fn sign(&self, mut judgement: Judgement) -> Judgement {
        judgement.score = if judgement.score.is_finite() { judgement.score.clamp(0.0, 1.0) } else { 0.0 };
        if !judgement.evidence.is_object() {
            judgement.evidence = json!({ "evidence": judgement.evidence });
        }
        if let Some(fields) = judgement.evidence.as_object_mut() {
            fields.shift_remove(NOTES);
            fields.insert("rubric".into(), self.rubric.into());
            fields.insert("question".into(), self.question.clone().into());
            fields.insert("identity".into(), self.identity.clone().into());
        }
        judgement
    }
}

impl Judgement {
    /// The judgement with what the environment saw of the node ([`Question::notes`]), or without anything that it saw.
    #[must_use]
    pub fn with_notes(mut self, notes: Option<&Json>) -> Self {
        if let Some(fields) = self.evidence.as_object_mut() {
            fields.shift_remove(NOTES);
            if let Some(notes) = notes {
                fields.insert(NOTES.into(), notes.clone());
            }
        }
        self
    }

    /// Whether it says what the environment saw. Verdicts of earlier versions do not.
    #[must_use]
    pub fn has_notes(&self) -> bool {
        self.evidence.get(NOTES).is_some()
    }
}

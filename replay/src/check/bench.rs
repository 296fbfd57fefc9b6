//! The judges of a replay. Judges that compute are asked again; what a model said is a fact of the log, and is taken from it
//! if the question is still the same.

use std::sync::Arc;

use rao_engine::{EngineConfig, EngineError};
use rao_envs::judge::{JudgeIdentity, Panel, Role, Ruling, Seat, Spec};
use rao_envs::{Assessment, Judgement};
use rao_store::NodePath;
use serde_json::json;

use super::logged::Logged;

/// Who judges: for each role a judge that computes, or the log.
pub(super) struct Bench {
    panel: Panel,
    /// Identities of the judges whose verdicts only the log has.
    root: Option<JudgeIdentity>,
    child: Option<JudgeIdentity>,
}

impl Bench {
    pub(super) fn new(config: &EngineConfig) -> Self {
        let Some(judges) = &config.judges else {
            return Bench { panel: Panel::default(), root: None, child: None };
        };
        let (root, child) = (Spec::of_identity(&judges.root), Spec::of_identity(&judges.child));
        let (no_root, no_child) = (root.is_none(), child.is_none());
        let root = match root {
            Some(Seat::Judge(judge)) => judge,
            // Not asked: the log answers in its place.
            Some(Seat::Root) | None => Arc::new(rao_envs::judge::Exact),
        };
        Bench {
            panel: Panel::new(root, child.unwrap_or(Seat::Root)),
            root: no_root.then(|| judges.root.clone()),
            child: no_child.then(|| judges.child.clone()),
        }
    }

    /// The verdict on a node; `None` where it stands further on in the log, because its judge took its time.
    pub(super) fn rule(
        &self,
        logged: &Logged,
        node: &NodePath,
        mut assessment: Assessment,
    ) -> Result<Option<Ruling>, EngineError> {
        if let Assessment::Ask(question) = &mut assessment
            && logged.lacks_notes(node)
        {
            // Verdicts of earlier versions do not say what the environment saw.
            question.notes = None;
        }
        let from_log = match &assessment {
            Assessment::Judged(_) => None,
            Assessment::Ask(question) => match question.role {
                Role::Root => self.root.as_ref(),
                Role::Child => self.child.as_ref(),
            }
            .map(|identity| (identity.verdict_digest(question), question)),
        };
        let Some((identity, question)) = from_log else { return Ok(Some(self.panel.rule(assessment)?)) };
        let Some((said, judge)) = logged.said(node) else { return Ok(None) };
        if said.evidence.get("identity").and_then(|known| known.as_str()) == Some(identity.as_str()) {
            let judgement = said.with_notes(question.notes.as_ref());
            return Ok(Some(Ruling::Given { judgement, judge }));
        }
        // The comparison will show both identities.
        let evidence = json!({ "identity": identity, "question": question.digest(), "rubric": question.rubric });
        let judgement = Judgement { score: 0.0, source: "the log has no verdict on this question".into(), evidence };
        Ok(Some(Ruling::Given { judgement, judge: None }))
    }
}

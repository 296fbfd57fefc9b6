//! Verdicts: what the environment can tell itself, and what it asks a judge.
//!
//! Answers of generated questions are exact and have a stated form, so they are compared. So are the answers of children
//! whose goal has one of the forms. Everything in free text goes to a judge, unless it is plainly right or wrong.

use serde_json::{Value as Json, json};

use super::episode::{MailEpisode, Seen};
use super::query::NO_ANSWER;
use super::reward::{Attempt, BadCall, Final, RewardKind, Rubric, art_e, folded, unit};
use crate::judge::{Role, same_answer};
use crate::{Act, Assessment, Ending, Judgement, NodeKey, Question, Value};

/// The rubrics' names; their texts lie in `judge/rubrics`.
const ROOT_RUBRIC: &str = "mail/root";
const CHILD_RUBRIC: &str = "mail/child";

/// What the engine's refusals past the depth cap have in common.
const PAST_CAP: &str = "would exceed the maximum allowed depth";

/// Judges the root: by its answer alone, or by the original ART-E's reward.
pub(super) fn root(episode: &MailEpisode, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
    let given = ending.value.and_then(Final::read);
    let rubric = rubric(episode, node, given.as_ref(), ending.history.len());
    let (attempt, sure) = attempt(episode, given.as_ref(), ending);
    let evidence = |attempt: Option<Attempt>, score: Option<f64>| {
        json!({
            "answer": given.as_ref().map(|given| &given.answer),
            "truth": episode.body.answer,
            "sources": given.as_ref().map(|given| &given.sources),
            "attempt": attempt,
            "rubric": rubric,
            "art_e": score,
        })
    };
    let question = || Question {
        role: Role::Root,
        rubric: ROOT_RUBRIC,
        goal: episode.body.question.clone(),
        context: None,
        truth: Some(episode.body.answer.clone()),
        aliases: Vec::new(),
        answer: given.as_ref().map(|given| Value::str(&given.answer)),
        history: Vec::new(),
        error: None,
        // How the attempt came out is for the judge to say.
        notes: Some(evidence(None, None)),
    };
    match episode.reward {
        // Free text that is not the same may still be right.
        RewardKind::Rao if !sure => Assessment::Ask(Box::new(question())),
        RewardKind::Rao => {
            judged("mail/rao", f64::from(u8::from(attempt == Attempt::Right)), evidence(Some(attempt), None))
        }
        RewardKind::ArtE => {
            let raw = art_e(attempt, &rubric);
            judged("mail/art-e", unit(raw), evidence(Some(attempt), Some(raw)))
        }
    }
}

/// Judges a child: by the exact answer where its goal has a form, else by a judge; whoever delegates without need fails.
pub(super) fn child(episode: &MailEpisode, node: &NodeKey, ending: &Ending<'_>) -> Assessment {
    let seen = episode.seen(node);
    let waste = Waste::of(episode, node, &seen, ending);
    let answer = ending.value.map(|value| Final::read(value).map_or_else(|| value.to_text(), |given| given.answer));
    let gold = seen.query.as_ref().and_then(|query| query.answer(&episode.mailbox, &episode.body.inbox));
    let evidence = |right: Option<bool>| {
        json!({
            "template": seen.query.as_ref().map(|query| query.template()),
            "answer": answer,
            "truth": gold.as_ref().map(|gold| &gold.answer),
            "right": right,
            "forwarded": waste.forwarded,
            "forwards": waste.forwards,
            "past_cap": waste.past_cap,
        })
    };
    let (Some(answer_text), false) = (&answer, waste.any()) else {
        return judged("mail/child", 0.0, evidence(None));
    };
    match &gold {
        Some(gold) => {
            let right = is_right(&gold.answer, answer_text);
            judged("mail/child", f64::from(u8::from(right)), evidence(Some(right)))
        }
        None => Assessment::Ask(Box::new(Question {
            role: Role::Child,
            rubric: CHILD_RUBRIC,
            goal: seen.goal.clone(),
            context: None,
            truth: None,
            aliases: Vec::new(),
            answer: ending.value.cloned(),
            history: ending.history.to_vec(),
            error: ending.error.map(str::to_owned),
            notes: Some(evidence(None)),
        })),
    }
}

/// Delegation that does no good. The node that is given its parent's goal fails as well as the one that passes its own
/// on: otherwise a parent would earn a bonus for handing everything down.
struct Waste {
    /// Its goal is one of its ancestors' goals.
    forwarded: bool,
    /// It gave its own goal to a child.
    forwards: bool,
    /// How often its cells showed that it had tried to go deeper than is allowed.
    past_cap: usize,
}

impl Waste {
    fn of(episode: &MailEpisode, node: &NodeKey, seen: &Seen, ending: &Ending<'_>) -> Self {
        let own = goal_of(&seen.goal);
        let above = (1..node.len()).filter_map(|size| episode.nodes.get(node.get(..size)?));
        let past_cap = ending.history.iter().map(|act| act.output.matches(PAST_CAP).count()).sum();
        Self {
            forwarded: above.into_iter().any(|ancestor| goal_of(&ancestor.goal) == own),
            forwards: episode.children(node).any(|child| goal_of(&child.goal) == own),
            past_cap,
        }
    }

    fn any(&self) -> bool {
        self.forwarded || self.forwards || self.past_cap > 0
    }
}

/// A goal without its letter case, its white space, and what follows a blank line (such as whose inbox it is about).
fn goal_of(text: &str) -> String {
    folded(text.trim().split("\n\n").next().unwrap_or_default())
}

/// Whether an answer is the right one, in another spelling perhaps.
fn is_right(truth: &str, answer: &str) -> bool {
    folded(truth) == folded(answer) || (folded(truth) != folded(NO_ANSWER) && same_answer(truth, answer))
}

/// How the attempt came out, and whether that is sure: a different answer in free text is not surely wrong.
fn attempt(episode: &MailEpisode, given: Option<&Final>, ending: &Ending<'_>) -> (Attempt, bool) {
    let Some(given) = given else {
        let bad = match ending.value {
            Some(_) => Some(BadCall::Unparsable),
            None => ending.history.last().and_then(bad_call),
        };
        return (bad.map_or(Attempt::None, Attempt::Bad), true);
    };
    let unanswerable = folded(&episode.body.answer) == folded(NO_ANSWER);
    if is_right(&episode.body.answer, &given.answer) {
        (Attempt::Right, true)
    } else if given.gives_up() {
        (Attempt::None, true)
    } else {
        (Attempt::Wrong, unanswerable || episode.body.query.is_some())
    }
}

/// What was wrong with the last cell of a node that never finished. Upstream a bad call ends the rollout; here its error
/// is shown and the agent goes on, so only the one that it ends with counts.
fn bad_call(act: &Act) -> Option<BadCall> {
    let error = act.output.lines().rev().find_map(|line| line.strip_prefix("Error: ")).unwrap_or("");
    if !act.action.contains("<python>") || error.starts_with("SyntaxError") {
        Some(BadCall::Unparsable)
    } else if error.starts_with("NameError") {
        Some(BadCall::Name)
    } else if error.starts_with("TypeError") {
        Some(BadCall::Args)
    } else {
        None
    }
}

fn rubric(episode: &MailEpisode, node: &NodeKey, given: Option<&Final>, turns: usize) -> Rubric {
    let gold = &episode.body.message_ids;
    let mut rubric = Rubric {
        ever_found_right_email: false,
        ever_read_right_email: false,
        read_invalid: 0,
        sources_correct: given.is_some_and(|given| gold.iter().all(|id| given.sources.contains(id))),
        num_sources: given.map_or(0, |given| given.sources.len()),
        turns,
    };
    for (_, seen) in episode.subtree(node) {
        let hits = seen.searches.iter().flat_map(|search| &search.hits);
        rubric.ever_found_right_email |= hits.into_iter().any(|id| gold.contains(id));
        rubric.ever_read_right_email |= gold.iter().any(|id| seen.read.contains(id));
        rubric.read_invalid += seen.read_invalid;
    }
    rubric
}

fn judged(source: &str, score: f64, evidence: Json) -> Assessment {
    Assessment::Judged(Judgement { score, source: source.to_owned(), evidence })
}

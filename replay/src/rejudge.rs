//! Judging recorded nodes again, beside the verdicts they have; and verdicts on record.
//!
//! New verdicts stand in the run's own stream, behind its end: they are no part of the execution and change neither its
//! rewards nor its content digest. The evidence names the rollout.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rao_engine::{Ended, EngineError, Node, Tree, absorb_with};
use rao_envs::judge::{JudgeError, JudgeIdentity, Panel, Role, Ruling, Sitting};
use rao_envs::{Assessment, Environment, Judgement};
use rao_store::event::{Body, Event, Kind, Verdict};
use rao_store::{Digest, EventSource, Filter, LogError, NodePath, RolloutId, RunId, Seq, Stream};

/// The field of a later verdict's evidence that names its rollout.
const ROLLOUT: &str = "rollout";

/// A node that was judged again.
#[derive(Clone, Debug, PartialEq)]
pub struct Rejudged {
    /// The rollout.
    pub rollout: RolloutId,
    /// The node.
    pub node: NodePath,
    /// Its own success so far.
    pub before: f64,
    /// The new verdict.
    pub verdict: Judgement,
    /// The new judge's identity as canonical JSON.
    pub judge: String,
    /// Whether the judge was asked; otherwise the verdict was on record.
    pub asked: bool,
}

/// What judging a run again came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rejudging {
    /// The nodes that a judge judges, in the order of rollouts and of their ends.
    pub nodes: Vec<Rejudged>,
    /// Nodes that the environment itself judges.
    pub by_environment: u64,
    /// Nodes that would have the root's success.
    pub by_root: u64,
    /// Rollouts without an end, which are left out.
    pub incomplete: u64,
    /// Whether it was time to stop before every node was judged.
    pub is_cut_off: bool,
}

/// The most questions that are under way at a time, whatever the judge bears: each holds what its node did.
const UNDER_WAY: usize = 1024;

/// How long answers are waited for at most before it is asked whether to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// Judges the nodes of a run again. Verdicts on record are not asked for again. Judges outside this process are asked side
/// by side, as many questions at a time as they bear; the result does not depend on the order of their answers.
///
/// Once `stop` says so, which it is asked several times a second, no more answers are waited for, and the nodes without one
/// are left out ([`Rejudging::is_cut_off`]).
///
/// # Errors
/// When the log cannot be read, the world cannot be opened, or a judge of recorded verdicts has none.
pub fn rejudge(
    source: &dyn EventSource,
    run: RunId,
    env: &dyn Environment,
    panel: &Panel,
    stop: &dyn Fn() -> bool,
) -> Result<Rejudging, EngineError> {
    panel.remember(on_record(source, run)?.into_values().flatten());
    let mut again = Again::new(panel, stop);
    for stream in source.streams(run) {
        let Stream::Rollout(_, rollout) = stream else { continue };
        if stop() {
            again.all.is_cut_off = true;
            break;
        }
        let events: Vec<Event> = source.events(stream, Seq(0), &Filter::all()).collect::<Result<_, _>>()?;
        again.rollout(rollout, &events, env)?;
    }
    again.finish()
}

/// A node that is being judged again.
struct Case {
    rollout: RolloutId,
    node: NodePath,
    before: f64,
    judge: String,
    asked: bool,
    verdict: Option<Judgement>,
}

impl Case {
    fn judged(self) -> Option<Rejudged> {
        let Case { rollout, node, before, judge, asked, verdict } = self;
        verdict.map(|verdict| Rejudged { rollout, node, before, verdict, judge, asked })
    }
}

/// The judging of a run's nodes, in their order.
struct Again<'a> {
    panel: &'a Panel,
    stop: &'a dyn Fn() -> bool,
    is_stopped: bool,
    cases: Vec<Case>,
    all: Rejudging,
    /// Identities that were asked for.
    asked: BTreeSet<String>,
    /// Questions under way, by the place of their node.
    sittings: BTreeMap<usize, Sitting>,
    answers: Sender<(usize, Result<Judgement, JudgeError>)>,
    arrivals: Receiver<(usize, Result<Judgement, JudgeError>)>,
}

impl<'a> Again<'a> {
    fn new(panel: &'a Panel, stop: &'a dyn Fn() -> bool) -> Self {
        let (answers, arrivals) = channel();
        Again {
            panel,
            stop,
            is_stopped: false,
            cases: Vec::new(),
            all: Rejudging::default(),
            asked: BTreeSet::new(),
            sittings: BTreeMap::new(),
            answers,
            arrivals,
        }
    }

    fn rollout(&mut self, rollout: RolloutId, events: &[Event], env: &dyn Environment) -> Result<(), EngineError> {
        let tree = Tree::fold(events)?;
        let (Some(started), Some(_)) = (&tree.started, &tree.finished) else {
            self.all.incomplete += 1;
            return Ok(());
        };
        let mut episode = env.open(&rao_engine::record::task_from_json(&started.task)?)?;
        absorb_with(&mut *episode, events, &mut |episode, event| {
            let Body::NodeFinished(end) = &event.body else { return Ok(()) };
            let Some(node) = tree.node(&end.node) else { return Ok(()) };
            let ended = Ended::of(node)?;
            let assessment = episode.verify(end.node.ordinals(), &ended.as_ending());
            self.judge(rollout, node, assessment)
        })
    }

    fn judge(&mut self, rollout: RolloutId, node: &Node, assessment: Assessment) -> Result<(), EngineError> {
        let known = match &assessment {
            Assessment::Judged(_) => {
                self.all.by_environment += 1;
                return Ok(());
            }
            Assessment::Ask(question) => self.panel.knows(question),
        };
        let mut case = Case {
            rollout,
            node: node.path.clone(),
            before: node.success().unwrap_or_default(),
            judge: String::new(),
            asked: !known,
            verdict: None,
        };
        match self.panel.rule(assessment)? {
            Ruling::Given { judgement, judge: Some(judge) } => {
                self.cases.push(Case { judge, verdict: Some(judgement), ..case });
            }
            Ruling::Given { judge: None, .. } => self.all.by_environment += 1,
            Ruling::AsRoot => self.all.by_root += 1,
            Ruling::Asked(inquiry) => {
                inquiry.judge().clone_into(&mut case.judge);
                case.asked = self.asked.insert(inquiry.identity().to_owned()) && !known;
                self.cases.push(case);
                while self.sittings.len() >= UNDER_WAY && !self.is_stopped {
                    self.take_answers()?;
                }
                if !self.is_stopped {
                    let (place, answers) = (self.cases.len() - 1, self.answers.clone());
                    // Whoever has stopped does not listen any more.
                    let sitting = inquiry.start(move |outcome| drop(answers.send((place, outcome))));
                    self.sittings.insert(place, sitting);
                }
            }
        }
        Ok(())
    }

    /// Waits for an answer and takes in those that are there.
    fn take_answers(&mut self) -> Result<(), EngineError> {
        self.is_stopped |= (self.stop)();
        let mut next = self.arrivals.recv_timeout(PATIENCE).ok();
        while let Some((place, outcome)) = next {
            self.sittings.remove(&place);
            if let Some(case) = self.cases.get_mut(place) {
                case.verdict = Some(outcome?);
            }
            next = self.arrivals.try_recv().ok();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Rejudging, EngineError> {
        while !self.sittings.is_empty() && !self.is_stopped {
            self.take_answers()?;
        }
        let wanted = self.cases.len();
        let nodes: Vec<Rejudged> = self.cases.into_iter().filter_map(Case::judged).collect();
        let is_cut_off = self.all.is_cut_off || nodes.len() < wanted;
        Ok(Rejudging { nodes, is_cut_off, ..self.all })
    }
}

impl Rejudged {
    /// The event that stands behind the run's end.
    #[must_use]
    pub fn event(&self) -> Verdict {
        let Judgement { score, source, mut evidence } = self.verdict.clone();
        if let Some(fields) = evidence.as_object_mut() {
            fields.insert(ROLLOUT.into(), self.rollout.0.into());
        }
        let evidence = evidence.to_string();
        let evidence_digest = Digest::of(evidence.as_bytes());
        Verdict { node: self.node.clone(), source, score, evidence, evidence_digest, judge: Some(self.judge.clone()) }
    }

    /// Whom the verdict is on.
    #[must_use]
    pub fn role(&self) -> Role {
        role_of(&self.node)
    }
}

fn role_of(node: &NodePath) -> Role {
    if node.parent().is_none() { Role::Root } else { Role::Child }
}

/// The verdicts that judges gave in a run, then and later, by role and judge.
///
/// # Errors
/// When the log cannot be read.
pub fn on_record(source: &dyn EventSource, run: RunId) -> Result<BTreeMap<(Role, String), Vec<Judgement>>, LogError> {
    let mut found: BTreeMap<(Role, String), Vec<Judgement>> = BTreeMap::new();
    for stream in source.streams(run) {
        for event in source.events(stream, Seq(0), &Filter::kinds([Kind::Verdict])) {
            let Body::Verdict(verdict) = event?.body else { continue };
            let Some(judge) = verdict.judge else { continue };
            let evidence = serde_json::from_str(&verdict.evidence).unwrap_or_default();
            let judgement = Judgement { score: verdict.score, source: verdict.source, evidence };
            found.entry((role_of(&verdict.node), judge)).or_default().push(judgement);
        }
    }
    Ok(found)
}

/// The judges whose verdicts a log has for a role, with their verdicts; the rule that children have the root's success is
/// none.
///
/// # Errors
/// When the log cannot be read.
pub fn recorded_judges(source: &dyn EventSource, role: Role) -> Result<Vec<(JudgeIdentity, Vec<Judgement>)>, LogError> {
    let mut by_judge: BTreeMap<String, Vec<Judgement>> = BTreeMap::new();
    for run in source.runs() {
        for ((of, judge), verdicts) in on_record(source, run)? {
            if of == role {
                by_judge.entry(judge).or_default().extend(verdicts);
            }
        }
    }
    let read = |(judge, verdicts): (String, Vec<Judgement>)| {
        serde_json::from_str(&judge).ok().filter(|id: &JudgeIdentity| id.kind != "root").map(|id| (id, verdicts))
    };
    Ok(by_judge.into_iter().filter_map(read).collect())
}

/// How far two judgements of the same nodes agree.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Agreement {
    /// How many nodes.
    pub nodes: u64,
    /// Mean score before and now.
    pub means: (f64, f64),
    /// Share of nodes on which both say success, or both failure; success is a score of at least 0.5.
    pub share: f64,
    /// Cohen's kappa: agreement beyond chance, 1 at most; `None` where both are of one mind throughout.
    pub kappa: Option<f64>,
}

impl Agreement {
    /// Of pairs of scores, before and now.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    pub fn of(pairs: &[(f64, f64)]) -> Self {
        if pairs.is_empty() {
            return Agreement::default();
        }
        let count = pairs.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| pairs.iter().map(of).fold(0.0, |sum, value| sum + value) / count;
        let share = |of: fn(&(f64, f64)) -> bool| pairs.iter().filter(|pair| of(pair)).count() as f64 / count;
        let agreed = share(|pair| (pair.0 >= 0.5) == (pair.1 >= 0.5));
        let (before, now) = (share(|pair| pair.0 >= 0.5), share(|pair| pair.1 >= 0.5));
        let chance = before * now + (1.0 - before) * (1.0 - now);
        Agreement {
            nodes: pairs.len() as u64,
            means: (mean(|pair| pair.0), mean(|pair| pair.1)),
            share: agreed,
            kappa: (chance < 1.0).then(|| (agreed - chance) / (1.0 - chance)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_is_counted_beyond_chance() {
        // The textbook table: 20 and 15 agreed of 50, 5 and 10 not.
        let pairs: Vec<(f64, f64)> = [(1.0, 1.0, 20), (1.0, 0.0, 5), (0.0, 1.0, 10), (0.0, 0.0, 15)]
            .into_iter()
            .flat_map(|(a, b, n)| std::iter::repeat_n((a, b), n))
            .collect();
        let got = Agreement::of(&pairs);
        assert_eq!((got.nodes, got.means, got.share), (50, (0.5, 0.6), 0.7));
        assert!((got.kappa.unwrap_or_default() - 0.4).abs() < 1e-12);
        assert_eq!(Agreement::of(&[(1.0, 0.75)]).kappa, None);
        assert_eq!(Agreement::of(&[]), Agreement::default());
    }
}

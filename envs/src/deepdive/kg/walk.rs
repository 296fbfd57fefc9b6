//! Questions of several hops: a thing that is only described, and relations that lead on from it.

use std::sync::Arc;

use super::graph::{EntityId, Graph, GraphConfig, Node};
use super::language::Description;
use super::relations::{RELATIONS, Relation};
use crate::EnvError;
use crate::deepdive::chain::Hop;
use crate::deepdive::search::{Corpus, LocalBm25};
use crate::rng::Rng;

/// The longest walk that is asked for.
pub const MOST_HOPS: usize = 9;

/// Results among which a hop's page must be, so that a walk can be followed.
const WITHIN: usize = 10;

/// Walks that are tried for a question before the graph is taken to have none.
const ATTEMPTS: usize = 2_000;

/// Walks of this many hops and more blur a person's year of birth.
const BLURRED_FROM: usize = 6;

/// A graph, its pages and the index of them.
#[derive(Debug)]
pub struct World {
    /// What decides it.
    pub config: GraphConfig,
    /// The graph.
    pub graph: Graph,
    /// The pages.
    pub index: Arc<LocalBm25>,
}

/// A question and how it is answered.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Walk {
    pub(crate) question: String,
    pub(crate) answer: String,
    pub(crate) hops: Vec<Hop>,
}

impl World {
    /// Makes a world.
    ///
    /// # Errors
    /// [`EnvError::Setting`] for settings out of range.
    pub fn new(config: &GraphConfig) -> Result<Self, EnvError> {
        let graph = Graph::generate(config)?;
        let failed = |error: crate::deepdive::search::CorpusError| EnvError::Setting {
            name: "graph",
            reason: error.to_string(),
        };
        let corpus = Corpus::new(graph.pages(config.seed)).map_err(failed)?;
        let index = LocalBm25::new(Arc::new(corpus)).map_err(failed)?;
        Ok(Self { config: config.clone(), graph, index: Arc::new(index) })
    }

    /// A question of `hops` hops, decided by `seed`: its answer is the only one on the graph, no thing comes up twice,
    /// and every hop's page is among the first results for that hop's question.
    ///
    /// # Errors
    /// [`EnvError::Setting`] if the graph has no such walk.
    pub(crate) fn walk(&self, hops: usize, seed: u64) -> Result<Walk, EnvError> {
        let mut rng = Rng::new("deepdive walk", &[&seed.to_le_bytes(), &(hops as u64).to_le_bytes()]);
        for _ in 0..ATTEMPTS {
            if let Some(walk) = self.try_walk(hops, &mut rng) {
                return Ok(walk);
            }
        }
        let reason = format!("the graph of seed {} has no question of {hops} hops", self.config.seed);
        Err(EnvError::Setting { name: "graph", reason })
    }

    fn try_walk(&self, hops: usize, rng: &mut Rng) -> Option<Walk> {
        let all: Vec<EntityId> = self.graph.entities().map(|(id, _)| id).collect();
        let start = Description { entity: *rng.pick(&all)?, blurred: hops >= BLURRED_FROM };
        let mut visited = vec![start.entity];
        let mut steps: Vec<(EntityId, Relation, Node)> = Vec::new();
        while steps.len() + 1 < hops {
            let last = steps.len() + 2 == hops;
            let at = *visited.last()?;
            let next = RELATIONS.iter().filter_map(|&relation| {
                let object = self.graph.object(at, relation)?;
                let goes_on = match object {
                    Node::Entity(id) => !visited.contains(&id),
                    Node::Year(_) => last,
                };
                goes_on.then_some((at, relation, object))
            });
            let next: Vec<_> = next.collect();
            let step = *rng.pick(&next)?;
            if let Node::Entity(id) = step.2 {
                visited.push(id);
            }
            steps.push(step);
        }
        let walk = self.write(start, &steps)?;
        let answers = self.graph.answers(&walk.question)?;
        let unique =
            answers.len() == 1 && answers.first().map(|&node| self.graph.label(node)) == Some(walk.answer.clone());
        // A year or a town of the description must not be what a hop finds out.
        let told = walk.hops.iter().any(|hop| walk.question.contains(&hop.answer));
        (unique && !told && self.can_be_followed(&walk)).then_some(walk)
    }

    /// The hops as sub-questions, each with `#k` for the answer of hop k, from 1.
    fn write(&self, start: Description, steps: &[(EntityId, Relation, Node)]) -> Option<Walk> {
        let name = self.graph.entity(start.entity).name.clone();
        let mut hops = vec![Hop {
            template: "describe".to_owned(),
            question: start.question(&self.graph, false)?,
            also: start.question(&self.graph, true),
            phrase: start.phrase(&self.graph),
            answer: name,
            aliases: Vec::new(),
            pages: vec![self.graph.url(start.entity)],
        }];
        for &(subject, relation, object) in steps {
            let before = format!("#{}", hops.len());
            hops.push(Hop {
                template: relation.id().to_owned(),
                question: relation.question(&before, false),
                also: Some(relation.question(&before, true)),
                phrase: Some(relation.phrase(&before)),
                answer: self.graph.label(object),
                aliases: Vec::new(),
                pages: vec![self.graph.url(subject)],
            });
        }
        let question = crate::deepdive::chain::compose(&hops, 0..hops.len())?;
        let answer = hops.last()?.answer.clone();
        Some(Walk { question, answer, hops })
    }

    fn can_be_followed(&self, walk: &Walk) -> bool {
        (0..walk.hops.len()).all(|at| {
            let Some(question) = crate::deepdive::chain::filled(&walk.hops, at) else { return false };
            let found = self.index.find(&question, WITHIN).unwrap_or_default();
            walk.hops.get(at).is_some_and(|hop| found.iter().any(|page| hop.pages.contains(&page.url)))
        })
    }
}

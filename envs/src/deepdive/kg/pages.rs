//! A page about each thing: what is true of it, in changing words, among sentences about its neighbours.

use std::sync::Arc;

use super::graph::{EntityId, Graph, Kind, Node};
use super::relations::{RELATIONS, Relation};
use crate::deepdive::search::{Page, corpus_slug};
use crate::rng::Rng;

/// Sentences about others on a page.
const DISTRACTORS: usize = 5;

const FILLERS: [&str; 10] = [
    "Several letters from this time are kept in a private archive.",
    "Contemporary newspapers took little notice.",
    "A commemorative stamp was issued much later.",
    "The surviving records are incomplete and partly illegible.",
    "Local guides still tell the story to visitors.",
    "An exhibition on the subject travelled through several towns.",
    "Opinions among scholars differ on the details.",
    "A fire destroyed many of the original documents.",
    "The subject has been treated in two dissertations.",
    "A society devoted to the memory meets once a year.",
];

impl Graph {
    /// The address of a thing's page.
    #[must_use]
    pub fn url(&self, id: EntityId) -> String {
        format!("https://pages.example/{}/{}", id.0, corpus_slug(&self.entity(id).name))
    }

    /// Every page, in the order of the things. `seed` decides wording and distractors.
    #[must_use]
    pub fn pages(&self, seed: u64) -> Vec<Page> {
        let page = |(id, entity): (EntityId, &super::Entity)| Page {
            url: self.url(id),
            title: entity.name.clone(),
            text: Arc::from(self.render(id, seed)),
        };
        self.entities().map(page).collect()
    }

    fn render(&self, id: EntityId, seed: u64) -> String {
        let number = id.0 as u64;
        let mut rng = Rng::new("deepdive page", &[&seed.to_le_bytes(), &number.to_le_bytes()]);
        let mut rest: Vec<String> = Vec::new();
        let mut neighbours: Vec<EntityId> = Vec::new();
        for relation in RELATIONS {
            let Some(object) = self.object(id, relation) else { continue };
            rest.push(self.sentence(id, relation, object, &mut rng));
            if let Node::Entity(other) = object {
                neighbours.push(other);
            }
        }
        let about_others = self.distractors(id, &neighbours, &mut rng);
        rest.extend(about_others);
        for _ in 0..3 {
            rest.extend(rng.pick(&FILLERS).map(|filler| (*filler).to_owned()));
        }
        rng.shuffle(&mut rest);
        let half = rest.len() / 2;
        let (first, second) = rest.split_at(half);
        format!("{}\n\n{} {}\n\n{}", self.entity(id).name, self.opening(id), first.join(" "), second.join(" "))
    }

    fn opening(&self, id: EntityId) -> String {
        let entity = self.entity(id);
        let (name, noun) = (&entity.name, &entity.noun);
        match entity.kind {
            Kind::Person => format!("{name} ({}-{}) was a {noun}.", entity.year, entity.until),
            Kind::Town => format!("{name} is a town on the {noun}."),
            Kind::Country => format!("{name} is a country with a long coast."),
            Kind::School => format!("{name} is one of the older schools of its region."),
            Kind::Work => format!("{name} is a {noun} in four parts."),
            Kind::Prize => format!("{name} is a prize that is given every second year."),
        }
    }

    fn sentence(&self, subject: EntityId, relation: Relation, object: Node, rng: &mut Rng) -> String {
        let sentence = rng.pick(&relation.wording().sentences).copied().unwrap_or_default();
        sentence.replace("{s}", &self.entity(subject).name).replace("{o}", &self.label(object))
    }

    /// What is true of neighbours, so that a page holds several towns, people and years that are no answer.
    fn distractors(&self, id: EntityId, neighbours: &[EntityId], rng: &mut Rng) -> Vec<String> {
        let mut sentences = Vec::new();
        let known: Vec<(EntityId, Relation, Node)> = neighbours
            .iter()
            .flat_map(|&other| RELATIONS.iter().map(move |&relation| (other, relation)))
            .filter_map(|(other, relation)| Some((other, relation, self.object(other, relation)?)))
            // What leads back here stands on the page already, seen from this side.
            .filter(|(_, _, object)| *object != Node::Entity(id))
            .collect();
        for _ in 0..DISTRACTORS {
            if let Some(&(other, relation, object)) = rng.pick(&known) {
                sentences.push(self.sentence(other, relation, object, rng));
            }
        }
        sentences.sort();
        sentences.dedup();
        sentences
    }
}

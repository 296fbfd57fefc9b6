//! The things of a world and what is true of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::names::Names;
use super::relations::Relation;
use crate::EnvError;
use crate::rng::Rng;

/// What a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Someone.
    Person,
    /// A town.
    Town,
    /// A country.
    Country,
    /// A school.
    School,
    /// A book, an opera and the like.
    Work,
    /// A prize.
    Prize,
}

/// A thing's place in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntityId(pub(super) usize);

/// A thing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entity {
    /// What it is.
    pub kind: Kind,
    /// Its name; unique in the graph, whatever the case of letters.
    pub name: String,
    /// A person's trade, a work's form, the river that a town lies on.
    pub noun: String,
    /// The year of birth, of founding or of appearance; 0 where there is none.
    pub year: u32,
    /// A person's year of death; 0 for everything else.
    pub until: u32,
}

/// What a relation leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    /// A thing.
    Entity(EntityId),
    /// A year.
    Year(u32),
}

/// Everything that decides a graph. Equal settings give equal graphs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphConfig {
    /// The version of the generator; this program knows 1.
    pub version: u32,
    /// The seed.
    pub seed: u64,
    /// How many people there are, 20 to 2,000; everything else follows: a third as many towns, half as many works, a
    /// sixth as many schools, a tenth as many prizes, a twentieth as many countries.
    pub people: u32,
}

impl GraphConfig {
    /// A world of about 260 pages.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { version: 1, seed, people: 120 }
    }
}

/// The graph. Nothing changes after it was made.
#[derive(Debug)]
pub struct Graph {
    entities: Vec<Entity>,
    by_name: BTreeMap<String, EntityId>,
    facts: BTreeMap<(EntityId, Relation), EntityId>,
}

pub(super) const TRADES: [&str; 12] = [
    "botanist",
    "composer",
    "engraver",
    "physician",
    "sculptor",
    "astronomer",
    "poet",
    "architect",
    "violinist",
    "geologist",
    "painter",
    "printer",
];
pub(super) const FORMS: [&str; 6] = ["novel", "opera", "play", "symphony", "ballad", "fresco"];

impl Graph {
    /// Makes the graph that `config` describes.
    ///
    /// # Errors
    /// [`EnvError::Setting`] for settings out of range.
    pub fn generate(config: &GraphConfig) -> Result<Self, EnvError> {
        let refuse = |reason: &str| Err(EnvError::Setting { name: "graph", reason: reason.to_owned() });
        if config.version != 1 {
            return refuse("this program generates version 1 only; use the program that made the task");
        }
        if !(20..=2_000).contains(&config.people) {
            return refuse("must have 20 to 2,000 people");
        }
        let mut maker = Maker {
            rng: Rng::new("deepdive graph", &[&config.seed.to_le_bytes()]),
            names: Names::new(config.seed),
            graph: Self { entities: Vec::new(), by_name: BTreeMap::new(), facts: BTreeMap::new() },
        };
        maker.fill(config.people as usize);
        maker.relate();
        Ok(maker.graph)
    }

    /// All things in order.
    pub fn entities(&self) -> impl Iterator<Item = (EntityId, &Entity)> {
        self.entities.iter().enumerate().map(|(index, entity)| (EntityId(index), entity))
    }

    /// A thing; the id must come from this graph.
    #[must_use]
    pub fn entity(&self, id: EntityId) -> &Entity {
        &self.entities[id.0]
    }

    /// The thing of this name, in lower case.
    pub(super) fn named(&self, lower: &str) -> Option<EntityId> {
        self.by_name.get(lower).copied()
    }

    /// Things of a kind, in order.
    pub(super) fn of_kind(&self, kind: Kind) -> Vec<EntityId> {
        self.entities().filter(|(_, entity)| entity.kind == kind).map(|(id, _)| id).collect()
    }

    /// What a relation leads to, if it holds of this thing.
    #[must_use]
    pub fn object(&self, subject: EntityId, relation: Relation) -> Option<Node> {
        let entity = self.entities.get(subject.0)?;
        if entity.kind != relation.wording().subject {
            return None;
        }
        if relation.gives_year() {
            return Some(Node::Year(entity.year)).filter(|_| entity.year > 0);
        }
        self.facts.get(&(subject, relation)).copied().map(Node::Entity)
    }

    /// A node as an answer reads it.
    #[must_use]
    pub fn label(&self, node: Node) -> String {
        match node {
            Node::Entity(id) => self.entity(id).name.clone(),
            Node::Year(year) => year.to_string(),
        }
    }
}

struct Maker {
    rng: Rng,
    names: Names,
    graph: Graph,
}

impl Maker {
    fn add(&mut self, kind: Kind, name: String, noun: &str, year: u64, until: u64) {
        let id = EntityId(self.graph.entities.len());
        self.graph.by_name.insert(name.to_lowercase(), id);
        let number = |year: u64| u32::try_from(year).unwrap_or(0);
        let noun = noun.to_owned();
        self.graph.entities.push(Entity { kind, name, noun, year: number(year), until: number(until) });
    }

    fn fill(&mut self, people: usize) {
        for _ in 0..people {
            let (name, trade) = (self.names.person(), self.rng.pick(&TRADES).copied().unwrap_or_default());
            let born = self.rng.range(1780, 1919);
            let died = born + self.rng.range(38, 86);
            self.add(Kind::Person, name, trade, born, died);
        }
        let rivers: Vec<String> = (0..(people / 12).max(2)).map(|_| self.names.river()).collect();
        for _ in 0..people / 3 {
            let (name, year) = (self.names.town(), self.rng.range(1020, 1560));
            let river = self.rng.pick(&rivers).cloned().unwrap_or_default();
            self.add(Kind::Town, name, &river, year, 0);
        }
        for _ in 0..(people / 20).max(2) {
            let name = self.names.country();
            self.add(Kind::Country, name, "", 0, 0);
        }
        for _ in 0..(people / 6).max(2) {
            let (name, year) = (self.names.school(), self.rng.range(1600, 1799));
            self.add(Kind::School, name, "", year, 0);
        }
        for _ in 0..people / 2 {
            let (name, form) = (self.names.work(), self.rng.pick(&FORMS).copied().unwrap_or_default());
            let year = self.rng.range(1805, 1980);
            self.add(Kind::Work, name, form, year, 0);
        }
        for _ in 0..(people / 10).max(2) {
            let name = self.names.prize();
            self.add(Kind::Prize, name, "", 0, 0);
        }
    }

    fn relate(&mut self) {
        let of_kind = |maker: &Self, kind| maker.graph.of_kind(kind);
        let (people, towns) = (of_kind(self, Kind::Person), of_kind(self, Kind::Town));
        let (countries, schools) = (of_kind(self, Kind::Country), of_kind(self, Kind::School));
        let (works, prizes) = (of_kind(self, Kind::Work), of_kind(self, Kind::Prize));
        for &person in &people {
            self.link(person, Relation::BornIn, &towns);
            self.link(person, Relation::DiedIn, &towns);
            self.link(person, Relation::StudiedAt, &schools);
            let born = self.graph.entity(person).year;
            let older: Vec<EntityId> =
                people.iter().copied().filter(|&other| self.graph.entity(other).year + 15 <= born).collect();
            self.link(person, Relation::Teacher, &older);
        }
        self.pair(&people, Relation::Spouse);
        self.pair(&towns, Relation::Twin);
        for &town in &towns {
            self.link(town, Relation::LiesIn, &countries);
            self.link(town, Relation::FirstMayor, &people);
        }
        for &country in &countries {
            let inside = |town: &EntityId| self.graph.facts.get(&(*town, Relation::LiesIn)) == Some(&country);
            let inside: Vec<EntityId> = towns.iter().copied().filter(inside).collect();
            self.link(country, Relation::Capital, &inside);
        }
        for &school in &schools {
            self.link(school, Relation::SchoolTown, &towns);
            self.link(school, Relation::Founder, &people);
        }
        for &work in &works {
            self.link(work, Relation::Author, &people);
            self.link(work, Relation::SetIn, &towns);
            self.link(work, Relation::DedicatedTo, &people);
            if let Some(&author) = self.graph.facts.get(&(work, Relation::Author)) {
                // The first of an author's works is the best known.
                self.graph.facts.entry((author, Relation::BestWork)).or_insert(work);
            }
        }
        for &prize in &prizes {
            self.link(prize, Relation::NamedAfter, &people);
            self.link(prize, Relation::FirstWinner, &people);
        }
    }

    /// Draws the object of a relation; none is drawn from nothing, nor the subject itself.
    fn link(&mut self, subject: EntityId, relation: Relation, objects: &[EntityId]) {
        let others: Vec<EntityId> = objects.iter().copied().filter(|&object| object != subject).collect();
        if let Some(&object) = self.rng.pick(&others) {
            self.graph.facts.insert((subject, relation), object);
        }
    }

    /// Pairs things off, most of them.
    fn pair(&mut self, things: &[EntityId], relation: Relation) {
        let mut things = things.to_vec();
        self.rng.shuffle(&mut things);
        things.truncate(things.len() * 4 / 5);
        for pair in things.chunks_exact(2) {
            if let [one, other] = *pair {
                self.graph.facts.insert((one, relation), other);
                self.graph.facts.insert((other, relation), one);
            }
        }
    }
}

//! Questions about a graph, and their answers from the graph.
//!
//! A question is a template around a phrase; a phrase is a name, a description, or a template around a phrase. Reading
//! is the exact inverse of writing, and whatever else a question says makes it unreadable rather than misread.

use std::collections::BTreeSet;

use super::graph::{EntityId, FORMS, Graph, Kind, Node, TRADES};
use super::relations::{RELATIONS, Relation};

/// Phrases inside phrases that are read at most; longer ones are no questions of this language.
const DEEPEST: usize = 16;

/// A thing told by what it is, without its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// What is described.
    pub entity: EntityId,
    /// Whether a person's year of birth is blurred to its decade.
    pub blurred: bool,
}

/// Questions that ask for a name: of a person, of anything else, and of both in other words.
const WHO: &str = "Who was {}?";
const WHAT: &str = "What is {} called?";
const NAME: &str = "What is the name of {}?";

/// The place for the subject in a template.
const SLOT: &str = "{}";

impl Relation {
    /// Such as `born_in`: the id of the templates that ask for it.
    #[must_use]
    pub fn id(self) -> &'static str {
        self.wording().id
    }

    /// The question about a subject, in its first or its second wording.
    #[must_use]
    pub fn question(self, subject: &str, other_words: bool) -> String {
        let [first, second] = self.wording().questions;
        if other_words { second } else { first }.replace(SLOT, subject)
    }

    /// The phrase that stands for the object.
    #[must_use]
    pub fn phrase(self, subject: &str) -> String {
        self.wording().phrase.replace(SLOT, subject)
    }
}

impl Description {
    /// The phrase that stands for the thing; `None` for kinds that are not described.
    #[must_use]
    pub fn phrase(self, graph: &Graph) -> Option<String> {
        let entity = graph.entity(self.entity);
        let town = |relation| graph.object(self.entity, relation).map(|town| graph.label(town));
        let (noun, year) = (&entity.noun, entity.year);
        match entity.kind {
            Kind::Person if self.blurred => {
                Some(format!("the {noun} born in the {}s in {}", year / 10 * 10, town(Relation::BornIn)?))
            }
            Kind::Person => Some(format!("the {noun} born in {year} in {}", town(Relation::BornIn)?)),
            Kind::Work => Some(format!("the {noun} of {year} set in {}", town(Relation::SetIn)?)),
            Kind::School => Some(format!("the school founded in {year} in {}", town(Relation::SchoolTown)?)),
            Kind::Town => Some(format!("the town on the {noun} founded in {year}")),
            Kind::Country | Kind::Prize => None,
        }
    }

    /// The question for the thing's name, in its first or its second wording.
    #[must_use]
    pub fn question(self, graph: &Graph, other_words: bool) -> Option<String> {
        let template = match graph.entity(self.entity).kind {
            _ if other_words => NAME,
            Kind::Person => WHO,
            _ => WHAT,
        };
        Some(template.replace(SLOT, &self.phrase(graph)?))
    }
}

impl Graph {
    /// What a question's answers are: all that fit it; `None` if it is not a question of this language. Case, spaces and
    /// what follows the question mark do not matter, unless another question follows.
    #[must_use]
    pub fn answers(&self, question: &str) -> Option<BTreeSet<Node>> {
        let words: Vec<&str> = question.split_whitespace().collect();
        let text = words.join(" ").to_lowercase();
        let (asked, rest) = text.split_once('?')?;
        if rest.contains('?') {
            return None;
        }
        let asked = format!("{asked}?");
        let mut found = None;
        for relation in RELATIONS {
            for template in relation.wording().questions {
                if let Some(inner) = inside(&asked, template) {
                    add(&mut found, self.follow(inner, relation, DEEPEST));
                }
            }
        }
        for template in [WHO, WHAT, NAME] {
            if let Some(inner) = inside(&asked, template) {
                add(&mut found, self.things(inner, DEEPEST));
            }
        }
        found
    }

    fn follow(&self, subject: &str, relation: Relation, depth: usize) -> Option<BTreeSet<Node>> {
        let subjects = self.things(subject, depth)?;
        let objects = subjects.into_iter().filter_map(|subject| match subject {
            Node::Entity(subject) => self.object(subject, relation),
            Node::Year(_) => None,
        });
        // Two relations may share a template; the one that fits no subject has not been asked for.
        Some(objects.collect::<BTreeSet<Node>>()).filter(|objects| !objects.is_empty())
    }

    /// What a phrase stands for, in lower case.
    fn things(&self, phrase: &str, depth: usize) -> Option<BTreeSet<Node>> {
        if let Some(id) = self.named(phrase) {
            return Some(BTreeSet::from([Node::Entity(id)]));
        }
        let depth = depth.checked_sub(1)?;
        let mut found = self.described(phrase);
        for relation in RELATIONS {
            if let Some(inner) = inside(phrase, relation.wording().phrase) {
                add(&mut found, self.follow(inner, relation, depth));
            }
        }
        found
    }

    /// The things that a description fits.
    fn described(&self, phrase: &str) -> Option<BTreeSet<Node>> {
        let rest = phrase.strip_prefix("the ")?;
        if let Some(rest) = rest.strip_prefix("school founded in ") {
            let (year, town) = rest.split_once(" in ")?;
            let years = year.parse().map(|year| year..=year).ok()?;
            return Some(self.fitting(Kind::School, "", years, Some((Relation::SchoolTown, self.named(town)?))));
        }
        if let Some(rest) = rest.strip_prefix("town on the ") {
            let (river, year) = rest.split_once(" founded in ")?;
            let years = year.parse().map(|year| year..=year).ok()?;
            return Some(self.fitting(Kind::Town, river, years, None));
        }
        if let Some(trade) = TRADES.iter().find(|trade| rest.starts_with(&format!("{trade} born in "))) {
            let rest = rest.strip_prefix(&format!("{trade} born in "))?;
            let (year, town) = rest.split_once(" in ")?;
            let years = match year.strip_prefix("the ").and_then(|decade| decade.strip_suffix('s')) {
                Some(decade) => decade.parse().map(|decade: u32| decade..=decade.saturating_add(9)).ok()?,
                None => year.parse().map(|year| year..=year).ok()?,
            };
            return Some(self.fitting(Kind::Person, trade, years, Some((Relation::BornIn, self.named(town)?))));
        }
        let form = FORMS.iter().find(|form| rest.starts_with(&format!("{form} of ")))?;
        let (year, town) = rest.strip_prefix(&format!("{form} of "))?.split_once(" set in ")?;
        let years = year.parse().map(|year| year..=year).ok()?;
        Some(self.fitting(Kind::Work, form, years, Some((Relation::SetIn, self.named(town)?))))
    }

    fn fitting(
        &self,
        kind: Kind,
        noun: &str,
        years: std::ops::RangeInclusive<u32>,
        place: Option<(Relation, EntityId)>,
    ) -> BTreeSet<Node> {
        let fits = |(id, entity): &(EntityId, &super::Entity)| {
            entity.kind == kind
                && entity.noun.to_lowercase() == noun
                && years.contains(&entity.year)
                && place.is_none_or(|(relation, town)| self.object(*id, relation) == Some(Node::Entity(town)))
        };
        self.entities().filter(fits).map(|(id, _)| Node::Entity(id)).collect()
    }
}

/// What stands in a template's slot, if the text is written with it. The text is in lower case.
fn inside<'a>(text: &'a str, template: &str) -> Option<&'a str> {
    let (before, after) = template.split_once(SLOT)?;
    let inner = text.strip_prefix(before.to_lowercase().as_str())?.strip_suffix(after.to_lowercase().as_str())?;
    Some(inner).filter(|inner| !inner.is_empty())
}

fn add(found: &mut Option<BTreeSet<Node>>, more: Option<BTreeSet<Node>>) {
    if let Some(more) = more {
        found.get_or_insert_default().extend(more);
    }
}

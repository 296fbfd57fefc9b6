//! What can be known about things: each relation leads from one kind of thing to exactly one other thing or year.

use super::graph::Kind;

/// A relation. It is functional: a subject has at most one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// Person to town.
    BornIn,
    /// Person to town.
    DiedIn,
    /// Person to school.
    StudiedAt,
    /// Person to person, both ways.
    Spouse,
    /// Person to person.
    Teacher,
    /// Person to work.
    BestWork,
    /// Person to year.
    BirthYear,
    /// Town to country.
    LiesIn,
    /// Town to town, both ways.
    Twin,
    /// Town to person.
    FirstMayor,
    /// Town to year.
    TownYear,
    /// Country to town.
    Capital,
    /// School to town.
    SchoolTown,
    /// School to person.
    Founder,
    /// School to year.
    SchoolYear,
    /// Work to person.
    Author,
    /// Work to town.
    SetIn,
    /// Work to person.
    DedicatedTo,
    /// Work to year.
    WorkYear,
    /// Prize to person.
    NamedAfter,
    /// Prize to person.
    FirstWinner,
}

/// How a relation is asked, named and told.
pub(super) struct Wording {
    /// Such as `born_in`.
    pub(super) id: &'static str,
    pub(super) subject: Kind,
    /// Two questions about `{}`; the second asks the same in other words.
    pub(super) questions: [&'static str; 2],
    /// What stands for the object: a phrase with `{}` for the subject.
    pub(super) phrase: &'static str,
    /// Sentences that tell it, with `{s}` and `{o}`.
    pub(super) sentences: [&'static str; 3],
}

/// Every relation.
pub const RELATIONS: [Relation; 21] = [
    Relation::BornIn,
    Relation::DiedIn,
    Relation::StudiedAt,
    Relation::Spouse,
    Relation::Teacher,
    Relation::BestWork,
    Relation::BirthYear,
    Relation::LiesIn,
    Relation::Twin,
    Relation::FirstMayor,
    Relation::TownYear,
    Relation::Capital,
    Relation::SchoolTown,
    Relation::Founder,
    Relation::SchoolYear,
    Relation::Author,
    Relation::SetIn,
    Relation::DedicatedTo,
    Relation::WorkYear,
    Relation::NamedAfter,
    Relation::FirstWinner,
];

impl Relation {
    /// Whether its object is a year, from which no relation leads on.
    #[must_use]
    pub fn gives_year(self) -> bool {
        matches!(self, Self::BirthYear | Self::TownYear | Self::SchoolYear | Self::WorkYear)
    }

    pub(super) fn wording(self) -> Wording {
        let (id, subject, questions, phrase, sentences) = match self {
            Self::BornIn => (
                "born_in",
                Kind::Person,
                ["Where was {} born?", "Which town is the birthplace of {}?"],
                "the town where {} was born",
                ["{s} was born in {o}.", "The birthplace of {s} is {o}.", "It was in {o} that {s} was born."],
            ),
            Self::DiedIn => (
                "died_in",
                Kind::Person,
                ["Where did {} die?", "Which town did {} die in?"],
                "the town where {} died",
                [
                    "{s} died in {o}.",
                    "The last years brought {s} to {o}, the place of death.",
                    "Death came to {s} in {o}.",
                ],
            ),
            Self::StudiedAt => (
                "studied_at",
                Kind::Person,
                ["Where did {} study?", "Which school did {} attend?"],
                "the school that {} attended",
                ["{s} studied at {o}.", "For four years {s} attended {o}.", "The school that {s} went to was {o}."],
            ),
            Self::Spouse => (
                "spouse",
                Kind::Person,
                ["Whom did {} marry?", "Who was the spouse of {}?"],
                "the spouse of {}",
                ["{s} married {o}.", "{o} was the spouse of {s}.", "The marriage of {s} and {o} lasted for decades."],
            ),
            Self::Teacher => (
                "teacher",
                Kind::Person,
                ["Who taught {}?", "Who was the teacher of {}?"],
                "the teacher of {}",
                [
                    "{s} was taught by {o}.",
                    "The teacher of {s} was {o}.",
                    "{s} learned the craft from {o}, a patient teacher.",
                ],
            ),
            Self::BestWork => (
                "best_work",
                Kind::Person,
                ["What is the best-known work of {}?", "Which work made {} famous?"],
                "the best-known work of {}",
                [
                    "The best-known work of {s} is {o}.",
                    "{o} made {s} famous.",
                    "{s} is remembered for {o}, the best-known work.",
                ],
            ),
            Self::BirthYear => (
                "birth_year",
                Kind::Person,
                ["When was {} born?", "In which year was {} born?"],
                "the year in which {} was born",
                [
                    "{s} was born in the year {o}.",
                    "The year of birth of {s} is {o}.",
                    "{s}, born {o}, grew up in a large family.",
                ],
            ),
            Self::LiesIn => (
                "lies_in",
                Kind::Town,
                ["In which country does {} lie?", "Which country does {} belong to?"],
                "the country in which {} lies",
                ["{s} lies in {o}.", "{s} is a town of {o}.", "The town of {s} belongs to the country {o}."],
            ),
            Self::Twin => (
                "twin",
                Kind::Town,
                ["Which town is twinned with {}?", "What is the twin town of {}?"],
                "the twin town of {}",
                ["{s} is twinned with {o}.", "The twin town of {s} is {o}.", "A treaty made {o} the twin town of {s}."],
            ),
            Self::FirstMayor => (
                "first_mayor",
                Kind::Town,
                ["Who was the first mayor of {}?", "Which person became the first mayor of {}?"],
                "the first mayor of {}",
                [
                    "The first mayor of {s} was {o}.",
                    "{o} became the first mayor of {s}.",
                    "{s} chose {o} as its first mayor.",
                ],
            ),
            Self::TownYear => (
                "town_year",
                Kind::Town,
                ["When was {} founded?", "In which year was {} founded?"],
                "the year in which {} was founded",
                ["{s} was founded in {o}.", "The founding of {s} dates from {o}.", "Settlers founded {s} in {o}."],
            ),
            Self::Capital => (
                "capital",
                Kind::Country,
                ["What is the capital of {}?", "Which town is the capital of {}?"],
                "the capital of {}",
                ["The capital of {s} is {o}.", "{o} is the capital of {s}.", "{s} is governed from its capital, {o}."],
            ),
            Self::SchoolTown => (
                "school_town",
                Kind::School,
                ["In which town is {} located?", "Where is {} located?"],
                "the town where {} is located",
                ["{s} is located in {o}.", "{s} is a school in {o}.", "The buildings of {s} stand in {o}."],
            ),
            Self::Founder => (
                "founder",
                Kind::School,
                ["Who founded {}?", "Who was the founder of {}?"],
                "the founder of {}",
                ["{s} was founded by {o}.", "The founder of {s} was {o}.", "{o} founded {s} with a family fortune."],
            ),
            Self::SchoolYear => (
                "school_year",
                Kind::School,
                ["When was {} founded?", "In which year was {} founded?"],
                "the year in which {} was founded",
                [
                    "{s} was founded in {o}.",
                    "The founding of {s} dates from {o}.",
                    "{s} opened its doors in {o}, the year it was founded.",
                ],
            ),
            Self::Author => (
                "author",
                Kind::Work,
                ["Who is the author of {}?", "Who created {}?"],
                "the author of {}",
                ["The author of {s} is {o}.", "{s} was created by {o}.", "{o} created {s} in a single winter."],
            ),
            Self::SetIn => (
                "set_in",
                Kind::Work,
                ["In which town is {} set?", "Where does {} take place?"],
                "the town in which {} is set",
                ["{s} is set in {o}.", "The action of {s} takes place in {o}.", "{o} is the scene of {s}."],
            ),
            Self::DedicatedTo => (
                "dedicated_to",
                Kind::Work,
                ["To whom is {} dedicated?", "Who is {} dedicated to?"],
                "the person to whom {} is dedicated",
                ["{s} is dedicated to {o}.", "The dedication of {s} names {o}.", "{s} bears a dedication to {o}."],
            ),
            Self::WorkYear => (
                "work_year",
                Kind::Work,
                ["When did {} appear?", "In which year did {} appear?"],
                "the year in which {} appeared",
                ["{s} appeared in {o}.", "The year of {s} is {o}.", "{s} came before the public in {o}."],
            ),
            Self::NamedAfter => (
                "named_after",
                Kind::Prize,
                ["After whom is {} named?", "Who is {} named after?"],
                "the namesake of {}",
                ["{s} is named after {o}.", "The namesake of {s} is {o}.", "{s} honours {o}, after whom it is named."],
            ),
            Self::FirstWinner => (
                "first_winner",
                Kind::Prize,
                ["Who first won {}?", "Who was the first winner of {}?"],
                "the first winner of {}",
                ["The first winner of {s} was {o}.", "{o} was the first to win {s}.", "{s} first went to {o}."],
            ),
        };
        Wording { id, subject, questions, phrase, sentences }
    }
}

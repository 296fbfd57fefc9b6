//! A question as a chain of sub-questions, each with its answer and the pages that it rests on.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::judge::{f1, normalize, same_answer};

/// A sub-question. `#k` in its texts stands for the answer of the k-th hop, from 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hop {
    /// What kind of sub-question it is: a relation's id in generated worlds, the data's own id elsewhere.
    pub template: String,
    /// The sub-question.
    pub question: String,
    /// The same in other words, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
    /// A phrase that stands for the answer, from which longer questions are made; data without phrases has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phrase: Option<String>,
    /// The answer.
    pub answer: String,
    /// Other forms of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    /// Addresses of the pages that tell it; none where the pages are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pages: Vec<String>,
}

impl Hop {
    /// Whether a text is the answer, or another form of it.
    #[must_use]
    pub fn is_answer(&self, text: &str) -> bool {
        std::iter::once(&self.answer).chain(&self.aliases).any(|truth| same_answer(truth, text))
    }
}

/// A hop's sub-question with the right answers of earlier hops in it; `None` if it refers to a hop that is not earlier.
#[must_use]
pub fn filled(hops: &[Hop], at: usize) -> Option<String> {
    fill(&hops.get(at)?.question, |number| Some(hops.get(..at)?.get(number.checked_sub(1)?)?.answer.clone()))
}

/// The same in other words.
#[must_use]
pub fn filled_also(hops: &[Hop], at: usize) -> Option<String> {
    let hop = hops.get(at)?;
    fill(hop.also.as_ref()?, |number| Some(hops.get(..at)?.get(number.checked_sub(1)?)?.answer.clone()))
}

/// One question for a stretch of hops: the last one's, with phrases for what the stretch itself finds out and the right
/// answers of the hops before it. `None` if a hop within has no phrase.
#[must_use]
pub fn compose(hops: &[Hop], stretch: Range<usize>) -> Option<String> {
    let last = stretch.end.checked_sub(1)?;
    if last < stretch.start {
        return None;
    }
    expand(hops, &hops.get(last)?.question, last, stretch.start)
}

fn expand(hops: &[Hop], text: &str, at: usize, start: usize) -> Option<String> {
    fill(text, |number| {
        let index = number.checked_sub(1).filter(|&index| index < at)?;
        let hop = hops.get(index)?;
        if index < start { Some(hop.answer.clone()) } else { expand(hops, hop.phrase.as_ref()?, index, start) }
    })
}

/// Puts something in the place of every `#k`; `None` as soon as `with` has nothing to put there.
fn fill(text: &str, mut with: impl FnMut(usize) -> Option<String>) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('#') {
        out.push_str(before);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = after.split_at(digits);
        match number.parse() {
            Ok(number) => out.push_str(&with(number)?),
            // A number sign that refers to nothing.
            Err(_) => {
                out.push('#');
                out.push_str(number);
            }
        }
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

/// How alike a goal and a sub-question must be to be taken for the same, as the F1 of their words.
const ALIKE: f64 = 0.6;

/// How much less alike the second best must be.
const CLEARLY: f64 = 0.1;

/// The hop or stretch of hops that a goal asks for, if it clearly asks for one.
///
/// A goal written with a hop's own question or a stretch's composed one is recognised as such. Any other goal is taken
/// for the hop whose sub-question is nearest to it, if it is near, clearly nearer than any other, and speaks of the right
/// answers of the hops that this one builds on: a goal about something else has another answer.
#[must_use]
pub fn recognise(hops: &[Hop], goal: &str) -> Option<Range<usize>> {
    let wanted = normalize(goal);
    let same = |question: Option<String>| question.is_some_and(|question| normalize(&question) == wanted);
    for at in 0..hops.len() {
        if same(filled(hops, at)) || same(filled_also(hops, at)) {
            return Some(at..at + 1);
        }
    }
    for start in 0..hops.len() {
        for end in start + 2..=hops.len() {
            if same(compose(hops, start..end)) {
                return Some(start..end);
            }
        }
    }
    nearest(hops, goal).map(|at| at..at + 1)
}

fn nearest(hops: &[Hop], goal: &str) -> Option<usize> {
    let near = |at: usize| {
        let question = [filled(hops, at), filled_also(hops, at)];
        question.iter().flatten().map(|question| f1(question, goal)).fold(0.0, f64::max)
    };
    let mut ranked: Vec<(f64, usize)> = (0..hops.len()).map(|at| (near(at), at)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let &(best, at) = ranked.first()?;
    let second = ranked.get(1).map_or(0.0, |ranked| ranked.0);
    if best < ALIKE || best - second < CLEARLY {
        return None;
    }
    let speaks_of = |hop: &Hop| {
        let goal = format!(" {} ", normalize(goal));
        let names = std::iter::once(&hop.answer).chain(&hop.aliases);
        names.map(|name| normalize(name)).any(|name| !name.is_empty() && goal.contains(&format!(" {name} ")))
    };
    let refers = |number: usize| number.checked_sub(1).and_then(|index| hops.get(index)).is_some_and(speaks_of);
    let mut grounded = true;
    // The text is of no use here: only whether every reference is met.
    let _ = fill(&hops.get(at)?.question, |number| {
        grounded &= refers(number);
        Some(String::new())
    });
    grounded.then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hop(question: &str, phrase: Option<&str>, answer: &str) -> Hop {
        Hop {
            template: "t".into(),
            question: question.into(),
            also: None,
            phrase: phrase.map(Into::into),
            answer: answer.into(),
            aliases: Vec::new(),
            pages: Vec::new(),
        }
    }

    fn chain() -> Vec<Hop> {
        vec![
            hop("Who was the poet of Orsel?", Some("the poet of Orsel"), "Mara Venn"),
            hop("Whom did #1 marry?", Some("the spouse of #1"), "Tib Korl"),
            hop("Where was #2 born?", Some("the town where #2 was born"), "Velmar"),
        ]
    }

    #[test]
    fn sub_questions_are_filled_and_composed() {
        let hops = chain();
        assert_eq!(filled(&hops, 2).unwrap(), "Where was Tib Korl born?");
        assert_eq!(compose(&hops, 0..3).unwrap(), "Where was the spouse of the poet of Orsel born?");
        assert_eq!(compose(&hops, 1..3).unwrap(), "Where was the spouse of Mara Venn born?");
        assert_eq!(compose(&hops, 2..2), None);
        assert_eq!(filled(&[hop("What is C#?", None, "x")], 0).unwrap(), "What is C#?");
        assert_eq!(filled(&[hop("Who wrote #1?", None, "x")], 0), None, "a hop cannot build on itself");
    }

    #[test]
    fn goals_are_recognised() {
        let hops = chain();
        assert_eq!(recognise(&hops, "Whom did Mara Venn marry?"), Some(1..2));
        assert_eq!(recognise(&hops, "where was THE SPOUSE of Mara Venn born"), Some(1..3));
        assert_eq!(recognise(&hops, "Find out where Tib Korl was born"), Some(2..3));
        assert_eq!(recognise(&hops, "Whom did Greta Holm marry?"), None, "another person's marriage");
        assert_eq!(recognise(&hops, "How high is the tower?"), None);
    }

    #[test]
    fn hash_signs_in_data_may_be_followed_by_spaces() {
        let hops = [hop("a", None, "Spain"), hop("Who was the first king of #1 ?", None, "x")];
        assert_eq!(filled(&hops, 1).unwrap(), "Who was the first king of Spain ?");
    }
}

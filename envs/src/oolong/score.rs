//! How answers are scored: as the authors of Oolong do, with every quirk, and stricter beside it.
//!
//! The quirks are kept because reported numbers rest on them. [`score_dnd`] and [`score_synth`] are what counts; the
//! strict variants are reported with them, never in their place.

use super::date::{Date, lenient};

/// A parsed answer of the `dnd` questions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// What Python's `int()` takes.
    Int(i128),
    /// What holds a comma: the pieces, trimmed, without empty ones.
    List(Vec<String>),
    /// Anything else, as it stands.
    Text(String),
}

impl Parsed {
    /// Reads a gold answer, or what stands in a box.
    #[must_use]
    pub fn of(text: &str) -> Parsed {
        if let Some(number) = python_int(text) {
            return Parsed::Int(number);
        }
        if text.contains(',') {
            let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
            return Parsed::List(items.map(str::to_owned).collect());
        }
        Parsed::Text(text.to_owned())
    }

    /// Reads an answer: the first `\boxed{\text{..}}`, else the first `\boxed{..}`. Without a box nothing is read: the
    /// whole answer is one text.
    #[must_use]
    pub fn of_answer(answer: &str) -> Parsed {
        boxed(answer).map_or_else(|| Parsed::Text(answer.to_owned()), Parsed::of)
    }
}

/// What stands in the answer's box: up to the first closing brace.
#[must_use]
pub fn boxed(answer: &str) -> Option<&str> {
    const TEXT: &str = "\\boxed{\\text{";
    const BOX: &str = "\\boxed{";
    let texts = answer.match_indices(TEXT).filter_map(|(at, _)| {
        let (inside, rest) = answer.get(at + TEXT.len()..)?.split_once('}')?;
        rest.starts_with('}').then_some(inside)
    });
    let boxes = answer.match_indices(BOX).filter_map(|(at, _)| {
        // More braces than one count as one.
        let inside = answer.get(at + BOX.len()..)?.trim_start_matches('{');
        inside.split_once('}').map(|(inside, _)| inside)
    });
    texts.chain(boxes).next()
}

/// What Python's `int()` makes of a text of ASCII digits: surrounding space, a sign and single underscores between digits
/// are fine.
fn python_int(text: &str) -> Option<i128> {
    let text = text.trim();
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let groups_are_digits =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|byte| byte.is_ascii_digit()));
    if !groups_are_digits {
        return None;
    }
    let value: i128 = digits.replace('_', "").parse().ok()?;
    Some(if negative { -value } else { value })
}

/// 0.75 to the power of the distance.
#[must_use]
pub(super) fn near(gold: i128, answer: i128) -> f64 {
    let distance = gold.checked_sub(answer).map_or(u128::MAX, i128::unsigned_abs);
    // Beyond that it is 0 in a double anyway.
    i32::try_from(distance).map_or(0.0, |distance| 0.75_f64.powi(distance.min(10_000)))
}

/// The score of an answer to a question of the `dnd` configuration (Oolong-Real), in \[0, 1\].
///
/// Numbers by distance, texts by equality after trimming and lowercasing, lists by the share of the gold items that the
/// answer has: case counts, order and extra items do not. Different types score 0: a list of one has no comma, so it is a
/// text; `84%` and `84.0` are texts; and so is whatever stands outside a box.
#[must_use]
pub fn score_dnd(gold: &str, answer: &str) -> f64 {
    match (Parsed::of(gold), Parsed::of_answer(answer)) {
        (Parsed::Int(gold), Parsed::Int(answer)) => near(gold, answer),
        (Parsed::Text(gold), Parsed::Text(answer)) => score(folded(&gold) == folded(&answer)),
        (Parsed::List(gold), Parsed::List(answer)) => {
            let mut seen: Vec<&String> = Vec::new();
            for item in gold.iter().filter(|item| answer.contains(item)) {
                if !seen.contains(&item) {
                    seen.push(item);
                }
            }
            share(seen.len(), gold.len())
        }
        _ => 0.0,
    }
}

/// The stricter score: as [`score_dnd`], but lists by F1, so that extra items cost; whatever is compared with a list is a
/// list, if need be of one; and case does not count in lists.
#[must_use]
pub fn score_dnd_strict(gold: &str, answer: &str) -> f64 {
    match (Parsed::of(gold), Parsed::of_answer(answer)) {
        (Parsed::List(gold), answer) => list_f1(&gold, &items(answer)),
        (gold, Parsed::List(answer)) => list_f1(&items(gold), &answer),
        _ => score_dnd(gold, answer),
    }
}

fn items(parsed: Parsed) -> Vec<String> {
    match parsed {
        Parsed::Int(number) => vec![number.to_string()],
        Parsed::List(items) => items,
        Parsed::Text(text) => vec![text],
    }
}

fn list_f1(gold: &[String], answer: &[String]) -> f64 {
    let set = |items: &[String]| {
        let mut items: Vec<String> = items.iter().map(|item| folded(item)).collect();
        items.sort_unstable();
        items.dedup();
        items
    };
    let (gold, answer) = (set(gold), set(answer));
    let common = gold.iter().filter(|item| answer.contains(item)).count();
    share(2 * common, gold.len() + answer.len())
}

#[expect(clippy::cast_precision_loss, reason = "lists are short")]
fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn folded(text: &str) -> String {
    text.trim().to_lowercase()
}

fn score(hit: bool) -> f64 {
    f64::from(u8::from(hit))
}

/// What kind of answer a question of the `synth` configurations has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerType {
    /// Near misses of a number count in part.
    Numeric,
    /// Compared as dates.
    Date,
    /// A label, a user, a comparison: equality.
    Other,
}

impl AnswerType {
    /// Reads the column `answer_type`, such as `ANSWER_TYPE.NUMERIC`.
    #[must_use]
    pub fn of(text: &str) -> AnswerType {
        match text.rsplit('.').next() {
            Some("NUMERIC") => AnswerType::Numeric,
            Some("DATE") => AnswerType::Date,
            _ => AnswerType::Other,
        }
    }
}

const COMPARISONS: [&str; 3] = ["more common", "less common", "same frequency"];

/// What is read from an answer to a `synth` question: the text behind its last colon without `*`, `[` and `]`; without a
/// colon all of a short answer, or the last word of a long one. A long candidate that names a comparison is that comparison.
#[must_use]
pub fn synth_candidate(answer: &str) -> String {
    let Some((_, last)) = answer.rsplit_once(':') else {
        if answer.chars().count() < 20 {
            return answer.to_owned();
        }
        return answer.split_whitespace().last().unwrap_or_default().to_owned();
    };
    let candidate: String = last.trim().chars().filter(|c| !matches!(c, '*' | '[' | ']')).collect();
    if candidate.chars().count() < 20 {
        return candidate;
    }
    match COMPARISONS.iter().find(|phrase| candidate.contains(**phrase)) {
        Some(phrase) => (*phrase).to_owned(),
        None => candidate,
    }
}

/// A gold answer of `synth`: the first element of a Python list literal, or the date in `[datetime.date(y, m, d)]`.
#[derive(Clone, Debug, PartialEq)]
enum Gold {
    Date(Date),
    /// As Python's `str` shows it.
    Text(String),
}

/// The score of an answer to a question of the `synth` configurations (Oolong-Synth), in \[0, 1\]; `None` if `gold` is not
/// what that column holds.
#[must_use]
pub fn score_synth(gold: &str, answer_type: AnswerType, answer: &str) -> Option<f64> {
    let gold = read_gold(gold)?;
    let candidate = synth_candidate(answer);
    let text = match &gold {
        // As Python shows it: a date that was read is a midnight.
        Gold::Date(date) => format!("{date} 00:00:00"),
        Gold::Text(text) => text.clone(),
    };
    if candidate == text {
        return Some(1.0);
    }
    if COMPARISONS.contains(&candidate.as_str()) {
        return Some(score(text.contains(&candidate)));
    }
    Some(match (answer_type, &gold) {
        (AnswerType::Numeric, Gold::Text(text)) => match (python_int(text), python_int(&candidate)) {
            (Some(gold), Some(answer)) => near(gold, answer),
            _ => 0.0,
        },
        (AnswerType::Date, Gold::Date(gold)) => score(lenient(&candidate).as_ref() == Some(gold)),
        _ => 0.0,
    })
}

/// The stricter score: as [`score_synth`], but the candidate is trimmed of space and a final full stop, and case does not
/// count.
#[must_use]
pub fn score_synth_strict(gold: &str, answer_type: AnswerType, answer: &str) -> Option<f64> {
    let plain = score_synth(gold, answer_type, answer)?;
    let Gold::Text(text) = read_gold(gold)? else { return Some(plain) };
    let candidate = synth_candidate(answer);
    Some(plain.max(score(folded(candidate.trim_end_matches('.')) == folded(&text))))
}

fn read_gold(text: &str) -> Option<Gold> {
    let inside = text.trim().strip_prefix('[')?.strip_suffix(']')?.trim();
    if let Some(date) = inside.strip_prefix("datetime.date(").and_then(|rest| rest.strip_suffix(')')) {
        let mut parts = date.split(',').map(|part| part.trim().parse::<u32>());
        let (year, month, day) = (parts.next()?.ok()?, parts.next()?.ok()?, parts.next()?.ok()?);
        return Date::new(i32::try_from(year).ok()?, month, day).map(Gold::Date);
    }
    let quote = inside.chars().next()?;
    if quote != '\'' && quote != '"' {
        let first = inside.split(',').next()?.trim();
        return (!first.is_empty()).then(|| Gold::Text(first.to_owned()));
    }
    let mut out = String::new();
    let mut chars = inside.chars().skip(1);
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(match chars.next()? {
                'n' => '\n',
                't' => '\t',
                other => other,
            }),
            c if c == quote => return Some(Gold::Text(out)),
            c => out.push(c),
        }
    }
    None
}

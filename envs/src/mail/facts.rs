//! Facts that can be told by their form: telephone numbers, amounts of money, times of day and dates.

use serde::{Deserialize, Serialize};

use crate::judge::MONTHS;

/// A kind of fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fact {
    /// A telephone number, as it is written.
    Phone,
    /// An amount in dollars: digits, with two decimals if there are cents.
    Amount,
    /// A time of day, in lower case: `10:30 am`.
    Time,
    /// A date: `YYYY-MM-DD`.
    Day,
}

/// Every kind.
pub const FACTS: [Fact; 4] = [Fact::Phone, Fact::Amount, Fact::Time, Fact::Day];

/// The different facts of a kind in a text, in the order they come. An amount that goes on in words ("$2 million") stands
/// for itself in that form, which [`cents`] does not read.
pub fn facts(kind: Fact, text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut rest = text;
    let mut before = None;
    while let Some(letter) = rest.chars().next() {
        // A fact begins at a border of words: nothing is read out of the middle of a longer number.
        let border =
            before.is_none_or(|c: char| !c.is_alphanumeric() && !matches!(c, '.' | ',' | '-' | ':' | '/' | '$'));
        let here = if border { read(kind, rest) } else { None };
        let length = match here {
            Some((fact, length)) => {
                if !found.contains(&fact) {
                    found.push(fact);
                }
                length.max(letter.len_utf8())
            }
            None => letter.len_utf8(),
        };
        before = rest.get(..length).and_then(|passed| passed.chars().next_back());
        rest = rest.get(length..).unwrap_or_default();
    }
    found
}

/// An amount as [`facts`] writes it, in cents.
pub fn cents(amount: &str) -> Option<u64> {
    let (whole, part) = amount.split_once('.').unwrap_or((amount, "00"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) || part.len() != 2 {
        return None;
    }
    whole.parse::<u64>().ok()?.checked_mul(100)?.checked_add(part.parse().ok()?)
}

/// Cents as [`facts`] writes amounts.
pub fn amount(cents: u64) -> String {
    match cents % 100 {
        0 => (cents / 100).to_string(),
        part => format!("{}.{part:02}", cents / 100),
    }
}

/// A fact at the start of a text, and its length in bytes.
fn read(kind: Fact, text: &str) -> Option<(String, usize)> {
    let (fact, length) = match kind {
        Fact::Phone => phone(text)?,
        Fact::Amount => dollars(text)?,
        Fact::Time => time(text)?,
        Fact::Day => iso_day(text).or_else(|| worded_day(text))?,
    };
    // The fact must end where it seems to: no further digit or letter.
    let next = text.get(length..)?.chars().next();
    (!next.is_some_and(char::is_alphanumeric)).then_some((fact, length))
}

/// `555-0142`, `206-555-0142` or `(206) 555-0142`.
fn phone(text: &str) -> Option<(String, usize)> {
    let shapes = ["(ddd) ddd-dddd", "ddd-ddd-dddd", "ddd-dddd"];
    let shape = shapes.into_iter().find(|shape| has_shape(text, shape))?;
    let followed = text.get(shape.len()..)?.starts_with('-');
    (!followed).then(|| (text.get(..shape.len()).unwrap_or_default().to_owned(), shape.len()))
}

/// `$1,250`, `$1250.50`; `$2 million` as `2 million`.
fn dollars(text: &str) -> Option<(String, usize)> {
    let rest = text.strip_prefix('$')?;
    let whole: usize = rest.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b',').count();
    let digits: String = rest.get(..whole)?.chars().filter(char::is_ascii_digit).collect();
    // A comma at the end belongs to the sentence.
    let whole = rest.get(..whole)?.trim_end_matches(',').len();
    if digits.is_empty() {
        return None;
    }
    let after = rest.get(whole..)?;
    let cents = after.strip_prefix('.').filter(|tail| has_shape(tail, "dd")).and_then(|tail| tail.get(..2));
    let length = whole + cents.map_or(0, |_| 3);
    let value = match cents {
        None | Some("00") => digits,
        Some(cents) => format!("{digits}.{cents}"),
    };
    let tail = rest.get(length..)?;
    let scale = ["million", "billion", "thousand", "hundred", "mm", "m", "k", "bn"].into_iter().find(|scale| {
        let word: String = tail.trim_start_matches([' ', '-']).chars().take_while(|c| c.is_alphabetic()).collect();
        word.eq_ignore_ascii_case(scale)
    });
    match scale {
        Some(scale) => {
            let gap = tail.len() - tail.trim_start_matches([' ', '-']).len();
            Some((format!("{value} {scale}"), 1 + length + gap + scale.len()))
        }
        None => Some((value, 1 + length)),
    }
}

/// `9:30`, `10:30 am`, `4:05pm`.
fn time(text: &str) -> Option<(String, usize)> {
    let digits = text.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let hour: u8 = text.get(..digits)?.parse().ok()?;
    let rest = text.get(digits..)?.strip_prefix(':')?;
    if !has_shape(rest, "dd") {
        return None;
    }
    let minutes = rest.get(..2)?;
    let minute: u8 = minutes.parse().ok()?;
    let tail = rest.get(2..)?;
    // Seconds make it a time stamp.
    if hour > 23 || minute > 59 || tail.starts_with(':') {
        return None;
    }
    let word = tail.strip_prefix(' ').unwrap_or(tail);
    let half = ["am", "pm"].into_iter().find(|half| {
        word.get(..2).is_some_and(|start| start.eq_ignore_ascii_case(half))
            && !word.get(2..).and_then(|rest| rest.chars().next()).is_some_and(char::is_alphanumeric)
    });
    let length = digits + 3;
    Some(match half {
        Some(half) => (format!("{hour}:{minutes} {half}"), length + (tail.len() - word.len()) + 2),
        None => (format!("{hour}:{minutes}"), length),
    })
}

/// `2031-05-14`.
fn iso_day(text: &str) -> Option<(String, usize)> {
    if !has_shape(text, "dddd-dd-dd") {
        return None;
    }
    let day = text.get(..10)?;
    day.parse::<jiff::civil::Date>().is_ok().then(|| (day.to_owned(), 10))
}

/// `May 14, 2031` or `May 14 2031`.
fn worded_day(text: &str) -> Option<(String, usize)> {
    let name: String = text.chars().take_while(|c| c.is_ascii_alphabetic()).collect();
    let month = MONTHS.iter().position(|month| name.eq_ignore_ascii_case(month))? + 1;
    let rest = text.get(name.len()..)?.strip_prefix(' ')?;
    let digits = rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
    let day: i8 = rest.get(..digits)?.parse().ok()?;
    let tail = rest.get(digits..)?;
    let year_text = tail.strip_prefix(", ").or_else(|| tail.strip_prefix(' '))?;
    if !has_shape(year_text, "dddd") {
        return None;
    }
    let year: i16 = year_text.get(..4)?.parse().ok()?;
    let date = jiff::civil::Date::new(year, i8::try_from(month).ok()?, day).ok()?;
    Some((date.to_string(), name.len() + 1 + digits + (tail.len() - year_text.len()) + 4))
}

/// Whether a text begins with a shape in which `d` is a digit and all else itself.
fn has_shape(text: &str, shape: &str) -> bool {
    let mut bytes = text.bytes();
    shape.bytes().all(|want| match (want, bytes.next()) {
        (b'd', Some(byte)) => byte.is_ascii_digit(),
        (want, byte) => byte == Some(want),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_by_their_form() {
        let rows: [(Fact, &str, &[&str]); 20] = [
            (Fact::Phone, "Call 555-0142 or (206) 555-0143.", &["555-0142", "(206) 555-0143"]),
            (Fact::Phone, "206-555-0142, again 206-555-0142", &["206-555-0142"]),
            (Fact::Phone, "account 4-555-0142 and 555-0142-9 and 1555-0142", &[]),
            (Fact::Amount, "It is $1,250.00, not $1250.50", &["1250", "1250.50"]),
            (Fact::Amount, "about $2 million ($3k)", &["2 million", "3 k"]),
            (Fact::Amount, "$7. And $8, then $9)", &["7", "8", "9"]),
            (Fact::Amount, "US$5 and $ 5 and $x", &[]),
            (Fact::Time, "at 9:30, or 10:05 PM; 4:15pm", &["9:30", "10:05 pm", "4:15 pm"]),
            (Fact::Time, "12:30:15 or 25:00 or 7:60 or 1:2", &[]),
            (Fact::Time, "9:30 amounts to", &["9:30"]),
            (Fact::Day, "on 2031-05-14 or May 4, 2031", &["2031-05-14", "2031-05-04"]),
            (Fact::Day, "may 14 2031.", &["2031-05-14"]),
            (Fact::Day, "2031-13-01, May 32, 2031, 12031-05-14, 2031-05-141", &[]),
            (Fact::Day, "Mayor 14, 2031; in May", &[]),
            (Fact::Phone, "", &[]),
            (Fact::Time, "20:15", &["20:15"]),
            (Fact::Amount, "$0.05", &["0.05"]),
            (Fact::Amount, "$1,2,3", &["123"]),
            (Fact::Phone, "é555-0142 € 555-0142", &["555-0142"]),
            (Fact::Time, "ратио 9:30", &["9:30"]),
        ];
        for (kind, text, expected) in rows {
            assert_eq!(facts(kind, text), expected, "{kind:?} in {text:?}");
        }
    }

    #[test]
    fn amounts_are_counted_in_cents() {
        for (text, value) in [("1250", 125_000), ("1250.50", 125_050), ("0.05", 5)] {
            assert_eq!(cents(text), Some(value));
            assert_eq!(amount(value), text);
        }
        for bad in ["", "2 million", "1.5", "1.234", "-1", "1,000", "99999999999999999999"] {
            assert_eq!(cents(bad), None, "{bad}");
        }
    }
}

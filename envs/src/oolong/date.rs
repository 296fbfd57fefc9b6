//! Dates as people write them.

use std::fmt;

/// A calendar date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Date {
    year: i32,
    month: u32,
    day: u32,
}

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

impl Date {
    /// A date that exists.
    #[must_use]
    pub fn new(year: i32, month: u32, day: u32) -> Option<Date> {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let days = match month {
            4 | 6 | 9 | 11 => 30,
            2 => 28 + u32::from(leap),
            1..=12 => 31,
            _ => return None,
        };
        (1..=days).contains(&day).then_some(Date { year, month, day })
    }
}

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// Reads a date in many forms: numbers with the month first unless that cannot be, or the year first; month names from
/// three letters on; weekdays and ordinal endings are passed over, years of two digits lie in 1970 to 2069. A date that
/// lacks a part is none.
#[must_use]
pub fn lenient(text: &str) -> Option<Date> {
    let (mut numbers, mut month) = (Vec::new(), None);
    let lower = text.to_lowercase();
    for word in lower.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
        let name = word.get(..3).filter(|_| word.chars().all(char::is_alphabetic));
        if let Some(at) = name.and_then(|name| MONTHS.iter().position(|month| *month == name)) {
            if month.replace(u32::try_from(at + 1).ok()?).is_some() {
                return None;
            }
        } else if name.is_some_and(|name| WEEKDAYS.contains(&name)) || matches!(word, "of" | "the" | "on" | "date") {
        } else {
            let digits = word.trim_end_matches(|c: char| c.is_ascii_alphabetic());
            let ending = word.get(digits.len()..).unwrap_or_default();
            if !matches!(ending, "" | "st" | "nd" | "rd" | "th") {
                return None;
            }
            numbers.push((digits.len(), digits.parse::<i32>().ok()?));
        }
    }
    let year = |(len, value): (usize, i32)| match (len, value) {
        (4, year) => Some(year),
        (2, short) => Some(if short >= 70 { 1900 + short } else { 2000 + short }),
        _ => None,
    };
    let part = |(_, value): (usize, i32)| u32::try_from(value).unwrap_or_default();
    match (month, numbers.as_slice()) {
        (Some(month), [a, b]) if a.0 == 4 => Date::new(year(*a)?, month, part(*b)),
        (Some(month), [a, b]) => Date::new(year(*b)?, month, part(*a)),
        (None, [a, b, c]) if a.0 == 4 => Date::new(year(*a)?, part(*b), part(*c)),
        (None, [a, b, c]) => {
            let year = year(*c)?;
            Date::new(year, part(*a), part(*b)).or_else(|| Date::new(year, part(*b), part(*a)))
        }
        _ => None,
    }
}

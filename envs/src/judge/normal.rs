//! When two answers are the same: case, articles, punctuation, the writing of numbers and of dates do not count.

use unicode_normalization::UnicodeNormalization as _;

/// The months in English, in lower case.
pub(crate) const MONTHS: [&str; 12] = [
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
];

const NUMBERS: [&str; 21] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];

/// Whether two answers are the same after [`normalize`], or the same number, or the same date. An empty answer is the same
/// as nothing.
#[must_use]
pub fn same_answer(a: &str, b: &str) -> bool {
    if let (Some(a), Some(b)) = (number(a), number(b)) {
        return a == b;
    }
    if let (Some(a), Some(b)) = (date(a), date(b)) {
        return a == b;
    }
    let (a, b) = (normalize(a), normalize(b));
    !a.is_empty() && a == b
}

/// The answer's words in lowercase, without accents, punctuation and articles, numbers without separators, one space
/// between them.
#[must_use]
pub fn normalize(text: &str) -> String {
    words(text).join(" ")
}

/// The overlap of the words of two answers: the harmonic mean of precision and recall, each word counted as often as it
/// stands there.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "answers have few words")]
pub fn f1(truth: &str, answer: &str) -> f64 {
    let (truth, answer) = (words(truth), words(answer));
    if truth.is_empty() || answer.is_empty() {
        return f64::from(u8::from(truth == answer));
    }
    let mut left = truth.clone();
    let common = answer.iter().filter(|word| take(&mut left, word)).count();
    2.0 * common as f64 / (truth.len() + answer.len()) as f64
}

fn take(words: &mut Vec<String>, word: &String) -> bool {
    match words.iter().position(|other| other == word) {
        Some(at) => {
            words.swap_remove(at);
            true
        }
        None => false,
    }
}

fn words(text: &str) -> Vec<String> {
    // Decomposed, an accent is a mark of its own, which is neither letter nor digit.
    let plain: String = text.nfkd().filter(|c| !is_mark(*c)).collect::<String>().to_lowercase();
    let mut out = Vec::new();
    for piece in plain.split(char::is_whitespace) {
        if let Some(number) = number(piece) {
            out.push(number.to_string());
            continue;
        }
        // An apostrophe joins, as in "o'brien"; whatever else is no letter or digit parts.
        let joined: String = piece.chars().filter(|c| !matches!(c, '\'' | '\u{2019}')).collect();
        for word in joined.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()) {
            if !matches!(word, "a" | "an" | "the") {
                out.push(word.to_owned());
            }
        }
    }
    out
}

fn is_mark(c: char) -> bool {
    matches!(u32::from(c), 0x300..=0x36f | 0x1ab0..=0x1aff | 0x1dc0..=0x1dff | 0x20d0..=0x20ff)
}

/// A text that is a number: digits with or without separators of thousands and a fraction, or a word up to twenty.
fn number(text: &str) -> Option<f64> {
    let text = text.trim().trim_end_matches('.').trim_start_matches('$').to_lowercase();
    if let Some(at) = NUMBERS.iter().position(|word| *word == text) {
        return f64::from(u32::try_from(at).ok()?).into();
    }
    let (sign, digits) = text.strip_prefix('-').map_or((1.0, text.as_str()), |rest| (-1.0, rest));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let grouped = whole.split(',').enumerate().all(|(at, group)| {
        let len = group.len();
        group.bytes().all(|byte| byte.is_ascii_digit()) && if at == 0 { len >= 1 } else { len == 3 }
    });
    let first = whole.split(',').next().map_or(0, str::len);
    let fits = grouped && (!whole.contains(',') || first <= 3) && fraction.bytes().all(|byte| byte.is_ascii_digit());
    if !fits {
        return None;
    }
    format!("{}.{fraction}0", whole.replace(',', "")).parse::<f64>().ok().map(|value| sign * value)
}

/// A text that is a date: `2001-03-05`, `March 5, 2001` or `5 March 2001`, month names also by their first three letters.
/// Forms such as 3/5/2001 say different things to different readers and are none.
fn date(text: &str) -> Option<(i32, u32, u32)> {
    let words: Vec<String> = text
        .to_lowercase()
        .split(|c: char| c.is_whitespace() || matches!(c, ',' | '.'))
        .filter(|word| !word.is_empty() && *word != "of" && *word != "the")
        .map(str::to_owned)
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (year, month, day) = match words.as_slice() {
        [iso] => {
            let mut parts = iso.split('-');
            let (year, month, day) = (parts.next()?, parts.next()?, parts.next()?);
            if parts.next().is_some() || year.len() != 4 {
                return None;
            }
            (year.parse().ok()?, month.parse().ok()?, day.parse().ok()?)
        }
        [a, b, year] if year.len() == 4 => {
            let year = year.parse().ok()?;
            match (month(a), month(b)) {
                (Some(month), None) => (year, month, day(b)?),
                (None, Some(month)) => (year, month, day(a)?),
                _ => return None,
            }
        }
        _ => return None,
    };
    ((1..=12).contains(&month) && (1..=31).contains(&day)).then_some((year, month, day))
}

fn month(word: &str) -> Option<u32> {
    let at = MONTHS.iter().position(|month| *month == word || (word.len() >= 3 && month.get(..3) == Some(word)))?;
    u32::try_from(at + 1).ok()
}

fn day(word: &str) -> Option<u32> {
    let digits = ["st", "nd", "rd", "th"].iter().find_map(|end| word.strip_suffix(end)).unwrap_or(word);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_does_not_count() {
        let same = [
            ("The Beatles", "beatles"),
            ("Gabriel García Márquez", "gabriel garcia marquez"),
            ("1,234", "1234.0"),
            ("three", "3"),
            ("-2.50", "-2.5"),
            ("March 5, 2001", "2001-03-05"),
            ("5th of Mar 2001", "5 March 2001"),
            ("O'Brien", "OBrien"),
            ("  New\nYork ", "new york!"),
        ];
        for (a, b) in same {
            assert!(same_answer(a, b), "{a:?} and {b:?}");
        }
        let other = [("", ""), ("a", "the"), ("1,23", "123"), ("3/5/2001", "2001-03-05"), ("12", "13"), ("no", "none")];
        for (a, b) in other {
            assert!(!same_answer(a, b), "{a:?} and {b:?}");
        }
    }

    #[test]
    fn overlap_counts_words_as_often_as_they_stand_there() {
        assert_eq!(f1("the big big house", "big house"), 0.8);
        assert_eq!(f1("paris", "london"), 0.0);
        assert_eq!(f1("", ""), 1.0);
        assert_eq!(f1("x", ""), 0.0);
    }
}

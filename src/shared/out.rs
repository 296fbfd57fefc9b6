//! Standard output that outlives its reader, and small ways of writing numbers.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use super::exit::{Code, Failure};

/// Standard output. A reader that went away (`rao-log list | head -1`) ends the printing, not the work.
pub(crate) struct Out {
    closed: bool,
    failed: Option<io::Error>,
}

impl Out {
    pub(crate) fn new() -> Self {
        Out { closed: false, failed: None }
    }

    /// Whether nobody reads any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Prints a line.
    pub(crate) fn line(&mut self, line: impl fmt::Display) {
        self.write(format_args!("{line}\n"));
    }

    /// Prints a JSON value on one line.
    pub(crate) fn json(&mut self, value: &serde_json::Value) {
        self.line(value);
    }

    fn write(&mut self, text: fmt::Arguments<'_>) {
        if self.closed {
            return;
        }
        let mut stdout = io::stdout().lock();
        if let Err(error) = stdout.write_fmt(text).and_then(|()| stdout.flush()) {
            self.closed = true;
            if error.kind() != ErrorKind::BrokenPipe {
                self.failed = Some(error);
            }
        }
    }

    /// Says whether everything that the reader wanted was written.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        match self.failed {
            None => Ok(()),
            Some(error) => {
                let failure = Failure::new(Code::Other, format!("cannot write to standard output: {error}"));
                Err(failure.help("the command itself has done its work; only its report is cut short"))
            }
        }
    }
}

/// Prints a note for the user that is no result.
pub(crate) fn note(text: impl fmt::Display) {
    // A standard error that cannot be written to leaves nobody to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A moment as `2026-01-31 12:34:56`, in UTC.
pub(crate) fn utc(at_us: u64) -> String {
    let seconds = at_us / 1_000_000;
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02}", rest / 3600, rest / 60 % 60, rest % 60)
}

/// The Gregorian date of a day counted from 1970-01-01 (Hinnant's `civil_from_days`, for days that are not negative).
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 { month_index + 3 } else { month_index - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// A text on one line, cut to `width` characters.
pub(crate) fn one_line(text: &str, width: usize) -> String {
    let flat: Vec<&str> = text.split_whitespace().collect();
    let flat = flat.join(" ");
    if flat.chars().count() <= width {
        return flat;
    }
    let kept: String = flat.chars().take(width.saturating_sub(3)).collect();
    format!("{kept}...")
}

/// `1 rollout`, `2 rollouts`.
pub(crate) fn plural(count: u64, word: &str) -> String {
    let ending = match count {
        1 => "",
        _ if word.ends_with(['s', 'x']) || word.ends_with("ch") => "es",
        _ => "s",
    };
    format!("{count} {word}{ending}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_one_pass_are_passes() {
        let told = [plural(1, "pass"), plural(2, "pass"), plural(0, "node"), plural(3, "batch")];
        assert_eq!(told, ["1 pass", "2 passes", "0 nodes", "3 batches"]);
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_782_400_000_000), "2000-02-29 00:00:00");
        assert_eq!(utc(1_735_689_599_999_999), "2024-12-31 23:59:59");
        assert_eq!(utc(4_107_542_400_000_000), "2100-03-01 00:00:00");
    }

    #[test]
    fn long_texts_are_cut_at_characters() {
        assert_eq!(one_line("a\n b", 10), "a b");
        assert_eq!(one_line("äöüäöüäöü", 6), "äöü...");
    }
}

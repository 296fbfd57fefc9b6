//! One mail, and how its date is written.

use std::str::FromStr as _;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// A mail as `read_email` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Email {
    /// Unique in its mailbox.
    pub message_id: String,
    /// When it was sent: `YYYY-MM-DD HH:MM:SS` in UTC. Dates are compared as text.
    pub date: String,
    /// The subject; may be empty.
    pub subject: String,
    /// The sender's address.
    pub from_address: String,
    /// Addresses in To.
    pub to_addresses: Vec<String>,
    /// Addresses in Cc.
    pub cc_addresses: Vec<String>,
    /// Addresses in Bcc.
    pub bcc_addresses: Vec<String>,
    /// The text.
    pub body: String,
    /// The file that the mail comes from, where that is known.
    pub file_name: Option<String>,
}

impl Email {
    /// Every recipient: To, then Cc, then Bcc.
    pub fn recipients(&self) -> impl Iterator<Item = &str> {
        self.to_addresses.iter().chain(&self.cc_addresses).chain(&self.bcc_addresses).map(String::as_str)
    }

    /// The day on which it was sent: `YYYY-MM-DD`.
    pub fn day(&self) -> &str {
        self.date.get(..10).unwrap_or(&self.date)
    }
}

/// A subject without the marks of replies and forwards (`Re:`, `Fw:`, `Fwd:`, in any case and number).
pub fn thread_subject(subject: &str) -> &str {
    let mut rest = subject.trim();
    while let Some((head, tail)) = rest.split_once(':') {
        if !["re", "fw", "fwd"].iter().any(|mark| head.trim().eq_ignore_ascii_case(mark)) {
            break;
        }
        rest = tail.trim();
    }
    rest
}

/// Reads a date as mail archives write it: RFC 3339, the same without an offset (UTC then), with a space in place of the
/// `T`, or a day alone.
pub(super) fn read_date(text: &str) -> Option<String> {
    let text = text.trim();
    if let Ok(stamp) = Timestamp::from_str(text) {
        return Some(written(stamp));
    }
    DateTime::from_str(text).ok().map(|date| date.strftime("%Y-%m-%d %H:%M:%S").to_string())
}

/// Reads a point in time since 1970 in seconds, milli-, micro- or nanoseconds; which of them follows from its size. Of
/// the times that mail was written in, no two units overlap.
pub(super) fn read_epoch(number: i64) -> Option<String> {
    let size = number.unsigned_abs();
    let stamp = match size {
        0..100_000_000_000 => Timestamp::from_second(number),
        100_000_000_000..100_000_000_000_000 => Timestamp::from_millisecond(number),
        100_000_000_000_000..100_000_000_000_000_000 => Timestamp::from_microsecond(number),
        _ => Timestamp::from_nanosecond(i128::from(number)),
    };
    stamp.ok().map(written)
}

fn written(stamp: Timestamp) -> String {
    stamp.to_zoned(TimeZone::UTC).strftime("%Y-%m-%d %H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_every_kind_become_the_same_text() {
        let same = "2001-05-14 16:39:00";
        for text in
            ["2001-05-14T16:39:00Z", "2001-05-14 16:39:00", "2001-05-14T18:39:00+02:00", "2001-05-14T16:39:00.000"]
        {
            assert_eq!(read_date(text).as_deref(), Some(same), "{text}");
        }
        assert_eq!(read_date("2001-05-14").as_deref(), Some("2001-05-14 00:00:00"));
        for bad in ["", "14 May 2001", "2001-13-01", "2001-05-14 25:00:00"] {
            assert_eq!(read_date(bad), None, "{bad}");
        }
        let seconds = 989_858_340;
        for number in [seconds, seconds * 1_000, seconds * 1_000_000, seconds * 1_000_000_000] {
            assert_eq!(read_epoch(number).as_deref(), Some(same), "{number}");
        }
    }

    #[test]
    fn threads_are_known_by_their_subject() {
        assert_eq!(thread_subject("RE: Fwd:  re : Plan: part two "), "Plan: part two");
        assert_eq!(thread_subject("Report: re"), "Report: re");
        assert_eq!(thread_subject("Re:"), "");
    }
}

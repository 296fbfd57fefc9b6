//! How an acknowledgement relates to the disk.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::id::IdError;

/// When an append is acknowledged, and when it is made durable.
///
/// Whatever the mode: what is lost by a crash is the end of what was appended, never a part from its middle; appends
/// that end a run or a training are acknowledged once they, and all before them, are durable; and [`crate::Log::flush`]
/// and [`crate::Log::close`] make everything durable. A killed process loses nothing acknowledged, since the operating
/// system has it; only a machine that stops does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Acknowledged once durable: `fdatasync` has returned. Nothing acknowledged is ever lost.
    #[default]
    Durable,
    /// Acknowledged once written, durable at most this long after. A machine that stops may lose what was acknowledged
    /// in that time.
    Relaxed(Duration),
    /// Acknowledged once written, durable at the end of a run, when a journal file is full, and on closing. A machine
    /// that stops may lose everything since the last of these.
    End,
}

impl Durability {
    /// The longest time that [`Durability::Relaxed`] is read with: one hour.
    pub const LONGEST: Duration = Duration::from_secs(3600);
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Durability::Durable => f.write_str("durable"),
            Durability::Relaxed(delay) => write!(f, "relaxed:{}", delay.as_millis()),
            Durability::End => f.write_str("end"),
        }
    }
}

impl FromStr for Durability {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wanted = "durability: write durable, end, or relaxed:MS with 1 to 3600000 milliseconds";
        let wrong = || IdError { text: text.to_owned(), wanted };
        match text {
            "durable" => Ok(Durability::Durable),
            "end" => Ok(Durability::End),
            _ => {
                let digits = text.strip_prefix("relaxed:").ok_or_else(wrong)?;
                let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
                let delay = digits.parse().ok().filter(|_| is_number).map(Duration::from_millis).ok_or_else(wrong)?;
                let is_sensible = !delay.is_zero() && delay <= Durability::LONGEST;
                if is_sensible { Ok(Durability::Relaxed(delay)) } else { Err(wrong()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_they_are_written() {
        for text in ["durable", "relaxed:1", "relaxed:250", "relaxed:3600000", "end"] {
            let mode: Durability = text.parse().unwrap();
            assert_eq!(mode.to_string(), text);
        }
        for wrong in ["", "Durable", "relaxed", "relaxed:", "relaxed:0", "relaxed:+5", "relaxed:1.5", "relaxed:3600001"]
        {
            assert!(wrong.parse::<Durability>().is_err(), "{wrong}");
        }
    }
}

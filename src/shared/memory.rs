//! How much memory and time this process has had, and sizes as people write them.

/// The most memory that the process has had at one time, in bytes, where the system says so.
pub(crate) fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

/// CPU seconds that the process has used, where the system says so; its clock ticks 100 times a second.
pub(crate) fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / 100.0)
}

/// Reads a size: a number with K, M, G or T behind it, in powers of 1024; `iB` or `B` may follow.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let wrong = || "give a size such as 800M, 2G or 1.5GiB".to_owned();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.to_ascii_lowercase();
    let shift = match unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    #[expect(clippy::cast_precision_loss, reason = "a power of two")]
    let bytes = number * (1u64 << shift) as f64;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to lie in range")]
    if (1.0..1e18).contains(&bytes) { Ok(bytes as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_powers_of_1024() {
        assert_eq!(size("300"), Ok(300));
        assert_eq!(size("2k"), Ok(2048));
        assert_eq!(size("800M"), Ok(800 << 20));
        assert_eq!(size("1.5GiB"), Ok(3 << 29));
        assert_eq!(size("2gb"), Ok(2 << 30));
        for wrong in ["", "M", "-1G", "1X", "0", "1.2.3", "lots"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}

//! Times at which entries expire, as they are written on the command line and in dumps.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time so many milliseconds after the beginning of 1970.
pub(crate) fn time_of_ms(ms: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

/// Parses the time at which an entry expires: milliseconds since 1970, as they are printed, or a duration from now on.
pub(crate) fn parse_expiry(text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{text}' is no time; write 90s, 15m, 24h or 7d from now on, or milliseconds since 1970");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit_seconds = match &text[digits..] {
        "" => return time_of_ms(number).ok_or_else(wrong),
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    let duration = number.checked_mul(unit_seconds).map(Duration::from_secs);
    duration.and_then(|duration| SystemTime::now().checked_add(duration)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_expiry_are_read_as_people_write_them_and_as_they_are_printed() {
        assert_eq!(parse_expiry("4102444800123").unwrap(), UNIX_EPOCH + Duration::from_millis(4_102_444_800_123));
        for (text, seconds) in [("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800)] {
            let (before, time) = (SystemTime::now(), parse_expiry(text).unwrap());
            let from_now = before + Duration::from_secs(seconds)..=SystemTime::now() + Duration::from_secs(seconds);
            assert!(from_now.contains(&time), "{text}");
        }
        for wrong in ["", "s", "-5s", "5 s", "1w", "soon", "99999999999999999999", "18446744073709551615d"] {
            assert!(parse_expiry(wrong).unwrap_err().contains("15m"), "{wrong}");
        }
    }
}

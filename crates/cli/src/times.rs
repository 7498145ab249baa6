//! Times as they are written on the command line and in dumps: moments, and durations before or after now.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the time so many milliseconds after the beginning of 1970.
pub(crate) fn time_of_ms(ms: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_millis(ms))
}

/// Parses a duration: 90s, 15m, 24h or 7d.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is no duration; write 90s, 15m, 24h or 7d");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let seconds = match &text[digits..] {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// Parses the time at which an entry expires: milliseconds since 1970, as they are printed, or a duration from now on.
pub(crate) fn parse_expiry(text: &str) -> Result<SystemTime, String> {
    expiry_seen_from(SystemTime::now(), text)
}

/// Parses a time in the past: as RFC 3339 writes it, milliseconds since 1970, or a duration before now.
pub(crate) fn parse_past(text: &str) -> Result<SystemTime, String> {
    past_seen_from(SystemTime::now(), text)
}

fn expiry_seen_from(now: SystemTime, text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{text}' is no time; write 90s, 15m, 24h or 7d from now on, or milliseconds since 1970");
    let time = match (parse_duration(text), text.parse()) {
        (Ok(duration), _) => now.checked_add(duration),
        (_, Ok(ms)) => time_of_ms(ms),
        _ => None,
    };
    time.ok_or_else(wrong)
}

fn past_seen_from(now: SystemTime, text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{text}' is no time; write 2026-11-26T08:15:00Z, 15m (ago), or milliseconds since 1970");
    let time = match (parse_duration(text), text.parse()) {
        (Ok(duration), _) => now.checked_sub(duration),
        (_, Ok(ms)) => time_of_ms(ms),
        _ => humantime::parse_rfc3339_weak(text).ok(),
    };
    time.ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DURATIONS: [(&str, u64); 4] = [("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800)];

    // `now` is a fixed time: the clock of a machine may be set back between two looks at it.
    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000)
    }

    #[test]
    fn times_of_expiry_are_read_as_people_write_them_and_as_they_are_printed() {
        assert_eq!(parse_expiry("4102444800123").unwrap(), UNIX_EPOCH + Duration::from_millis(4_102_444_800_123));
        for (text, seconds) in DURATIONS {
            assert_eq!(expiry_seen_from(now(), text).unwrap(), now() + Duration::from_secs(seconds), "{text}");
        }
        for wrong in ["", "s", "-5s", "+5s", "5 s", "1w", "soon", "99999999999999999999", "18446744073709551615d"] {
            assert!(parse_expiry(wrong).unwrap_err().contains("15m"), "{wrong}");
        }
    }

    #[test]
    fn times_in_the_past_are_read_as_people_write_them_and_as_they_are_printed() {
        for text in ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14 22:13:20"] {
            assert_eq!(parse_past(text).unwrap(), now(), "{text}");
        }
        assert_eq!(parse_past(&humantime::format_rfc3339_millis(now()).to_string()).unwrap(), now());
        for (text, seconds) in DURATIONS {
            assert_eq!(past_seen_from(now(), text).unwrap(), now() - Duration::from_secs(seconds), "{text}");
        }
        for wrong in ["", "yesterday", "-5s", "99999999999999999999d", "18446744073709551615d"] {
            assert!(parse_past(wrong).unwrap_err().contains("ago"), "{wrong}");
        }
    }
}

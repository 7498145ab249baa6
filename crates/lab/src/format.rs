//! Numbers as people read them: three significant digits, a unit, a prefix. The same in the terminal, the findings and
//! the report.

use std::borrow::Cow;

/// The quantity that a number measures; decides its prefix and unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Operations a second.
    PerSecond,
    /// Bytes a second (decimal: 1 GB/s = 10^9).
    BytesPerSecond,
    /// Bytes of memory (decimal: 1 GB = 10^9), where axes and figures have one unit.
    Bytes,
    /// Seconds: shown as ns, us, ms or s.
    Seconds,
    /// A number of percent.
    Percent,
    /// A ratio, printed with a multiplication sign.
    Ratio,
    /// A plain count.
    Count,
}

impl Unit {
    /// Formats a number with its unit: `412 K/s`, `3.21 GB/s`, `8.1 us`, `37 %`.
    pub fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".into();
        }
        match self {
            Self::PerSecond => prefixed(value, "/s"),
            Self::BytesPerSecond => prefixed(value, "B/s"),
            Self::Bytes => prefixed(value, "B"),
            Self::Seconds => seconds(value),
            Self::Percent => format!("{} %", digits(value)),
            Self::Ratio => format!("{}×", digits(value)),
            Self::Count => prefixed(value, "").trim_end().to_owned(),
        }
    }
}

impl Unit {
    /// Formats a round number for an axis: as [`Unit::show`] without trailing zeros, and 0 without a unit.
    pub fn tick(self, value: f64) -> String {
        if value == 0.0 {
            return "0".into();
        }
        let shown = self.show(value);
        let (number, rest) =
            shown.split_at(shown.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(shown.len()));
        let number = if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
        format!("{number}{rest}")
    }
}

/// Returns a text in which no character can act on a terminal: control characters other than line breaks, and characters
/// that change the direction of writing or are not seen, stand as `\u001b`, the form in which JSON has them. Records come from files
/// that others may have written.
pub fn harmless(text: &str) -> Cow<'_, str> {
    let acts = |c: char| {
        c != '\n' && c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    if !text.contains(acts) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match acts(c) {
            true => safe.push_str(&format!("\\u{:04x}", u32::from(c))),
            false => safe.push(c),
        }
    }
    Cow::Owned(safe)
}

/// Formats a number with three significant digits and no exponent: `0.0412`, `1.20`, `37.5`, `412`.
pub fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let magnitude = value.abs().log10().floor();
    if !magnitude.is_finite() {
        return "–".into();
    }
    // 9.996 has one digit before the point and two once it is rounded.
    let decimals = (2.0 - magnitude).clamp(0.0, 9.0);
    let scale = 10f64.powf(decimals);
    let rounded = (value * scale).round() / scale;
    let decimals = (2.0 - rounded.abs().max(f64::MIN_POSITIVE).log10().floor()).clamp(0.0, 9.0);
    format!("{rounded:.*}", decimals as usize)
}

/// Formats a number with the prefix K, M, G or T and a unit.
fn prefixed(value: f64, unit: &str) -> String {
    let prefixes = ["", "K", "M", "G", "T", "P"];
    let mut value = value;
    let mut at = 0;
    while value.abs() >= 999.5 && at + 1 < prefixes.len() {
        value /= 1000.0;
        at += 1;
    }
    let number = if value.abs() < 999.5 && value.fract() == 0.0 { format!("{value:.0}") } else { digits(value) };
    let prefix = prefixes[at];
    if prefix.is_empty() && unit.starts_with('/') {
        format!("{number}{unit}")
    } else {
        format!("{number} {prefix}{unit}")
    }
}

fn seconds(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        0.0 => return "0 s".into(),
        s if s < 0.999_5e-6 => (value * 1e9, "ns"),
        s if s < 0.999_5e-3 => (value * 1e6, "µs"),
        s if s < 0.999_5 => (value * 1e3, "ms"),
        _ => (value, "s"),
    };
    format!("{} {unit}", digits(scaled))
}

/// Formats bytes of memory or storage in binary units: `4 GiB`, `256 MiB`, `1.50 GiB`.
pub fn bytes(value: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut at = 0;
    let mut scaled = value as f64;
    while scaled >= 1024.0 && at + 1 < units.len() {
        scaled /= 1024.0;
        at += 1;
    }
    let number = if scaled.fract() == 0.0 { format!("{scaled:.0}") } else { digits(scaled) };
    format!("{number} {}", units[at])
}

/// Keeps numbers and their units on one line: no-break spaces between them.
pub fn glued(text: &str) -> String {
    const UNITS: [&str; 16] =
        ["/s", "K", "M", "G", "K/s", "M/s", "G/s", "KB/s", "MB/s", "GB/s", "TB/s", "ns", "µs", "ms", "s", "%"];
    let mut glued = String::with_capacity(text.len());
    for (index, word) in text.split(' ').enumerate() {
        let after_digit = glued.ends_with(|c: char| c.is_ascii_digit());
        let is_unit = UNITS.contains(&word.trim_end_matches(['.', ',', ':', ';', ')', '(']));
        if index > 0 {
            glued.push(if after_digit && is_unit { '\u{a0}' } else { ' ' });
        }
        glued.push_str(word);
    }
    glued
}

/// Formats a length of time: `45 s`, `2 min 5 s`, `1 h 4 min`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "–".into();
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{} s", digits(seconds)),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

/// Formats a time in milliseconds since 1970 as date and time, UTC: `2026-03-01 12:30 UTC`.
pub fn date(unix_ms: u64) -> String {
    let (seconds, days) = (unix_ms / 1000 % 86_400, (unix_ms / 86_400_000).min(3_000_000) as i64);
    // Days to a civil date, by eras of 400 years beginning on the first of March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600, seconds % 3600 / 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_of_a_text_acts_on_a_terminal() {
        assert_eq!(harmless("µs – plain\ntwo lines"), "µs – plain\ntwo lines");
        assert_eq!(harmless("\u{1b}[2J\r\t\u{7}\u{9b}1m\u{7f}"), "\\u001b[2J\\u000d\\u0009\\u0007\\u009b1m\\u007f");
        assert_eq!(harmless("\u{202e}txt"), "\\u202etxt");
    }

    #[test]
    fn numbers_keep_three_digits_and_take_their_prefix() {
        assert_eq!(Unit::PerSecond.show(412_345.0), "412 K/s");
        assert_eq!(Unit::PerSecond.show(999_600.0), "1.00 M/s");
        assert_eq!(Unit::PerSecond.show(12.0), "12/s");
        assert_eq!(Unit::BytesPerSecond.show(3.2e9), "3.20 GB/s");
        assert_eq!(Unit::Seconds.show(0.000_008_12), "8.12 µs");
        assert_eq!(Unit::Seconds.show(0.0), "0 s");
        assert_eq!(Unit::Ratio.show(9.996), "10.0×");
        assert_eq!(Unit::Percent.show(0.0), "0 %");
        assert_eq!(Unit::Count.show(f64::NAN), "–");
        assert_eq!(Unit::Count.show(17.0), "17");
        assert_eq!(glued("at 3 K/s, 4 times, 40 %."), "at 3\u{a0}K/s, 4 times, 40\u{a0}%.");
        assert_eq!((Unit::Seconds.tick(1e-5), Unit::PerSecond.tick(0.0)), ("10 µs".into(), "0".into()));
        assert_eq!((Unit::PerSecond.tick(2e4), Unit::Ratio.tick(0.5)), ("20 K/s".into(), "0.5×".into()));
        assert_eq!((bytes(4096), bytes(256 << 20), bytes(0)), ("4 KiB".into(), "256 MiB".into(), "0 B".into()));
        assert_eq!(
            (duration(3.25), duration(125.0), duration(3900.0)),
            ("3.25 s".into(), "2 min 5 s".into(), "1 h 5 min".into())
        );
    }

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_767_225_599_000), "2025-12-31 23:59 UTC");
        let _ = date(u64::MAX);
    }
}

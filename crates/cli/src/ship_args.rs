//! The flags of `nofault ship` and `nofault restore`.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;

use crate::db_args::OpenArguments;
use crate::expiry::time_of_ms;

/// The arguments of `nofault ship`.
#[derive(Debug, Args)]
pub(crate) struct ShipArguments {
    /// The database's folder.
    pub(crate) path: PathBuf,
    /// Where to: a folder, whose parent must exist, or s3://bucket/name with keys, region and endpoint from the environment (AWS_ACCESS_KEY_ID
    /// and the like), in a build with the feature `s3`.
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    /// How long every commit can be restored. What is older is removed.
    #[arg(long, default_value = "30d", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) keep: Duration,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress on standard error.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
}

/// The arguments of `nofault restore`.
#[derive(Debug, Args)]
pub(crate) struct RestoreArguments {
    /// Where the database was shipped: a folder, or s3://bucket/name.
    #[arg(value_name = "ADDRESS")]
    pub(crate) from: String,
    /// The folder of the restored database. It must not exist, or be empty.
    #[arg(required_unless_present_any = ["list", "check"])]
    pub(crate) folder: Option<PathBuf>,
    /// Restore the newest commit of this time or before: 2026-11-26T08:15:00Z, milliseconds since 1970, or 90s, 15m, 24h or 7d
    /// ago. Without it and --commit, the newest commit of all.
    #[arg(long, value_parser = parse_time, value_name = "TIME")]
    pub(crate) time: Option<SystemTime>,
    /// Restore the state after this commit.
    #[arg(long, value_name = "NUMBER", conflicts_with = "time")]
    pub(crate) commit: Option<u64>,
    /// Restore nothing, and print what can be restored: the spans of time, and their commits.
    #[arg(long, conflicts_with_all = ["folder", "time", "commit", "check"])]
    pub(crate) list: bool,
    /// Restore nothing, and read and check all that was shipped; exit code 6 when anything is damaged.
    #[arg(long, conflicts_with_all = ["folder", "time", "commit"])]
    pub(crate) check: bool,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress on standard error.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
}

/// Parses a duration: 90s, 15m, 24h or 7d.
fn parse_duration(text: &str) -> Result<Duration, String> {
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

/// Parses a time in the past.
fn parse_time(text: &str) -> Result<SystemTime, String> {
    let wrong = || format!("'{text}' is no time; write 2026-11-26T08:15:00Z, 15m (ago), or milliseconds since 1970");
    if let Ok(ago) = parse_duration(text) {
        return SystemTime::now().checked_sub(ago).ok_or_else(wrong);
    }
    match text.parse() {
        Ok(ms) => time_of_ms(ms).ok_or_else(wrong),
        Err(_) => humantime::parse_rfc3339_weak(text).map_err(|_| wrong()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn times_are_read_as_people_write_them_and_as_they_are_printed() {
        let time = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        for text in ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14 22:13:20"] {
            assert_eq!(parse_time(text).unwrap(), time, "{text}");
        }
        assert_eq!(parse_time(&humantime::format_rfc3339_millis(time).to_string()).unwrap(), time);
        let ago = SystemTime::now().duration_since(parse_time("2h").unwrap()).unwrap();
        assert!((7200..7205).contains(&ago.as_secs()), "{ago:?}");
        for wrong in ["", "yesterday", "-5s", "99999999999999999999d", "18446744073709551615"] {
            assert!(parse_time(wrong).unwrap_err().contains("ago"), "{wrong}");
        }
        assert_eq!(parse_duration("7d").unwrap(), Duration::from_secs(7 * 86_400));
    }
}

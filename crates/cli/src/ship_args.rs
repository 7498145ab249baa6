//! The flags of `nofault ship` and `nofault restore`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::Args;

use crate::db_args::OpenArguments;
use crate::times::{parse_duration, parse_past};

/// The arguments of `nofault ship`.
#[derive(Debug, Args)]
pub(crate) struct ShipArguments {
    /// The database's folder.
    pub(crate) path: PathBuf,
    /// Where to: a folder outside the database, whose parent must exist, or s3://bucket/name in a build with the feature `s3`. S3 takes AWS_ACCESS_KEY_ID,
    /// AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and AWS_REGION from the environment, and for other servers AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or AWS_ENDPOINT.
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: OsString,
    /// How long every commit can be restored. Older objects are removed.
    #[arg(long, default_value = "30d", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) keep: Duration,
    /// Ship the whole database, and not only the commits that are new: after `restore --check` has found damage, and where the manifest is lost or damaged.
    #[arg(long)]
    pub(crate) whole: bool,
    /// Go on under this name although it has the history of another database, which stays until it is older than --keep.
    #[arg(long)]
    pub(crate) take_over: bool,
    /// Believe the clock although it is ahead of the time that has verifiably passed, and remove objects older than --keep by it.
    #[arg(long)]
    pub(crate) trust_clock: bool,
    /// End with the error of the store when it has taken nothing for so long, also while another shipper holds the lock of a folder. An error that does not
    /// pass by itself ends the command at once.
    #[arg(long, default_value = "10m", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) timeout: Duration,
    /// Ship to a store without locks or conditional puts. You promise that nothing else ships to this name at the same time.
    #[arg(long)]
    pub(crate) single_writer: bool,
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
    pub(crate) from: OsString,
    /// The folder of the restored database. It must not exist, or be empty.
    #[arg(required_unless_present_any = ["list", "check", "rebuild"])]
    pub(crate) folder: Option<PathBuf>,
    /// Restore the newest commit of this time or before: 2026-11-26T08:15:00Z, milliseconds since 1970, or 90s, 15m, 24h or 7d
    /// ago. Without it and --commit, the newest commit of all.
    #[arg(long, value_parser = parse_past, value_name = "TIME")]
    pub(crate) time: Option<SystemTime>,
    /// Restore the state after this commit.
    #[arg(long, value_name = "NUMBER", conflicts_with = "time")]
    pub(crate) commit: Option<u64>,
    /// Restore nothing, and print the points to restore: the spans of time, and their commits.
    #[arg(long, conflicts_with_all = ["folder", "time", "commit", "check"])]
    pub(crate) list: bool,
    /// Restore nothing, and read and check all that was shipped; exit code 6 when anything is damaged.
    #[arg(long, conflicts_with_all = ["folder", "time", "commit"])]
    pub(crate) check: bool,
    /// Restore nothing, and make a manifest of the copies of it and of the objects that are there, after it was lost, damaged or set back. Removes nothing, and fences a
    /// shipper that runs.
    #[arg(long, conflicts_with_all = ["folder", "time", "commit", "list", "check"])]
    pub(crate) rebuild: bool,
    /// Print as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print no progress on standard error.
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
}

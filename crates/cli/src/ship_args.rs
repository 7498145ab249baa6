//! The flags of `nofault ship` and `nofault restore`.

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
    /// Where to: a folder, whose parent must exist, or s3://bucket/name with keys, region and endpoint from the environment (AWS_ACCESS_KEY_ID
    /// and the like), in a build with the feature `s3`.
    #[arg(value_name = "ADDRESS")]
    pub(crate) to: String,
    /// How long every commit can be restored. What is older is removed.
    #[arg(long, default_value = "30d", value_parser = parse_duration, value_name = "TIME")]
    pub(crate) keep: Duration,
    /// Ship the whole database, and not only the commits that are new: after `restore --check` has found damage.
    #[arg(long)]
    pub(crate) whole: bool,
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
    #[arg(long, value_parser = parse_past, value_name = "TIME")]
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

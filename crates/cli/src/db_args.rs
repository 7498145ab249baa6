//! The flags of `nofault db`.

use std::path::PathBuf;
use std::time::SystemTime;

use clap::{Args, Subcommand, ValueEnum};
use nofault::settings::Compression;
use nofault_lab::config::parse_bytes;

use crate::lab_args::ResultArguments;
pub(crate) use crate::opening_args::{OpenArguments, ReadingArguments};
use crate::times::parse_expiry;

/// The arguments of `nofault db`: one of its commands.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  nofault db create shop --table stock
  nofault db put shop apples 12 --table stock
  nofault db scan shop --table stock --prefix app --limit 10
  nofault db compression shop fast --table stock && nofault db compact shop
  nofault db dump shop --out shop.ndjson && nofault db load copy --create --sorted < shop.ndjson
  nofault db verify shop
  nofault db get shop apples --table stock --read-only
  nofault db backup shop copy && nofault db check copy
  nofault db salvage broken rescued
  nofault db bench --dir /mnt/nvme get-tasks commit

Exit codes: 0 done, 1 the key is not there, 2 wrong call (no such database, no such table), 3 no rights, 4 no space,
5 in use by another process, 6 damaged, 7 not possible here, 8 wrong data was read, 9 the system failed,
10 a limit of the process or the machine (descriptors, threads, memory), 130 interrupted.")]
pub(crate) struct DbArguments {
    #[command(subcommand)]
    pub(crate) command: DbCommand,
}

/// The commands of `nofault db`.
#[derive(Debug, Subcommand)]
pub(crate) enum DbCommand {
    /// Create a database, with one table or several.
    Create {
        /// The database's folder; created if need be.
        path: PathBuf,
        /// Name of a table to create; may be repeated. By default the table `main` is created.
        #[arg(long, value_name = "NAME")]
        table: Vec<String>,
        /// Size of a page in bytes: 4096 to 65536, a power of two. Cannot be changed later.
        #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
        page: Option<u64>,
        /// A further folder, best on another device, over which the data file is striped too; may be repeated. Created
        /// if need be. The database's own folder records these paths, so only that folder is named to open it.
        #[arg(long, value_name = "FOLDER")]
        stripe_over: Vec<PathBuf>,
        /// Compression of the tables; `db compression` changes it later.
        #[arg(long, value_enum, default_value_t = TableCompression::None)]
        compression: TableCompression,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Print a database's tables, sizes and memory, and how its files are read on this machine.
    Stat {
        /// The database's folder.
        path: PathBuf,
        /// Count the entries of every table; this reads every table.
        #[arg(long)]
        count: bool,
        /// Estimate what compressing each table would save, from a megabyte of its pages.
        #[arg(long)]
        compressible: bool,
        /// Print as JSON. A path that is not UTF-8 stands as base64: and the base64 of its bytes.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// List, create, rename, empty and drop the tables of a database.
    Table(TableCommandArguments),
    /// Print the value of a key; exit code 1 when there is no such key.
    Get {
        /// The database's folder.
        path: PathBuf,
        /// The key; after -- it may begin with a hyphen.
        key: String,
        /// Write only the value's bytes, without encoding and without a line break.
        #[arg(long, conflicts_with_all = ["value_encoding", "json"])]
        raw: bool,
        /// Print a JSON object, as in a dump, with the time at which the entry expires, if it does.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        table: TableArguments,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// Set the value of a key. It is durable when the command ends.
    Put {
        /// The database's folder.
        path: PathBuf,
        /// The key; after -- it may begin with a hyphen.
        key: String,
        /// The value; if it is left out, all of standard input is the value, byte for byte.
        #[arg(allow_negative_numbers = true)]
        value: Option<String>,
        /// When the entry expires: 90s, 15m, 24h or 7d from now on, or milliseconds since 1970, as --json prints them. An
        /// entry put without it lasts, also where the entry before expired.
        #[arg(long, value_parser = parse_expiry, value_name = "TIME")]
        expires: Option<SystemTime>,
        /// Create the table if need be.
        #[arg(long)]
        create_table: bool,
        #[command(flatten)]
        table: TableArguments,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Delete keys; exit code 1 when one of them was not there. Durable when the command ends.
    Delete {
        /// The database's folder.
        path: PathBuf,
        /// The keys; after -- they may begin with a hyphen.
        #[arg(required = true)]
        keys: Vec<String>,
        #[command(flatten)]
        table: TableArguments,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Print entries in the order of their keys, one a line: key, tab, value.
    Scan {
        /// The database's folder.
        path: PathBuf,
        #[command(flatten)]
        scan: ScanArguments,
        #[command(flatten)]
        table: TableArguments,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// Load entries from a file or standard input. Entries committed before an interruption or an error stay, but for
    /// --create, which then leaves nothing.
    Load {
        /// The database's folder.
        path: PathBuf,
        /// The file to load; standard input by default.
        file: Option<PathBuf>,
        /// Create the database first; it is an error if there is one already. If loading fails, it is removed again.
        #[arg(long)]
        create: bool,
        /// Table of the entries naming no table (plain lines never name one). Missing tables are created.
        #[arg(long, default_value = "main", value_name = "NAME")]
        table: String,
        #[command(flatten)]
        form: FormArguments,
        /// Load past the log, several times faster. The input must be sorted by table and key; a table that holds entries
        /// is rewritten.
        #[arg(long)]
        sorted: bool,
        /// Number of entries in one durable commit.
        #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..), value_name = "COUNT", conflicts_with = "sorted")]
        batch: u64,
        /// Compression of tables that are created.
        #[arg(long, value_enum, default_value_t = TableCompression::None)]
        compression: TableCompression,
        /// Print no progress on standard error.
        #[arg(long, short)]
        quiet: bool,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Write all entries, as of one moment, to a file or to standard output.
    Dump {
        /// The database's folder.
        path: PathBuf,
        /// The file to write; standard output by default. An existing file is not overwritten.
        #[arg(long, short, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Dump only this table; may be repeated. All tables by default. Plain lines hold only one table.
        #[arg(long, value_name = "NAME")]
        table: Vec<String>,
        /// Form of the entries.
        #[arg(long, value_enum, default_value_t = Format::Ndjson)]
        format: Format,
        /// Print no progress on standard error.
        #[arg(long, short)]
        quiet: bool,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// Read every page and print all damage; exit code 6 when there is any. If one of the two superblocks is damaged,
    /// opening rewrites it from the other; this is printed and is no error.
    Verify {
        /// The database's folder.
        path: PathBuf,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// Write everything that can be read of a damaged database into a new one, and list what is lost: tables, ranges of
    /// keys, values, commits. The damaged database stays as it is. Exit code 6 when anything is lost. Entries that may be
    /// outdated, because the part of the page table naming their version is lost, go to separate tables.
    Salvage {
        /// The folder of the damaged database.
        source: PathBuf,
        /// The folder of the new database; created if need be, and removed again if the command fails.
        dest: PathBuf,
        /// Put entries that may be outdated into the tables of their names, where these lack them.
        #[arg(long)]
        unsure: bool,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        /// Print no progress on standard error.
        #[arg(long, short)]
        quiet: bool,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Read every page of a backup, or every line of a dump, and print all damage, without writing a byte there; exit
    /// code 6 when there is any. Works on media that cannot be written. No process may have the backup open.
    Check {
        /// The backup's folder, or a file that `db dump` wrote.
        #[arg(value_name = "BACKUP")]
        path: PathBuf,
        #[command(flatten)]
        form: FormArguments,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Move pages that random writes have scattered back together, in place, merge half-empty ones, and make the data
    /// file as short as its content allows. It may be interrupted and run again at any time. A database that is open in
    /// a program does the second by itself.
    Compact {
        /// The database's folder.
        path: PathBuf,
        /// Only make the data file shorter, and leave the order of the pages as it is.
        #[arg(long)]
        shrink: bool,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        /// Print no progress on standard error.
        #[arg(long, short)]
        quiet: bool,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Print the compression of a table, or set it. Pages already in the file stay as they are until they
    /// change, or until `db compact` rewrites them.
    Compression {
        /// The database's folder.
        path: PathBuf,
        /// The new compression; if it is left out, the present one is printed.
        compression: Option<TableCompression>,
        /// Name of the table.
        #[arg(long, default_value = "main", value_name = "NAME")]
        table: String,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Show the work of a running database: commits, reads, memory. The process that has it open must serve its counters, as
    /// the long commands of this program do, and applications with the setting `stats_socket`.
    Top {
        /// The database's folder.
        path: PathBuf,
        /// Time between two looks, in seconds.
        #[arg(long, short, default_value_t = 1.0, value_name = "SECONDS", value_parser = parse_interval)]
        interval: f64,
        /// Stop after this number of looks. By default they go on until the database is closed, and --json looks once.
        #[arg(long, short = 'n', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
        count: Option<u64>,
        /// Print the counters as a JSON object a line.
        #[arg(long)]
        json: bool,
    },
    /// Copy the present state of a database into a new, compact one.
    Backup {
        /// The database's folder.
        path: PathBuf,
        /// The folder of the new database; created if need be.
        to: PathBuf,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// Measure the engine, the raw device and the engine's rivals, as a run of the lab with one experiment.
    Bench(BenchArguments),
}

/// The table of a command, and how keys and values are written on the command line and in the output.
#[derive(Debug, Args)]
pub(crate) struct TableArguments {
    /// Name of the table.
    #[arg(long, default_value = "main", value_name = "NAME")]
    pub(crate) table: String,
    /// How keys are written, on the command line and in the output.
    #[arg(long, value_enum, default_value_t = Encoding::Text, value_name = "ENCODING")]
    key_encoding: Encoding,
    /// How values are written, on the command line and in the output.
    #[arg(long, value_enum, default_value_t = Encoding::Text, value_name = "ENCODING")]
    value_encoding: Encoding,
    /// Write keys and values in hexadecimal, on the command line and in the output.
    #[arg(long, conflicts_with_all = ["key_encoding", "value_encoding"])]
    hex: bool,
}

impl TableArguments {
    /// Returns the encoding of keys.
    pub(crate) fn of_keys(&self) -> Encoding {
        if self.hex { Encoding::Hex } else { self.key_encoding }
    }

    /// Returns the encoding of values.
    pub(crate) fn of_values(&self) -> Encoding {
        if self.hex { Encoding::Hex } else { self.value_encoding }
    }
}

/// The part of a table that `nofault db scan` prints, and its form.
#[derive(Debug, Args)]
pub(crate) struct ScanArguments {
    /// First key to print.
    #[arg(long, allow_hyphen_values = true, value_name = "KEY")]
    pub(crate) from: Option<String>,
    /// First key after the range: printing stops before it.
    #[arg(long, allow_hyphen_values = true, value_name = "KEY")]
    pub(crate) to: Option<String>,
    /// Print only keys beginning with this prefix.
    #[arg(long, allow_hyphen_values = true, conflicts_with_all = ["from", "to"])]
    pub(crate) prefix: Option<String>,
    /// Print from the last key to the first.
    #[arg(long)]
    pub(crate) reverse: bool,
    /// Stop after this number of entries.
    #[arg(long, value_name = "COUNT")]
    pub(crate) limit: Option<u64>,
    /// Print keys without values.
    #[arg(long)]
    pub(crate) keys_only: bool,
    /// Print a JSON object a line, as in a dump; `db load` reads them. Only this form has the time at which an entry expires.
    #[arg(long, conflicts_with_all = ["key_encoding", "value_encoding"])]
    pub(crate) json: bool,
}

/// The arguments of `nofault db table`: one of its commands.
#[derive(Debug, Args)]
pub(crate) struct TableCommandArguments {
    #[command(subcommand)]
    pub(crate) command: TableCommand,
}

/// The commands of `nofault db table`.
#[derive(Debug, Subcommand)]
pub(crate) enum TableCommand {
    /// Print the tables with their compression and an estimate of their entries and bytes.
    List {
        /// The database's folder.
        path: PathBuf,
        /// Print as JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        open: ReadingArguments,
    },
    /// Create tables. If there is one of these names already, none is created.
    Create {
        /// The database's folder.
        path: PathBuf,
        /// The names of the tables.
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
        /// Compression of the tables; `db compression` changes it later.
        #[arg(long, value_enum, default_value_t = TableCompression::None)]
        compression: TableCompression,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Give a table another name. Nothing is copied.
    Rename {
        /// The database's folder.
        path: PathBuf,
        /// The name of the table.
        name: String,
        /// Its new name, which no table has.
        to: String,
        #[command(flatten)]
        open: OpenArguments,
    },
    /// Delete all entries of tables, which stay. If one of them does not exist, nothing is deleted.
    Clear {
        #[command(flatten)]
        doomed: DoomedTables,
    },
    /// Remove tables with all their entries. If one of them does not exist, nothing is removed.
    Drop {
        #[command(flatten)]
        doomed: DoomedTables,
    },
}

/// The tables whose entries are to be lost.
#[derive(Debug, Args)]
pub(crate) struct DoomedTables {
    /// The database's folder.
    pub(crate) path: PathBuf,
    /// The names of the tables.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Do not ask for confirmation. Needed where standard input is no terminal.
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) open: OpenArguments,
}

/// How the bytes of keys and values are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Encoding {
    /// As text. \t, \n, \r, \\ and \xNN stand for bytes that would break a line, act on the terminal or are not UTF-8;
    /// they are read as they are printed.
    Text,
    /// In hexadecimal: 0x00ff.
    Hex,
    /// In base64, padded.
    Base64,
}

/// The compression of a table, as it is written on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TableCompression {
    /// Each page takes a block alone in the data file.
    None,
    /// LZ4: several pages share a block; reading a page from the file costs about a microsecond more.
    Fast,
    /// Zstandard with a dictionary trained from the table: takes the least space; reading a page from the file
    /// costs two or three microseconds more.
    Small,
}

impl From<TableCompression> for Compression {
    fn from(compression: TableCompression) -> Self {
        match compression {
            TableCompression::None => Self::None,
            TableCompression::Fast => Self::Fast,
            TableCompression::Small => Self::Small,
        }
    }
}

/// The form of the entries in a dump.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// One JSON object a line, and nothing else: {"table":…,"key":…,"value":…}, or {"table":…} alone for a table that may be
    /// empty; "key_base64" and "value_base64" for bytes that are not UTF-8; "expires_ms", in milliseconds since 1970, for an
    /// entry that expires.
    Ndjson,
    /// Key, tab, value; \t, \n, \r, \\ and \xNN stand for bytes that would break a line, act on the terminal or are not
    /// UTF-8.
    Lines,
}

/// The form of entries that are read.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct FormArguments {
    /// Form of the entries. A byte order mark at the start is left out, and a line ends with LF or CRLF.
    #[arg(long, value_enum, default_value_t = Format::Ndjson)]
    pub(crate) format: Format,
    /// Take every byte of plain lines as data: a byte order mark belongs to the first key, and carriage returns to the keys and values in
    /// which they stand. Without it carriage returns in keys and values are to be written as \\r, as `db dump` does.
    #[arg(long)]
    pub(crate) exact: bool,
    /// Longest line that is read. Several times as much memory is needed for a line of this length.
    #[arg(long, value_parser = parse_bytes, default_value = "512MiB", value_name = "SIZE")]
    pub(crate) line_max: u64,
}

/// The flags of `nofault db bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// The kinds of work to measure. --list prints them, and which of them are measured only when they are named, as they
    /// take longer than all others together. By default all others.
    #[arg(value_name = "WORK")]
    pub(crate) works: Vec<String>,
    /// Print the kinds of work, and stop.
    #[arg(long)]
    pub(crate) list: bool,
    /// Folder on the file system to be measured. Databases and results lie in a folder nofault-lab inside it; only the
    /// results stay.
    #[arg(long, default_value = ".")]
    pub(crate) dir: PathBuf,
    /// Bytes of the data sets that do not fit in the cache.
    #[arg(long, value_parser = parse_bytes, default_value = "128MiB", value_name = "SIZE")]
    pub(crate) size: u64,
    /// Number of keys in the data set that is all in memory.
    #[arg(long, default_value_t = 200_000, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) memory_keys: u64,
    /// Cache of the databases that do not fit in it; an eighth of --size by default, and at least 1 MiB.
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) cache: Option<u64>,
    /// Memory limit, page cache included, of the processes with data larger than memory, where a memory cgroup can be
    /// made. By default, and at least, 1.3 times --cache plus 64 MiB.
    #[arg(long, value_parser = parse_bytes, value_name = "SIZE")]
    pub(crate) limit: Option<u64>,
    /// Bytes of a value; several sizes as in 100,1000.
    #[arg(long, value_delimiter = ',', default_value = "100,1000", value_name = "BYTES", value_parser = clap::value_parser!(u32).range(16..=65536))]
    pub(crate) values: Vec<u32>,
    /// Size of the log of the database reopened after a crash.
    #[arg(long, value_parser = parse_bytes, default_value = "16MiB", value_name = "SIZE")]
    pub(crate) log: u64,
    /// Longest time of one measurement, in seconds.
    #[arg(long, default_value_t = 0.5, value_name = "SECONDS")]
    pub(crate) seconds: f64,
    /// How often each work is measured; the stores alternate.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), value_name = "COUNT")]
    pub(crate) repeats: u32,
    /// Seed of keys, values and their order.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    #[command(flatten)]
    pub(crate) results: ResultArguments,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if (0.05..=86_400.0).contains(&seconds) { Ok(seconds) } else { Err("from 0.05 to 86400 seconds".into()) }
}

//! `nofault db`, `ship`, `restore`, `man` and `completions` from a user's point of view: the program is run, and its output and exit code are
//! checked.

#[path = "db/check.rs"]
mod check;
#[path = "db/containers.rs"]
mod containers;
#[path = "db/entries.rs"]
mod entries;
#[path = "db/foreign_text.rs"]
mod foreign_text;
#[path = "db/limits.rs"]
mod limits;
#[path = "db/loading.rs"]
mod loading;
#[path = "db/manual.rs"]
mod manual;
#[path = "db/nonsense.rs"]
mod nonsense;
#[path = "db/read_only.rs"]
mod read_only;
#[path = "db/salvage.rs"]
mod salvage;
#[path = "db/ship.rs"]
mod ship;
#[path = "db/signals.rs"]
mod signals;
#[path = "db/table_commands.rs"]
mod table_commands;
#[path = "db/top.rs"]
mod top;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use nofault::blocking::Db;
use nofault::settings::{CompactionMode, Settings};
use nofault::{Batch, Durability};
use nofault_sim::depth::by_depth;

/// Runs `nofault db …` in `folder`, with `input` on standard input.
fn db_with(folder: &Path, arguments: &[&str], input: &[u8]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .arg("db")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // A child that does not read its input may close it.
    let feeder = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("it ends");
    feeder.join().expect("it feeds");
    output
}

fn db(folder: &Path, arguments: &[&str]) -> Output {
    db_with(folder, arguments, b"")
}

/// The output of a command, after checking that it ended with the exit code `code`.
fn said(output: &Output, code: i32) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
    if code == 0 { text(&output.stdout) } else { text(&output.stderr) }
}

#[test]
fn a_database_over_several_folders_is_opened_by_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "shop", "--stripe-over", "second", "--stripe-over", "third"]), 0);
    let rows: String = (0..80_000).map(|row| format!("{row:08}\t{:0100}\n", row * 7)).collect();
    said(&db_with(folder.path(), &["load", "shop", "--format", "lines", "--sorted"], rows.as_bytes()), 0);
    for part in ["second", "third"] {
        let held = std::fs::read_dir(folder.path().join(part)).unwrap();
        let bytes: u64 = held.map(|file| file.unwrap().metadata().unwrap().len()).sum();
        assert!(bytes > 1 << 20, "{bytes} bytes in {part}");
    }
    let stat: serde_json::Value = serde_json::from_str(&said(&run(&["stat", "shop", "--count", "--json"]), 0)).unwrap();
    assert_eq!(stat["disk"]["kind"], "striped");
    assert_eq!(stat["tables"]["main"], 80_000);
    assert!(stat["data_bytes"].as_u64() > Some(4 << 20), "{stat}");
    assert!(stat["pages_hit"].as_u64() > Some(0), "{stat}");
    std::fs::rename(folder.path().join("third"), folder.path().join("elsewhere")).unwrap();
    assert!(said(&run(&["get", "shop", "00000001"]), 6).contains("third"));
    let refused = run(&["create", "other", "--stripe-over", "shop/data/x"]);
    assert!(
        !refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("shop/data/x"),
        "{refused:?}"
    );
}

#[test]
fn an_entry_that_is_put_is_found_scanned_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    assert!(said(&run(&["get", "shop", "pears"]), 2).contains("no database in shop"));
    said(&run(&["create", "shop", "--table", "stock"]), 0);
    assert!(said(&run(&["create", "shop"]), 2).contains("open it"));
    assert!(said(&run(&["put", "shop", "pears", "3"]), 2).contains("its tables are: stock"));
    for (key, value) in [("pears", "3"), ("apples", "12"), ("plums", "-4")] {
        said(&run(&["put", "shop", key, value, "--table", "stock"]), 0);
    }
    said(
        &db_with(folder.path(), &["put", "shop", "0x00ff", "--key-encoding", "hex", "--table", "stock"], b"a\tb\n\xff"),
        0,
    );
    let scan = |flags: &[&str]| said(&run(&[&["scan", "shop", "--table", "stock"], flags].concat()), 0);
    assert_eq!(scan(&[]), "\\x00\\xff\ta\\tb\\n\\xff\napples\t12\npears\t3\nplums\t-4\n");
    assert_eq!(scan(&["--from", "apples", "--to", "plums", "--reverse"]), "pears\t3\napples\t12\n");
    assert_eq!(scan(&["--prefix", "p", "--limit", "1", "--keys-only"]), "pears\n");
    assert_eq!(scan(&["--limit", "1", "--key-encoding", "hex", "--value-encoding", "base64"]), "0x00ff\tYQliCv8=\n");
    assert_eq!(said(&run(&["get", "shop", "apples", "--table", "stock", "--raw"]), 0), "12");
    assert!(said(&run(&["delete", "shop", "apples", "cherries", "--table", "stock"]), 1).contains("cherries"));
    assert!(said(&run(&["get", "shop", "apples", "--table", "stock"]), 1).contains("no key apples"));
    assert!(said(&run(&["get", "shop", "0xabc", "--table", "stock", "--key-encoding", "hex"]), 2).contains("pairs"));
    let stat: serde_json::Value = serde_json::from_str(&said(&run(&["stat", "shop", "--count", "--json"]), 0)).unwrap();
    assert_eq!(stat["tables"]["stock"], 3);
    assert_eq!(stat["page_bytes"], 4096);
    assert!(said(&run(&["stat", "shop"]), 0).contains("stock"));
}

#[test]
fn a_dump_loaded_again_by_every_way_gives_the_same_dump() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let mut lines = String::from("{\"table\":\"empty\"}\n");
    for number in 0..by_depth(1000, 3000) {
        let long = "x".repeat(number % 50 * 100);
        lines += &format!("{{\"table\":\"t\",\"key\":\"{number:06}\",\"value\":\"{number}{long}\"}}\n");
    }
    lines += "{\"table\":\"u\",\"key_base64\":\"/w==\",\"value\":\"\\t\\n\"}\n";
    said(&db_with(folder.path(), &["load", "a", "--create", "--batch", "700", "-q"], lines.as_bytes()), 0);
    assert!(said(&db_with(folder.path(), &["load", "a", "--create"], b""), 2).contains("already"));
    let first = said(&run(&["dump", "a", "-q"]), 0);
    assert_eq!(first.lines().count(), lines.lines().count() + 2, "a line for each table and entry");
    said(&run(&["dump", "a", "--out", "a.ndjson"]), 0);
    assert!(!run(&["dump", "a", "--out", "a.ndjson"]).status.success(), "an existing file is not overwritten");
    said(&run(&["load", "b", "a.ndjson", "--create", "--sorted"]), 0);
    assert!(said(&run(&["dump", "b", "-q"]), 0) == first);
    said(&run(&["backup", "b", "c"]), 0);
    assert!(said(&run(&["dump", "c", "-q"]), 0) == first);
    assert_eq!(said(&run(&["backup", "b", "c"]), 2).lines().count(), 1);
    for name in ["a", "b", "c"] {
        said(&run(&["verify", name]), 0);
    }

    assert!(said(&run(&["dump", "a", "--format", "lines"]), 2).contains("--table"));
    let plain = said(&run(&["dump", "a", "--format", "lines", "--table", "u", "-q"]), 0);
    assert_eq!(plain, "\\xff\t\\t\\n\n");
    said(&db_with(folder.path(), &["load", "b", "--format", "lines", "--table", "v"], plain.as_bytes()), 0);
    assert_eq!(said(&run(&["dump", "b", "--format", "lines", "--table", "v", "-q"]), 0), plain);
}

#[test]
fn a_table_is_compressed_in_any_way_converted_and_gives_the_same_dump() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| said(&db(folder.path(), arguments), 0);
    let stat = |path: &str| serde_json::from_str::<serde_json::Value>(&run(&["stat", path, "--json"])).unwrap();
    let line = |row: u32| {
        let state = ["accepted by the warehouse", "returned by the customer", "shipped"][row as usize % 3];
        let value = format!("order {row}, customer {:x}, {state}", row.wrapping_mul(2_654_435_761));
        format!("{{\"table\":\"main\",\"key\":\"{row:08}\",\"value\":\"{value}\"}}\n")
    };
    let rows: String = (0..30_000).map(line).collect();
    std::fs::write(folder.path().join("rows"), &rows).unwrap();
    let (mut sizes, mut dumps) = (Vec::new(), Vec::new());
    let compression = |path: &str| run(&["compression", path]).trim().to_owned();
    for (number, codec) in ["none", "fast", "small"].into_iter().enumerate() {
        let load: &[&str] = &["load", codec, "rows", "--create", "--compression", codec, "--quiet", "--sorted"];
        // Loaded in batches as well as sorted.
        run(&load[..load.len() - number % 2]);
        assert_eq!(compression(codec), codec);
        dumps.push(run(&["dump", codec, "-q"]));
        let found = stat(codec);
        assert_eq!(found["compression"]["main"].as_str(), (codec != "none").then_some(codec), "{found}");
        assert!(found["data_bytes_live"].as_u64() > Some(1 << 16) && found["data_bytes_free"].is_u64(), "{found}");
        sizes.push(found["data_bytes_used"].as_u64().unwrap());
    }
    assert!(sizes[2] * 2 < sizes[0] && sizes[1] < sizes[0], "{sizes:?}");
    let estimate = &serde_json::from_str::<serde_json::Value>(&run(&["stat", "none", "--compressible", "--json"]))
        .unwrap()["compressible"]["main"];
    for (codec, size) in [("small", sizes[2]), ("fast", sizes[1])] {
        let (expected, found) = (estimate[codec].as_f64().unwrap(), size as f64 / sizes[0] as f64);
        // Partly empty blocks and pages that are not compressed come on top.
        assert!(expected < found && found < expected * 1.5, "{codec}: {expected}, and it is {found}");
    }
    assert!(run(&["stat", "none", "--compressible"]).contains("compressible main to "));
    assert!(dumps[0].ends_with(&rows) && dumps.iter().all(|dump| *dump == dumps[0]));
    let codecs: &[&str] = by_depth(&["none", "small"], &["none", "small", "fast", "small"]);
    for &codec in codecs {
        run(&["compression", "small", codec]);
        run(&["compact", "small", "--quiet"]);
        assert!(compression("small") == codec && run(&["dump", "small", "-q"]) == dumps[0], "{codec}");
        assert_eq!(stat("small")["pages_compressed"].as_u64() > Some(0), codec != "none");
        run(&["verify", "small"]);
    }
    run(&["backup", "small", "copy"]);
    assert!(compression("copy") == "small" && run(&["dump", "copy", "-q"]) == dumps[0]);
    assert!(run(&["stat", "copy"]).contains("compressed tables: main (small)"));
    assert!(said(&db(folder.path(), &["compression", "copy", "--table", "x"]), 2).contains("no table"));
    assert!(said(&db(folder.path(), &["compression", "copy", "smaller"]), 2).contains("smaller"));
}

#[test]
fn wrong_input_is_reported_by_its_line_and_earlier_entries_stay() {
    let folder = tempfile::tempdir().unwrap();
    let good = "{\"key\":\"a\",\"value\":\"1\"}\n";
    let bad = format!("{good}{{\"key\":\"b\"}}\n");
    for sorted in [false, true] {
        let name = if sorted { "sorted" } else { "plain" };
        let way = if sorted { &["--sorted"][..] } else { &["--batch", "1"] };
        let load = |more: &[&str]| db_with(folder.path(), &[&["load", name][..], way, more].concat(), bad.as_bytes());
        let error = said(&load(&["--create"]), 2);
        assert!(error.contains("standard input, line 2: has no value") && error.contains("removed"), "{error}");
        assert!(!folder.path().join(name).exists(), "a failed creation leaves nothing");
        said(&db(folder.path(), &["create", name]), 0);
        let error = said(&load(&[]), 2);
        assert!(error.contains("standard input, line 2: has no value"), "{error}");
        assert_eq!(said(&db(folder.path(), &["scan", name]), 0), "a\t1\n");
    }
    let unsorted = "{\"key\":\"b\",\"value\":\"\"}\n{\"key\":\"a\",\"value\":\"\"}\n";
    said(&db(folder.path(), &["create", "u"]), 0);
    let error = said(&db_with(folder.path(), &["load", "u", "--sorted"], unsorted.as_bytes()), 2);
    assert!(error.contains("ascending"), "{error}");
    assert_eq!(said(&db(folder.path(), &["scan", "u"]), 0), "");
}

#[test]
fn damage_is_printed_page_by_page_and_has_its_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..5000).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:090}\"}}\n")).collect();
    said(&db_with(folder.path(), &["load", "d", "--create", "--sorted", "-q"], lines.as_bytes()), 0);
    let path = folder.path().join("d/data");
    let mut data = std::fs::read(&path).unwrap();
    let broken: Vec<_> = (0..data.len() / 4096)
        .filter(|block| data[block * 4096..][..4096].windows(4).any(|found| found == b"0004"))
        .skip(20)
        .take(2)
        .collect();
    assert_eq!(broken.len(), 2, "the data file has leaves to break");
    broken.iter().for_each(|block| data[block * 4096 + 2000] ^= 1);
    std::fs::write(&path, data).unwrap();
    let output = db(folder.path(), &["verify", "d"]);
    said(&output, 6);
    let printed = String::from_utf8(output.stdout).unwrap();
    let pages = printed.lines().filter(|line| line.contains("page")).count();
    assert!(pages >= 2, "{printed}");
    let report: serde_json::Value =
        serde_json::from_slice(&db(folder.path(), &["verify", "d", "--json"]).stdout).unwrap();
    assert_eq!(report["clean"], false);
    assert!(report["problems"].as_array().unwrap().iter().all(|problem| problem["page"].is_u64()), "{report}");
    assert!(said(&db(folder.path(), &["dump", "d", "-q"]), 6).contains("page"));
    // The entries before the damage are printed, each on a whole line.
    let output = db(folder.path(), &["scan", "d"]);
    said(&output, 6);
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.ends_with('\n') && printed.lines().all(|line| line.len() == 8 + 1 + 90), "{printed}");
    assert!(printed.lines().enumerate().all(|(n, line)| line.starts_with(&format!("{n:08}"))) && !printed.is_empty());
    said(&db(folder.path(), &["get", "d", &format!("{:08}", printed.lines().count())]), 6);
}

#[test]
fn verify_names_a_superblock_that_was_damaged_and_nothing_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..500).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:09}\"}}\n")).collect();
    said(&db_with(folder.path(), &["load", "d", "--create", "--sorted", "-q"], lines.as_bytes()), 0);
    said(&db(folder.path(), &["backup", "d", "copy"]), 0);
    let path = folder.path().join("copy/data");
    for (start, name) in [(0, "superblock A at 0"), (65_536, "superblock B at 65536")] {
        for json in [false, true] {
            let mut data = std::fs::read(&path).unwrap();
            data[start + 3000] ^= 4;
            std::fs::write(&path, data).unwrap();
            let printed =
                said(&db(folder.path(), if json { &["verify", "copy", "--json"] } else { &["verify", "copy"] }), 0);
            assert!(printed.contains(name), "{printed}");
            // By then the superblock has been rewritten.
            assert!(!said(&db(folder.path(), &["verify", "copy"]), 0).contains("superblock"));
        }
        assert_eq!(said(&db(folder.path(), &["scan", "copy"]), 0).lines().count(), 500);
    }
}

#[test]
fn a_broken_pipe_is_no_error_and_a_second_process_is_refused_with_the_first_ones_id() {
    let folder = tempfile::tempdir().unwrap();
    let lines: String = (0..20_000).map(|n| format!("{{\"key\":\"{n:08}\",\"value\":\"{n:090}\"}}\n")).collect();
    said(&db_with(folder.path(), &["load", "d", "--create", "--sorted", "-q"], lines.as_bytes()), 0);
    for command in ["scan", "dump"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
            .args(["db", command, "d"])
            .current_dir(folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert!(!line.is_empty());
        // The dump cannot end while its pipe is full: now it certainly has the database open.
        let busy = said(&db(folder.path(), &["get", "d", "00000001"]), 5);
        assert!(busy.contains(&child.id().to_string()), "{busy}");
        drop(reader);
        assert!(child.wait().unwrap().success(), "{command}");
    }
}

#[test]
fn a_failed_load_reports_the_entries_that_are_in_the_database() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..25).map(|row| format!("{{\"key\":\"{row:02}\",\"value\":\"v\"}}\n")).collect();
    let input = rows + "nonsense\n";
    said(&db(folder.path(), &["create", "d"]), 0);
    let told = said(&db_with(folder.path(), &["load", "d", "--batch", "10"], input.as_bytes()), 2);
    assert!(told.contains("loaded: 20 entries") && told.contains("line 26"), "{told}");
    assert_eq!(said(&db(folder.path(), &["scan", "d"]), 0).lines().count(), 20);
}

#[test]
fn an_interrupted_load_ends_with_its_code_and_leaves_a_sound_database() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    let before = folder.path().join("d/log").metadata().unwrap().modified().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(["db", "load", "d", "--batch", "10"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let line = |number: u64| format!("{{\"key\":\"{number:08}\",\"value\":\"v\"}}\n");
    (0..2000).for_each(|number| stdin.write_all(line(number).as_bytes()).unwrap());
    stdin.flush().unwrap();
    // The log is written, so the handler has long been installed.
    while folder.path().join("d/log").metadata().unwrap().modified().unwrap() == before {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    std::thread::sleep(std::time::Duration::from_millis(100));
    // The flag is checked before each line: the next one wakes the command.
    let _ = stdin.write_all(line(2000).as_bytes());
    drop(stdin);
    assert!(said(&child.wait_with_output().unwrap(), 130).contains("loaded: "));
    said(&db(folder.path(), &["verify", "d"]), 0);
}

/// Starts `nofault db` with an input that does not end, waits until it handles Ctrl-C and has taken its input, and sends it SIGINT.
/// Returns exit code and messages.
fn interrupted(folder: &Path, arguments: &[&str], input: &[u8]) -> (Option<i32>, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .arg("db")
        .args(arguments)
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(input).expect("it takes its input");
    let handles = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it lives");
        let caught =
            status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("its signals").trim().to_owned();
        u64::from_str_radix(&caught, 16).expect("a set of signals") & (1 << 1) != 0
    };
    while !handles() || rustix::io::ioctl_fionread(&stdin).expect("the length of a pipe") > 0 {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().is_ok_and(|status| status.success()));
    // A command that does not end is killed, and then has no exit code.
    let mut tries = 0;
    while child.try_wait().expect("it can be waited for").is_none() {
        tries += 1;
        if tries > 1000 {
            child.kill().expect("it can be killed");
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn one_ctrl_c_ends_a_command_that_waits_for_its_input_and_nothing_is_half_written() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    let (code, told) = interrupted(folder.path(), &["put", "d", "key"], b"half a val");
    assert_eq!((code, told.contains("nofault: interrupted")), (Some(130), true), "{told}");
    said(&db(folder.path(), &["get", "d", "key"]), 1);
    let (code, told) = interrupted(folder.path(), &["put", "d", "key", "--table", "new", "--create-table"], b"v");
    assert_eq!(code, Some(130), "{told}");
    assert!(said(&db(folder.path(), &["get", "d", "key", "--table", "new"]), 2).contains("its tables are: main"));
    let (code, told) =
        interrupted(folder.path(), &["load", "d", "--batch", "1"], b"{\"key\":\"a\",\"value\":\"v\"}\n{\"key\"");
    assert_eq!(code, Some(130), "{told}");
    assert!(told.contains("nofault: interrupted"), "{told}");
    said(&db(folder.path(), &["verify", "d"]), 0);
}

#[test]
fn compaction_puts_pages_together_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let lines = |table: &str, stamp: &str, numbers: &mut dyn Iterator<Item = u64>| {
        let value = stamp.repeat(100);
        numbers.fold(String::new(), |text, number| {
            text + &format!("{{\"table\":\"{table}\",\"key\":\"{number:06}\",\"value\":\"{value}\"}}\n")
        })
    };
    let load = |text: &str, more: &[&str]| {
        said(&db_with(folder.path(), &[&["load", "a", "-q"], more].concat(), text.as_bytes()), 0);
    };
    load(&lines("t", "x", &mut (0..20_000)), &["--create", "--sorted"]);
    for round in 0..12 {
        load(&lines("t", "y", &mut (0..60).map(|at| (at + round * 60) * 7919 % 20_000)), &[]);
        // Filling a table past the log ends in a checkpoint, so the rewritten pages move to other blocks.
        load(&lines(&format!("u{round}"), "z", &mut (0..1)), &["--sorted"]);
    }
    let before = said(&run(&["dump", "a", "-q"]), 0);
    let answer: serde_json::Value = serde_json::from_str(&said(&run(&["compact", "a", "--json", "-q"]), 0)).unwrap();
    let count = |name: &str| answer[name].as_u64().unwrap();
    assert!(count("pages") > 500 && count("pages_moved") > 0, "{answer}");
    assert!(count("fragments_after") * 4 < count("fragments_before"), "{answer}");
    assert_eq!(said(&run(&["dump", "a", "-q"]), 0), before);
    said(&run(&["verify", "a"]), 0);
    let again: serde_json::Value = serde_json::from_str(&said(&run(&["compact", "a", "--json", "-q"]), 0)).unwrap();
    assert_eq!(again["pages_moved"], 0, "{again}");
    assert!(said(&run(&["compact", "nowhere"]), 2).contains("no database"));
}

#[test]
fn stat_says_how_many_bytes_can_be_given_back_and_shrinking_gives_them_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a");
    let settings = Settings { compaction: CompactionMode::Manual, ..Settings::default() };
    let made = Db::create(&path, &settings).unwrap();
    let table = made.create_table("t").unwrap();
    let rows = by_depth(15_000, 60_000u32);
    table.bulk_load((0..rows).map(|key| (key.to_be_bytes(), [7; 300]))).unwrap();
    for first in (0..rows).step_by(1000) {
        let mut batch = Batch::new();
        for key in (first..first + 1000).filter(|key| key % 10 != 0) {
            batch.delete(&table, key.to_be_bytes());
        }
        made.write(batch, Durability::Deferred).unwrap();
    }
    drop(table);
    made.close().unwrap();
    let length = || path.join("data").metadata().unwrap().len();
    let excess = || {
        let answer: serde_json::Value =
            serde_json::from_str(&said(&db(folder.path(), &["stat", "a", "--json"]), 0)).unwrap();
        answer["data_bytes_excess"].as_u64().unwrap()
    };
    let before = length();
    assert!(excess() > before / 2, "{} of {before} bytes", excess());
    assert!(said(&db(folder.path(), &["stat", "a"]), 0).contains("can be given back (`db compact --shrink`)"));
    said(&db(folder.path(), &["compact", "a", "--shrink", "-q"]), 0);
    assert_eq!(excess(), 0);
    assert!(length() < before / 3, "{before} bytes, then {}", length());
    assert!(!said(&db(folder.path(), &["stat", "a"]), 0).contains("can be given back"));
}

#[test]
fn a_database_that_has_outgrown_its_cache_is_opened_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let rows: String = (0..250_000).map(|row| format!("{row:08}\t{:0400}\n", row * 7)).collect();
    let load = ["load", "shop", "--create", "--format", "lines", "--sorted", "-q", "--cache", "1MiB"];
    said(&db_with(folder.path(), &load, rows.as_bytes()), 0);
    let warned = |arguments: &[&str]| {
        let output = db(folder.path(), arguments);
        let said = said(&output, 0);
        (said, String::from_utf8_lossy(&output.stderr).contains("more than the cache of 1 MiB"))
    };
    let (stat, is_warned) = warned(&["stat", "shop", "--json", "--cache", "1MiB"]);
    let stat: serde_json::Value = serde_json::from_str(&stat).unwrap();
    assert_eq!(stat["cache_bytes"], 1 << 20);
    let (memory, over) = (stat["memory_bytes"].as_u64().unwrap(), stat["memory_over_bytes"].as_u64().unwrap());
    assert!(is_warned && over > 0 && memory == over + (1 << 20), "{stat}");
    assert!(warned(&["get", "shop", "00000007", "--cache", "1MiB"]).1);
    let (value, is_warned) = warned(&["get", "shop", "00000007"]);
    assert!(!is_warned && value.trim().len() == 400, "{value}");
}

/// The printable characters of `text`, without escape sequences.
fn shown(text: &str) -> String {
    let mut parts = text.split('\x1b');
    let first = parts.next().unwrap_or_default().to_owned();
    parts
        .fold(first, |shown, part| shown + part.split_once(|end: char| end.is_ascii_alphabetic()).unwrap_or_default().1)
}

/// The terminal would wrap a longer line, and each update would then leave a part of the one before on the screen.
#[test]
fn the_meter_of_a_load_stays_within_the_width_of_its_terminal() {
    const COLUMNS: usize = 30;
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("input");
    assert!(Command::new("mkfifo").arg(&input).status().unwrap().success());
    let program = env!("CARGO_BIN_EXE_nofault");
    let command = format!("stty rows 20 cols {COLUMNS} && {program} db load d --create --batch 500 input");
    let mut script = Command::new("script");
    script.args(["-qec", &command, "/dev/null"]).env("TERM", "xterm").current_dir(folder.path());
    let Ok(mut child) = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        println!("left out: there is no program 'script' to make a terminal");
        return;
    };
    let (is_seen, seen) = std::sync::mpsc::channel::<()>();
    let feeder = std::thread::spawn(move || {
        let mut input = std::fs::File::options().write(true).open(input).unwrap();
        for row in 0_u64.. {
            // The meter prints nothing before a quarter of a second and 1,024 entries have passed.
            if row.is_multiple_of(1024) && seen.recv_timeout(std::time::Duration::from_millis(20)).is_ok() {
                return;
            }
            writeln!(input, "{{\"key\":\"{row:08}\",\"value\":\"v\"}}").unwrap();
        }
    });
    let (mut from, mut said) = (child.stdout.take().unwrap(), Vec::new());
    while !String::from_utf8_lossy(&said).contains("loaded: ") {
        let mut some = [0; 256];
        let count = from.read(&mut some).unwrap();
        assert!(count > 0, "it shows a line: {}", String::from_utf8_lossy(&said));
        said.extend(&some[..count]);
    }
    is_seen.send(()).unwrap();
    feeder.join().unwrap();
    from.read_to_end(&mut said).unwrap();
    assert!(child.wait().unwrap().success());
    let said = String::from_utf8_lossy(&said);
    let (live, last) = said.trim_end().rsplit_once('\r').expect("a line that was redrawn");
    for line in live.split('\r').map(shown) {
        assert!(line.chars().count() <= COLUMNS, "{line:?} of {said:?}");
    }
    assert!(shown(last).starts_with("loaded: ") && shown(last).ends_with("/s"), "{said:?}");
}

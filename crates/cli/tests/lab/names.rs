//! Paths are bytes: every command works in folders whose names are no text, and shows them without acting on the terminal.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::common::spare_caches;

/// Bytes that are no UTF-8, clear the screen, and begin a new line.
const ODD: &[u8] = b"caf\xe9\x1b[2J\nforged: a line";

fn odd(end: &str) -> OsString {
    OsString::from_vec([ODD, end.as_bytes()].concat())
}

/// Runs the command and checks that it ended with the exit code `code` and printed nothing that acts or misleads. Both outputs.
fn run(folder: &Path, arguments: &[&OsStr], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nofault"));
    spare_caches(&mut command);
    let output = command.args(arguments).current_dir(folder).stdin(Stdio::null()).output().expect("it runs");
    checked(&output, arguments, code)
}

fn checked(output: &Output, arguments: &[&OsStr], code: i32) -> String {
    let said = [&output.stdout[..], &output.stderr].concat();
    let said = String::from_utf8(said).unwrap_or_else(|error| panic!("{arguments:?}: {error}"));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(!said.contains("panicked"), "{arguments:?}: {said}");
    assert!(!said.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t')), "{arguments:?}: {said:?}");
    assert!(!said.lines().any(|line| line.starts_with("forged")), "{arguments:?}: {said}");
    said
}

/// The path that a value of JSON output says.
fn path_of(value: &serde_json::Value) -> PathBuf {
    let text = value.as_str().expect("a text");
    let bytes = text.strip_prefix("base64:").map(|coded| STANDARD.decode(coded).expect("base64"));
    bytes.map_or_else(|| text.into(), |bytes| OsString::from_vec(bytes).into())
}

#[test]
fn every_command_of_a_database_works_in_a_folder_whose_name_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["", ".ndjson", ".copy", ".rescued", ".new", ".tsv"].map(odd);
    let [d, dump, copy, rescued, new, lines] = names.each_ref().map(OsString::as_os_str);
    let call = |arguments: &[&OsStr], code| run(folder.path(), arguments, code);
    let db = |words: &str, more: &[&OsStr], code| {
        let mut arguments: Vec<&OsStr> = vec![OsStr::new("db")];
        // `D` stands for the database.
        arguments.extend(words.split(' ').map(|word| if word == "D" { d } else { OsStr::new(word) }));
        arguments.extend(more);
        call(&arguments, code)
    };
    db("get D key", &[], 2);
    db("create D", &[], 0);
    db("create D", &[], 2);
    db("put D key value", &[], 0);
    db("get D key", &[], 0);
    db("get D other", &[], 1);
    db("scan D", &[], 0);
    db("stat D", &[], 0);
    let stat: serde_json::Value = serde_json::from_str(&db("stat D --json --count", &[], 0)).unwrap();
    assert_eq!(path_of(&stat["path"]), PathBuf::from(d));
    db("table create D t u", &[], 0);
    db("table list D", &[], 0);
    db("table rename D t v", &[], 0);
    db("table clear D u", &[], 2);
    db("table clear D u --yes", &[], 0);
    db("table drop D u v --yes", &[], 0);
    db("delete D none", &[], 1);
    db("compression D", &[], 0);
    db("compact D", &[], 0);
    db("verify D", &[], 0);
    db("verify D --read-only --json", &[], 0);
    db("dump D --out", &[dump], 0);
    db("dump D --out", &[dump], 2);
    db("check", &[dump], 0);
    db("load D", &[dump], 0);
    db("load D", &[d], 2);
    db("load D", &[new], 2);
    db("load", &[new, dump, OsStr::new("--create")], 0);
    db("load", &[new, dump, OsStr::new("--create")], 2);
    std::fs::write(folder.path().join(lines), "no tab").unwrap();
    db("load D --format lines", &[lines], 2);
    db("check --format lines", &[lines], 6);
    db("backup D", &[copy], 0);
    db("backup D", &[copy], 2);
    db("check", &[copy], 0);
    db("salvage D", &[rescued], 0);
    db("salvage D", &[rescued], 2);
    db("top D", &[], 2);
    // The engine writes the paths of stripes as lines of text.
    assert!(db("create striped --stripe-over", &[&odd(".stripe")], 2).contains("no line of text"));
    call(&[OsStr::new("man"), OsStr::new("--dir"), &odd(".man")], 0);
}

#[test]
fn a_database_is_shipped_to_and_restored_from_folders_whose_names_are_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let (d, store, again) = (odd(""), odd(".store"), odd(".again"));
    std::fs::create_dir(folder.path().join(&store)).unwrap();
    let inside = Path::new(&store).join("shop");
    let call = |arguments: &[&OsStr], code| run(folder.path(), arguments, code);
    let text = OsStr::new;
    call(&[text("db"), text("create"), &d], 0);
    call(&[text("db"), text("put"), &d, text("key"), text("value")], 0);
    // A name within such a folder, and such a name itself.
    for (number, address) in [inside.into_os_string(), odd(".shop")].into_iter().enumerate() {
        let again = OsString::from_vec([again.as_bytes(), number.to_string().as_bytes()].concat());
        call(&[text("restore"), &address, &again], 2);
        call(&[text("ship"), &d, &address], 0);
        call(&[text("ship"), &d, &address, text("--json"), text("-q")], 0);
        call(&[text("restore"), &address, text("--list")], 0);
        call(&[text("restore"), &address, text("--check")], 0);
        call(&[text("restore"), &address, &again], 0);
        call(&[text("restore"), &address, &again], 2);
        assert!(call(&[text("db"), text("get"), &again, text("key")], 0).contains("value"));
    }
    call(&[text("ship"), &d, Path::new("none").join(odd("")).as_os_str()], 2);
}

#[test]
fn every_command_of_the_lab_works_in_a_folder_whose_name_is_no_text() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["", ".toml", ".html", ".svg", ".json", ".csv", ".svgs", ".again.toml"].map(odd);
    let [dir, config, html, svg, shared, trace, svgs, again] = names.each_ref().map(OsString::as_os_str);
    let tiny = "experiments = ['async']\nram_device = 'off'\nfio = 'off'\nrepeats = 1\ndata_bytes = 67108864\nmemory_bytes = 33554432\n\
        [async]\nfiles = 2\nfile_bytes = 1048576\ntouches = 8\nruns = 1\nsequential = false\n";
    std::fs::write(folder.path().join(config), tiny).unwrap();
    let lab = |words: &str, more: &[&OsStr], code| {
        let mut arguments: Vec<&OsStr> = vec![OsStr::new("lab")];
        arguments.extend(words.split(' ').map(|word| if word == "DIR" { dir } else { OsStr::new(word) }));
        arguments.extend(more);
        run(folder.path(), &arguments, code)
    };
    lab("list", &[dir], 2);
    lab("--dir DIR --config", &[config], 0);
    let listed: serde_json::Value = serde_json::from_str(&lab("list DIR --json", &[], 0)).unwrap();
    let result = path_of(&listed[0]["folder"]);
    assert!(result.starts_with(dir) && folder.path().join(&result).join("records.ndjson").is_file(), "{result:?}");
    let result = result.as_os_str();
    lab("list DIR", &[], 0);
    // The printed text is read again, and names the same folder.
    let printed = lab("--dir DIR --print-config --config", &[config], 0);
    std::fs::write(folder.path().join(again), printed).unwrap();
    lab("--config", &[again], 0);
    let listed: serde_json::Value = serde_json::from_str(&lab("list DIR --json", &[], 0)).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2, "{listed}");
    lab("--plan --config", &[result], 0);
    lab("report", &[result, OsStr::new("--out"), html], 0);
    lab("report --json", &[result], 0);
    lab("report", &[result, OsStr::new("--svgs"), svgs], 0);
    lab("report", &[result, OsStr::new("--figure"), OsStr::new("none"), OsStr::new("--svg"), svg], 2);
    lab("compare", &[result, result], 0);
    lab("verdict --json", &[result], 0);
    lab("share", &[result, OsStr::new("--yes"), OsStr::new("--out"), shared], 0);
    lab("gallery", &[shared, OsStr::new("--out"), html], 2);
    lab("gallery", &[shared, OsStr::new("--out"), &odd(".gallery")], 0);
    lab("doctor --json --dir", &[dir], 0);
    std::fs::write(folder.path().join(trace), "0,4096\n8192,4096\n").unwrap();
    lab("random --plan --dir DIR --size 64MiB --memory 32MiB --ram-device off --trace", &[trace], 0);
    std::fs::File::create(folder.path().join(svg)).unwrap().set_len(70 << 20).unwrap();
    lab("random --plan --dir DIR --ram-device off --file", &[svg], 0);
    lab("random --plan --dir DIR --device", &[svg], 2);
    lab("prepare-device", &[svg, OsStr::new("--erase"), svg], 2);
    let none = odd(".none");
    for words in
        ["report", "compare DIR", "verdict", "share", "gallery", "list", "--config", "random --file", "--trace"]
    {
        lab(words, &[&none], if words == "random --file" { 9 } else { 2 });
    }
    let copy = |file: &OsStr| OsString::from_vec([b"if=", file.as_bytes()].concat());
    let recorded = odd(".recorded.csv");
    let command = ["-o", "--of", "--", "dd", "of=/dev/null", "bs=1M"].map(OsStr::new);
    let [o, of, end, dd, to, block] = command;
    match Command::new("strace").arg("-V").output() {
        Ok(_) => {
            drop(lab("record", &[o, &recorded, of, svg, end, dd, &copy(svg), to, block, OsStr::new("status=none")], 0))
        }
        Err(error) => println!("left out: no strace: {error}"),
    }
}

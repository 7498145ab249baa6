//! Keys and values on the command line and in the output: printed text is read as the bytes that it was printed for.

use super::{db, db_with, said};

/// Bytes that would act on a terminal, break a line, or are no text.
const WILD: &[u8] = b"\x00\x1b[2J\xc2\x9b31m\x7f\ttab\nline\r\\back\\x41 \xe2\x80\xaegnp \xff\xfe";

#[test]
fn printed_keys_are_read_again_by_every_command_and_act_on_no_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    let hex: String = WILD.iter().map(|byte| format!("{byte:02x}")).collect();
    said(&db_with(folder.path(), &["put", "d", &hex, "--hex"], WILD), 0);
    said(&run(&["put", "d", "plain", "value"]), 0);
    let is_plain = |text: &str| !text.chars().any(|c| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}');

    let line = said(&run(&["scan", "d", "--limit", "1"]), 0);
    let (key, value) = line.trim_end_matches('\n').split_once('\t').unwrap();
    assert!(
        is_plain(&line) && key == value && key.contains("\\x1b[2J\\xc2\\x9b31m\\x7f\\ttab\\nline\\r\\\\back"),
        "{line}"
    );
    assert_eq!(said(&run(&["get", "d", key]), 0).trim_end_matches('\n'), value);
    assert_eq!(run(&["get", "d", key, "--raw"]).stdout, WILD);
    assert_eq!(said(&run(&["get", "d", &hex, "--hex"]), 0), format!("0x{hex}\n"));
    let json = said(&run(&["get", "d", key, "--json"]), 0);
    assert!(is_plain(&json) && json.contains("key_base64"), "{json}");
    said(&run(&["put", "d", "text", "\\x1b[2J\\xc2\\x9b31m\\x7f", "--table", "u", "--create-table"]), 0);
    let json = said(&run(&["scan", "d", "--table", "u", "--json"]), 0);
    assert!(is_plain(&json) && json.contains("\\u001b[2J\\u009b31m\\u007f"), "{json}");

    // The output of a scan is put, bounds a scan, and is deleted.
    said(&run(&["put", "d", key, value, "--table", "copy", "--create-table"]), 0);
    assert_eq!(said(&run(&["scan", "d", "--table", "copy"]), 0), line);
    assert_eq!(said(&run(&["scan", "d", "--from", key, "--to", "plain"]), 0), line);
    assert_eq!(said(&run(&["scan", "d", "--prefix", "\\x00\\x1b"]), 0), line);
    assert_eq!(said(&run(&["scan", "d", "--to", key]), 0), "");
    said(&run(&["delete", "d", key]), 0);
    assert_eq!(said(&run(&["scan", "d", "--keys-only"]), 0), "plain\n");

    // A scan prints the same lines as a dump.
    let all = said(&run(&["scan", "d", "--table", "copy", "--json"]), 0);
    said(&db_with(folder.path(), &["load", "e", "--create"], all.as_bytes()), 0);
    assert_eq!(said(&run(&["scan", "e", "--table", "copy"]), 0), line);
    said(&db_with(folder.path(), &["load", "e", "--format", "lines", "--table", "lines"], line.as_bytes()), 0);
    assert_eq!(said(&run(&["scan", "e", "--table", "lines"]), 0), line);
}

#[test]
fn a_wrong_escape_is_refused_and_the_message_says_how_to_write_a_backslash() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    for wrong in ["C:\\dir", "\\", "\\x4", "\\xzz"] {
        for call in [
            &["get", "d", wrong][..],
            &["put", "d", "k", wrong],
            &["delete", "d", wrong],
            &["scan", "d", "--from", wrong],
        ] {
            let told = said(&run(call), 2);
            assert!(told.contains("backslash") || told.contains("hexadecimal"), "{told}");
        }
    }
    assert!(said(&run(&["put", "d", "C:\\dir", "v"]), 2).contains("write \\\\ for one"));
    said(&run(&["put", "d", "C:\\\\dir", "v"]), 0);
    assert_eq!(said(&run(&["scan", "d"]), 0), "C:\\\\dir\tv\n");
    // Messages show no control character either.
    let told = said(&run(&["get", "d", "\x1b[2J"]), 1);
    assert!(!told.contains('\x1b'), "{told:?}");
}

#[test]
fn a_binary_value_is_not_sent_raw_to_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    said(&db(folder.path(), &["put", "d", "k", "\\x1b[2J"]), 0);
    said(&db(folder.path(), &["put", "d", "t", "two\\nlines"]), 0);
    let on_terminal = |key: &str| {
        let command = format!("{} db get d {key} --raw", env!("CARGO_BIN_EXE_nofault"));
        let script = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::null())
            .output();
        script.ok().map(|output| (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let Some((code, said)) = on_terminal("k") else {
        println!("left out: there is no program 'script' to make a terminal");
        return;
    };
    assert!(code == Some(2) && said.contains("leave --raw out") && !said.contains("\x1b[2J"), "{said:?}");
    assert!(on_terminal("t").is_some_and(|(code, said)| code == Some(0) && said.contains("two")));
}

#[test]
fn the_time_at_which_an_entry_expires_is_put_and_printed_and_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "d"]), 0);
    said(&run(&["put", "d", "a", "1", "--expires", "4102444800123"]), 0);
    said(&run(&["put", "d", "b", "2", "--expires", "7d"]), 0);
    said(&run(&["put", "d", "c", "3"]), 0);
    said(&run(&["put", "d", "gone", "4", "--expires", "1000"]), 0);
    let expires = "{\"table\":\"main\",\"key\":\"a\",\"value\":\"1\",\"expires_ms\":4102444800123}\n";
    assert_eq!(said(&run(&["get", "d", "a", "--json"]), 0), expires);
    assert_eq!(said(&run(&["get", "d", "a"]), 0), "1\n");
    said(&run(&["get", "d", "gone"]), 1);
    let scanned = said(&run(&["scan", "d", "--json"]), 0);
    let lines: Vec<&str> = scanned.lines().collect();
    assert!(lines.len() == 3 && lines[0] == expires.trim_end(), "{scanned}");
    assert!(lines[1].contains("\"expires_ms\":") && !lines[2].contains("expires_ms"), "{scanned}");
    assert_eq!(said(&run(&["scan", "d"]), 0), "a\t1\nb\t2\nc\t3\n", "the text has no time");
    // They are a dump's lines, and a put without a time makes an entry last.
    said(&db_with(folder.path(), &["load", "e", "--create"], scanned.as_bytes()), 0);
    assert_eq!(said(&run(&["scan", "e", "--json"]), 0), scanned);
    said(&run(&["put", "d", "a", "1"]), 0);
    assert!(!said(&run(&["get", "d", "a", "--json"]), 0).contains("expires_ms"));
    assert!(said(&run(&["put", "d", "a", "1", "--expires", "soon"]), 2).contains("15m"));
}

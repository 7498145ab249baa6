//! Text of other programs: byte order marks, carriage returns, UTF-16, lines without an end; and dumps, which go through all of it.

use std::io::Write as _;
use std::process::{Command, Stdio};

use super::{db, db_with, said};

/// Loads `text` into a new database and returns its entries, or the error of a load that is to end with this code.
fn loaded(flags: &[&str], text: &[u8]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = [&["load", "d", "--create", "-q"], flags].concat();
    said(&db_with(folder.path(), &flags, text), 0);
    said(&db(folder.path(), &["scan", "d", "--json"]), 0).replace("\"table\":\"main\",", "")
}

fn refused(flags: &[&str], text: &[u8], code: i32) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let told = said(&db_with(folder.path(), &[&["load", "d", "--create", "-q"], flags].concat(), text), code);
    assert!(!folder.path().join("d").exists(), "{told}");
    told
}

#[test]
fn byte_order_marks_and_line_ends_of_other_programs_are_no_data() {
    let lines = ["--format", "lines"];
    let expected = "{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"b\",\"value\":\"2\"}\n";
    for text in ["a\t1\nb\t2\n", "\u{feff}a\t1\nb\t2\n", "a\t1\r\nb\t2\r\n", "\u{feff}a\t1\r\nb\t2"] {
        assert_eq!(loaded(&lines, text.as_bytes()), expected, "{text:?}");
    }
    for mark in ["", "\u{feff}"] {
        assert_eq!(loaded(&[], format!("{mark}{}", expected.replace('\n', "\r\n")).as_bytes()), expected);
    }
    let exact = loaded(&["--format", "lines", "--exact"], "\u{feff}a\t1\r\nb\t2\rx\n".as_bytes());
    assert_eq!(exact, "{\"key\":\"b\",\"value\":\"2\\rx\"}\n{\"key\":\"\\ufeffa\",\"value\":\"1\\r\"}\n");
    // A file of a system whose lines end with CR is one line, and would be one entry.
    let told = refused(&lines, b"a\t1\rb\t2\r", 2);
    assert!(told.contains("line 1") && told.contains("--exact") && told.contains("\\r"), "{told}");
    assert!(refused(&["--exact"], b"", 2).contains("--format lines"));
    // The user is told that a mark is left out of plain lines.
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    let output = db_with(folder.path(), &["load", "d", "--format", "lines"], "\u{feff}a\t1\n".as_bytes());
    assert!(String::from_utf8_lossy(&output.stderr).contains("byte order mark"), "{output:?}");
}

#[test]
fn text_of_two_or_four_bytes_a_character_is_refused_with_the_reason_and_zero_bytes_are_data() {
    for text in ["a\t1\n", "{\"key\":\"a\",\"value\":\"1\"}\n"] {
        for mark in ["", "\u{feff}"] {
            let text = format!("{mark}{text}");
            let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            let big: Vec<u8> = text.encode_utf16().flat_map(u16::to_be_bytes).collect();
            let wider: Vec<u8> = text.chars().flat_map(|character| u32::from(character).to_le_bytes()).collect();
            for (bytes, name) in [(little, "UTF-16"), (big, "UTF-16"), (wider, "UTF-32")] {
                for flags in [&["--format", "lines"][..], &[]] {
                    assert!(refused(flags, &bytes, 2).contains(name), "{text:?} {flags:?}");
                }
            }
        }
    }
    let entry = loaded(&["--format", "lines"], b"k\0\tv\n");
    assert_eq!(entry, "{\"key\":\"k\\u0000\",\"value\":\"v\"}\n");
}

#[test]
fn a_line_without_an_end_is_refused_at_the_bound_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    let mut child = Command::new(env!("CARGO_BIN_EXE_nofault"))
        .args(["db", "load", "d", "-q", "--line-max", "64KiB"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"{\"key\":\"a\",\"value\":\"1\"}\n{\"key\":\"").unwrap();
    // Only the end of the command ends the line.
    while stdin.write_all(&[b'x'; 4096]).is_ok() {}
    let told = said(&child.wait_with_output().unwrap(), 2);
    assert!(told.contains("standard input") && told.contains("line 2 is longer than 64 KiB"), "{told}");
    assert!(told.contains("--line-max"), "{told}");
    std::fs::write(folder.path().join("dump"), format!("{}\n", "x".repeat(5000))).unwrap();
    let told = said(&db(folder.path(), &["check", "dump", "--line-max", "4096"]), 2);
    assert!(told.contains("line 1 is longer"), "{told}");
}

/// Texts of up to three of the pieces that a form of lines could lose.
fn awkward_texts() -> Vec<Vec<u8>> {
    let pieces: [&[u8]; 9] =
        [b"\r", b"\n", b"\t", b"\\", "\u{feff}".as_bytes(), b"\xff", b"\0", b"a", "\u{2028}".as_bytes()];
    let longer = |texts: &[Vec<u8>]| -> Vec<Vec<u8>> {
        texts.iter().flat_map(|text| pieces.map(|piece| [text, piece].concat())).collect()
    };
    let one = longer(&[Vec::new()]);
    let two = longer(&one);
    let three = longer(&two);
    [one, two, three].concat()
}

#[test]
fn a_dump_loads_to_the_same_content_as_it_is_and_as_other_programs_convert_it() {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;

    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    let texts = awkward_texts();
    let line = |text: &Vec<u8>| {
        let coded = STANDARD.encode(text);
        format!("{{\"key_base64\":\"{coded}\",\"value_base64\":\"{coded}\"}}\n")
    };
    let input: String = texts.iter().map(line).collect();
    said(&db_with(folder.path(), &["load", "all", "--create", "-q"], input.as_bytes()), 0);
    // A dump beginning with the character of the mark.
    said(&db_with(folder.path(), &["load", "mark", "--create", "-q"], line(&"\u{feff}a".into()).as_bytes()), 0);
    for (name, count) in [("all", texts.len()), ("mark", 1)] {
        for format in ["lines", "ndjson"] {
            let dump = said(&run(&["dump", name, "-q", "--table", "main", "--format", format]), 0);
            assert_eq!(dump.lines().filter(|line| *line != "{\"table\":\"main\"}").count(), count);
            let converted = format!("\u{feff}{}", dump.replace('\n', "\r\n"));
            for (number, text) in [dump.clone(), dump.replace('\n', "\r\n"), converted].iter().enumerate() {
                let again = format!("{name}-{format}-{number}");
                said(
                    &db_with(folder.path(), &["load", &again, "--create", "-q", "--format", format], text.as_bytes()),
                    0,
                );
                assert!(
                    said(&run(&["dump", &again, "-q", "--table", "main", "--format", format]), 0) == dump,
                    "{again}"
                );
            }
        }
    }
}

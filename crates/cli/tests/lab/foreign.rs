//! Records of other people: nothing that they contain acts on the terminal of the reader.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::fs;
use std::path::Path;

use crate::common::{Lab, outcome};

/// Writes a copy of the records in which names, reasons and messages carry a terminal's control sequence.
fn with_escapes(records: &Path, to: &Path) {
    let text = fs::read_to_string(records).unwrap();
    let escape = r"\u001b[2J\u009b31m\r\u202e";
    let marked = text
        .replace("\"contender\":\"async-mmap\"", &format!("\"contender\":\"async-mmap{escape}\""))
        .replace("\"reason\":\"", &format!("\"reason\":\"{escape}"))
        .replace("\"complete\":true", "\"complete\":false")
        .replace("\"kernel\":\"", &format!("\"kernel\":\"{escape}"));
    assert!(marked.matches(escape).count() > 5, "{marked}");
    fs::create_dir(to).unwrap();
    fs::write(to.join("records.ndjson"), marked).unwrap();
}

#[test]
fn control_characters_of_records_never_reach_the_terminal() {
    let lab = Lab::measured();
    let result = lab.only_result();
    let hostile = lab.dir.join("2026-hostile");
    with_escapes(&result.join("records.ndjson"), &hostile);
    let broken = lab.dir.join("2026-broken\u{1b}[2J");
    fs::create_dir(&broken).unwrap();
    fs::write(broken.join("records.ndjson"), "{\"type\":\"\u{1b}[2J\"}\n").unwrap();

    let picture = lab.outer.path().join("x.svg");
    let acts = |text: &str| text.chars().any(|c| c != '\n' && c.is_control() || c == '\u{202e}');
    let [dir, result, hostile, broken, picture] =
        [&lab.dir, &result, &hostile, &broken, &picture].map(|path| path.to_str().unwrap());
    for arguments in [
        &["report", hostile][..],
        &["report", "--json", hostile],
        &["verdict", hostile],
        &["compare", hostile, result],
        &["compare", "--json", hostile, result],
        &["list", dir],
        &["list", "--json", dir],
        &["report", broken],
        &["report", hostile, "--figure", "\u{1b}[2J", "--svg", picture],
        &["\u{1b}[2J"],
    ] {
        let ended = outcome(&mut lab.command(arguments));
        assert!(!acts(&ended.stdout) && !acts(&ended.stderr), "{arguments:?}: {}{}", ended.stdout, ended.stderr);
        assert!(ended.stdout.len() + ended.stderr.len() > 0);
        if arguments[0] != "verdict" {
            let shown = format!("{}{}", ended.stdout, ended.stderr);
            assert!(shown.contains(r"\u001b"), "{arguments:?}: it is shown, not dropped: {shown}");
        }
    }
}

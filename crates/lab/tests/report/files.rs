//! Record files: written records are read back, defects are named, and two results are compared.

use std::fs;
use std::path::Path;

use nofault_lab::error::LabErrorKind;
use nofault_lab::experiments;
use nofault_lab::record::file::{RecordError, RecordFile, RecordWriter, parse_records, read_records};
use nofault_lab::record::{Record, SCHEMA};
use nofault_lab::report::compare::{Verdict, compare};
use nofault_lab::report::listing;
use nofault_lab::report::table::comparison_table;
use nofault_lab::run;

use crate::synthetic::{self, Like};

/// Writes records to a file as a run writes them.
fn write(file: &RecordFile, path: &Path) {
    let mut writer = RecordWriter::create(path, &file.run).unwrap();
    for trial in &file.trials {
        writer.append(&Record::Trial(trial.clone())).unwrap();
    }
    for skip in &file.skips {
        writer.append(&Record::Skip(skip.clone())).unwrap();
    }
    for note in &file.notes {
        writer.append(&Record::Note(note.clone())).unwrap();
    }
    if let Some(end) = &file.end {
        writer.append(&Record::End(end.clone())).unwrap();
    }
}

/// A small record file as bytes: run, two trials, end; and the folder that it lies in.
fn small() -> (tempfile::TempDir, Vec<u8>) {
    let folder = tempfile::tempdir().unwrap();
    let mut file = synthetic::full(1);
    file.trials.truncate(2);
    file.skips.clear();
    file.notes.clear();
    let path = folder.path().join("records.ndjson");
    write(&file, &path);
    let bytes = fs::read(&path).unwrap();
    (folder, bytes)
}

#[test]
fn written_records_are_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut file = synthetic::full(9);
    let path = folder.path().join("records.ndjson");
    write(&file, &path);
    file.path.clone_from(&path);
    assert_eq!(read_records(&path).unwrap(), file);
    assert_eq!(read_records(folder.path()).unwrap(), file, "a result folder stands for its records");
    assert!(file.is_complete());
}

#[test]
fn a_writer_never_writes_over_a_result() {
    let (folder, before) = small();
    let path = folder.path().join("records.ndjson");
    let error = RecordWriter::create(&path, &synthetic::empty().run).unwrap_err();
    assert!(matches!(error, RecordError::Io { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_report_replaces_a_report_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let records = synthetic::full(2);
    let at = |name: &str| folder.path().join(name);
    let report = at("report.html");
    run::write_report(&records, &report).unwrap();
    let first = fs::read_to_string(&report).unwrap();
    assert!(first.contains("</html>"));
    run::write_report(&synthetic::full(3), &report).unwrap();
    assert_ne!(fs::read_to_string(&report).unwrap(), first);
    fs::write(at("empty"), "").unwrap();
    run::write_report(&records, &at("empty")).unwrap();
    assert_eq!(fs::read_to_string(at("empty")).unwrap(), first);

    fs::create_dir(at("folder")).unwrap();
    for (name, what) in [
        ("records.ndjson", "{\"type\":\"run\"}"),
        ("other.html", "<!DOCTYPE html>\n<html lang=\"en\"><title>precious</title>"),
    ] {
        fs::write(at(name), what).unwrap();
    }
    let before = names(folder.path());
    for (name, why) in [
        ("records.ndjson", "not one that"),
        ("other.html", "not one that"),
        ("folder", "a folder"),
        ("/dev/null", "no ordinary"),
    ] {
        // An absolute path is used as it is.
        let error = run::write_report(&records, &at(name)).unwrap_err();
        assert_eq!(error.kind(), LabErrorKind::Usage, "{name}: {error}");
        assert!(error.to_string().contains(why) && error.to_string().contains("--out"), "{name}: {error}");
    }
    let error = run::write_report(&records, &at("nowhere/report.html")).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::System, "{error}");
    assert_eq!(fs::read_to_string(at("records.ndjson")).unwrap(), "{\"type\":\"run\"}");
    assert_eq!(names(folder.path()), before, "and nothing half written is left");
}

#[test]
fn a_figure_is_a_picture_of_its_own_that_replaces_a_picture_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let records = synthetic::full(2);
    let at = |name: &str| folder.path().join(name);
    let unknown = run::write_picture(&records, "random/none", &at("x.svg")).unwrap_err();
    assert_eq!(unknown.kind(), LabErrorKind::Usage);
    let listed = unknown.to_string();
    assert!(listed.contains("\n  random/rate-file\n") && !at("x.svg").exists(), "{listed}");
    // Every picture is complete: as many elements end as begin.
    let ids: Vec<&str> = listed.lines().skip(1).map(str::trim).collect();
    for id in [ids[0], "random/rate-file", ids[ids.len() - 1]] {
        run::write_picture(&records, id, &at("one.svg")).unwrap();
        let svg = fs::read_to_string(at("one.svg")).unwrap();
        assert!(svg.starts_with("<svg xmlns=") && svg.trim_end().ends_with("</svg>"), "{id}");
        assert_eq!(svg.matches("<svg").count(), 3, "{id}: the picture, its texts and one drawing");
        for element in ["svg", "text", "circle", "style"] {
            let begun = svg.matches(&format!("<{element} ")).count() + svg.matches(&format!("<{element}>")).count();
            assert_eq!(begun, svg.matches(&format!("</{element}>")).count(), "{id}: {element}");
        }
        assert!(svg.contains("Synthetic 9000 &lt;test&gt; &amp; Co"), "{id}: the machine is named");
        assert!(!svg.contains("NaN") && !svg.contains("@media") && !svg.contains("url("), "{id}");
    }
    fs::write(at("precious.svg"), "<svg xmlns=\"http://www.w3.org/2000/svg\"/>").unwrap();
    let error = run::write_picture(&records, "random/rate-file", &at("precious.svg")).unwrap_err();
    assert!(error.kind() == LabErrorKind::Usage && error.to_string().contains("--svg"), "{error}");
    assert_eq!(names(folder.path()), ["one.svg", "precious.svg"]);
}

/// Names of the files in a folder, sorted.
fn names(folder: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

#[test]
fn numbers_that_json_cannot_represent_are_left_out_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.ndjson");
    let mut file = synthetic::full(1);
    file.trials.truncate(1);
    file.trials[0].outcome.figures.insert("odd".into(), f64::NAN);
    file.trials[0].outcome.ticks[0].counters.insert("odder".into(), f64::INFINITY);
    write(&file, &path);
    let back = read_records(&path).unwrap();
    assert!(back.trials[0].outcome.figures.is_empty());
    assert_eq!(back.trials[0].outcome.warnings.len(), 2, "{:?}", back.trials[0].outcome.warnings);
}

#[test]
fn a_run_that_was_killed_is_read_up_to_its_cut_off_line() {
    let (_folder, bytes) = small();
    let path = Path::new("records.ndjson");
    let ends: Vec<usize> = bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1).collect();
    let whole = parse_records(path, &bytes[..ends[1]]).unwrap();
    assert_eq!((whole.trials.len(), whole.cut_off_line, whole.is_complete()), (1, None, false));
    // The file is cut anywhere in its third line: every 97 bytes, and at the line's last byte.
    for at in (ends[1] + 1..ends[2] - 1).step_by(97).chain([ends[2] - 2]) {
        let cut = parse_records(path, &bytes[..at]).unwrap();
        assert_eq!((cut.trials.len(), cut.cut_off_line), (1, Some(3)), "cut at {at}");
        assert!(cut.incomplete_reason().contains("line 3"), "{}", cut.incomplete_reason());
    }
    // Only the line break is missing: the line is whole.
    assert_eq!(parse_records(path, &bytes[..ends[2] - 1]).unwrap().trials.len(), 2);
}

#[test]
fn damage_is_named_by_line_and_column() {
    let (_folder, bytes) = small();
    let text = String::from_utf8(bytes).unwrap();
    let path = Path::new("r.ndjson");
    let lines: Vec<&str> = text.lines().collect();
    let at = lines[1].find("\"contender\":").unwrap();
    for (broken, column) in [
        (lines[1].replacen("\"contender\":", "\"contender\";", 1), at + "\"contender\";".len()),
        (lines[1].replacen("\"repeat\":0", "\"repeat\":-1", 1), lines[1].find("\"repeat\":0").unwrap() + 11),
        (lines[1].replacen("\"type\":\"cell\"", "\"kind\":\"cell\"", 1), 1),
        ("\u{0}\u{1}".into(), 1),
    ] {
        let text = text.replacen(lines[1], &broken, 1);
        let error = parse_records(path, text.as_bytes()).unwrap_err();
        let RecordError::Damaged { line, column: found, .. } = &error else { panic!("{error}") };
        assert_eq!(*line, 2, "{error}");
        assert!(found.abs_diff(column) <= 1, "{error}: expected column {column}");
        assert!(error.to_string().starts_with("r.ndjson:2:"), "{error}");
    }
    let twice = format!("{}\n{text}", lines[0]);
    assert!(parse_records(path, twice.as_bytes()).unwrap_err().to_string().contains("second run"));
}

#[test]
fn other_files_and_newer_ones_are_refused_with_the_next_step() {
    let (_folder, bytes) = small();
    let text = String::from_utf8(bytes).unwrap();
    let path = Path::new("r.ndjson");
    for other in ["", "\n\n", "hello", "{}", "[1,2]", "{\"type\":\"cell\"}\n", "\u{feff}"] {
        let error = parse_records(path, other.as_bytes()).unwrap_err();
        assert!(matches!(error, RecordError::NotRecords { .. }), "{other:?}: {error}");
        assert!(error.to_string().contains("records.ndjson"), "{error}");
    }
    let newer = text.replacen(&format!("\"schema\":{SCHEMA}"), "\"schema\":7", 1).replacen(
        "\"tool_version\":\"0.1.0\"",
        "\"tool_version\":\"9.9\"",
        1,
    );
    let error = parse_records(path, newer.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("schema 7") && error.to_string().contains("9.9"), "{error}");
    assert!(read_records(Path::new("/nowhere/records.ndjson")).unwrap_err().to_string().starts_with("/nowhere"));
}

#[test]
fn unknown_lines_and_settings_are_listed_apart() {
    let (_folder, bytes) = small();
    let text = String::from_utf8(bytes).unwrap();
    let text = text.replacen("\"ops\":", "\"colour\":\"red\",\"ops\":", 1);
    let text = text.replacen("\"config\":{", "\"config\":{\"telepathy\":true,", 1);
    let text = text.replacen("\"random\":{", "\"random\":{\"moods\":[1],", 1);
    let text = text.replace("{\"type\":\"end\"", "{\"type\":\"verdict\",\"x\":1}\n{\"type\":\"end\"");
    let file = parse_records(Path::new("r"), text.as_bytes()).unwrap();
    assert_eq!(file.unknown, [(4, "verdict".to_owned())]);
    assert_eq!(file.unknown_settings, ["telepathy", "random.moods"]);
    assert!(file.is_complete() && file.trials.len() == 2);
}

#[test]
fn an_experiment_of_a_newer_nofault_is_read_and_one_that_is_missing_has_its_preset() {
    let (_folder, bytes) = small();
    let text = String::from_utf8(bytes).unwrap();
    let newer = text.replacen("\"random\":{", "\"telepathy\":{\"range\":3},\"random\":{", 1);
    let newer = newer.replacen("\"experiment\":\"random\"", "\"experiment\":\"telepathy\"", 1);
    let file = parse_records(Path::new("r"), newer.as_bytes()).unwrap();
    assert_eq!(
        (file.trials[0].spec.experiment.name(), file.unknown_settings.as_slice()),
        ("telepathy", &["telepathy".to_owned()][..])
    );
    assert!(
        nofault_lab::report::html(&file).is_ok() && !nofault_lab::report::table::summary_table(&file, 100).is_empty()
    );

    let whole = parse_records(Path::new("r"), text.as_bytes()).unwrap();
    let (before, rest) = text.split_once("\"claims\":{").unwrap();
    let older = format!("{before}{}", rest.split_once("},").unwrap().1);
    let file = parse_records(Path::new("r"), older.as_bytes()).unwrap();
    assert!(file.run.config.sections.get("claims").is_none());
    let completed = file.run.config.with_flags(&[], &[]).unwrap();
    assert_eq!(completed, whole.run.config.with_flags(&[], &[]).unwrap());
}

/// Records of one method at this rate.
fn at(rate: f64, seed: u64, repeats: u32) -> RecordFile {
    let rng = &mut fastrand::Rng::with_seed(seed);
    let mut file = synthetic::empty();
    let like = Like::steady("uring-direct", 1, 64, rate, 3.0);
    for repeat in 0..repeats {
        file.trials.push(synthetic::timed(
            rng,
            synthetic::spec(experiments::random::ID, "", "file", &like, repeat),
            &like,
        ));
    }
    file
}

#[test]
fn a_change_counts_beyond_spread_and_threshold() {
    let base = at(100_000.0, 1, 3);
    for (rate, repeats, verdict, exit) in [
        (100_500.0, 3, Verdict::Same, 0),
        (200_000.0, 3, Verdict::Better, 0),
        (50_000.0, 3, Verdict::Worse, 1),
        (50_000.0, 1, Verdict::Inconclusive, 0),
    ] {
        let comparison = compare(&base, &at(rate, 2, repeats), 0.05).unwrap();
        assert_eq!((comparison.rows[0].verdict, comparison.exit_code()), (verdict, exit), "{rate} {repeats}");
        assert!(comparison_table(&comparison, 100).contains(verdict.name()));
    }
    // A time: more is worse.
    let mut slow = synthetic::empty();
    let mut fast = synthetic::empty();
    synthetic::push_async(&mut fastrand::Rng::with_seed(1), &mut fast);
    synthetic::push_async(&mut fastrand::Rng::with_seed(2), &mut slow);
    slow.trials.iter_mut().for_each(|trial| trial.outcome.elapsed_s *= 2.0);
    assert!(compare(&fast, &slow, 0.05).unwrap().rows.iter().all(|row| row.verdict == Verdict::Worse));
    assert!(compare(&slow, &fast, 0.05).unwrap().rows.iter().all(|row| row.verdict == Verdict::Better));
    let same = compare(&base, &base, f64::NAN).unwrap();
    assert!(same.rows.iter().all(|row| row.verdict == Verdict::Same) && same.warnings.is_empty(), "{same:?}");
}

#[test]
fn trials_of_one_result_only_are_listed_and_differences_are_warnings() {
    let mut before = synthetic::full(1);
    let mut after = before.clone();
    after.run.machine.kernel = "7.0".into();
    after.run.config.repeats = 9;
    after.end = None;
    let gone = before.trials[0].spec.key();
    after.trials.retain(|trial| trial.spec.key() != gone);
    let spoilt = after.trials[0].spec.key();
    after.trials.iter_mut().filter(|trial| trial.spec.key() == spoilt).for_each(|trial| trial.outcome.checks.wrong = 1);
    after.run.config.dir = "elsewhere".into();
    let comparison = compare(&before, &after, 0.05).unwrap();
    assert_eq!(comparison.only_before, [gone]);
    assert!(comparison.spoilt == [spoilt] && comparison.exit_code() == 1);
    let warnings = comparison.warnings.join("\n");
    for words in
        ["different kernel: 6.18.0-synthetic before, 7.0 after", "different settings", "second result is not complete"]
    {
        assert!(warnings.contains(words), "{words} in {warnings}");
    }
    before.run.config.repeats = 9;
    assert_eq!(compare(&after, &before, 0.05).unwrap().only_after.len(), 1);
}

#[test]
fn a_folder_of_results_is_listed_with_its_unreadable_results() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    assert!(listing::text(&listing::results(root).unwrap()).contains("no results here"));
    let mut late = synthetic::full(1);
    late.run.started_unix_ms += 86_400_000;
    late.end = None;
    for (name, file) in [("b-late", &late), ("a-early", &synthetic::full(1))] {
        fs::create_dir(root.join(name)).unwrap();
        write(file, &root.join(name).join("records.ndjson"));
    }
    fs::create_dir(root.join("empty")).unwrap();
    fs::create_dir(root.join("broken")).unwrap();
    fs::write(root.join("broken/records.ndjson"), "rubbish").unwrap();
    let entries = listing::results(root).unwrap();
    let names: Vec<_> = entries.iter().map(|entry| entry.folder.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["a-early", "b-late", "broken"]);
    let text = listing::text(&entries);
    for words in
        ["2026-01-01 00:00 UTC, quick: random, scan, async, access", "complete", "interrupted", "cannot be read"]
    {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(listing::results(&root.join("nowhere")).is_err());
}

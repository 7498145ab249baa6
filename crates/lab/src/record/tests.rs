//! Records that earlier builds wrote mean the same when this build reads them.

use std::path::Path;

use super::file::{LINE_BYTES_MAX, RecordError, RecordFile, RecordWriter, parse_records, read_records};
use super::*;

/// The lines of schema 1 that this build would have written, with the texts of such a file.
fn of_schema_1(file: &RecordFile, texts: impl FnOnce(&mut RecordFile)) -> Vec<u8> {
    let mut old = file.clone();
    old.run.schema = 1;
    texts(&mut old);
    let lines = std::iter::once(Record::Run(old.run))
        .chain(old.trials.into_iter().map(Record::Trial))
        .chain(old.skips.into_iter().map(Record::Skip));
    lines.flat_map(|line| format!("{}\n", serde_json::to_string(&line).unwrap()).into_bytes()).collect()
}

#[test]
fn a_file_of_schema_1_gets_causes_kinds_settings_and_costs_from_its_texts() {
    let rates = [("pread-direct", 1.0)];
    let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates);
    let key = file.trials[0].spec.key();
    let bytes = of_schema_1(&file, |old| {
        old.run.machine.facts.insert("fault_of_a_file_page".into(), "812 ns".into());
        old.run.machine.facts.insert("huge_pages".into(), "never".into());
        let outcome = &mut old.trials[0].outcome;
        outcome.texts.insert("set: cache".into(), "64 MiB".into());
        outcome.warnings = [
            "others used 40 % of the CPU time",
            "in 2 of 9 ticks the device moved more than 10 % more or less than this trial asked for",
            "the rate of 10/s could not be kept: 5 of 10 reads were started",
            "memory never filled",
        ]
        .map(Warning::from)
        .to_vec();
        let skip = |reason: &str| Skip::new(crate::experiments::random::ID, "file", "m", reason);
        old.skips = vec![
            skip("not built: --features peers (cargo run --release --features peers -- lab engines)"),
            skip(&format!("{key} (repeat 0): the device went away")),
            skip("measured from --preset standard on: dirty pages"),
            skip("SQPOLL (repeat: never) needs CAP_SYS_NICE"),
        ];
    });
    let read = parse_records(Path::new("records.ndjson"), &bytes[..]).unwrap();
    assert_eq!(read.run.machine.costs_ns, [("fault_of_a_file_page".to_owned(), 812.0)].into());
    let outcome = &read.trials[0].outcome;
    assert_eq!(outcome.settings, [("cache".to_owned(), "64 MiB".to_owned())].into());
    let kinds: Vec<_> = outcome.warnings.iter().map(|warning| warning.kind).collect();
    let all = [WarningKind::OtherLoad, WarningKind::DeviceTraffic, WarningKind::RateNotKept];
    assert_eq!(kinds, [Some(all[0]), Some(all[1]), Some(all[2]), None]);
    let causes: Vec<_> = read.skips.iter().map(|skip| skip.cause.clone()).collect();
    let (not_built, failed) = (SkipCause::NotBuilt("peers".into()), SkipCause::Failed(key));
    assert_eq!(causes, [Some(not_built), Some(failed), Some(SkipCause::LargerPreset), None]);
}

#[test]
fn a_file_of_this_schema_keeps_its_fields_whatever_its_texts_contain() {
    let rates = [("pread-direct", 1.0)];
    let mut file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates);
    file.trials[0].outcome.warnings = vec!["others used words of schema 1".into()];
    let bytes = of_schema_1(&file, |present| present.run.schema = SCHEMA);
    let read = parse_records(Path::new("records.ndjson"), &bytes[..]).unwrap();
    assert_eq!(read.trials, file.trials);
}

/// The lines of a small file of this schema.
fn present_lines() -> String {
    let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[("pread-direct", 1.0)]);
    String::from_utf8(of_schema_1(&file, |present| present.run.schema = SCHEMA)).unwrap()
}

#[test]
fn records_that_another_program_has_converted_are_the_same_and_utf_16_is_named() {
    let (text, path) = (present_lines(), Path::new("records.ndjson"));
    let plain = parse_records(path, text.as_bytes()).unwrap();
    for converted in [format!("\u{feff}{text}"), format!("\u{feff}{}", text.replace('\n', "\r\n\r\n"))] {
        assert_eq!(parse_records(path, converted.as_bytes()).unwrap(), plain);
    }
    let wide: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let told = parse_records(path, &wide[..]).unwrap_err().to_string();
    assert!(told.contains("UTF-16") && told.contains("records.ndjson"), "{told}");
}

/// A text without line breaks that counts the bytes it gave.
struct Endless<'a>(&'a mut u64);

impl std::io::Read for Endless<'_> {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        to.fill(b'x');
        *self.0 += to.len() as u64;
        Ok(to.len())
    }
}

#[test]
fn of_a_line_that_no_record_has_no_more_than_the_bound_is_read() {
    use std::io::{BufReader, Read as _};

    let mut read_bytes = 0;
    let text = present_lines() + "{\"type\":\"";
    let line = text.lines().count();
    let endless = text.as_bytes().chain(Endless(&mut read_bytes));
    let error = parse_records(Path::new("a/records.ndjson"), BufReader::with_capacity(4096, endless)).unwrap_err();
    assert!(matches!(error, RecordError::TooLong { line: found, .. } if found == line as u64), "{error:?}");
    let told = error.to_string();
    assert!(told.starts_with(&format!("a/records.ndjson:{line}: ")) && told.contains("16 MiB"), "{told}");
    assert_eq!(crate::error::LabError::from(error).exit_code(), 6);
    assert!(read_bytes <= LINE_BYTES_MAX as u64 + (64 << 10), "{read_bytes} bytes");
    let first = parse_records(Path::new("r"), BufReader::new(Endless(&mut read_bytes))).unwrap_err();
    assert!(first.to_string().contains("not a record file") && first.to_string().contains("16 MiB"), "{first}");
}

#[test]
fn a_trial_with_too_many_ticks_for_a_line_is_recorded_without_them() {
    let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[("pread-direct", 1.0)]);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("records.ndjson");
    let mut writer = RecordWriter::create(&path, &file.run).unwrap();
    let mut trial = file.trials[0].clone();
    let counters = (0..100).map(|number| (format!("counter {number:0100}"), 1.5)).collect();
    trial.outcome.ticks = vec![Tick { counters, ..Tick::default() }; 2000];
    writer.append(&Record::Trial(trial.clone())).unwrap();
    assert!(path.metadata().unwrap().len() < LINE_BYTES_MAX as u64);
    let read = writer.read_back().unwrap();
    assert!(read.trials[0].outcome.ticks.is_empty());
    assert!(
        read.trials[0].outcome.warnings.last().unwrap().text.contains("2000 ticks"),
        "{:?}",
        read.trials[0].outcome.warnings
    );
    trial.outcome.ticks.truncate(3);
    writer.append(&Record::Trial(trial)).unwrap();
    assert_eq!(read_records(&path).unwrap().trials[1].outcome.ticks.len(), 3);
}

#[test]
fn a_pool_of_an_earlier_schema_has_huge_pages_and_is_not_compared_with_a_map() {
    let rates = [("mmap-random", 1e4), ("pool", 2e4)];
    let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &rates);
    let old = of_schema_1(&file, |old| old.run.schema = 2);
    let read = parse_records(Path::new("records.ndjson"), &old[..]).unwrap();
    let summary = crate::summary::Summary::of(&read);
    let differences = summary.groups[0].conditions().differences(summary.groups[1].conditions(), &[]);
    assert_eq!(differences, ["small pages against huge pages"]);
    let present = of_schema_1(&file, |present| present.run.schema = SCHEMA);
    let read = parse_records(Path::new("records.ndjson"), &present[..]).unwrap();
    let summary = crate::summary::Summary::of(&read);
    assert!(summary.groups[0].conditions().differences(summary.groups[1].conditions(), &[]).is_empty());
}

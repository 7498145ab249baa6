//! The whole benchmark at a tiny size: every work runs, checks its answers and leaves no files behind.

use super::*;

pub(super) fn tiny(dir: &Path, works: &[&str]) -> BenchOptions {
    BenchOptions {
        works: works.iter().map(|work| (*work).to_owned()).collect(),
        dir: dir.to_path_buf(),
        data_bytes: 2 << 20,
        memory_keys: 2000,
        cache_bytes: 1 << 20,
        limit_bytes: None,
        program: None,
        value_bytes: vec![100, 1000],
        log_bytes: 1 << 20,
        time: Duration::from_millis(20),
        repeats: 1,
        seed: 1,
        only: None,
    }
}

#[test]
fn every_work_runs_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let cancel = AtomicBool::new(false);
    for (name, _) in works() {
        let (report, trouble) = run(&tiny(folder.path(), &[name]), &cancel, &mut |_| {}).unwrap();
        assert_eq!(trouble, None, "{name}");
        assert!(!report.rows.is_empty() && report.rows.iter().all(|row| row.engine.is_some()), "{name}");
        for baseline in report.rows.iter().flat_map(|row| &row.baselines) {
            assert!(baseline.figure.is_some() != baseline.missing.is_some(), "{name}: {baseline:?}");
        }
        assert!(report.text(100).contains(name.split('-').next().unwrap()));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_store_apart_does_its_part_and_the_parts_make_up_the_rows_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let cancel = AtomicBool::new(false);
    for &(work, ..) in WORKS.iter().filter(|(_, _, room, _)| *room == Apart) {
        let part = |only: Option<&str>| {
            let options = BenchOptions { only: only.map(str::to_owned), ..tiny(folder.path(), &[work]) };
            let (report, trouble) = run(&options, &cancel, &mut |_| {}).unwrap();
            assert_eq!(trouble, None, "{work}");
            report.rows
        };
        let all = part(None);
        let mut joined = part(Some(ENGINE));
        for rows in PEERS.map(|name| part(Some(name))) {
            assert_eq!(rows.len(), all.len());
            for (row, mine) in joined.iter_mut().zip(rows) {
                assert!(mine.engine.is_none() && row.is_of_the_same(&mine), "{work}: {mine:?}");
                row.join(mine);
            }
        }
        for (row, whole) in joined.iter().zip(&all) {
            assert!(row.is_of_the_same(whole) && row.engine.is_some() && row.limit.is_some() == whole.limit.is_some());
            let outline = |row: &Row| -> Vec<_> {
                let of = |of: &Baseline| (of.name.clone(), of.figure.is_some(), of.ratio.is_some(), of.missing.clone());
                row.baselines.iter().map(of).collect()
            };
            assert_eq!(outline(row), outline(whole), "{work}");
        }
    }
}

#[test]
fn a_limit_under_which_the_work_would_be_killed_is_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let options = BenchOptions { limit_bytes: Some(64 << 20), ..tiny(folder.path(), &["space"]) };
    let error = run(&options, &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(error.kind() == LabErrorKind::Usage && error.to_string().contains("too small"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_wrong_call_says_what_there_is_and_an_interruption_keeps_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let error = run(&tiny(folder.path(), &["gets"]), &AtomicBool::new(false), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("get-many"), "{error}");
    let cancel = AtomicBool::new(true);
    let (report, trouble) = run(&tiny(folder.path(), &["space", "get-one"]), &cancel, &mut |_| {}).unwrap();
    assert_eq!(trouble.map(|error| error.kind()), Some(LabErrorKind::Interrupted));
    assert!(report.rows.iter().all(|row| row.work != "get-one"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

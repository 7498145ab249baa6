//! Tests of opening and creating databases in folders that are not empty: they have another database, a part of one, files of other
//! programs, or links. No data is lost, and no file that does not belong to the database is changed.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nofault::blocking::Db;
use nofault::error::{Error, ErrorKind};
use nofault::settings::Settings;

fn small() -> Settings {
    Settings { cache_bytes: 2 << 20, log_bytes: 1 << 20, ..Settings::default() }
}

/// Creates a temporary folder on the file system of the sources, because tmpfs has no direct I/O.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Lists a folder and everything in it, at any depth: for each path its file type, its content, and the time of its last change.
fn picture(path: &Path) -> BTreeMap<PathBuf, (String, Vec<u8>, i64, i64)> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(path).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::symlink_metadata(&path).unwrap();
        let bytes = if meta.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        if meta.is_dir() {
            all.extend(picture(&path));
        }
        all.insert(path, (format!("{:?}", meta.file_type()), bytes, meta.mtime(), meta.mtime_nsec()));
    }
    let own = fs::symlink_metadata(path).unwrap();
    all.insert(path.into(), (String::new(), Vec::new(), own.mtime(), own.mtime_nsec()));
    all
}

/// Creates and closes a database that has rows in the log and in the data file.
fn filled(path: &Path, settings: &Settings) {
    let db = Db::create(path, settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..500_u32).map(|row| (row.to_be_bytes(), [row as u8; 300]))).unwrap();
    for row in 0..20_u32 {
        table.put(row.to_be_bytes(), b"put").unwrap();
    }
}

fn assert_whole(path: &Path) {
    let db = Db::open(path, &small()).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.range::<&[u8]>(..).map(Result::unwrap).count(), 500);
    assert_eq!(table.get(7_u32.to_be_bytes()).unwrap(), Some(b"put".to_vec()));
    assert!(db.verify().unwrap().is_clean());
}

fn refused(result: Result<Db, Error>, kind: ErrorKind, words: &[&str]) {
    let error = result.map(drop).unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} are not all in: {text}");
}

#[test]
fn an_open_database_keeps_others_out_when_its_lock_file_is_removed() {
    let scratch = scratch();
    for stripes in [vec![], vec![scratch.path().join("second")]] {
        let path = scratch.path().join(format!("db{}", stripes.len()));
        let settings = Settings { stripe_folders: stripes, ..small() };
        filled(&path, &settings);
        let db = Db::open(&path, &small()).unwrap();
        fs::remove_file(path.join("lock")).unwrap();
        refused(Db::open(&path, &small()), ErrorKind::Busy, &["close it there first"]);
        refused(Db::open(&path, &small()), ErrorKind::Busy, &["close it there first"]);
        refused(Db::create(&path, &small()), ErrorKind::Busy, &["close it there first"]);
        // Linked under another name in another folder, it is the same database.
        let elsewhere = scratch.path().join(format!("elsewhere{}", settings.stripe_folders.len()));
        fs::create_dir(&elsewhere).unwrap();
        for name in ["data", "log"] {
            fs::hard_link(path.join(name), elsewhere.join(name)).unwrap();
        }
        refused(Db::open(&elsewhere, &small()), ErrorKind::Busy, &["close it there first"]);
        db.table("t").unwrap().put("after", "it").unwrap();
        drop(db);
        assert_eq!(Db::open(&path, &small()).unwrap().table("t").unwrap().get("after").unwrap(), Some(b"it".to_vec()));
    }
}

#[test]
fn a_part_of_a_striped_database_is_not_opened_twice() {
    let scratch = scratch();
    let (path, copy, second) = (scratch.path().join("db"), scratch.path().join("copy"), scratch.path().join("second"));
    filled(&path, &Settings { stripe_folders: vec![second], ..small() });
    // The folder naming the others was copied, the others were not.
    fs::create_dir(&copy).unwrap();
    for name in ["data", "log", "stripes"] {
        fs::copy(path.join(name), copy.join(name)).unwrap();
    }
    let db = Db::open(&path, &small()).unwrap();
    refused(Db::open(&copy, &small()), ErrorKind::Busy, &["second", "close it there first"]);
    drop(db);
    assert_whole(&path);
}

#[test]
fn a_file_named_lock_is_written_only_if_it_is_a_lock_file() {
    let scratch = scratch();
    let path = scratch.path().join("db");
    filled(&path, &small());
    let (lock, other) = (path.join("lock"), scratch.path().join("other"));
    let replace = |with: &dyn Fn()| {
        let _ = fs::remove_file(&lock);
        with();
        let before = picture(scratch.path());
        assert_whole(&path);
        let after = picture(scratch.path());
        assert_eq!(before.get(&lock), after.get(&lock));
        assert_eq!(before.get(&other), after.get(&other));
    };
    fs::write(&other, "foreign").unwrap();
    replace(&|| symlink(&other, &lock).unwrap());
    replace(&|| symlink(scratch.path().join("nowhere"), &lock).unwrap());
    assert!(!scratch.path().join("nowhere").exists());
    replace(&|| fs::hard_link(&other, &lock).unwrap());
    replace(&|| fs::write(&lock, "locks and keys\n").unwrap());
    replace(&|| {
        std::process::Command::new("mkfifo").arg(&lock).status().unwrap();
        assert!(fs::symlink_metadata(&lock).unwrap().file_type().is_fifo());
    });
    replace(&|| {
        let _ = fs::remove_file(&lock);
        fs::create_dir(&lock).unwrap();
    });
}

#[test]
fn a_foreign_folder_is_not_changed_by_an_attempt_to_open_or_create() {
    let scratch = scratch();
    let texts = ["", "some text\n", &"long text\n".repeat(20_000)];
    let folders: &[&[&str]] = &[
        &["lock"],
        &["log"],
        &["data"],
        &["data", "log"],
        &["data", "log", "lock"],
        &["data", "log", "stripes"],
        &["stripes"],
        &["readme"],
        &["data.new", "log"],
        &["data-0123456789abcdef-1"],
    ];
    for (number, names) in folders.iter().enumerate() {
        for (text_number, text) in texts.iter().enumerate() {
            // An empty file counts as a lock file.
            if text.is_empty() && *names == ["lock"] {
                continue;
            }
            let path = scratch.path().join(format!("{number}-{text_number}"));
            fs::create_dir(&path).unwrap();
            for name in *names {
                fs::write(path.join(name), text).unwrap();
            }
            let before = picture(&path);
            let error = Db::open(&path, &small()).map(drop).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Corrupt), "{names:?}: {error}");
            let is_part =
                names.iter().any(|name| ["log", "data", "stripes"].contains(name) || name.starts_with("data-"));
            assert_eq!(error.to_string().contains("create it"), !is_part, "{names:?}: {error}");
            let error = Db::create(&path, &small()).map(drop).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::AlreadyExists | ErrorKind::InvalidCall), "{names:?}: {error}");
            assert_eq!(picture(&path), before, "{names:?} of {} bytes", text.len());
        }
    }
}

#[test]
fn a_missing_part_is_named_and_nothing_is_put_in_its_place() {
    let scratch = scratch();
    for striped in [false, true] {
        let path = scratch.path().join(format!("db-{striped}"));
        let second = scratch.path().join("second");
        filled(&path, &Settings { stripe_folders: if striped { vec![second.clone()] } else { vec![] }, ..small() });
        let mut parts = vec![path.join("data"), path.join("log")];
        if striped {
            let part = fs::read_dir(&second).unwrap().next().unwrap().unwrap().path();
            parts.extend([part, second]);
        }
        for part in parts {
            let (name, away) = (part.file_name().unwrap().to_str().unwrap(), scratch.path().join("away"));
            fs::rename(&part, &away).unwrap();
            let before = picture(&path);
            // A program may open a database, and create it when that fails: both calls are refused and change nothing.
            refused(Db::open(&path, &small()), ErrorKind::Corrupt, &[name]);
            let told = Db::open(&path, &small()).map(drop).unwrap_err().to_string();
            assert!(!told.contains("create it"), "{told}");
            refused(Db::create(&path, &small()), ErrorKind::AlreadyExists, &[]);
            if part.parent() == Some(&path) {
                refused(Db::create(&path, &small()), ErrorKind::AlreadyExists, &[name, "missing", "put it back"]);
            }
            assert_eq!(picture(&path), before, "without {name}");
            fs::rename(&away, &part).unwrap();
            assert_whole(&path);
        }
    }
    // The list of folders alone.
    let path = scratch.path().join("db-true");
    for name in ["data", "log", "lock"] {
        fs::rename(path.join(name), scratch.path().join(name)).unwrap();
    }
    let before = picture(&path);
    refused(Db::open(&path, &small()), ErrorKind::Corrupt, &["data", "missing"]);
    refused(Db::create(&path, &small()), ErrorKind::AlreadyExists, &["data", "missing", "stripes"]);
    assert_eq!(picture(&path), before);
}

#[test]
fn files_of_a_database_that_are_links_pipes_or_folders_are_refused() {
    let scratch = scratch();
    let path = scratch.path().join("db");
    filled(&path, &small());
    for name in ["data", "log"] {
        let (file, away) = (path.join(name), scratch.path().join(name));
        fs::rename(&file, &away).unwrap();
        symlink(&away, &file).unwrap();
        let before = picture(scratch.path());
        refused(Db::open(&path, &small()), ErrorKind::InvalidCall, &[name, "symbolic link"]);
        refused(Db::create(&path, &small()), ErrorKind::AlreadyExists, &[]);
        assert_eq!(picture(scratch.path()), before);
        fs::remove_file(&file).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&file).status().unwrap().success());
        refused(Db::open(&path, &small()), ErrorKind::InvalidCall, &[name, "FIFO"]);
        fs::remove_file(&file).unwrap();
        fs::create_dir(&file).unwrap();
        refused(Db::open(&path, &small()), ErrorKind::InvalidCall, &[name, "folder"]);
        fs::remove_dir(&file).unwrap();
        fs::rename(&away, &file).unwrap();
        assert_whole(&path);
    }
    // The same where there is no database yet.
    for name in ["data", "log", "stripes", "lock", "data.nofault-new", "log.nofault-new", "stripes.nofault-new"] {
        let path = scratch.path().join(format!("new-{name}"));
        fs::create_dir(&path).unwrap();
        fs::create_dir(path.join(name)).unwrap();
        let before = picture(&path);
        assert!(Db::create(&path, &small()).is_err(), "{name}");
        assert_eq!(picture(&path), before, "{name}");
        fs::remove_dir(path.join(name)).unwrap();
        symlink(scratch.path().join("nowhere"), path.join(name)).unwrap();
        let before = picture(&path);
        assert!(Db::create(&path, &small()).is_err(), "{name}");
        assert_eq!(picture(&path), before, "{name}");
        fs::remove_file(path.join(name)).unwrap();
        filled(&path, &small());
        assert_whole(&path);
    }
    assert!(!scratch.path().join("nowhere").exists());
}

#[test]
fn a_list_of_folders_that_is_a_link_is_not_followed() {
    let scratch = scratch();
    let path = scratch.path().join("db");
    filled(&path, &Settings { stripe_folders: vec![scratch.path().join("second")], ..small() });
    let away = scratch.path().join("away");
    fs::rename(path.join("stripes"), &away).unwrap();
    symlink(&away, path.join("stripes")).unwrap();
    refused(Db::open(&path, &small()), ErrorKind::InvalidCall, &["stripes", "symbolic link"]);
}

#[test]
fn creating_is_for_an_empty_folder_or_one_with_an_unfinished_creation() {
    let scratch = scratch();
    let path = scratch.path().join("db");
    fs::create_dir(&path).unwrap();
    // Folders do not count as other files: the top folder of a file system has one.
    fs::create_dir(path.join("lost+found")).unwrap();
    for name in ["data.nofault-new", "log", "log.nofault-new", "stripes.nofault-new", "data.nofault-copy", "lock"] {
        fs::write(path.join(name), "").unwrap();
    }
    refused(Db::open(&path, &small()), ErrorKind::NotFound, &["cut short", "create it"]);
    filled(&path, &small());
    assert_whole(&path);
    let mut names: Vec<_> = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["data", "lock", "log", "lost+found", "readers.nofault"]);
    fs::write(scratch.path().join("readme"), "text").unwrap();
    refused(Db::create(scratch.path(), &small()), ErrorKind::InvalidCall, &["readme", "separate folder"]);
}

#[test]
fn a_folder_that_may_only_be_read_is_refused_with_the_reason() {
    let scratch = scratch();
    let path = scratch.path().join("db");
    filled(&path, &small());
    let set = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for name in ["data", "log", "lock"] {
        set(&path.join(name), 0o444);
    }
    set(&path, 0o555);
    if fs::OpenOptions::new().write(true).open(path.join("data")).is_ok() {
        set(&path, 0o755);
        return println!("not checked: this user may write everywhere; run the tests as an unprivileged user");
    }
    let before = picture(&path);
    refused(Db::open(&path, &small()), ErrorKind::NoPermission, &["data"]);
    let empty = scratch.path().join("empty");
    fs::create_dir(&empty).unwrap();
    set(&empty, 0o555);
    refused(Db::create(&empty, &small()), ErrorKind::NoPermission, &[]);
    assert_eq!(picture(&path), before);
    // The files may be written, the folder may not, nor may the lock file: the name of the holder is all that is missing.
    for name in ["data", "log"] {
        set(&path.join(name), 0o644);
    }
    assert_whole(&path);
    set(&path, 0o755);
    set(&empty, 0o755);
}

#[test]
fn settings_without_a_meaning_are_refused_and_nothing_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let good = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
    let wrong = [
        Settings { log_bytes: 0, ..good.clone() },
        Settings { reads_in_flight_max: 0, ..good.clone() },
        Settings { page_bytes: 2048, ..good.clone() },
        Settings { page_bytes: 5000, ..good.clone() },
        Settings { page_bytes: 128 << 10, ..good.clone() },
        Settings { page_bytes: 0, ..good.clone() },
    ];
    for settings in &wrong {
        let error = Db::create(&path, settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidCall, "{error}");
        assert_eq!(
            Db::create_in(&nofault_sim::SimWorld::new(3, nofault_sim::SimOptions::calm()).directory(), settings)
                .unwrap_err()
                .kind(),
            ErrorKind::InvalidCall
        );
    }
    Db::create(&path, &good).unwrap();
    for settings in &wrong[..2] {
        assert_eq!(Db::open(&path, settings).unwrap_err().kind(), ErrorKind::InvalidCall);
    }
    // A database keeps its page size, so the page size in the settings does not matter.
    Db::open(&path, &wrong[2]).unwrap();
}

//! A database that another process has open.

use std::io::{BufRead, BufReader};

use nofault::blocking::Db;
use nofault::error::ErrorKind;
use nofault::settings::Settings;

use crate::{FOLDER, child, folder};

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_holds() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let _db = Db::open(&folder, &Settings { cache_bytes: 16 << 20, ..Settings::default() }).unwrap();
    println!("\nopened");
    // Until the parent closes its end.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn opening_a_database_that_another_process_has_open_names_that_process() {
    let folder = folder();
    let path = folder.path().join("db");
    drop(Db::create(&path, &Settings { cache_bytes: 16 << 20, ..Settings::default() }).unwrap());
    let mut holder = child("second_process::child_that_holds", &path, &[]);
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "opened"), "the child ended early");
    for error in [
        Db::open(&path, &Settings { cache_bytes: 16 << 20, ..Settings::default() }),
        Db::create(&path, &Settings { cache_bytes: 16 << 20, ..Settings::default() }),
    ]
    .map(Result::unwrap_err)
    {
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
        assert!(error.to_string().contains(&holder.id().to_string()), "{error}");
    }
    drop(holder.stdin.take());
    holder.wait().unwrap();
    Db::open(&path, &Settings { cache_bytes: 16 << 20, ..Settings::default() }).unwrap();
}

#[test]
#[ignore = "run as a child by the test below"]
fn child_that_forks() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let db = Db::open(&folder, &Settings { cache_bytes: 16 << 20, ..Settings::default() }).unwrap();
    let table = db.create_table("t").unwrap();
    table.put("before", "1").unwrap();
    // SAFETY: the forked process drops the handles, which starts and waits for nothing, and ends without running destructors
    // or handlers of this program.
    let forked = unsafe { libc::fork() };
    assert!(forked >= 0);
    if forked == 0 {
        drop((table, db));
        // SAFETY: `_exit` may be called at any point.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: `status` outlives the call, and `forked` is a child of this process.
    assert_eq!(unsafe { libc::waitpid(forked, &raw mut status, 0) }, forked);
    assert_eq!(status, 0, "the forked process ended by a signal or a panic");
    table.put("after", "2").unwrap();
    println!("\nforked");
    let _ = std::io::stdin().read_line(&mut String::new());
    assert_eq!(table.get("before").unwrap(), Some(b"1".to_vec()));
}

#[test]
fn a_forked_process_that_drops_a_handle_takes_neither_lock_nor_data_from_its_parent() {
    let folder = folder();
    let path = folder.path().join("db");
    let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
    drop(Db::create(&path, &settings).unwrap());
    let mut holder = child("second_process::child_that_forks", &path, &[]);
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "forked"), "the child ended early");
    assert_eq!(Db::open(&path, &settings).unwrap_err().kind(), ErrorKind::Busy);
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    let db = Db::open(&path, &settings).unwrap();
    let table = db.table("t").unwrap();
    assert_eq!(table.get("after").unwrap(), Some(b"2".to_vec()));
    assert!(db.verify().unwrap().is_clean());
}

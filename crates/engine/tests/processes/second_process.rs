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

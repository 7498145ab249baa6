//! `nofault db table`: nothing is lost without a confirmation, and a call with one wrong name changes nothing.

use super::{db, db_with, said};

#[test]
fn tables_are_created_listed_emptied_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| db(folder.path(), arguments);
    said(&run(&["create", "shop", "--table", "stock"]), 0);
    said(&run(&["table", "create", "shop", "orders", "archive", "--compression", "fast"]), 0);
    for (key, table) in [("a", "stock"), ("b", "stock"), ("c", "orders")] {
        said(&run(&["put", "shop", key, "v", "--table", table]), 0);
    }
    let listed = said(&run(&["table", "list", "shop"]), 0);
    assert!(listed.contains("archive  about 0 entries") && listed.contains("fast"), "{listed}");
    let json: serde_json::Value = serde_json::from_str(&said(&run(&["table", "list", "shop", "--json"]), 0)).unwrap();
    assert_eq!(json["tables"][2]["name"], "stock", "{json}");
    assert_eq!(
        (&json["tables"][2]["entries_approximate"], &json["tables"][0]["compression"]),
        (&2.into(), &"fast".into())
    );

    // One wrong name, and nothing happens.
    assert!(said(&run(&["table", "create", "shop", "new", "orders"]), 2).contains("orders already"));
    assert!(said(&run(&["table", "drop", "shop", "stock", "nowhere", "--yes"]), 2).contains("its tables are"));
    assert_eq!(said(&run(&["table", "list", "shop"]), 0), listed);

    // Renamed, and back.
    assert!(said(&run(&["table", "rename", "shop", "stock", "orders"]), 2).contains("orders"));
    assert!(said(&run(&["table", "rename", "shop", "nowhere", "x"]), 2).contains("its tables are"));
    said(&run(&["table", "rename", "shop", "stock", "goods"]), 0);
    assert_eq!(said(&run(&["scan", "shop", "--table", "goods"]), 0), "a\tv\nb\tv\n");
    said(&run(&["table", "rename", "shop", "goods", "stock"]), 0);

    // Without a terminal nothing is lost unless the call says so.
    for action in ["drop", "clear"] {
        let told = said(&db_with(folder.path(), &["table", action, "shop", "stock"], b"yes\n"), 2);
        assert!(told.contains("--yes") && told.contains("stock (2 entries)"), "{told}");
    }
    assert_eq!(said(&run(&["table", "list", "shop"]), 0), listed);
    said(&run(&["table", "clear", "shop", "stock", "stock", "--yes"]), 0);
    assert_eq!(said(&run(&["scan", "shop", "--table", "stock"]), 0), "");
    assert_eq!(said(&run(&["scan", "shop", "--table", "orders"]), 0), "c\tv\n");
    said(&run(&["table", "drop", "shop", "orders", "archive", "-y"]), 0);
    assert!(said(&run(&["scan", "shop", "--table", "orders"]), 2).contains("its tables are: stock"));
    assert!(said(&run(&["table", "list", "nowhere"]), 2).contains("no database"));
}

#[test]
fn on_a_terminal_only_yes_drops_a_table() {
    let folder = tempfile::tempdir().unwrap();
    said(&db(folder.path(), &["create", "d"]), 0);
    let answer = |text: &str| {
        use std::io::Write as _;
        let command = format!("{} db table drop d main", env!("CARGO_BIN_EXE_nofault"));
        let mut child = std::process::Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(folder.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .ok()?;
        child.stdin.take()?.write_all(text.as_bytes()).ok()?;
        let output = child.wait_with_output().ok()?;
        Some((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
    };
    let Some((code, told)) = answer("no\n") else {
        println!("left out: there is no program 'script' to make a terminal");
        return;
    };
    assert!(code == Some(2) && told.contains("Type yes") && told.contains("nothing was changed"), "{told}");
    assert!(said(&db(folder.path(), &["table", "list", "d"]), 0).contains("main"));
    let (code, told) = answer("yes\n").unwrap();
    assert!(code == Some(0) && told.contains("dropped table main"), "{told}");
    assert_eq!(said(&db(folder.path(), &["table", "list", "d"]), 0).trim(), "");
}

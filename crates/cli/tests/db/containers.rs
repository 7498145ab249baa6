//! Two containers with one volume: each has its own process 1, as PID namespaces do.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{db, said};

/// Returns `nofault db …` in `folder`, in a new PID namespace if `is_contained`.
fn command(folder: &Path, arguments: &[&str], is_contained: bool) -> Command {
    let program = env!("CARGO_BIN_EXE_nofault");
    let mut command = if is_contained { Command::new("unshare") } else { Command::new(program) };
    if is_contained {
        command.args(["--pid", "--fork", "--mount-proc", program]);
    }
    command.arg("db").args(arguments).current_dir(folder).stdin(Stdio::piped());
    command
}

/// Starts a command with the database «shop» open until its input ends.
fn holder(folder: &Path, is_contained: bool) -> Child {
    let arguments = ["load", "shop", "--format", "lines", "--batch", "1"];
    let mut holder = command(folder, &arguments, is_contained).stderr(Stdio::piped()).spawn().expect("it starts");
    holder.stdin.as_mut().expect("a pipe").write_all(b"key\tvalue\n").expect("it reads");
    holder
}

#[test]
fn the_holder_of_a_lock_is_named_with_the_place_in_which_its_number_means_something() {
    let folder = tempfile::tempdir().expect("a folder");
    let tried = Command::new("unshare").args(["--pid", "--fork", "--mount-proc", "true"]).output();
    match tried {
        Ok(output) if output.status.success() => {}
        other => return eprintln!("not checked: no PID namespace can be made (root is needed): {other:?}"),
    }
    said(&db(folder.path(), &["create", "shop"]), 0);
    for (holds_contained, asks_contained) in [(true, false), (true, true), (false, true), (false, false)] {
        let name = folder.path().join("shop").join("lock");
        std::fs::write(&name, "").expect("nothing has it open");
        let mut held = holder(folder.path(), holds_contained);
        // The holder leaves its name once it has the lock.
        while std::fs::read(&name).expect("the file stays").is_empty() {
            assert!(held.try_wait().expect("it can be asked").is_none(), "the holder could not open it");
            std::thread::yield_now();
        }
        let asked = command(folder.path(), &["put", "shop", "b", "2"], asks_contained).output().expect("it runs");
        let refused = said(&asked, 5);
        let is_elsewhere = holds_contained || asks_contained;
        assert_eq!(refused.contains("in another container"), is_elsewhere, "{refused}");
        assert!(is_elsewhere || refused.contains(&format!("held by process {} (nofault):", held.id())), "{refused}");
        drop(held.stdin.take());
        let said: Vec<_> = BufReader::new(held.stderr.take().expect("a pipe")).lines().map_while(Result::ok).collect();
        assert!(held.wait().expect("it ends").success(), "{said:?}");
    }
}

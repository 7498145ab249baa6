//! One signal ends every command, in each waiting call: for the other end of a pipe that is opened, for its data, or for a reader of its
//! output.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nofault_sim::depth::{by_depth, sample};
use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, kill_process};

fn nofault(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_nofault"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A folder with a pipe and a database in it.
fn place() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["pipe", "pipe.ndjson", "pipe.json"] {
        rustix::fs::mknodat(CWD, folder.path().join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe");
    }
    for arguments in [&["db", "create", "d"][..], &["db", "put", "d", "key", "value"]] {
        assert!(nofault(folder.path(), arguments).status().expect("it runs").success());
    }
    folder
}

/// Checks that only files of a closed database are in its folder.
fn check_folder(folder: &Path, what: &[&str]) {
    let entries = std::fs::read_dir(folder.join("d"))
        .expect("it is there")
        .map(|entry| entry.expect("it is readable").file_name());
    let own = ["data", "log", "lock", "readers.nofault"];
    let others: Vec<_> = entries.filter(|name| !own.iter().any(|own| name == own)).collect();
    assert!(others.is_empty(), "{what:?} leaves {others:?}");
}

/// Waits until a command handles signals and its first thread sleeps: in the call in which it waits.
fn wait_until_it_waits(child: &mut Child, what: &[&str]) {
    let mut sleeping = 0;
    while sleeping < 5 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("its status");
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let caught = field("SigCgt:").and_then(|set| u64::from_str_radix(set, 16).ok()).unwrap_or(0);
        let state = field("State:").expect("a state");
        assert!(!state.starts_with('Z'), "{what:?} ended before its signal");
        let handles = caught & (1 << (Signal::TERM.as_raw() - 1)) != 0;
        sleeping = if handles && state.starts_with('S') { sleeping + 1 } else { 0 };
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Starts a command, sends it one signal when it waits, and returns its exit code and messages. A command that does not end makes the test
/// wait for ever.
fn signalled(mut command: Command, what: &[&str], signal: Signal) -> (Option<i32>, String) {
    let mut child = command.spawn().expect("it starts");
    drop(command);
    wait_until_it_waits(&mut child, what);
    kill_process(Pid::from_raw(child.id().cast_signed()).expect("an id"), signal).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!told.contains("panicked"), "{what:?}: {told}");
    (output.status.code(), told)
}

#[test]
fn one_signal_ends_a_command_that_waits_for_its_input() {
    let folder = place();
    let commands: [&[&str]; 10] = [
        &["db", "load", "d", "pipe"],
        &["db", "load", "d", "pipe", "--sorted", "--format", "lines"],
        &["db", "load", "new", "pipe", "--create"],
        &["lab", "--config", "pipe"],
        &["lab", "--config", "pipe.ndjson", "--plan"],
        &["lab", "report", "pipe"],
        &["lab", "compare", "pipe", "pipe"],
        &["lab", "verdict", "pipe"],
        &["lab", "share", "pipe"],
        &["lab", "report", "pipe", "--svgs", "pictures"],
    ];
    // Without a writer the opening waits; with a writer that writes nothing, the read.
    for has_writer in [false, true] {
        let name = |pipe: &str| folder.path().join(pipe);
        let open = |pipe: &str| File::options().read(true).write(true).open(name(pipe)).expect("a pipe");
        let _writers = has_writer.then(|| ["pipe", "pipe.ndjson", "pipe.json"].map(open));
        let cases = [Signal::INT, Signal::TERM].into_iter().flat_map(|signal| commands.map(|what| (what, signal)));
        for (what, signal) in sample(cases, 3) {
            let (code, told) = signalled(nofault(folder.path(), what), what, signal);
            assert_eq!(code, Some(130), "{what:?}, writer: {has_writer}: {told}");
            assert!(told.contains("nofault: interrupted"), "{what:?}: {told}");
            check_folder(folder.path(), what);
        }
        assert!(!folder.path().join("new").exists(), "a load that is stopped leaves no new database");
    }
}

#[test]
fn one_signal_ends_a_command_that_waits_for_standard_input() {
    let folder = place();
    for what in [
        &["db", "load", "d"][..],
        &["db", "load", "new", "--create", "--format", "lines"],
        &["db", "put", "d", "other"],
        &["lab", "--config", "/dev/stdin"],
        &["lab", "report", "/dev/stdin"],
    ] {
        let (input, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let mut command = nofault(folder.path(), what);
        command.stdin(input);
        let (code, told) = signalled(command, what, Signal::TERM);
        assert_eq!(code, Some(130), "{what:?}: {told}");
        drop(writer);
    }
    assert!(!folder.path().join("new").exists());
    let get = nofault(folder.path(), &["db", "get", "d", "other"]).status().unwrap();
    assert_eq!(get.code(), Some(1), "nothing is half written");
}

/// A pipe that takes no byte, with its other end, from which no byte is read.
fn full_pipe() -> (OwnedFd, OwnedFd) {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let flags = rustix::fs::fcntl_getfl(&writer).expect("its flags");
    rustix::fs::fcntl_setfl(&writer, flags | rustix::fs::OFlags::NONBLOCK).expect("it does not wait");
    loop {
        match rustix::io::write(&writer, &[b'x'; 4096]) {
            Ok(_) => {}
            Err(Errno::AGAIN) => break,
            Err(error) => panic!("{error}"),
        }
    }
    rustix::fs::fcntl_setfl(&writer, flags).expect("it waits again");
    (reader, writer)
}

#[test]
fn one_signal_ends_a_command_whose_output_is_not_read() {
    let folder = place();
    let backups = folder.path().join("backups");
    std::fs::create_dir(&backups).unwrap();
    assert!(nofault(folder.path(), &["ship", "d", "backups/d"]).status().unwrap().success());
    let commands = [
        &["db", "dump", "d", "-q"][..],
        &["db", "scan", "d"],
        &["db", "get", "d", "key"],
        &["db", "stat", "d", "--json"],
        &["db", "table", "list", "d"],
        &["db", "verify", "d", "--json"],
        &["db", "check", "d", "--json"],
        &["db", "compact", "d", "--json", "-q"],
        &["lab", "--print-config"],
        &["lab", "list", "."],
        &["completions", "bash"],
        &["man"],
        &["restore", "backups/d", "--list"],
        &["restore", "backups/d", "--check", "--json"],
    ];
    for what in sample(commands, 3) {
        let (reader, writer) = full_pipe();
        let mut command = nofault(folder.path(), what);
        command.stdout(writer);
        let (code, told) = signalled(command, what, Signal::TERM);
        assert_eq!(code, Some(130), "{what:?}: {told}");
        check_folder(folder.path(), what);
        drop(reader);
    }
}

#[test]
fn one_signal_ends_a_command_whose_messages_are_not_read() {
    let folder = place();
    std::fs::write(folder.path().join("dump"), "{\"key\":\"a\",\"value\":\"1\"}\n").unwrap();
    let lab: Vec<&str> =
        "lab async --dir lab --ram-device off --fio off --verbose --size 64MiB --memory 32MiB".split(' ').collect();
    let lab = [&lab[..], by_depth(&["--set", "async.file_bytes=1048576"], &[])].concat();
    let commands = [
        &["db", "load", "d", "dump"][..],
        &["db", "load", "new", "dump", "--create"],
        &["db", "backup", "d", "copy"],
        &["db", "salvage", "d", "rescued"],
        &["db", "get", "d", "no such key"],
        &["lab", "report", "nowhere"],
        &lab,
    ];
    // Each waits two seconds for its reader, and the salvage for each of its messages.
    for what in sample(commands, 6) {
        let (reader, writer) = full_pipe();
        let mut command = nofault(folder.path(), what);
        command.stderr(writer);
        // Work done by then keeps its own code.
        let (code, _) = signalled(command, what, Signal::TERM);
        assert!(matches!(code, Some(0 | 1 | 2 | 130)), "{what:?}: {code:?}");
        check_folder(folder.path(), what);
        drop(reader);
    }
    assert!(!folder.path().join("lab/nofault.lock").exists());
}

#[test]
fn a_pipe_in_the_place_of_a_file_that_is_read_several_times_is_refused_at_once() {
    let folder = place();
    for (what, told) in [
        (&["lab", "--trace", "pipe"][..], "no ordinary file"),
        (&["lab", "replay", "--trace", "pipe", "--plan"], "no ordinary file"),
        (&["lab", "random", "--file", "pipe", "--plan"], "no ordinary file"),
        (&["lab", "random", "--device", "pipe", "--plan"], "pipe"),
        (&["db", "check", "pipe"], "neither the folder of a backup"),
    ] {
        let output = nofault(folder.path(), what).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(told), "{what:?}: {output:?}");
    }
    // A pipe whose writer comes late is read as any file.
    let child = nofault(folder.path(), &["db", "load", "d", "pipe", "-q"]).spawn().unwrap();
    let mut writer = File::options().write(true).open(folder.path().join("pipe")).unwrap();
    writer.write_all(b"{\"key\":\"late\",\"value\":\"1\"}\n").unwrap();
    drop(writer);
    assert!(child.wait_with_output().unwrap().status.success());
    assert!(nofault(folder.path(), &["db", "get", "d", "late"]).status().unwrap().success());
    let top = nofault(folder.path(), &["db", "top", "d"]).output().unwrap();
    assert_eq!(top.status.code(), Some(2));
}

#[test]
fn a_backup_that_is_stopped_leaves_neither_a_copy_nor_a_socket() {
    let folder = place();
    let rows: String =
        (0..30_000).map(|number| format!("{{\"key\":\"{number}\",\"value\":\"some value\"}}\n")).collect();
    std::fs::write(folder.path().join("rows"), rows).unwrap();
    assert!(nofault(folder.path(), &["db", "load", "d", "rows", "-q"]).status().unwrap().success());
    let what = ["db", "backup", "d", "copy"];
    let mut child = nofault(folder.path(), &what).spawn().unwrap();
    while !folder.path().join("copy").exists() && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    // A backup done by then stays.
    let is_there = folder.path().join("copy").exists();
    assert_eq!(output.status.code(), Some(if is_there { 0 } else { 130 }), "{output:?}");
    check_folder(folder.path(), &what);
}

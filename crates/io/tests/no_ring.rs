//! Where io_uring is forbidden, as containers do it: the disk works through threads and says why.

mod common;

use common::{filter_calls, keeps_the_contract};
use nofault_io::disk::{FileOptions, QueueOptions};
use nofault_io::error::ErrorKind;
use nofault_io::folder::{Backend, open_disk};

/// Forbids a system call to this thread and the threads it starts, with EPERM, as the usual seccomp profiles do.
fn forbid(call: libc::c_long) -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // struct seccomp_data starts with the number of the call.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, call as u32) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    filter_calls(&mut filter, 0).map(drop)
}

/// A profile may allow rings and forbid their use: that would be met with the first read only.
#[test]
fn where_rings_may_be_made_and_not_used_threads_take_over_and_the_notes_say_so() {
    threads_take_over_without(libc::SYS_io_uring_enter);
}

#[test]
fn where_rings_are_forbidden_threads_take_over_and_the_notes_say_so() {
    threads_take_over_without(libc::SYS_io_uring_setup);
}

fn threads_take_over_without(call: libc::c_long) {
    if let Err(error) = forbid(call) {
        return eprintln!("not checked: no seccomp filter: {error}");
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let options = FileOptions { create: true, ..FileOptions::default() };
    let error = open_disk(&folder.path().join("ring"), &options, Backend::Uring).expect_err("forbidden");
    assert_eq!((error.kind(), error.errno()), (ErrorKind::NoPermission, Some(libc::EPERM)), "{error}");
    assert!(error.to_string().contains("seccomp"), "says who forbids it: {error}");
    assert!(!folder.path().join("ring").exists(), "nothing is left behind");
    let disk = open_disk(&folder.path().join("disk"), &options, Backend::Auto).expect("threads");
    let info = disk.info();
    assert_eq!(info.kind, "psync");
    assert!(
        info.notes.iter().any(|note| note.text.contains("no io_uring") && note.text.contains("seccomp")),
        "{:?}",
        info.notes
    );
    keeps_the_contract(&*disk, &QueueOptions::default());
}

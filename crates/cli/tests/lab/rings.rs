//! A machine on which the kernel refuses io_uring, as Docker's usual profile does.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use std::fs;

use nofault_sim::depth::by_depth;

use crate::common::{Lab, Outcome};

/// Runs the tiny configuration with further arguments in a thread whose system calls pass a filter: io_uring_setup
/// fails with EPERM there and in all processes that it starts. `None`, with the reason printed, where no filter can be
/// set.
fn run_without_rings(lab: &Lab, arguments: &[&str]) -> Option<Outcome> {
    std::thread::scope(|scope| {
        let run = scope.spawn(|| match forbid_rings() {
            Ok(()) => Some(lab.run(arguments)),
            Err(error) => {
                eprintln!("skipped: no seccomp filter: {error}");
                None
            }
        });
        run.join().unwrap()
    })
}

fn forbid_rings() -> std::io::Result<()> {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    // struct seccomp_data starts with the number of the call; 425 is io_uring_setup.
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 425) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter live until the calls return; the kernel copies them.
    let answer = unsafe {
        match libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) {
            0 => libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program),
            refused => refused.into(),
        }
    };
    if answer < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[test]
fn without_io_uring_its_methods_are_skipped_with_the_reason_and_the_run_succeeds() {
    let lab = Lab::new();
    // Without stalls no database of twice the data is made.
    let experiments = by_depth(
        &["random", "scan", "async", "access", "errors"][..],
        &["random", "scan", "async", "access", "stalls", "errors"],
    );
    let tiny = [
        "random={ cell_s = 0.1, ram_cell_s = 0.1 }",
        "scan.cell_s=0.1",
        "access.cell_s=0.1",
        "stalls.cell_s=0.1",
        "errors={ cell_s = 0.02, working_sets = [1048576] }",
    ];
    let mut arguments = experiments.to_vec();
    // Later settings replace earlier ones.
    let shorter: &[&str] = by_depth(
        &[
            "random={ cell_s = 0.02, ram_cell_s = 0.02, threads = [1], depths = [2] }",
            "scan={ cell_s = 0.02, map_threads = [1], depths = [2] }",
            "access={ cell_s = 0.02, batches = [1, 3], open_loop_shares = [0.5] }",
            "stalls.cell_s=0.02",
            "errors.cell_s=0.01",
        ],
        &[],
    );
    tiny.iter().chain(shorter).for_each(|assignment| arguments.extend(["--set", *assignment]));
    let Some(ended) = run_without_rings(&lab, &arguments) else { return };
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let records = fs::read_to_string(lab.only_result().join("records.ndjson")).unwrap();
    let skips: Vec<&str> = records.lines().filter(|line| line.contains("\"type\":\"skip\"")).collect();
    let skipped = |experiment: &str, method: &str| {
        skips.iter().any(|skip| {
            let is_it = skip.contains(&format!("\"experiment\":\"{experiment}\"")) && skip.contains(method);
            is_it && skip.contains("seccomp")
        })
    };
    assert!(skipped("async", "async-uring"), "{skips:?}");
    // Where memory cannot be limited, `random` is left out entirely.
    if records.contains("\"contender\":\"mmap-random\",\"params\"") || records.contains("pread-direct\",\"params\"") {
        assert!(skipped("random", "uring-direct"), "{skips:?}");
    }
}

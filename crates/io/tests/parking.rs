//! The bug of drivers that needs a separate process to show: a thread that spins while it waits.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use nofault_io::completion::{Op, OpKind};
use nofault_io::disk::{DirectIo, Disk, FileOptions, QueueOptions};
use nofault_io::folder::{Backend, open_disk};
use rustix::time::{ClockId, clock_gettime};

/// CPU time that a parked thread may use, for a wait of any length.
const PARKED_CPU_MAX: Duration = Duration::from_millis(10);

fn cpu(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// One test, so that nothing else in this process uses the CPU.
#[test]
fn waiting_for_completions_and_having_none_to_wait_for_cost_no_cpu() {
    let folder = tempfile::tempdir_in(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("a folder");
    for backend in [Backend::Uring, Backend::Psync] {
        for single_thread in [false, true] {
            let path = folder.path().join(format!("{backend:?}-{single_thread}"));
            let options = FileOptions { direct: DirectIo::Never, create: true, write: true };
            let disk = match open_disk(&path, &options, backend) {
                Ok(disk) => disk,
                Err(error) => {
                    eprintln!("not checked: {error}");
                    continue;
                }
            };
            parks(&*disk, &path, single_thread);
        }
    }
}

fn parks(disk: &dyn Disk, path: &Path, single_thread: bool) {
    let mut queue = disk.queue(&QueueOptions { single_thread, ..QueueOptions::default() }).expect("a queue");
    // Something that takes long and no CPU of ours: a sync that has much to write.
    let mut file = std::fs::OpenOptions::new().write(true).open(path).expect("open");
    for _ in 0..192 {
        file.write_all(&[7; 1 << 20]).expect("write");
    }
    queue.push(Op::new(1, 0, OpKind::Sync)).expect("accepted");
    queue.submit().expect("submit");
    let (started, before) = (Instant::now(), cpu(ClockId::ThreadCPUTime));
    let mut done = Vec::new();
    queue.reap(1, &mut done).expect("reap");
    let (spent, waited) = (cpu(ClockId::ThreadCPUTime) - before, started.elapsed());
    eprintln!("{}: {spent:?} of CPU in a wait of {waited:?}", disk.info().kind);
    assert_eq!(done[0].result, Ok(0));
    assert!(spent < PARKED_CPU_MAX, "{spent:?} of CPU in a wait of {waited:?}");
    // Nothing to do: neither a worker nor a ring's thread may be busy.
    let before = cpu(ClockId::ProcessCPUTime);
    std::thread::sleep(Duration::from_millis(200));
    let spent = cpu(ClockId::ProcessCPUTime) - before;
    assert!(spent < PARKED_CPU_MAX, "{spent:?} of CPU in 200 ms without work");
}

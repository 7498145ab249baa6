use std::os::unix::fs::PermissionsExt;

use super::ring::{Limits, refusal};
use super::*;

/// Runs in a dedicated thread with a filter that answers `errno` to the system calls `denied`. The filter ends with the
/// thread.
fn with_calls_denied<R: Send>(denied: &[libc::c_long], errno: i32, run: impl FnOnce() -> R + Send) -> R {
    let load_number = libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: 0 };
    let answer = |value: u32| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: value };
    let mut program = vec![load_number];
    for number in denied {
        program.push(libc::sock_filter { code: 0x15, jt: 0, jf: 1, k: *number as u32 });
        program.push(answer(libc::SECCOMP_RET_ERRNO | errno as u32));
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
            // SAFETY: the program is valid over the call, and the kernel copies it. It binds this thread only.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                let mode = libc::SECCOMP_MODE_FILTER;
                assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter), 0);
            }
            run()
        });
        thread.join().unwrap()
    })
}

const RING_CALLS: [libc::c_long; 3] = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

#[test]
fn a_seccomp_filter_against_io_uring_is_named_as_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let probe = with_calls_denied(&RING_CALLS, libc::EPERM, || Probe::of(folder.path()));
    let reason = probe.io_uring.reason().unwrap();
    assert!(reason.contains("seccomp"), "{reason}");
    assert!(probe.registered_buffers.reason().unwrap().contains("seccomp"), "{probe}");
    assert!(!probe.defer_taskrun.is_yes());
    // Other features are not affected.
    assert!(probe.durable_write.is_yes(), "{probe}");

    let probe = with_calls_denied(&RING_CALLS, libc::ENOSYS, || Probe::of(folder.path()));
    let reason = probe.io_uring.reason().unwrap();
    assert!(reason.contains("seccomp") && reason.contains("kernel has no io_uring"), "{reason}");
}

#[test]
fn a_filter_that_forbids_only_the_use_of_a_ring_is_found_too() {
    let here = Probe::of(Path::new("/")).io_uring;
    if let Some(reason) = here.reason() {
        return eprintln!("not run: {reason}");
    }
    let folder = tempfile::tempdir().unwrap();
    let no_enter = with_calls_denied(&[libc::SYS_io_uring_enter], libc::EPERM, || Probe::of(folder.path()));
    assert!(no_enter.io_uring.reason().unwrap().contains("seccomp"), "{no_enter}");
    let no_register = with_calls_denied(&[libc::SYS_io_uring_register], libc::EPERM, || Probe::of(folder.path()));
    assert!(no_register.io_uring.is_yes(), "{no_register}");
    assert!(no_register.registered_buffers.reason().unwrap().contains("seccomp"), "{no_register}");
}

#[test]
fn a_forbidden_cachestat_is_named_and_its_substitute_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, vec![1; 8192]).unwrap();
    let file = std::fs::File::open(&path).unwrap();
    let (probe, stat) = with_calls_denied(&[451], libc::EPERM, || {
        (Probe::of(folder.path()), crate::counters::cachestat(&file, 0..8192).unwrap())
    });
    assert!(probe.cachestat.reason().unwrap().contains("seccomp"), "{probe}");
    assert_eq!((stat.cached_bytes, stat.dirty_bytes), (8192, None));
}

#[test]
fn each_refusal_of_a_ring_names_its_cause_and_the_next_step() {
    let limits = |disabled: Option<&str>, seccomp| Limits {
        disabled: disabled.map(str::to_owned),
        seccomp,
        memlock_bytes_max: Some(65536),
    };
    let says = |errno, limits: Limits, wanted: &[&str]| {
        let text = refusal(errno, &limits);
        assert!(wanted.iter().all(|word| text.contains(word)), "{text} lacks one of {wanted:?}");
    };
    says(libc::EPERM, limits(Some("2"), true), &["io_uring_disabled is 2", "set it to 0"]);
    says(libc::EPERM, limits(Some("1"), false), &["io_uring_group", "CAP_SYS_ADMIN"]);
    says(libc::EPERM, limits(Some("0"), true), &["seccomp", "Docker"]);
    says(libc::EPERM, limits(None, true), &["seccomp"]);
    says(libc::EACCES, limits(Some("0"), false), &["SELinux"]);
    says(libc::ENOSYS, limits(None, false), &["no io_uring", "5.1"]);
    says(libc::ENOMEM, limits(None, false), &["65536", "ulimit -l"]);
    says(libc::EMFILE, limits(None, false), &["ulimit -n"]);
    says(0, limits(None, false), &["without an errno"]);
}

#[test]
fn a_folder_on_a_disk_file_system_can_do_durable_and_mostly_direct_io() {
    let folder = tempfile::tempdir().unwrap();
    let probe = Probe::of(folder.path());
    eprintln!("{probe}");
    assert!(probe.durable_write.is_yes(), "{probe}");
    assert!(!probe.kernel.is_empty());
    if probe.file_system.as_deref() == Some("ext4") {
        assert!(probe.direct_io.is_yes() && probe.nowait_read.is_yes(), "{probe}");
        let align = probe.dio_align_bytes.unwrap();
        assert!(align.is_power_of_two() && (512..=65536).contains(&align), "{probe}");
        let device = probe.device.as_ref().unwrap();
        assert!(device.logical_block_bytes.is_some_and(|bytes| bytes >= 512), "{probe}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
}

#[test]
fn a_file_is_only_read_and_its_neighbour_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    std::fs::write(&path, b"short").unwrap();
    let in_folder = Probe::of(folder.path());
    let of_file = Probe::of(&path);
    assert_eq!(of_file.durable_write, in_folder.durable_write);
    assert_eq!(of_file.direct_io.is_yes(), in_folder.direct_io.is_yes(), "{of_file}");
    assert_eq!(of_file.dio_align_bytes, in_folder.dio_align_bytes);
    assert_eq!(std::fs::read(&path).unwrap(), b"short");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn tmpfs_has_no_direct_io_and_no_device_and_says_why() {
    let probe = match tempfile::tempdir_in("/dev/shm") {
        Ok(folder) => Probe::of(folder.path()),
        Err(error) => return eprintln!("not run: {error}"),
    };
    if probe.file_system.as_deref() != Some("tmpfs") {
        return eprintln!("not run: /dev/shm is {:?}", probe.file_system);
    }
    assert!(probe.direct_io.reason().unwrap().contains("memory"), "{probe}");
    assert!(probe.device.is_err());
    assert!(probe.durable_write.is_yes(), "accepted there, though nothing survives a power cut: {probe}");
}

#[test]
fn a_missing_path_is_named_and_the_kernel_is_still_asked() {
    let probe = Probe::of(Path::new("/no/such/folder"));
    for ability in [&probe.direct_io, &probe.durable_write, &probe.nowait_read, &probe.atomic_write] {
        assert!(ability.reason().unwrap().contains("/no/such/folder"), "{ability}");
    }
    assert_eq!(probe.file_system, None);
    assert_eq!(probe.populate_read, Probe::of(Path::new("/")).populate_read);
    let special = Probe::of(Path::new("/dev/null"));
    assert!(special.direct_io.reason().unwrap().contains("neither"), "{special}");
}

#[test]
fn a_folder_without_the_right_to_write_says_so() {
    if let Ok(folder) = std::env::var("NOFAULT_TEST_FOLDER") {
        // SAFETY: gives rights up, in a process made for it.
        assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
        let probe = Probe::of(Path::new(&folder));
        assert!(probe.direct_io.reason().unwrap().contains("cannot write in"), "{probe}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o555)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Root may write everywhere, so a child process under the user `nobody` asks.
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "probe::tests::a_folder_without_the_right_to_write_says_so", "--test-threads=1"])
            .env("NOFAULT_TEST_FOLDER", folder.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    } else {
        let probe = Probe::of(folder.path());
        assert!(probe.direct_io.reason().unwrap().contains("cannot write in"), "{probe}");
    }
}

#[test]
fn names_are_listed_once_and_choices_read_out_of_their_brackets() {
    let probe = Probe::of(Path::new("/"));
    let mut names: Vec<_> = probe.named().into_iter().map(|(name, _)| name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(probe.to_string().lines().count(), count);
    assert_eq!(chosen("always [madvise] never"), "madvise");
    assert_eq!(chosen("none"), "none");
    assert_eq!(chosen("] ["), "] [");
}

use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::Barrier;

use super::*;

fn page() -> usize {
    page_bytes()
}

/// Creates a file with page `n` full of the byte `n + 1`: zeroes are never data.
fn file_of_pages(count: usize) -> File {
    let mut file = tempfile::tempfile().unwrap();
    for number in 0..count {
        file.write_all(&vec![number as u8 + 1; page()]).unwrap();
    }
    file
}

fn map(file: &File, protection: Protection) -> MappedFile {
    let len = file.metadata().unwrap().len();
    // SAFETY: the file is this test's own; where it truncates it, the bytes are used under guards only.
    unsafe { MappedFile::map(file, protection, 0..len) }.unwrap()
}

fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().map(|byte| u64::from(*byte)).sum()
}

#[test]
fn a_map_reads_what_the_file_holds_and_advice_is_taken() {
    let file = file_of_pages(8);
    let map = map(&file, Protection::ReadOnly);
    let whole = 0..map.len_bytes();
    assert_eq!(map.bytes()[3 * page()], 4);
    assert_eq!(map.guarded(3 * page()..4 * page(), sum).unwrap(), 4 * page() as u64);
    let mut copy = vec![0; 10];
    map.read_at(5 * page() - 5, &mut copy).unwrap();
    assert_eq!(copy, [5, 5, 5, 5, 5, 6, 6, 6, 6, 6]);
    for advice in [
        Advice::Normal,
        Advice::Random,
        Advice::Sequential,
        Advice::WillNeed,
        Advice::DontNeed,
        Advice::PopulateRead,
        Advice::Cold,
        Advice::PageOut,
        Advice::HugePage,
        Advice::NoHugePage,
    ] {
        match map.advise(advice, whole.clone()) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
                eprintln!("not here: {error}");
            }
        }
    }
    map.populate(page() + 1..2 * page() + 1).unwrap();
    assert!(map.residency(page()..3 * page()).unwrap() >= 2 * page() as u64);
    match map.lock(0..page()) {
        Ok(()) => map.unlock(0..page()).unwrap(),
        Err(error) => eprintln!("not here: {error}"),
    }
    prefetch(map.bytes());
    assert_eq!(map.guarded(whole, sum).unwrap(), 36 * page() as u64, "advice changed the bytes");
}

#[test]
fn writes_reach_the_file_from_a_shared_map_and_never_from_a_private_one() {
    let file = file_of_pages(2);
    let mut shared = map(&file, Protection::Shared);
    shared.guarded_mut(0..4, |bytes| bytes.copy_from_slice(b"abcd")).unwrap();
    // SAFETY: these bytes have no other user.
    unsafe { shared.write_at(4, b"ef") }.unwrap();
    shared.sync(0..page(), SyncMode::Wait).unwrap();
    shared.sync(0..page(), SyncMode::NoWait).unwrap();
    let mut on_disk = [0; 6];
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert_eq!(&on_disk, b"abcdef");

    let mut private = map(&file, Protection::Private);
    private.guarded_mut(0..4, |bytes| bytes.fill(b'x')).unwrap();
    assert_eq!(&private.bytes()[..6], b"xxxxef");
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert_eq!(&on_disk, b"abcdef");
    let refused = private.advise(Advice::DontNeed, 0..page()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidCall, "{refused}");
    let beside = private.discard(0..10).unwrap_err();
    assert_eq!(beside.kind(), ErrorKind::InvalidCall, "{beside}");
    private.discard(0..page()).unwrap();
    assert_eq!(&private.bytes()[..6], b"abcdef", "the private copy is dropped");
}

#[test]
fn wrong_calls_are_refused_with_the_reason() {
    let file = file_of_pages(1);
    let try_map = |range| {
        // SAFETY: the file is this test's own and stays as it is.
        unsafe { MappedFile::map(&file, Protection::ReadOnly, range) }.unwrap_err().kind()
    };
    assert_eq!(try_map(0..0), ErrorKind::InvalidCall);
    assert_eq!(try_map(1..page() as u64), ErrorKind::InvalidCall);
    assert_eq!(try_map(0..page() as u64 + 1), ErrorKind::Short);
    assert_eq!(try_map(0..u64::MAX), ErrorKind::InvalidCall);
    let mut map = map(&file, Protection::ReadOnly);
    assert_eq!(map.guarded(0..page() + 1, sum).unwrap_err().kind(), ErrorKind::InvalidCall);
    #[expect(clippy::reversed_empty_ranges, reason = "that is the wrong call")]
    let backwards = map.guarded(5..4, sum);
    assert_eq!(backwards.unwrap_err().kind(), ErrorKind::InvalidCall);
    assert_eq!(map.read_at(usize::MAX, &mut [0; 2]).unwrap_err().kind(), ErrorKind::InvalidCall);
    assert_eq!(map.guarded_mut(0..1, |_| ()).unwrap_err().kind(), ErrorKind::InvalidCall);
    assert_eq!(map.guarded(0..0, sum).unwrap(), 0);
    // SAFETY: nothing is mapped.
    let missing = unsafe { MappedFile::open(Path::new("/no/such/file"), Protection::ReadOnly) }.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    // SAFETY: nothing is mapped.
    let pipe = unsafe { MappedFile::open(Path::new("/proc/self/status"), Protection::ReadOnly) }.unwrap_err();
    assert_eq!(pipe.kind(), ErrorKind::InvalidCall, "{pipe}");
}

#[test]
fn truncation_under_the_map_is_an_error_and_does_not_end_the_process() {
    let file = file_of_pages(8);
    let map = map(&file, Protection::ReadOnly);
    file.set_len(4 * page() as u64).unwrap();
    let error = map.guarded(0..8 * page(), sum).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Short, "{error}");
    assert!(error.to_string().contains(&format!("only {} bytes", 4 * page())), "{error}");
    assert_eq!(map.read_at(6 * page(), &mut [0; 8]).unwrap_err().kind(), ErrorKind::Short);
    // The remaining pages can still be read.
    assert_eq!(map.guarded(0..4 * page(), sum).unwrap(), 10 * page() as u64);
    let error = map.populate(0..8 * page()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Short, "{error}");
}

#[test]
fn a_page_that_failed_never_yields_zeroes_as_data_later() {
    let file = file_of_pages(4);
    let old_map = map(&file, Protection::ReadOnly);
    file.set_len(2 * page() as u64).unwrap();
    assert!(old_map.guarded(2 * page()..3 * page(), sum).is_err());
    // The file comes back, with other content: this map does not trust the page any more, a new one does.
    file.set_len(4 * page() as u64).unwrap();
    file.write_all_at(&vec![9; page()], 2 * page() as u64).unwrap();
    for _ in 0..3 {
        let error = old_map.guarded(2 * page()..2 * page() + 1, <[u8]>::to_vec).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    }
    // The stand-in is gone: a read without a guard sees the file.
    assert_eq!(old_map.bytes()[2 * page()], 9);
    let new_map = map(&file, Protection::ReadOnly);
    assert_eq!(new_map.guarded(2 * page()..3 * page(), sum).unwrap(), 9 * page() as u64);
}

#[test]
fn writing_to_a_truncated_shared_map_is_an_error_and_keeps_the_rest() {
    let file = file_of_pages(4);
    let mut map = map(&file, Protection::Shared);
    file.set_len(page() as u64).unwrap();
    let error = map.guarded_mut(0..4 * page(), |bytes| bytes.fill(7)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Short, "{error}");
    let mut on_disk = vec![0; page()];
    file.read_exact_at(&mut on_disk, 0).unwrap();
    assert_eq!(sum(&on_disk), 7 * page() as u64);
    assert_eq!(file.metadata().unwrap().len(), page() as u64);
    map.sync(0..page(), SyncMode::Wait).unwrap();
}

#[test]
fn a_private_copy_beside_a_failed_page_survives() {
    let file = file_of_pages(4);
    let mut map = map(&file, Protection::Private);
    map.guarded_mut(page()..2 * page(), |bytes| bytes.fill(200)).unwrap();
    file.set_len(1).unwrap();
    // Truncation discards private copies of the lost pages; copies of pages that the file still has stay.
    map.guarded_mut(0..page(), |bytes| bytes.fill(100)).unwrap();
    assert!(map.guarded(0..4 * page(), sum).is_err());
    assert_eq!(map.guarded(0..page(), sum).unwrap(), 100 * page() as u64);
}

#[test]
fn more_failed_pages_than_can_be_marked_fail_the_whole_map() {
    let file = file_of_pages(200);
    let map = map(&file, Protection::ReadOnly);
    file.set_len(page() as u64).unwrap();
    assert_eq!(map.guarded(0..200 * page(), sum).unwrap_err().kind(), ErrorKind::Short);
    assert!(map.guarded(199 * page()..200 * page(), sum).is_err());
    assert!(map.guarded(0..page(), sum).is_err(), "the whole map is given up");
}

#[test]
fn two_threads_that_meet_the_same_failure_both_get_the_error() {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..50 {
        let file = file_of_pages(12);
        let map = map(&file, Protection::ReadOnly);
        let cut = random.usize(1..12);
        let start = Barrier::new(3);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        (0..60)
                            .map(|round| {
                                let number = round % 12;
                                (number, map.guarded(number * page()..(number + 1) * page(), sum))
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            start.wait();
            file.set_len((cut * page()) as u64).unwrap();
            for reader in readers {
                for (number, result) in reader.join().unwrap() {
                    match result {
                        Ok(found) => assert_eq!(found, (number as u64 + 1) * page() as u64, "zeroes taken for data"),
                        Err(error) => assert!(number >= cut, "page {number} of {cut}: {error}"),
                    }
                }
            }
        });
    }
}

#[test]
fn guards_nest_and_a_panic_takes_them_down() {
    let (outer_file, inner_file) = (file_of_pages(2), file_of_pages(2));
    let (outer, inner) = (map(&outer_file, Protection::ReadOnly), map(&inner_file, Protection::ReadOnly));
    outer_file.set_len(page() as u64).unwrap();
    inner_file.set_len(page() as u64).unwrap();
    // Inside the inner guard a page of the outer one fails, and the other way round.
    let result = outer.guarded(0..2 * page(), |outer_bytes| {
        let inside = inner.guarded(0..page(), |inner_bytes| sum(inner_bytes) + u64::from(outer_bytes[page()]));
        assert_eq!(inside.unwrap(), page() as u64, "the inner range itself is sound");
        assert_eq!(inner.guarded(page()..2 * page(), sum).unwrap_err().kind(), ErrorKind::Short);
    });
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Short);

    let file = file_of_pages(3);
    let map = map(&file, Protection::ReadOnly);
    file.set_len(page() as u64).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        map.guarded(0..3 * page(), |bytes| assert_eq!(bytes[page()], 77, "this panic is part of the test"))
    }));
    assert!(panicked.is_err());
    assert_eq!(map.guarded(page()..2 * page(), sum).unwrap_err().kind(), ErrorKind::Short);
    assert_eq!(map.guarded(0..page(), sum).unwrap(), page() as u64);
}

/// A block device over `file`, which the kernel takes down by itself when the last descriptor is closed. `None`, with a
/// word why, where that needs more rights or tools than there are.
fn loop_device_over(file: &tempfile::NamedTempFile) -> Option<(PathBuf, File)> {
    let losetup = |arguments: &[&std::ffi::OsStr]| std::process::Command::new("losetup").args(arguments).output();
    let output = match losetup(&["--find".as_ref(), "--show".as_ref(), file.path().as_os_str()]) {
        Ok(output) if output.status.success() => output,
        other => {
            eprintln!("not run: losetup: {other:?}");
            return None;
        }
    };
    let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
    let device = OpenOptions::new().read(true).write(true).open(&path);
    losetup(&["--detach".as_ref(), path.as_os_str()]).unwrap();
    Some((path, device.unwrap()))
}

#[test]
fn a_device_that_fails_a_read_is_an_error_naming_the_place() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(&vec![5; 64 * page()]).unwrap();
    file.as_file().sync_all().unwrap();
    let Some((path, device)) = loop_device_over(&file) else { return };
    // SAFETY: a device made for this test alone.
    let map = unsafe { MappedFile::map(&device, Protection::ReadOnly, 0..64 * page() as u64) }.unwrap();
    map.advise(Advice::Random, 0..64 * page()).unwrap();
    assert_eq!(map.guarded(0..page(), sum).unwrap(), 5 * page() as u64);
    // The device keeps its length, but has nothing behind the cut any more: the kernel's reads fail with EIO.
    file.as_file().set_len(32 * page() as u64).unwrap();
    let error = map.guarded(39 * page()..42 * page(), sum).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains(&format!("SIGBUS at {}", 39 * page())), "{error}");
    assert!(error.path().is_some_and(|found| found == path), "{error}");
    assert_eq!(map.populate(48 * page()..49 * page()).unwrap_err().kind(), ErrorKind::Device);
    assert_eq!(map.guarded(31 * page()..32 * page(), sum).unwrap(), 5 * page() as u64);
    // The device is one for the counters and the probe too.
    let watch = counters::Watch::new().device_of(&path).unwrap();
    assert_eq!(watch.devices().next().unwrap().name(), path.file_name().unwrap().to_str().unwrap());
    let probe = crate::probe::Probe::of(&path);
    assert!(probe.durable_write.is_yes() && probe.direct_io.is_yes() && probe.device.is_ok(), "{probe}");
    assert_eq!(probe.file_system, None, "the folder of device nodes is not its file system");
}

/// Runs the test of this name again in a separate process, with `NOFAULT_TEST_CHILD` set to `role`.
fn status_of_child(test: &str, role: &str) -> std::process::ExitStatus {
    std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--test-threads=1"])
        .env("NOFAULT_TEST_CHILD", role)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .status()
        .unwrap()
}

#[test]
fn a_sigbus_that_no_guard_covers_still_kills() {
    extern "C" fn earlier_handler(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid `info`.
        unsafe { libc::_exit(if (*info).si_code == libc::BUS_ADRERR { 42 } else { 43 }) }
    }
    if let Ok(role) = std::env::var("NOFAULT_TEST_CHILD") {
        if role.starts_with("earlier") {
            // SAFETY: installs a handler that only ends the process.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = earlier_handler as extern "C" fn(_, _, _) as usize;
                action.sa_flags = libc::SA_SIGINFO;
                assert_eq!(libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()), 0);
            }
        }
        let file = file_of_pages(4);
        let map = map(&file, Protection::ReadOnly);
        file.set_len(page() as u64).unwrap();
        match role.as_str() {
            "earlier handler, guarded" => assert!(map.guarded(0..4 * page(), sum).is_err()),
            "unguarded" | "earlier handler" => eprintln!("{}", map.bytes()[page()]),
            "beside" => eprintln!("{:?}", map.guarded(page()..2 * page(), |_| map.bytes()[3 * page()])),
            "other thread" => eprintln!(
                "{:?}",
                map.guarded(page()..2 * page(), |bytes| std::thread::scope(|scope| {
                    scope.spawn(|| bytes[0]).join().unwrap()
                }))
            ),
            "sent" => {
                // Even inside a guard: this signal is about no guarded page. The handler that Rust installs at start
                // only turns itself off on the first such signal, so that the second kills.
                let _ = map.guarded(0..page(), |_| {
                    for _ in 0..2 {
                        // SAFETY: raises a signal; its effect is the point of the test.
                        unsafe { libc::raise(libc::SIGBUS) };
                    }
                });
            }
            "guarded" => assert!(map.guarded(0..4 * page(), sum).is_err()),
            _ => unreachable!("{role}"),
        }
        return;
    }
    let name = "mapped::tests::a_sigbus_that_no_guard_covers_still_kills";
    for role in ["unguarded", "beside", "other thread", "sent"] {
        let status = status_of_child(name, role);
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{role}: {status}");
    }
    assert!(status_of_child(name, "guarded").success());
    // A handler installed earlier gets exactly the signals that are not the guard's.
    assert_eq!(status_of_child(name, "earlier handler").code(), Some(42));
    assert!(status_of_child(name, "earlier handler, guarded").success());
}

#[test]
fn an_aligned_map_shows_the_same_bytes_and_may_be_put_into_huge_pages() {
    let file = tempfile::tempfile().unwrap();
    let len = 4_u64 << 20;
    file.set_len(len).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"here", 3 << 20).unwrap();
    // SAFETY: the file is this test's alone.
    let map = unsafe { MappedFile::map_aligned(&file, Protection::ReadOnly, 0..len, 2 << 20) }.unwrap();
    assert!(map.bytes().as_ptr().addr().is_multiple_of(2 << 20));
    // Whether there are huge pages for this file is the kernel's affair.
    if let Err(error) = map.advise(Advice::Collapse, 0..map.len_bytes()) {
        eprintln!("not put into huge pages: {error}");
    }
    assert_eq!(&map.bytes()[3 << 20..][..4], b"here");
}

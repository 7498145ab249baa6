//! Tests of the data files: made, reused, resized, refused, cancelled, and out of space.

use super::*;

const MIB: u64 = 1 << 20;

fn ensure(path: &Path, seed: u64, data_bytes: u64) -> Result<Target> {
    ensure_file(path, DataSpec { seed, data_bytes }, &|_, _| (), &AtomicBool::new(false))
}

fn all_blocks_verify(path: &Path, seed: u64, data_bytes: u64) -> bool {
    let bytes = fs::read(path).unwrap();
    let (head, data) = bytes.split_at(BLOCK_BYTES);
    assert_eq!(Header::decode(head).unwrap().data_bytes, data_bytes);
    data.len() as u64 == data_bytes
        && data.chunks(BLOCK_BYTES).enumerate().all(|(i, block)| content::check_block_fully(block, seed, i as u64))
}

#[test]
fn a_file_is_made_whole_and_used_again_without_writing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let most = AtomicU64::new(0);
    let wanted = DataSpec { seed: 5, data_bytes: 9 * MIB + 4096 };
    let progress = |done, total| {
        assert_eq!(total, wanted.data_bytes);
        most.fetch_max(done, Ordering::Relaxed);
    };
    let target = ensure_file(&path, wanted, &progress, &AtomicBool::new(false)).unwrap();
    assert_eq!((target.data_bytes, target.content_seed), (wanted.data_bytes, Some(5)));
    assert_eq!(most.into_inner(), wanted.data_bytes);
    assert!(all_blocks_verify(&path, 5, wanted.data_bytes));
    let written = fs::metadata(&path).unwrap().modified().unwrap();
    ensure(&path, 5, wanted.data_bytes).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), written, "reused, not written again");
}

#[test]
fn a_file_of_another_size_or_seed_is_changed_to_the_wanted_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    for (seed, data_bytes) in [(1, MIB), (1, 5 * MIB), (1, 2 * MIB), (9, 2 * MIB)] {
        ensure(&path, seed, data_bytes).unwrap();
        assert!(all_blocks_verify(&path, seed, data_bytes), "seed {seed}, {data_bytes} bytes");
    }
}

#[test]
fn a_damaged_or_unfinished_file_is_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let cut = |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(MIB).unwrap();
    let flip = |path: &Path| {
        // Damage every block, because only some are checked.
        let file = OpenOptions::new().write(true).open(path).unwrap();
        (0..512).for_each(|index| file.write_all_at(b"x", content::block_offset(index) + 99).unwrap());
    };
    let unfinished = |path: &Path| {
        let header = Header { complete: false, ..inspect(path).unwrap().unwrap() };
        OpenOptions::new().write(true).open(path).unwrap().write_all_at(&header.encode(), 0).unwrap();
        flip(path);
    };
    let damages: [&dyn Fn(&Path); 3] = [&cut, &flip, &unfinished];
    for damage in damages {
        ensure(&path, 1, 2 * MIB).unwrap();
        damage(&path);
        ensure(&path, 1, 2 * MIB).unwrap();
        assert!(all_blocks_verify(&path, 1, 2 * MIB));
    }
}

#[test]
fn a_foreign_file_is_neither_written_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("precious"), folder.path().join("link"));
    for content in [&b""[..], b"short", &[7; 3 * BLOCK_BYTES]] {
        fs::write(&path, content).unwrap();
        for error in [ensure(&path, 1, MIB).unwrap_err(), remove_file(&path).unwrap_err()] {
            assert_eq!(error.kind(), LabErrorKind::Damaged, "{error}");
            assert!(error.to_string().contains("choose another folder"), "{error}");
        }
        assert_eq!(fs::read(&path).unwrap(), content);
    }
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert_eq!(ensure(&link, 1, MIB).unwrap_err().kind(), LabErrorKind::Damaged);
    assert_eq!(ensure(folder.path(), 1, MIB).unwrap_err().kind(), LabErrorKind::Damaged);
}

#[test]
fn a_cancelled_file_is_gone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let cancel = AtomicBool::new(false);
    let wanted = DataSpec { seed: 1, data_bytes: 64 * MIB };
    let error = ensure_file(&path, wanted, &|_, _| cancel.store(true, Ordering::Relaxed), &cancel).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::Interrupted);
    assert!(!path.exists());
}

#[test]
fn more_than_the_disk_holds_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    let error = ensure(&path, 1, 1 << 50).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::NoSpace);
    assert!(error.to_string().contains("a tenth of the disk"), "{error}");
    assert!(!path.exists());
    assert_eq!(ensure(&path, 1, 100).unwrap_err().kind(), LabErrorKind::Usage);
    assert_eq!(ensure(&path, 1, 0).unwrap_err().kind(), LabErrorKind::Usage);
    assert_eq!(ensure(&path, 1, u64::MAX - 4095).unwrap_err().kind(), LabErrorKind::Usage);
}

#[test]
fn a_large_disk_that_is_nearly_full_takes_small_data() {
    const GIB: u64 = 1 << 30;
    assert_eq!(usable_of(50 * GIB, 100 * GIB), 46 * GIB);
    assert_eq!(usable_of(20 * GIB, 250 * GIB), 16 * GIB, "less than a tenth of it is free");
    assert_eq!(usable_of(4 * GIB, 250 * GIB), 0);
    assert_eq!(usable_of(3 * GIB, 10 * GIB), 2 * GIB, "a tenth of a small disk");
}

#[test]
fn several_files_are_one_target() {
    let folder = tempfile::tempdir().unwrap();
    let wanted = DataSpec { seed: 2, data_bytes: MIB };
    let target = ensure_files(folder.path(), "async", 3, wanted, &|_, _| (), &AtomicBool::new(false)).unwrap();
    assert_eq!((target.label.as_str(), target.paths.len()), ("async", 3));
    for path in &target.paths {
        assert!(all_blocks_verify(Path::new(path), 2, MIB));
        assert!(remove_file(Path::new(path)).unwrap());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_made_file_has_no_unwritten_extents() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    ensure(&path, 1, 8 * MIB).unwrap();
    match std::process::Command::new("filefrag").arg("-v").arg(&path).output() {
        Ok(out) if out.status.success() => {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(!text.contains("unwritten"), "{text}");
        }
        _ => eprintln!("skipped: filefrag (e2fsprogs) is not here or cannot read this file system"),
    }
}

const SMALL_DISK: &str = "NOFAULT_TEST_SMALL_DISK";

/// Fills the disk at a path. Not a test by itself: the test below runs it in a child process on a disk of 4 MiB.
#[test]
fn fills_the_disk_that_it_is_given() {
    let Ok(folder) = std::env::var(SMALL_DISK) else { return };
    let path = Path::new(&folder).join("data");
    let wanted = DataSpec { seed: 1, data_bytes: 64 * MIB };
    let error = make(&path, true, wanted, 0, &|_, _| (), &AtomicBool::new(false)).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::NoSpace, "{error}");
    assert!(!path.exists());
    println!("refused: {error}");
}

#[test]
fn a_disk_that_fills_up_during_the_writing_keeps_no_unfinished_file() {
    let folder = tempfile::tempdir().unwrap();
    // In a new mount namespace, which ends with the process.
    let script = "mount -t tmpfs -o size=4m none \"$0\" && exec \"$1\" --exact \
                  machine::data::tests::fills_the_disk_that_it_is_given --nocapture";
    let test = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(folder.path()).arg(test).env(SMALL_DISK, folder.path());
    match command.output() {
        Ok(out) if String::from_utf8_lossy(&out.stdout).contains("running 1 test") => {
            let text = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(out.status.success() && text.contains("refused: "), "{text}");
        }
        _ => eprintln!("skipped: a small disk (tmpfs in a mount namespace) needs root"),
    }
}

#[test]
fn a_file_is_read_to_its_last_whole_block_unless_cancelled_or_absent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data");
    fs::write(&path, vec![7; 9 * MIB as usize + 4096 + 100]).unwrap();
    let most = AtomicU64::new(0);
    let progress = |done, _| {
        most.fetch_max(done, Ordering::Relaxed);
    };
    read_through(&path, &progress, &AtomicBool::new(false)).unwrap();
    assert_eq!(most.into_inner(), 9 * MIB + 4096);
    let stopped = read_through(&path, &|_, _| (), &AtomicBool::new(true)).unwrap_err();
    assert!(stopped.kind() == LabErrorKind::Interrupted && stopped.to_string().contains("reading"), "{stopped}");
    let missing = read_through(&folder.path().join("none"), &|_, _| (), &AtomicBool::new(false)).unwrap_err();
    assert!(missing.to_string().contains("none"), "{missing}");
}

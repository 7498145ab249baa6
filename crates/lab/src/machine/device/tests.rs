//! Tests of raw devices, on RAM-backed devices that the tests make.

use super::*;
use crate::machine::ram::{self, RamDevice};

const WANTED: DataSpec = DataSpec { seed: 6, data_bytes: 4 << 20 };

fn ram() -> Option<RamDevice> {
    if let Err(error) = ram::check(1, WANTED.data_bytes) {
        eprintln!("skipped: {error}");
        return None;
    }
    Some(RamDevice::create(WANTED, &|_, _| (), &AtomicBool::new(false)).unwrap())
}

fn prepare(path: &Path, confirm: &str) -> Result<Target> {
    prepare_device(path, Path::new(confirm), 7, 0, &|_, _| (), &AtomicBool::new(false))
}

fn overwrite_head(path: &Path, edit: impl FnOnce(&mut [u8])) {
    let file = open(path, true).unwrap();
    let mut head = data::buffer(BLOCK_BYTES).unwrap();
    edit(&mut head);
    file.write_all_at(&head, 0).unwrap();
}

#[test]
fn a_marked_device_is_read_and_an_unmarked_one_only_on_demand() {
    let Some(device) = ram() else { return };
    let path = device.path();
    let marked = target(&path, false).unwrap();
    assert_eq!((marked.data_bytes, marked.content_seed), (4 << 20, Some(6)));
    overwrite_head(&path, |_| ());
    let error = target(&path, false).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::Damaged);
    assert!(error.to_string().contains("--unmarked-devices"), "{error}");
    let unmarked = target(&path, true).unwrap();
    assert_eq!((unmarked.data_bytes, unmarked.content_seed), (4 << 20, None));
}

#[test]
fn a_device_is_prepared_only_when_confirmed_and_without_a_signature() {
    let Some(device) = ram() else { return };
    let path = device.path();
    let name = path.display().to_string();
    assert_eq!(prepare(&path, "yes").unwrap_err().kind(), LabErrorKind::Usage);
    overwrite_head(&path, |head| head[..4].copy_from_slice(b"XFSB"));
    let error = prepare(&path, &name).unwrap_err();
    assert!(error.to_string().contains("XFS file system") && error.to_string().contains("wipefs"), "{error}");
    overwrite_head(&path, |_| ());
    let target = prepare(&path, &name).unwrap();
    assert_eq!((target.data_bytes, target.content_seed), (4 << 20, Some(7)));
    assert_eq!(super::target(&path, false).unwrap(), target);
}

#[test]
fn a_device_that_is_open_exclusively_is_refused() {
    let Some(device) = ram() else { return };
    let path = device.path();
    let _holder = open(&path, false).unwrap();
    assert_eq!(target(&path, true).unwrap_err().kind(), LabErrorKind::Busy);
    assert_eq!(prepare(&path, &path.display().to_string()).unwrap_err().kind(), LabErrorKind::Busy);
}

#[test]
fn a_mounted_device_is_refused() {
    let Some(mount) = system::mounts()
        .into_iter()
        .find(|mount| fs::metadata(&mount.source).is_ok_and(|meta| meta.file_type().is_block_device()))
    else {
        eprintln!("skipped: no mounted block device is visible");
        return;
    };
    let error = target(Path::new(&mount.source), true).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::Busy);
    assert!(error.to_string().contains("mounted at"), "{error}");
}

#[test]
fn a_file_is_not_a_device() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(target(file.path(), true).unwrap_err().kind(), LabErrorKind::Usage);
}

#[test]
fn signatures_are_found_at_their_offsets() {
    let cases: [(usize, &[u8], &str); 8] = [
        (1080, &[0x53, 0xef], "ext4"),
        (0, b"XFSB", "XFS"),
        ((64 << 10) + 64, b"_BHRfS_M", "Btrfs"),
        (512, b"EFI PART", "GPT"),
        (510, &[0x55, 0xaa], "MBR"),
        (512, b"LABELONE", "LVM"),
        (4086, b"SWAPSPACE2", "swap"),
        (0, b"LUKS\xba\xbe", "LUKS"),
    ];
    let tail = vec![0; 4096];
    for (offset, magic, name) in cases {
        let mut head = vec![0; HEAD_BYTES];
        assert_eq!(signature_of(&head, &tail), None);
        head[offset..offset + magic.len()].copy_from_slice(magic);
        assert!(signature_of(&head, &tail).is_some_and(|found| found.contains(name)), "{name}");
    }
    let mut tail = vec![0; 4096];
    tail[3584..3592].copy_from_slice(b"EFI PART");
    assert!(signature_of(&vec![0; HEAD_BYTES], &tail).is_some());
}

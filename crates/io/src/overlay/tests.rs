//! An overlay against a model of its file, its limits, and locks of folders that are only read.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::folder::{Backend, Folder};

fn perform(disk: &dyn Disk, offset: u64, kind: OpKind) -> Result<Completion> {
    disk.perform(Op::new(0, offset, kind))
}

fn buffer(bytes: &[u8]) -> IoBuf {
    let mut buffer = IoBuf::zeroed(bytes.len(), PageKind::Small).unwrap();
    buffer.copy_from_slice(bytes);
    buffer
}

#[derive(Debug, Clone)]
enum Step {
    Write(u64, u8, usize),
    Read(u64, usize),
    Truncate(u64),
    Allocate(u64, u64),
}

fn step() -> impl Strategy<Value = Step> {
    // Positions in blocks of 512 bytes.
    prop_oneof![
        (0..80_u64, any::<u8>(), 1..20_usize).prop_map(|(at, fill, len)| Step::Write(at, fill, len)),
        (0..90_u64, 1..30_usize).prop_map(|(at, len)| Step::Read(at, len)),
        (0..10_u64).prop_map(Step::Truncate),
        (0..90_u64, 1..20_u64).prop_map(|(at, len)| Step::Allocate(at, len)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// The overlay is as a file that is written, and the file below stays as it was.
    #[test]
    fn what_is_written_is_read_and_the_file_below_stays(blocks in 0..64_usize, steps in vec(step(), 1..40)) {
        let scratch = tempfile::tempdir().unwrap();
        let below: Vec<u8> = (0..blocks * 512).map(|at| (at / 7) as u8).collect();
        std::fs::write(scratch.path().join("data"), &below).unwrap();
        let folder = Folder::open(scratch.path(), Backend::Psync).unwrap().read_only();
        let overlay = Overlay::new(Arc::new(folder.with_direct(crate::disk::DirectIo::Never)));
        let disk = overlay.open("data").unwrap();
        let mut queue = disk.queue(&QueueOptions::default()).unwrap();
        let mut model = below.clone();
        for step in steps {
            match step {
                Step::Write(at, fill, len) => {
                    let (at, bytes) = (at as usize * 512, vec![fill; len * 512]);
                    model.resize(model.len().max(at + bytes.len()), 0);
                    model[at..at + bytes.len()].copy_from_slice(&bytes);
                    perform(&*disk, at as u64, OpKind::write(buffer(&bytes), true)).unwrap().result.unwrap();
                }
                Step::Read(at, len) => {
                    let (at, len) = (at as usize * 512, len * 512);
                    let mut done = vec![perform(&*disk, at as u64, OpKind::Read(buffer(&vec![9; len]))).unwrap()];
                    queue.push(Op::new(0, at as u64, OpKind::Read(buffer(&vec![9; len])))).unwrap();
                    while queue.in_flight() > 0 {
                        queue.reap(1, &mut done).unwrap();
                    }
                    prop_assert_eq!(done.len(), 2);
                    for done in done {
                        match model.get(at..at + len) {
                            Some(bytes) => prop_assert_eq!(&*done.into_buffer().unwrap(), bytes),
                            None => prop_assert_eq!(done.result.unwrap_err().kind(), ErrorKind::Short),
                        }
                    }
                }
                Step::Truncate(at) => {
                    let len = at * 4096;
                    let cut = disk.truncate(len);
                    prop_assert_eq!(cut.is_ok(), len as usize <= model.len());
                    if cut.is_ok() {
                        model.truncate(len as usize);
                    }
                }
                Step::Allocate(at, len) => {
                    model.resize(model.len().max((at + len) as usize * 512), 0);
                    perform(&*disk, at * 512, OpKind::Allocate { len_bytes: len * 512 }).unwrap().result.unwrap();
                }
            }
            prop_assert_eq!(disk.len_bytes().unwrap(), model.len() as u64);
        }
        prop_assert_eq!(std::fs::read(scratch.path().join("data")).unwrap(), below);
    }
}

#[test]
fn more_than_fits_in_memory_goes_to_a_file_without_a_name() {
    let scratch = tempfile::tempdir().unwrap();
    let overlay = Overlay::new(Arc::new(Folder::open(scratch.path(), Backend::Psync).unwrap().read_only()));
    let disk = overlay.create("data").unwrap();
    let count = UNITS_IN_MEMORY as u64 + 20;
    for unit in (0..count).rev() {
        let bytes = [unit as u8; UNIT_BYTES as usize];
        perform(&*disk, unit * UNIT_BYTES, OpKind::write(buffer(&bytes), false)).unwrap().result.unwrap();
    }
    for unit in 0..count {
        let done = perform(&*disk, unit * UNIT_BYTES, OpKind::Read(buffer(&[0; UNIT_BYTES as usize]))).unwrap();
        assert!(done.into_buffer().unwrap().iter().all(|byte| *byte == unit as u8), "unit {unit}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
}

#[test]
fn an_overlay_in_memory_refuses_what_is_more_than_its_limit_and_keeps_the_rest() {
    let scratch = tempfile::tempdir().unwrap();
    let below = Arc::new(Folder::open(scratch.path(), Backend::Psync).unwrap().read_only());
    let overlay = Overlay::in_memory(below, 3 * UNIT_BYTES as usize);
    let disk = overlay.create("data").unwrap();
    let write = |unit: u64| {
        let bytes = buffer(&[unit as u8; UNIT_BYTES as usize]);
        perform(&*disk, unit * UNIT_BYTES, OpKind::write(bytes, true)).unwrap().result
    };
    (0..3).for_each(|unit| assert!(write(unit).is_ok()));
    assert_eq!(write(3).unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(write(1).is_ok(), "bytes that are there may be replaced");
    let done = perform(&*disk, 2 * UNIT_BYTES, OpKind::Read(buffer(&[0; UNIT_BYTES as usize]))).unwrap();
    assert!(done.into_buffer().unwrap().iter().all(|byte| *byte == 2));
}

#[test]
fn a_file_that_grows_below_an_overlay_is_read_as_it_was_and_tells_its_new_extent() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("data");
    std::fs::write(&path, [1; 2 * UNIT_BYTES as usize]).unwrap();
    let below = Arc::new(Folder::open(scratch.path(), Backend::Psync).unwrap().read_only());
    let overlay = Overlay::in_memory(below, 3 * UNIT_BYTES as usize);
    let disk = overlay.open("data").unwrap();
    File::options().write(true).open(&path).unwrap().set_len(5 * UNIT_BYTES).unwrap();
    assert_eq!((disk.len_bytes(), disk.extent_bytes()), (Ok(2 * UNIT_BYTES), Ok(5 * UNIT_BYTES)));
    let read = |unit: u64| {
        let buffer = buffer(&[0; UNIT_BYTES as usize]);
        perform(&*disk, unit * UNIT_BYTES, OpKind::Read(buffer)).unwrap().result.map_err(|error| error.kind())
    };
    assert_eq!((read(1), read(2)), (Ok(UNIT_BYTES as usize), Err(ErrorKind::Short)));
    disk.truncate(UNIT_BYTES).unwrap();
    assert_eq!(disk.extent_bytes(), Ok(UNIT_BYTES), "the file below counts no more");
}

#[test]
fn a_folder_that_is_only_read_refuses_changes_and_its_lock_keeps_out_those_who_write() {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("data"), "data").unwrap();
    let open = || Folder::open(scratch.path(), Backend::Psync).unwrap();
    let folder = open().read_only();
    let refused = [
        folder.create("new").map(drop),
        folder.rename("data", "new"),
        folder.remove("data"),
        folder.write_text("new", "text"),
    ];
    refused.into_iter().for_each(|refused| assert_eq!(refused.unwrap_err().kind(), ErrorKind::NoPermission));
    let (first, second) = (folder.lock("data", "lock").unwrap(), open().read_only().lock("data", "lock").unwrap());
    drop(first);
    assert_eq!(open().lock("data", "lock").unwrap_err().kind(), ErrorKind::Busy);
    drop(second);
    let written = open().lock("data", "lock").unwrap();
    assert_eq!(folder.lock("data", "lock").unwrap_err().kind(), ErrorKind::Busy);
    drop(written);
    assert_eq!(folder.list().unwrap(), ["data"]);
}

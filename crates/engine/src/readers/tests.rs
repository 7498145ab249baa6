//! The writer's side of the protocol, over registrations that the test makes.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;

use nofault_io::disk::{Directory as _, FileLock, READER_RECORD_BYTES};
use nofault_io::folder::{Backend, Folder};

use super::*;

/// Registrations and record of one database, without a file.
#[derive(Debug, Default)]
struct Board {
    content: Mutex<Vec<u64>>,
    log: Mutex<Vec<u64>>,
    record: Mutex<Option<[u8; READER_RECORD_BYTES]>>,
    is_full: Mutex<bool>,
    excluded: Mutex<bool>,
}

impl Board {
    fn of(&self, of: ReaderUse) -> MutexGuard<'_, Vec<u64>> {
        match of {
            ReaderUse::Content => &self.content,
            ReaderUse::Log => &self.log,
        }
        .lock()
        .unwrap()
    }

    fn record(&self) -> ReaderRecord {
        ReaderRecord::decode(&self.record.lock().unwrap().unwrap()).unwrap()
    }
}

impl ReaderWatch for Board {
    fn is_in_use(&self, of: ReaderUse, numbers: Range<u64>) -> nofault_io::error::Result<bool> {
        Ok(self.of(of).iter().any(|number| numbers.contains(number)))
    }

    fn try_exclude(&self, of: ReaderUse) -> nofault_io::error::Result<bool> {
        let is_free = self.of(of).is_empty();
        *self.excluded.lock().unwrap() = is_free;
        Ok(is_free)
    }

    fn admit(&self, _of: ReaderUse) {
        *self.excluded.lock().unwrap() = false;
    }

    fn record_inode(&self) -> u64 {
        12
    }

    fn record(&self) -> nofault_io::error::Result<Option<[u8; READER_RECORD_BYTES]>> {
        Ok(*self.record.lock().unwrap())
    }

    fn write_record(&self, bytes: &[u8; READER_RECORD_BYTES]) -> nofault_io::error::Result<()> {
        if *self.is_full.lock().unwrap() {
            return Err(nofault_io::error::Error::from_errno("write", libc::ENOSPC));
        }
        *self.record.lock().unwrap() = Some(*bytes);
        Ok(())
    }
}

fn begin(board: &Arc<Board>, sequence: u64, wait_max: Duration) -> Result<Readers> {
    let watch: Arc<dyn ReaderWatch> = board.clone();
    Readers::begin(Some(watch), 7, sequence, wait_max)
}

const FOREVER: Duration = Duration::from_secs(1 << 30);

#[test]
fn blocks_are_kept_until_the_last_reader_that_may_use_them_has_gone() {
    let board = Arc::new(Board::default());
    let readers = begin(&board, 5, FOREVER).unwrap();
    assert!(!readers.keeps_for(6), "there is no reader");
    board.content.lock().unwrap().extend([6, 7]);
    assert!(readers.keeps_for(7) && readers.keeps_for(8));
    assert_eq!(readers.free_until(), None);
    board.content.lock().unwrap().retain(|number| *number != 6);
    assert_eq!(readers.free_until(), Some(7), "a reader of 7 uses nothing that 7 does not name");
    board.content.lock().unwrap().clear();
    assert_eq!((readers.free_until(), readers.free_until()), (Some(8), None));
    assert_eq!(board.record().kept_from, 5, "no reader was given up");
}

#[test]
fn readers_that_were_waited_for_long_enough_are_told_before_their_blocks_are_free() {
    let board = Arc::new(Board::default());
    let readers = begin(&board, 5, Duration::ZERO).unwrap();
    board.content.lock().unwrap().push(5);
    assert!(readers.keeps_for(6));
    *board.is_full.lock().unwrap() = true;
    assert_eq!(readers.free_until(), None, "they cannot be told");
    *board.is_full.lock().unwrap() = false;
    assert_eq!((readers.free_until(), board.record().kept_from), (Some(6), 6));
    assert!(!readers.keeps_for(7), "a reader that was given up is not waited for again");
}

#[test]
fn a_full_disk_ends_the_keeping_at_once() {
    let board = Arc::new(Board::default());
    let readers = begin(&board, 5, FOREVER).unwrap();
    assert_eq!(readers.give_up_all(), None);
    board.content.lock().unwrap().push(5);
    assert!(readers.keeps_for(6) && readers.keeps_for(7));
    assert_eq!((readers.give_up_all(), board.record().kept_from), (Some(7), 7));
    assert_eq!(readers.free_until(), None);
}

#[test]
fn a_writer_that_begins_says_that_it_keeps_nothing_older() {
    let board = Arc::new(Board::default());
    drop(begin(&board, 5, FOREVER).unwrap());
    board.content.lock().unwrap().extend([5, 9]);
    drop(begin(&board, 9, FOREVER).unwrap());
    assert_eq!(board.record().kept_from, 9);
    *board.is_full.lock().unwrap() = true;
    assert_eq!(begin(&board, 12, FOREVER).err().unwrap().kind(), ErrorKind::NoSpace, "readers of 5 and 9 must know");
    board.content.lock().unwrap().clear();
    begin(&board, 12, FOREVER).unwrap();
    // A checkpoint that was read before its write failed, and is gone.
    board.content.lock().unwrap().push(13);
    assert_eq!(begin(&board, 12, FOREVER).err().unwrap().kind(), ErrorKind::Busy);
    board.content.lock().unwrap().clear();
    // Without a record there is nothing by which readers could be told.
    *board.record.lock().unwrap() = Some([9; READER_RECORD_BYTES]);
    board.content.lock().unwrap().push(12);
    assert_eq!(begin(&board, 12, FOREVER).err().unwrap().kind(), ErrorKind::Busy);
}

#[test]
fn the_log_changes_without_its_readers_or_with_a_count_of_it() {
    let board = Arc::new(Board::default());
    let readers = begin(&board, 5, Duration::ZERO).unwrap();
    let count = || board.record().log_changes;
    let while_excluded = || {
        assert!(*board.excluded.lock().unwrap());
        Ok(())
    };
    readers.change_log(while_excluded).unwrap();
    assert!(!*board.excluded.lock().unwrap() && count() == 0);
    board.log.lock().unwrap().push(5);
    readers.try_change_log(|| panic!("a reader reads it"));
    assert_eq!(readers.change_log(|| Ok(count())).unwrap(), 1);
    assert_eq!(count(), 2);
    assert!(readers.await_log_readers(5), "a reader of the checkpoint in force needs nothing before it");
    assert_eq!(count(), 2);
    assert!(readers.await_log_readers(6));
    assert_eq!(count(), 4);
    assert!(readers.await_log_readers(6), "it is waited for once");
    assert_eq!(count(), 4);
    *board.is_full.lock().unwrap() = true;
    board.log.lock().unwrap().push(6);
    assert!(!readers.await_log_readers(7), "it cannot be told");
}

const RECORD: &str = "readers.nofault";

fn folder() -> (tempfile::TempDir, Folder) {
    let scratch = tempfile::tempdir().unwrap();
    std::fs::write(scratch.path().join("data"), "data").unwrap();
    let folder = Folder::open(scratch.path(), Backend::Auto).unwrap();
    (scratch, folder)
}

/// Locks the file of a folder to write, and begins at this checkpoint.
fn write(folder: &Folder, sequence: u64, wait_max: Duration) -> (Box<dyn FileLock>, Arc<dyn ReaderWatch>, Readers) {
    let lock = folder.lock("data", "lock").unwrap();
    let watch = lock.readers(RECORD).unwrap().unwrap();
    let readers = Readers::begin(Some(watch.clone()), 7, sequence, wait_max).unwrap();
    (lock, watch, readers)
}

#[test]
fn a_reader_registers_the_checkpoint_that_is_in_force_when_it_has_registered() {
    let (_scratch, folder) = folder();
    let (_lock, watch, readers) = write(&folder, 5, Duration::ZERO);
    let mut in_force = [5, 6, 6].into_iter();
    let locks = folder.reader_locks("data", RECORD).unwrap();
    let registration = Registration::begin(locks, || Ok((7, in_force.next().unwrap()))).unwrap().unwrap();
    for of in [ReaderUse::Content, ReaderUse::Log] {
        assert_eq!([0..6, 6..7, 7..99].map(|numbers| watch.is_in_use(of, numbers).unwrap()), [false, true, false]);
    }
    assert!(registration.log_has_stayed().unwrap());
    assert!(readers.await_log_readers(7));
    assert!(!registration.log_has_stayed().unwrap(), "the limit has passed");
    registration.end_log();
    assert!(!watch.is_in_use(ReaderUse::Log, 0..99).unwrap());
    assert!(!registration.is_given_up().unwrap());
    assert!(readers.keeps_for(7));
    assert_eq!(readers.free_until(), Some(7));
    assert!(registration.is_given_up().unwrap());
    drop(registration);
    assert!(!watch.is_in_use(ReaderUse::Content, 0..99).unwrap());
}

#[test]
fn a_reader_of_which_a_writer_would_not_know_does_not_register() {
    let (scratch, folder) = folder();
    let begin = || {
        let locks = folder.reader_locks("data", RECORD).unwrap();
        Registration::begin(locks, || Ok((7, 5))).unwrap().is_some()
    };
    assert!(!begin(), "there is no record");
    let writer = write(&folder, 5, FOREVER);
    assert!(begin());
    drop(writer);
    assert!(begin(), "a writer may come");
    // Of a file put in the place of a newer one.
    drop(write(&folder, 9, FOREVER));
    assert!(!begin());
    let path = scratch.path().join(RECORD);
    let inode = || std::fs::metadata(&path).unwrap().ino();
    let write = |record: ReaderRecord| std::fs::write(&path, record.encode()).unwrap();
    write(ReaderRecord { file_id: 8, kept_from: 0, log_changes: 0, inode: inode() });
    assert!(!begin(), "it is another database's");
    write(ReaderRecord { file_id: 7, kept_from: 0, log_changes: 0, inode: inode() });
    assert!(begin());
    write(ReaderRecord { file_id: 7, kept_from: 0, log_changes: 0, inode: inode() + 1 });
    assert!(!begin(), "it is a copy, which no writer replaces");
}

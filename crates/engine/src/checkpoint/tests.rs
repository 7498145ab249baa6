//! A checkpoint thread that panics.

use nofault_sim::{SimOptions, SimWorld};

use super::*;
use crate::wal::{LogOptions, create_log};

#[test]
fn a_panic_of_the_thread_poisons_the_log() {
    let options =
        LogOptions { file_id: 5, segment_bytes: 32768, log_bytes: 1 << 20, buffer_bytes: 1 << 16, seed: Some(5) };
    let world = SimWorld::new(1, SimOptions::calm());
    let disk = world.directory().create("log").unwrap();
    let (_, recovered) = create_log(&*disk, &options).unwrap();
    let log = Log::open(&*disk, options, recovered).unwrap();
    let ends = |panics: bool| {
        let _ends = PoisonsInPanic(&log);
        assert!(!panics, "a fault that this test plants");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| ends(false)).join().unwrap();
        assert!(log.check().is_ok());
        assert!(scope.spawn(|| ends(true)).join().is_err());
    });
    assert_eq!(log.check().unwrap_err().kind(), ErrorKind::Poisoned);
}

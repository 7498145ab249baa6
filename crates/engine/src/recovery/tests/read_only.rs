//! Opening for reading only, over files that are not written.

use nofault_io::overlay::Overlay;

use super::*;

#[test]
fn a_reader_opens_no_other_checkpoint_than_the_one_that_it_has_registered() {
    let world = SimWorld::new(3, SimOptions::calm());
    drop(create(&world.directory(), &settings(), creation(7)).unwrap());
    let (file_id, sequence) = in_force(&*world.directory()).unwrap();
    assert_eq!(file_id, 7);
    let read = |registered| {
        let overlay: Arc<dyn Directory> = Arc::new(Overlay::in_memory(world.directory(), 1 << 20));
        open(&overlay, &settings(), Purpose::Read { registered }, None).map(drop).map_err(|error| error.kind())
    };
    let too_old = Err(ErrorKind::SnapshotTooOld);
    let seen = [None, Some(sequence), Some(sequence - 1), Some(sequence + 1)].map(read);
    assert_eq!(seen, [Ok(()), Ok(()), too_old, too_old]);
}

//! The list of changed pages, and the checkpoint that makes it short.

use super::*;

#[test]
fn a_checkpoint_is_due_when_the_list_of_changed_pages_is_long() {
    let world = SimWorld::new(21, SimOptions::calm());
    history(&world, 21, 1, &mut Promises::default()).unwrap();
    let mut numbers = Numbers::open(&world).unwrap();
    let checkpointer = numbers.opened.checkpointer.clone();
    checkpointer.checkpoint().unwrap();
    assert!(!checkpointer.is_due());
    // Every other page, so that no two of them are neighbours.
    let keys: Vec<u64> = (0..KEYS).step_by(2).collect();
    for part in keys.chunks(5) {
        let sets: Vec<_> = part.iter().map(|key| (*key, key + 1)).collect();
        let position = numbers.commit(&sets).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        if checkpointer.is_due() {
            break;
        }
    }
    assert!(checkpointer.is_due() && !numbers.opened.log.wants_checkpoint(), "the log alone would not ask for one");
    checkpointer.checkpoint().unwrap();
    assert!(!checkpointer.is_due());
}

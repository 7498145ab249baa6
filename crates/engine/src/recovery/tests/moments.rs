//! The state of the disk while a superblock is written, and while the log is written.

use std::sync::{Mutex, PoisonError};

use nofault_io::completion::OpKind;
use nofault_sim::Hooks;

use super::*;

type OnceCalled = Box<dyn FnOnce() + Send>;

/// Calls a function before the next write to one file, optionally only at certain offsets.
#[derive(Clone)]
struct Look {
    file: &'static str,
    offsets: &'static [u64],
    /// The function, taken out when it is called.
    call: Arc<Mutex<Option<OnceCalled>>>,
}

impl Look {
    fn at(file: &'static str, offsets: &'static [u64]) -> Self {
        Self { file, offsets, call: Arc::default() }
    }

    fn set(&self, call: impl FnOnce() + Send + 'static) {
        *self.call.lock().unwrap() = Some(Box::new(call));
    }

    fn directory(&self, world: &SimWorld) -> Arc<dyn Directory> {
        let look = self.clone();
        let hooks = Hooks::new().on(self.file).push(move |queue, op| {
            let is_meant = look.offsets.is_empty() || look.offsets.contains(&op.offset_bytes);
            if matches!(op.kind, OpKind::Write { .. }) && is_meant {
                let call = look.call.lock().unwrap_or_else(PoisonError::into_inner).take();
                call.into_iter().for_each(|call| call());
            }
            queue.push(op)
        });
        hooks.directory(world.directory())
    }
}

#[test]
fn while_a_superblock_is_written_the_one_before_keeps_its_blocks_and_its_log() {
    let world = SimWorld::new(3, SimOptions::calm());
    create(&world.directory(), &settings(), creation(1)).unwrap();
    let look = Look::at(DATA, &SUPERBLOCK_OFFSETS);
    let mut numbers = Numbers::open_in(&look.directory(&world)).unwrap();
    let mut promises = Promises { created: true, acknowledged: 0, states: vec![vec![0; KEYS as usize]] };
    let mut value = 0;
    // Sets one key, durably, as long as there is room in the log without a checkpoint.
    let mut commit = move |numbers: &mut Numbers, promises: &mut Promises| {
        value += 1;
        let record = encode(&[(7, value)]);
        let position = loop {
            match numbers.opened.log.append(CommitSeq(numbers.next), &[&record], Some(Durability::Sync)) {
                Ok(position) => break position,
                Err(Wait::LogFull { len_bytes }) if numbers.opened.log.grow_for(len_bytes).unwrap() => {}
                Err(Wait::LogFull { .. }) => return false,
                Err(other) => panic!("{other:?}"),
            }
        };
        apply(&numbers.opened.pool, CommitSeq(numbers.next), &[(7, value)]).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        promises.acknowledged = numbers.next;
        numbers.next += 1;
        let mut state = promises.states.last().unwrap().clone();
        state[7] = value;
        promises.states.push(state);
        true
    };
    assert!(commit(&mut numbers, &mut promises));
    numbers.opened.checkpointer.checkpoint().unwrap();
    let before = numbers.opened.log.stats();
    // More than a segment, so that the next checkpoint has one to recycle.
    (0..10).for_each(|_| assert!(commit(&mut numbers, &mut promises)));
    let checkpointer = Arc::clone(&numbers.opened.checkpointer);
    let looked = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&looked);
    look.set(move || {
        // Commits continue during the checkpoint, up to a full log.
        let mut commits = 0;
        while commit(&mut numbers, &mut promises) {
            commits += 1;
        }
        let cuts: Vec<SimWorld> = (0..4).map(|cut| world.restart(cut)).collect();
        let durable = Numbers::open(&cuts[0].restart(0)).map(|numbers| numbers.opened.base);
        let free: Vec<_> = Numbers::open(&cuts[0].restart(0)).map_or_else(
            |_| Vec::new(),
            |durable| {
                let (named, metadata) = (durable.opened.pool.metadata().lock(), numbers.opened.pool.metadata().lock());
                let pages = named.map.pages_in_memory().map(|(_, at)| at.block);
                let named = pages.chain(named.map.all_nodes().map(|(_, at)| at.block));
                named.filter(|block| !metadata.allocator.space.is_used(*block)).collect()
            },
        );
        *seen.lock().unwrap() = Some((commits, durable, free, cuts, promises, numbers));
    });
    checkpointer.checkpoint().unwrap();
    let (commits, durable, free, cuts, promises, numbers) =
        looked.lock().unwrap().take().expect("a superblock is written");
    assert!(commits > 0 && before.live_bytes > 0, "{commits} commits fitted");
    assert_eq!(durable.unwrap(), CommitSeq(1), "the superblock was there before it was written");
    assert!(free.is_empty(), "the superblock in force names blocks that are free: {free:?}");
    cuts.iter().for_each(|cut| assert!(check_promises(cut, &promises)));
    drop(numbers);
}

/// A closing group may be the anchor as soon as it is durable: it begins no record that could be of a later commit than
/// the checkpoint.
#[test]
fn a_checkpoint_beside_a_group_that_is_being_written_begins_at_a_durable_group() {
    let world = SimWorld::new(4, SimOptions::calm());
    create(&world.directory(), &settings(), creation(1)).unwrap();
    let look = Look::at(LOG, &[]);
    let mut numbers = Numbers::open_in(&look.directory(&world)).unwrap();
    let position = numbers.commit(&[(7, 77)]).unwrap();
    numbers.opened.log.durable(position).wait().unwrap();
    let checkpointer = Arc::clone(&numbers.opened.checkpointer);
    let (tell, told) = std::sync::mpsc::channel();
    let seen = world.clone();
    look.set(move || {
        let made = checkpointer.checkpoint();
        tell.send((made, seen.restart(1))).unwrap();
    });
    numbers.opened.log.flush_acknowledged().unwrap();
    let (made, cut) = told.try_recv().expect("a closing group is written");
    assert_eq!(made.unwrap(), CommitSeq(1), "{world}");
    let after = Numbers::open(&cut).unwrap_or_else(|error| panic!("{error}: {world}"));
    assert_eq!(after.value(7).unwrap(), 77, "{world}");
}

//! Page tables that nofault never wrote, with checksums that are right; and tables of which a checkpoint wrote a part.

use nofault_sim::{Call, Effect, Fault};

use super::superblocks::set_all;
use super::*;
use crate::format::{BlockId, encode_node};

/// A database with the page table `path`: each node, from the root down, has one entry that names the next node, and
/// the last one's names the first page. `change` alters the superblock.
fn forged(path: &[NodeId], change: impl FnOnce(&mut Superblock)) -> SimWorld {
    forged_with(path, 1, change)
}

/// Forges a path of nodes with `entries_last` entries in the last node, which all refer to the first page.
fn forged_with(path: &[NodeId], entries_last: usize, change: impl FnOnce(&mut Superblock)) -> SimWorld {
    let (world, _) = settled_world(14);
    let mut data = world.read_file("data").unwrap();
    let sector = |slot: usize| &data[SUPERBLOCK_OFFSETS[slot] as usize..][..SUPERBLOCK_BYTES];
    let found = [0, 1].map(|slot| Superblock::decode(slot, sector(slot)).unwrap());
    let slot = usize::from(found[1].sequence > found[0].sequence);
    let mut superblock = found[slot];
    let mut below = Numbers::open(&world).unwrap().opened.pool.metadata().lock().map.get(PageId(0)).unwrap();
    let per_node = entries_per_node(PAGE) as usize;
    for (at, node) in path.iter().enumerate().rev() {
        let mut entries = vec![0; per_node];
        match path.get(at + 1) {
            Some(next) => entries[next.index as usize % per_node] = below.to_word(),
            None => entries[..entries_last].fill(below.to_word()),
        }
        let start = data.len();
        data.resize(start + PAGE, 0);
        superblock.table_checksum = encode_node(superblock.file_id, *node, entries.into_iter(), &mut data[start..]);
        superblock.table_root = BlockId((start / PAGE) as u64);
        below = node_location(superblock.table_root, superblock.table_checksum);
    }
    change(&mut superblock);
    superblock.encode(slot, &mut data[SUPERBLOCK_OFFSETS[slot] as usize..][..SUPERBLOCK_BYTES]);
    world.set_len("data", data.len() as u64).unwrap();
    world.overwrite("data", 0, &data).unwrap();
    // The superblock that leads to the sound table is erased, so that opening cannot use it.
    world.zero_range("data", SUPERBLOCK_OFFSETS[1 - slot]..SUPERBLOCK_OFFSETS[1 - slot] + 8).unwrap();
    world
}

fn refused(world: &SimWorld, why: &str) {
    let error = Numbers::open(world).err().unwrap_or_else(|| panic!("it opened instead of saying: {why}"));
    assert!(error.kind() == ErrorKind::Corrupt && error.to_string().contains(why), "{error:?} instead of: {why}");
}

fn node(level: u32, index: u64) -> NodeId {
    NodeId { level, index }
}

#[test]
fn a_page_table_as_high_as_its_pages_need_is_followed_and_no_other() {
    // A control: without a fault a database made in this way opens.
    let sound = forged(&[node(0, 0)], |superblock| (superblock.table_levels, superblock.page_count) = (1, 1));
    assert_eq!(
        open(&sound.directory(), &settings(), Purpose::Use, None).unwrap().pool.metadata().lock().map.page_count(),
        1
    );
    let tower: Vec<NodeId> = (0..8).rev().map(|level| node(level, 0)).collect();
    let high = forged(&tower, |superblock| (superblock.table_levels, superblock.page_count) = (8, 1));
    refused(&high, "a page table of impossible size");
    let low = forged(&[node(0, 0)], |superblock| (superblock.table_levels, superblock.page_count) = (1, 1000));
    refused(&low, "a page table of impossible size");
    // Its nodes are the last on their levels: the lowest would be one of 10^12, in a list as long.
    let per_node = entries_per_node(PAGE);
    let last = |level: u32| node(level, per_node.pow(7 - level) - 1);
    let wide = forged(&(0..8).rev().map(last).collect::<Vec<_>>(), |superblock| {
        (superblock.table_levels, superblock.page_count) = (8, 1);
    });
    refused(&wide, "a page table of impossible size");
}

#[test]
fn a_node_of_the_page_table_that_names_more_than_there_is_is_damage() {
    let per_node = entries_per_node(PAGE);
    let size = |superblock: &mut Superblock| {
        (superblock.table_levels, superblock.page_count) = (2, per_node + 1);
    };
    refused(&forged(&[node(1, 0), node(0, 2)], size), "node of level 1 names node 2 of 2");
    let size = |superblock: &mut Superblock| (superblock.table_levels, superblock.page_count) = (2, per_node * 3);
    let beyond = [node(1, 0), node(0, per_node - 1)];
    refused(&forged(&beyond, size), &format!("node of level 1 names node {} of 3", per_node - 1));
}

#[test]
fn two_pages_in_one_block_are_damage() {
    let world = forged_with(&[node(0, 0)], 2, |superblock| (superblock.table_levels, superblock.page_count) = (1, 2));
    refused(&world, "which something else uses");
}

#[test]
fn the_checkpoint_after_one_that_failed_at_any_write_names_all_that_changed() {
    let mut failed = 0;
    for k in 0.. {
        let world = SimWorld::new(k, SimOptions::calm());
        create(&world.directory(), &settings(), creation(1)).unwrap();
        let mut promises = Promises { created: true, acknowledged: 0, states: vec![vec![0; KEYS as usize]] };
        let mut numbers = Numbers::open(&world).unwrap();
        set_all(&mut numbers, 1, &mut promises);
        numbers.opened.checkpointer.checkpoint().unwrap();
        set_all(&mut numbers, 2, &mut promises);
        world.inject(Fault::new(Call::Write, Effect::Errno(5)).on("data").after(k));
        match numbers.opened.checkpointer.checkpoint() {
            Ok(_) => break,
            // The superblock: nothing is written after that.
            Err(error) if error.kind() == ErrorKind::Poisoned => continue,
            Err(_) => failed += 1,
        }
        numbers.opened.checkpointer.checkpoint().unwrap();
        assert!(check_promises(&world.restart(k), &promises));
    }
    assert!(failed > 2, "pages, leaves and a root are written: {failed} writes failed");
}

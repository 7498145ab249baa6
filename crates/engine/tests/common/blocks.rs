//! The blocks of a simulated data file, as `docs/format.md` describes them, and how to break some of them.

use std::collections::{BTreeMap, BTreeSet};

use nofault_sim::SimWorld;

/// Returns the nodes and pages of values in a data file with small pages: page id, kind, level, table (of a node), and
/// offset of the block in bytes.
fn pages_in(world: &SimWorld) -> Vec<(u64, u8, u8, u64, usize)> {
    let data = world.read_file("data").unwrap();
    let number = |at: usize| u64::from_le_bytes(data[at..at + 8].try_into().unwrap());
    let blocks = (131_072..data.len()).step_by(512);
    let pages = blocks.map(|at| (number(at + 8), data[at + 40], data[at + 41], number(at + 56), at));
    // Nodes of the page table have letters where pages have their page id.
    pages.filter(|(page, kind, ..)| *page < 1 << 20 && (1..=4).contains(kind)).collect()
}

/// Returns the table with the most nodes, and the level of its root.
pub(crate) fn largest_table(world: &SimWorld) -> (u64, u8) {
    let mut tables = BTreeMap::<u64, (usize, u8)>::new();
    for (_, kind, level, table, _) in pages_in(world) {
        if kind == 1 {
            let (nodes, top) = tables.entry(table).or_default();
            (*nodes, *top) = (*nodes + 1, level.max(*top));
        }
    }
    let (table, (_, top)) = tables.into_iter().max_by_key(|(_, (nodes, _))| *nodes).unwrap();
    (table, top)
}

/// Damages all versions of one in `step` pages of this kind and level, and of one page at least. Nodes are damaged only
/// if they belong to the table.
pub(crate) fn damage(world: &SimWorld, kind: u8, level: u8, table: u64, step: usize) {
    let of_kind =
        |page: &&(u64, u8, u8, u64, usize)| (page.1, page.2) == (kind, level) && (kind != 1 || page.3 == table);
    let pages = pages_in(world);
    let ids: BTreeSet<u64> = pages.iter().filter(of_kind).map(|page| page.0).collect();
    let chosen: BTreeSet<u64> = ids.iter().copied().skip(ids.len().min(step) / 2).step_by(step).collect();
    assert!(!chosen.is_empty(), "no page of kind {kind} on level {level}");
    for (.., at) in pages.iter().filter(of_kind).filter(|page| chosen.contains(&page.0)) {
        world.flip_bit("data", *at as u64 + 300, 1).unwrap();
    }
}

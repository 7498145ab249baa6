//! Runs each fuzzing body for a short time: on random bytes from a seed, and on sound bytes of which a few were
//! changed.

use fastrand::Rng;

use super::*;

/// Returns random bytes, often with runs of equal bytes and with small numbers at the offsets of lengths.
fn bytes(rng: &mut Rng, len_max: usize) -> Vec<u8> {
    let mut bytes = vec![0; rng.usize(..=len_max)];
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + rng.usize(1..40)).min(bytes.len());
        match rng.u8(..4) {
            0 => {}
            1 => bytes[at..end].fill(rng.u8(..)),
            2 => bytes[at..end].iter_mut().for_each(|byte| *byte = rng.u8(..16)),
            _ => rng.fill(&mut bytes[at..end]),
        }
        at = end;
    }
    bytes
}

fn run(test: &str, cases: u64, len_max: usize, body: fn(&[u8])) {
    let seeds = match std::env::var("NOFAULT_SEED") {
        Ok(seed) => vec![seed.parse().expect("NOFAULT_SEED is a number")],
        Err(_) => (0..cases).collect(),
    };
    for seed in seeds {
        let input = bytes(&mut Rng::with_seed(seed), len_max);
        if std::panic::catch_unwind(|| body(&input)).is_err() {
            panic!("repeat with: NOFAULT_SEED={seed} cargo test -p nofault --lib fuzzing::tests::{test}");
        }
    }
}

#[test]
fn pages_of_any_bytes() {
    run("pages_of_any_bytes", 20_000, 600, page);
}

#[test]
fn trees_of_any_pages() {
    run("trees_of_any_pages", 10_000, 3000, tree);
}

#[test]
fn values_of_any_pages() {
    run("values_of_any_pages", 10_000, 3000, values);
}

#[test]
fn blocks_of_any_compressed_pages() {
    run("blocks_of_any_compressed_pages", 20_000, 600, compressed);
}

#[test]
fn stripes_of_any_text() {
    run("stripes_of_any_text", 3_000, 120, stripes);
}

#[cfg(feature = "mmap")]
#[test]
fn mapped_stores_of_any_bytes() {
    run("mapped_stores_of_any_bytes", 3_000, 5000, mapped);
}

/// Changes a few bytes of a valid node, because only nearly valid nodes reach the deep code paths.
#[test]
fn nodes_with_a_few_bytes_changed() {
    let sound = tree::sound_pages();
    for seed in 0..10_000 {
        let mut rng = Rng::with_seed(seed);
        let mut input = sound.clone();
        for _ in 0..rng.usize(1..8) {
            let at = rng.usize(..input.len());
            input[at] = if rng.bool() { rng.u8(..) } else { input[at] ^ 1 << rng.u8(..8) };
        }
        super::tree(&input);
        page(&input[1..473]);
    }
}

#[test]
fn log_groups_of_any_bytes() {
    run("log_groups_of_any_bytes", 5_000, 9000, log_group);
}

#[test]
fn superblocks_nodes_and_catalog_entries_of_any_bytes() {
    run("superblocks_nodes_and_catalog_entries_of_any_bytes", 5_000, 4200, metadata);
}

#[test]
fn files_of_any_bytes() {
    run("files_of_any_bytes", 300, 40_000, |input| open(&[&[0], input].concat()));
}

#[test]
fn files_with_a_few_changes() {
    run("files_with_a_few_changes", 400, 60, |input| open(&[&[1], input].concat()));
}

#[test]
fn forged_files_with_the_right_checksums() {
    run("forged_files_with_the_right_checksums", 600, 60, |input| open(&[&[2], input].concat()));
}

#[test]
fn operations_in_any_order() {
    run("operations_in_any_order", 150, 700, operations);
}

//! Simulated disks, and striped disks over them, keep the contract of every disk.

use std::sync::Arc;

use nofault_io::disk::{Disk, QueueOptions};
use nofault_io::striped::StripedDisk;
use nofault_sim::{Defer, Rates, SimOptions, SimWorld};

use crate::common::keeps_the_contract;

/// Returns worlds with every order of completions, with and without alignment, and with transfers that the driver
/// repeats. The contract promises nothing about reads during writes of the same place, so the body runs in the
/// adversarial world as well.
fn worlds() -> impl Iterator<Item = SimWorld> {
    let rates = Rates { split_transfer: 0.2, ..Rates::default() };
    [Defer::Immediate, Defer::Reordered, Defer::Adversarial].into_iter().flat_map(move |defer| {
        [1, 512, 4096]
            .map(|align_bytes| SimWorld::new(7, SimOptions { defer, align_bytes, rates, ..SimOptions::default() }))
    })
}

#[test]
fn a_simulated_disk_keeps_the_contract_however_completions_come() {
    for world in worlds() {
        let disk = world.directory().create("disk").unwrap();
        keeps_the_contract(&*disk, &QueueOptions::default());
    }
}

#[test]
fn a_striped_disk_keeps_the_contract_over_simulated_ones() {
    // With a unit of one byte the body writes past the end and leaves gaps, which a striped disk does not count as length.
    let aligned = |world: &SimWorld| world.directory().create("unit").unwrap().info().align_bytes > 1;
    for (index, world) in worlds().filter(aligned).enumerate() {
        let children: Vec<Arc<dyn Disk>> =
            (0..=index % 4).map(|child| world.directory().create(&child.to_string()).unwrap()).collect();
        let disk = StripedDisk::new(children, [4096, 65536][index % 2]).unwrap();
        keeps_the_contract(&disk, &QueueOptions { depth_max: 24, ..QueueOptions::default() });
    }
}

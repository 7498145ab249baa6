//! A process that ends while it creates a database.

use nofault_sim::{Call, Effect, Fault, Hooks};

use super::*;

/// Syncs of the folder during a creation. The last one follows the rename that makes the files a database.
const SYNCS: u64 = 3;

#[test]
fn a_database_whose_creation_ended_before_the_last_sync_of_its_folder_keeps_what_is_acknowledged_after_opening() {
    let mut lost_names = 0;
    for seed in 0..10 {
        let world = SimWorld::new(seed, SimOptions::calm());
        let directory = world.directory();
        // As if the process had been killed before this call: no sync of the folder has covered the last rename.
        world.inject(Fault::new(Call::SyncDirectory, Effect::Lost).after(SYNCS - 1));
        drop(create(&directory, &settings(), creation(seed)).unwrap());
        assert_eq!(world.stats().directory_sync_count, SYNCS, "the fault must hit the last sync");
        lost_names += (0..10).filter(|cut| Numbers::open(&world.restart(*cut)).is_err()).count();
        let mut numbers = Numbers::open(&world).unwrap();
        let position = numbers.commit(&[(3, 7)]).unwrap();
        numbers.opened.log.durable(position).wait().unwrap();
        for cut in 0..20 {
            let after = world.restart(cut);
            let numbers = Numbers::open(&after).unwrap_or_else(|error| panic!("{error}\n{after}"));
            assert_eq!(numbers.value(3).unwrap(), 7, "{after}");
        }
    }
    assert!(lost_names > 0, "before the opening a power cut must be able to undo the rename");
}

#[test]
fn a_creation_replaces_no_file_that_appears_in_the_folder_meanwhile() {
    for name in [LOG, DATA] {
        let world = SimWorld::new(1, SimOptions::calm());
        // Another process creates the file just before a file gets its name.
        let hooks = Hooks::new().rename(move |directory, from, to| {
            if to == name {
                directory.create(to)?;
            }
            directory.rename(from, to)
        });
        let directory = hooks.directory(world.directory());
        let error = create(&directory, &settings(), creation(1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{name}: {error}");
        assert_eq!(world.read_file(name).unwrap(), Vec::<u8>::new(), "{name} belongs to another");
    }
}

#[test]
fn a_power_cut_among_the_names_of_a_creation_leaves_a_database_or_nothing() {
    let whole = SimWorld::new(0, SimOptions::calm());
    create(&whole.directory(), &settings(), creation(1)).unwrap();
    let (mut databases, mut nothing) = (0, 0);
    // The names change at the end, and a cut decides about the names that no sync has covered.
    for event in whole.events() - 20..=whole.events() {
        let world = SimWorld::new(0, SimOptions::calm());
        world.cut_after(event);
        let created = create(&world.directory(), &settings(), creation(1)).is_ok();
        for cut in 0..60 {
            match Numbers::open(&world.restart(cut)) {
                Ok(_) => databases += 1,
                Err(error) => {
                    assert!(error.kind() == ErrorKind::NotFound && !created, "cut after {event}: {error}: {world}");
                    nothing += 1;
                }
            }
        }
    }
    assert!(databases > 60 && nothing > 60, "{databases} databases, {nothing} times nothing");
}

//! Random histories of a mapped store agree with a map in memory.

use nofault::error::ErrorKind;
use nofault::mmap::{Batch, Protocol, Settings, Store};
use nofault_sim::content::Rows;
use proptest::prelude::*;

use crate::{PROTOCOLS, content, create, folder, open, tiny};

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<(Vec<u8>, Option<usize>)>),
    Get(Vec<u8>),
    Range(Vec<u8>, Option<Vec<u8>>),
    Refused,
    Checkpoint,
    Remap,
    Reopen,
}

fn keys() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => (0u16..300).prop_map(|number| format!("key-{number:05}").into_bytes()),
        1 => prop::collection::vec(0u8..3, 0..6),
        1 => (0u8..4, 30usize..64).prop_map(|(first, len)| vec![first; len]),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let value = prop_oneof![8 => prop::option::of(0usize..100), 1 => (0usize..6000).prop_map(Some), 2 => Just(None)];
    let some = prop::collection::vec((keys(), value.clone()), 1..20);
    let many = prop::collection::vec((keys(), value), 50..200);
    let step = prop_oneof![
        8 => some.prop_map(Step::Write),
        2 => many.prop_map(Step::Write),
        3 => keys().prop_map(Step::Get),
        2 => (keys(), prop::option::of(keys())).prop_map(|(start, end)| Step::Range(start, end)),
        1 => Just(Step::Refused),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::Remap),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..30)
}

fn follows_the_model(settings: &Settings, steps: &[Step]) {
    let folder = folder();
    let mut store = create(folder.path(), settings).unwrap();
    let mut model = Rows::new();
    let mut stamp = 0u8;
    for step in steps {
        match step {
            Step::Write(writes) => {
                let mut batch = Batch::new();
                for (key, len) in writes {
                    stamp = stamp.wrapping_add(1);
                    match len {
                        Some(len) => {
                            batch.put(key.clone(), vec![stamp; *len]);
                            model.insert(key.clone(), vec![stamp; *len]);
                        }
                        None => {
                            batch.delete(key.clone());
                            model.remove(key);
                        }
                    }
                }
                store.write(&batch).unwrap();
            }
            Step::Get(key) => assert_eq!(store.get(key).unwrap(), model.get(key).cloned()),
            Step::Range(start, end) => {
                let found: Vec<_> = store.snapshot().range(start, end.as_deref()).map(Result::unwrap).collect();
                let in_range = |key: &Vec<u8>| key >= start && end.as_ref().is_none_or(|end| key < end);
                let wanted: Vec<_> = model.clone().into_iter().filter(|(key, _)| in_range(key)).collect();
                assert!(found == wanted);
                // Leaf by leaf, with leaves asked for ahead, nothing else is found.
                let (snapshot, mut all) = (store.snapshot(), Rows::new());
                let mut scan = snapshot.leaf_scan(start.len() % 4);
                while let Some((key, value)) = scan.next_ref().unwrap() {
                    all.insert(key.to_vec(), value.to_vec());
                }
                assert!(all == model);
            }
            Step::Refused => {
                // The batch is half done when it is refused: none of its changes may stay.
                let mut batch = Batch::new();
                model.keys().take(40).for_each(|key| {
                    batch.delete(key.clone());
                });
                batch.put("new", vec![1; 3000]).put(vec![1; 5000], "too long a key");
                assert_eq!(store.write(&batch).unwrap_err().kind(), ErrorKind::InvalidCall);
                assert!(content(&store) == model);
            }
            Step::Checkpoint => store.checkpoint().unwrap(),
            Step::Remap => store.remap().unwrap(),
            Step::Reopen => {
                drop(store);
                store = open(folder.path(), settings).unwrap();
            }
        }
    }
    check(&store, &model);
    drop(store);
    check(&open(folder.path(), settings).unwrap(), &model);
}

fn check(store: &Store, model: &Rows) {
    assert!(content(store) == *model);
    assert_eq!(store.verify().unwrap().entries, model.len() as u64);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_mapped_store_of_tiny_pages_does_what_a_map_does(steps in steps(), checksums in any::<bool>()) {
        for protocol in PROTOCOLS {
            follows_the_model(&Settings { checksums, ..tiny(protocol) }, &steps);
        }
    }

    #[test]
    fn a_mapped_store_with_its_thread_does_what_a_map_does(steps in steps(), checksums in any::<bool>()) {
        for protocol in PROTOCOLS {
            let map_bytes = 16 << 20;
            let settings = Settings { page_bytes: 4096, map_bytes, background_thread: true, checksums, ..tiny(protocol) };
            follows_the_model(&settings, &steps);
        }
    }
}

#[test]
fn pages_without_readers_are_used_again() {
    for protocol in PROTOCOLS {
        let folder = folder();
        let store = create(folder.path(), &tiny(protocol)).unwrap();
        let commits = |from: u32, to: u32| {
            for number in from..to {
                let len = [10, 90, 2000][number as usize % 3];
                store.put(format!("key-{:03}", number % 50), vec![number as u8; len]).unwrap();
            }
        };
        commits(0, 150);
        let before = store.verify().unwrap();
        commits(150, 600);
        let after = store.verify().unwrap();
        let pages = |found: nofault::mmap::Verification| found.pages_used + found.pages_free;
        assert!(pages(after) <= pages(before) + 60, "{protocol:?}: {before:?}, later {after:?}");
        for number in 0..50 {
            store.delete(format!("key-{number:03}")).unwrap();
        }
        let empty = store.verify().unwrap();
        assert!(empty.entries == 0 && empty.pages_used < 30, "{protocol:?}: {empty:?}");
    }
}

#[test]
fn a_store_is_opened_only_with_its_own_protocol_and_only_once() {
    let folder = folder();
    let settings = tiny(Protocol::OsCow);
    assert_eq!(open(folder.path(), &settings).err().unwrap().kind(), ErrorKind::NotFound);
    let store = create(folder.path(), &settings).unwrap();
    assert_eq!(open(folder.path(), &settings).err().unwrap().kind(), ErrorKind::Busy);
    store.put("k", "v").unwrap();
    drop(store);
    assert_eq!(create(folder.path(), &settings).err().unwrap().kind(), ErrorKind::AlreadyExists);
    for protocol in PROTOCOLS {
        match (protocol, open(folder.path(), &tiny(protocol))) {
            (Protocol::Shadow(_) | Protocol::MappedLog, opened) => {
                assert_eq!(opened.err().unwrap().kind(), ErrorKind::InvalidCall)
            }
            (_, opened) => assert_eq!(opened.unwrap().get(b"k").unwrap(), Some(b"v".to_vec())),
        }
    }
    let odd = Settings { map_bytes: 100_000, ..settings };
    assert_eq!(create(&folder.path().join("other"), &odd).err().unwrap().kind(), ErrorKind::InvalidCall);
}

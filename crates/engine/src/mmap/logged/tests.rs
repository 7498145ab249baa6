//! Tests needing the inside of the store: the order in which a commit becomes visible, and the state after a refused
//! one.

use super::super::{Protocol, Settings, Store, StoreKind, WriteBack};
use super::*;

const LOGGED: [Protocol; 4] =
    [Protocol::OsCow, Protocol::UserCow(WriteBack::Map), Protocol::UserCow(WriteBack::Call), Protocol::MappedLog];

fn create(folder: &tempfile::TempDir, protocol: Protocol) -> Store {
    // SAFETY: no other code knows the folder.
    unsafe { Store::create(folder.path(), &Settings::small(protocol)) }.unwrap()
}

fn logged(store: &Store) -> &LoggedStore {
    match &store.store {
        StoreKind::Logged(logged) => logged,
        StoreKind::Shadow(_) => panic!("it has no log"),
    }
}

#[test]
fn no_commit_is_visible_before_its_pages_and_its_state_are_known() {
    for protocol in LOGGED {
        let folder = tempfile::tempdir().unwrap();
        let store = create(&folder, protocol);
        let logged = logged(&store);
        let visible = || logged.visible.load(Ordering::SeqCst);
        let before = visible();
        assert_eq!(logged.versions.pages(), 0);
        std::thread::scope(|scope| {
            // The committer stops between its pages and its state.
            let states = lock(&logged.states);
            let committer = scope.spawn(|| store.put("key", "value"));
            while logged.versions.pages() == 0 && !committer.is_finished() {
                std::thread::yield_now();
            }
            // Another writer, with a commit before it in the log, writes all records that are there.
            logged.log.flush().unwrap();
            let seen = visible();
            drop(states);
            committer.join().unwrap().unwrap();
            assert_eq!(seen, before, "{protocol:?}: readers and checkpoints count on what is not there yet");
        });
        assert_eq!(visible(), before + 1, "{protocol:?}");
        assert_eq!(store.get(b"key").unwrap(), Some(b"value".to_vec()), "{protocol:?}");
    }
}

#[test]
fn a_commit_that_finds_no_log_space_leaves_nothing_behind() {
    for protocol in LOGGED {
        let folder = tempfile::tempdir().unwrap();
        let store = create(&folder, protocol);
        let logged = logged(&store);
        let batch = |number: u32| {
            let mut batch = Batch::new();
            batch.put(number.to_be_bytes(), vec![number as u8; 2000]);
            batch
        };
        let mut number = 0;
        // There is no checkpoint.
        while let Some(position) = logged.try_commit(&batch(number)).unwrap() {
            logged.log.durable(position).wait().unwrap();
            number += 1;
        }
        assert!(number > 0, "{protocol:?}");
        let visible = CommitSeq(logged.visible.load(Ordering::SeqCst));
        assert_eq!(lock(&logged.states).back().unwrap().0, visible, "{protocol:?}");
        let left = logged.versions.up_to(NEWEST).into_iter().find(|(_, commit, _)| *commit > visible);
        assert!(left.is_none(), "{protocol:?}: {left:?}");
        store.put("another", "in its place").unwrap();
        assert_eq!(store.get(&number.to_be_bytes()).unwrap(), None, "{protocol:?}");
        assert_eq!(store.verify().unwrap().entries, u64::from(number) + 1, "{protocol:?}");
    }
}

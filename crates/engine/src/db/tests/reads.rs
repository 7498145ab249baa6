//! Lookups of one key and of many: the reads that they submit together, and their answers while pages, permits or
//! commits change.

use super::*;
use crate::db::calls::wait::ready;
use crate::format::{Moment, PageId};
use crate::pages::{Missing, Wait};
use crate::settings::Settings;
use crate::sync::semaphore::Permit;

#[test]
fn many_keys_are_found_however_few_permits_are_left() {
    for mode in [Mode::Async, Mode::Blocking] {
        let core = new_core(Hardship { residency: Residency::Requested, mode, ..easy() });
        let tree = new_table(&core, mode, "t");
        let keys: Vec<_> = (0..200u16).map(key_of).collect();
        let ops = keys
            .iter()
            .map(|key| Op::Put { tree, key: key.clone(), value: key.clone(), expiry: Moment::NEVER })
            .collect();
        commit(&core, mode, ops, Durability::Sync).unwrap();
        let slices: Vec<_> = keys.iter().map(Vec::as_slice).collect();
        for taken in [0, 1, 16, 31, 32] {
            let _others = core.reader.loader.try_pins(taken).unwrap();
            let found = mode.run(get_many(&core.reader, tree, &slices)).unwrap();
            assert!(found.iter().zip(&keys).all(|(found, key)| found.as_ref() == Some(key)), "{taken} permits taken");
        }
    }
}

#[test]
fn resumed_tasks_submit_their_next_misses_together() {
    let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    let key = |number: usize| format!("key {number:04}").into_bytes();
    let put = |number| Op::Put { tree, key: key(number), value: b"v".to_vec(), expiry: Moment::NEVER };
    commit(&core, Mode::Blocking, (0..2000).map(put).collect(), Durability::Sync).unwrap();
    let before = core.store.submissions().len();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let get = |task: usize| {
            let core = core.clone();
            async move {
                for step in 0..20 {
                    let key = key((task * 71 + step * 313) % 2000);
                    assert_eq!(core.reader.get(tree, &key).finish().await.unwrap(), Some(b"v".to_vec()));
                }
            }
        };
        let tasks: Vec<_> = (0..32).map(|task| tokio::spawn(get(task))).collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    let sent = core.store.submissions().split_off(before);
    let pages: usize = sent.iter().sum();
    assert!(pages > 32 * 10 && sent.len() * 4 <= pages, "{pages} pages, sent as {sent:?}");
}

#[test]
fn a_task_whose_pages_are_in_memory_by_now_leaves_the_reads_of_others_to_their_batch() {
    let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
    let missed = Wait::Miss(Missing { page: PageId(0), at: CommitSeq(0) });
    let mut context = Context::from_waker(Waker::noop());
    let mut others = core.store.request(&[missed], Permit::any());
    let mut of_others = pin!(ready(&*core.store, &mut others));
    assert!(of_others.as_mut().poll(&mut context).is_pending());
    let before = core.store.submissions().len();
    let mut in_memory = core.store.request(&[], Permit::any());
    assert!(pin!(ready(&*core.store, &mut in_memory)).poll(&mut context).is_ready());
    assert_eq!(core.store.submissions().len(), before, "more tasks may join the batch");
    let _ = of_others.as_mut().poll(&mut context);
    assert_eq!(core.store.submissions().split_off(before), [1], "the task that waits sends it");
}

#[test]
fn a_lookup_under_way_begins_again_when_a_commit_becomes_visible() {
    let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    let key = |number: u32| format!("key {number:03}");
    (0..300).for_each(|number| put(&core, tree, &key(number), "first"));
    for polls in 0..12 {
        let wanted = key(150);
        put(&core, tree, &wanted, "before");
        let mut get = pin!(core.reader.get(tree, wanted.as_bytes()).finish());
        let mut poll = || get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if (0..polls).any(|_| poll().is_ready()) {
            assert!(polls > 4, "a tree of several levels, each of which is missed");
            return;
        }
        // Every page of the path is freed, and its page id is allocated again for another page.
        let delete = |number| Op::Delete { tree, key: key(number).into() };
        commit(&core, Mode::Blocking, (0..300).map(delete).collect(), Durability::Sync).unwrap();
        (0..300).rev().for_each(|number| put(&core, tree, &key(number), if number == 150 { "after" } else { "other" }));
        let found = loop {
            if let Poll::Ready(found) = poll() {
                break found.unwrap();
            }
        };
        assert_eq!(found, Some(b"after".to_vec()), "after {polls} polls");
    }
    panic!("a get that never ends");
}

#[test]
fn many_keys_wait_while_no_permit_is_left() {
    let core = new_core(Hardship { residency: Residency::Requested, mode: Mode::Async, ..easy() });
    let tree = new_table(&core, Mode::Async, "t");
    put(&core, tree, "a", "1");
    put(&core, tree, "b", "2");
    let all = core.reader.loader.try_pins(usize::MAX).unwrap();
    let keys = [b"b".as_slice(), b"none", b"a"];
    let mut found = Box::pin(get_many(&core.reader, tree, &keys));
    for _ in 0..10 {
        assert!(found.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "there is no room");
    }
    drop(all);
    assert_eq!(block_on(found).unwrap(), [Some(b"2".to_vec()), None, Some(b"1".to_vec())]);
}

#[test]
fn contains_key_agrees_with_get_in_every_view() {
    for mode in [Mode::Async, Mode::Blocking] {
        let core = new_core(Hardship { residency: Residency::Requested, mode, ..easy() });
        let tree = new_table(&core, mode, "t");
        for number in 0..200 {
            put(&core, tree, &format!("k{number:05}"), "v");
        }
        put(&core, tree, "long", &"v".repeat(3000));
        let before = core.store.snapshot();
        let transaction = TransactionState::begin(&core);
        transaction.set(tree, b"own", Some(b"v")).unwrap();
        transaction.set(tree, b"long", None).unwrap();
        commit_ok(&core, Op::Delete { tree, key: key_of(7) });
        let views = |key: &[u8]| {
            let newest = mode.run(core.reader.contains(tree, key).finish()).unwrap();
            assert_eq!(core.reader.contains(tree, key).block().unwrap(), newest);
            (newest, mode.run(core.reader.contains_at(&before, tree, key)).unwrap())
        };
        assert_eq!(views(&key_of(7)), (false, true));
        assert_eq!(views(&key_of(8)), (true, true));
        assert_eq!(views(b"long"), (true, true));
        assert_eq!(views(b"own"), (false, false));
        let sees = |key: &[u8]| mode.run(transaction.contains(tree, key)).unwrap();
        assert!(sees(&key_of(7)) && sees(b"own") && !sees(b"long") && !sees(b"none"));
        let result = mode.run(transaction.commit(Durability::Sync));
        assert!(matches!(result, Err(CommitError::Conflict(..))), "a key that counts as read was deleted: {result:?}");
    }
}

#[test]
fn a_key_with_a_long_value_is_found_without_its_pages() {
    let core = new_core(Hardship { residency: Residency::Requested, ..easy() });
    let tree = new_table(&core, Mode::Blocking, "t");
    put(&core, tree, "k", &"v".repeat(20_000));
    let polls = |get: bool| {
        let mut polls = 0;
        run_task(async {
            let mut call = pin!(async {
                match get {
                    true => core.reader.get(tree, b"k").finish().await.unwrap().is_some(),
                    false => core.reader.contains(tree, b"k").finish().await.unwrap(),
                }
            });
            std::future::poll_fn(|context| {
                polls += 1;
                call.as_mut().poll(context)
            })
            .await
        });
        polls
    };
    assert!(polls(false) < polls(true), "it waits for as much as the value itself");
}

#[test]
fn a_value_with_an_index_is_one_read_where_it_lies_in_one_piece() {
    let world = SimWorld::new(3, SimOptions::calm());
    let settings = Settings { cache_bytes: 16 << 20, ..Settings::default() };
    let value = |key: u8| -> Vec<u8> { (0..100_000_u32).map(|at| (at / 9) as u8 ^ key).collect() };
    let db = crate::blocking::Db::create_in(&world.directory(), &settings).unwrap();
    let table = db.create_table("t").unwrap();
    table.bulk_load((0..40_u8).map(|key| ([key], value(key)))).unwrap();
    drop(table);
    db.close().unwrap();
    let db = crate::blocking::Db::open_in(&world.directory(), &settings).unwrap();
    let table = db.table("t").unwrap();
    table.contains_key([0]).unwrap();
    let counts = || (world.stats().read_count, db.stats().pool.misses);
    let mut in_one_piece = 0;
    for key in 0..40 {
        let (reads, misses) = counts();
        assert!(table.get([key]).unwrap().unwrap() == value(key));
        assert_eq!(counts().1 - misses, 26, "25 pages and their index");
        in_one_piece += usize::from(counts().0 - reads == 1);
    }
    // A value lies in two pieces if the background writer was late with the first pages of its portion.
    assert!(in_one_piece >= 20, "{in_one_piece} of 40 were one read");
    // Rewritten with ids and in places without order, a value is read as its index says.
    table.put([8], value(80)).unwrap();
    table.put([9], value(90)).unwrap();
    db.checkpoint().unwrap();
    for key in 0..40 {
        let expected = value(if key == 8 || key == 9 { key * 10 } else { key });
        assert!(table.get([key]).unwrap().unwrap() == expected, "{key}");
    }
}

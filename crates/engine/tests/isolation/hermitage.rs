//! The cases of Hermitage, which tell isolation levels apart, through the blocking and the async calls. Two rows exist: 1 is 10,
//! 2 is 20. Transactions are serializable: they read at their beginning, and one that has written conflicts when something that it
//! read was changed.

use std::sync::Arc;

use nofault::error::{ErrorKind, Result};
use nofault::settings::Settings;
use nofault::{Durability, blocking};
use nofault_sim::{SimOptions, SimWorld};
use tokio::runtime::Runtime;

type Rows = Vec<(u8, u8)>;

/// The interface through which a test calls the engine: blocking or asynchronous.
trait Store {
    type Transaction: Transaction;
    fn begin(&self) -> Self::Transaction;

    /// Returns all rows of the newest state.
    fn rows(&self) -> Rows {
        self.begin().rows()
    }
}

trait Transaction {
    fn get(&mut self, key: u8) -> Option<u8>;
    fn put(&mut self, key: u8, value: u8);
    fn delete(&mut self, key: u8);
    fn rows(&mut self) -> Rows;
    fn commit(self) -> Result<()>;

    /// Returns the rows with values for which `is_meant` holds: a predicate read.
    fn rows_where(&mut self, is_meant: impl Fn(u8) -> bool) -> Rows
    where
        Self: Sized,
    {
        self.rows().into_iter().filter(|(_, value)| is_meant(*value)).collect()
    }

    fn conflicts(self) -> bool
    where
        Self: Sized,
    {
        match self.commit() {
            Ok(()) => false,
            Err(error) if error.kind() == ErrorKind::Conflict => true,
            Err(error) => panic!("{error:?}"),
        }
    }
}

struct Blocking(blocking::Db, blocking::Table);

struct BlockingTransaction(blocking::Transaction, blocking::Table);

impl Store for Blocking {
    type Transaction = BlockingTransaction;

    fn begin(&self) -> BlockingTransaction {
        BlockingTransaction(self.0.begin(), self.1.clone())
    }
}

impl Transaction for BlockingTransaction {
    fn get(&mut self, key: u8) -> Option<u8> {
        self.0.get(&self.1, [key]).unwrap().map(|value| value[0])
    }

    fn put(&mut self, key: u8, value: u8) {
        self.0.put(&self.1, [key], [value]).unwrap();
    }

    fn delete(&mut self, key: u8) {
        self.0.delete(&self.1, [key]).unwrap();
    }

    fn rows(&mut self) -> Rows {
        let range = self.0.range::<&[u8]>(&self.1, ..).unwrap();
        range.map(Result::unwrap).map(|(key, value)| (key[0], value[0])).collect()
    }

    fn commit(self) -> Result<()> {
        self.0.commit(Durability::Sync)
    }
}

struct Async(Arc<Runtime>, nofault::Db, nofault::Table);

struct AsyncTransaction(Arc<Runtime>, nofault::Transaction, nofault::Table);

impl Store for Async {
    type Transaction = AsyncTransaction;

    fn begin(&self) -> AsyncTransaction {
        AsyncTransaction(self.0.clone(), self.1.begin(), self.2.clone())
    }
}

impl Transaction for AsyncTransaction {
    fn get(&mut self, key: u8) -> Option<u8> {
        self.0.block_on(self.1.get(&self.2, [key])).unwrap().map(|value| value[0])
    }

    fn put(&mut self, key: u8, value: u8) {
        self.1.put(&self.2, [key], [value]).unwrap();
    }

    fn delete(&mut self, key: u8) {
        self.1.delete(&self.2, [key]).unwrap();
    }

    fn rows(&mut self) -> Rows {
        let mut range = self.1.range::<&[u8]>(&self.2, ..).unwrap();
        self.0.block_on(async {
            let mut rows = Rows::new();
            while let Some((key, value)) = range.next().await.unwrap() {
                rows.push((key[0], value[0]));
            }
            rows
        })
    }

    fn commit(self) -> Result<()> {
        self.0.block_on(self.1.commit(Durability::Sync))
    }
}

fn blocking_store() -> Blocking {
    let settings = Settings { cache_bytes: 2 << 20, log_bytes: 1 << 20, ..Settings::default() };
    let db = blocking::Db::create_in(&SimWorld::new(1, SimOptions::default()).directory(), &settings).unwrap();
    let table = db.create_table("test").unwrap();
    table.put([1], [10]).unwrap();
    table.put([2], [20]).unwrap();
    Blocking(db, table)
}

fn async_store() -> Async {
    let db = blocking_store().0.asynchronous();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let table = runtime.block_on(db.table("test")).unwrap();
    Async(Arc::new(runtime), db, table)
}

/// Defines a test of each case, for both interfaces.
macro_rules! cases {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            cases::$name(&blocking_store());
            cases::$name(&async_store());
        }
    )*};
}

cases! {
    g0_writes_of_two_transactions_do_not_mix
    g1a_nothing_aborted_is_read
    g1b_nothing_intermediate_is_read
    g1c_two_do_not_read_from_each_other
    otv_what_one_transaction_wrote_vanishes_as_a_whole
    pmp_a_predicate_does_not_see_what_came_later
    pmp_a_predicate_that_is_written_by_conflicts
    p4_no_update_is_lost
    g_single_a_transaction_reads_one_moment
    g_single_predicates_read_one_moment
    g_single_a_write_by_a_skewed_read_conflicts
    g2_item_write_skew_conflicts
    g2_write_skew_over_a_predicate_conflicts
    g2_two_anti_dependencies_with_a_reader_between_conflict
    g2_an_empty_range_and_a_missing_key_count_as_read
    g2_a_deleted_key_conflicts_and_one_beside_does_not
}

mod cases {
    use super::{Store, Transaction};

    pub(super) fn g0_writes_of_two_transactions_do_not_mix(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        one.put(1, 11);
        two.put(1, 12);
        one.put(2, 21);
        one.commit().unwrap();
        assert_eq!(store.rows(), [(1, 11), (2, 21)]);
        two.put(2, 22);
        two.commit().unwrap();
        assert_eq!(store.rows(), [(1, 12), (2, 22)]);
    }

    pub(super) fn g1a_nothing_aborted_is_read(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        one.put(1, 101);
        assert_eq!(two.rows(), [(1, 10), (2, 20)]);
        drop(one);
        assert_eq!(two.rows(), [(1, 10), (2, 20)]);
        two.commit().unwrap();
    }

    pub(super) fn g1b_nothing_intermediate_is_read(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        one.put(1, 101);
        assert_eq!(two.get(1), Some(10));
        one.put(1, 11);
        one.commit().unwrap();
        assert_eq!(two.get(1), Some(10));
        two.commit().unwrap();
        assert_eq!(store.rows(), [(1, 11), (2, 20)]);
    }

    pub(super) fn g1c_two_do_not_read_from_each_other(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        one.put(1, 11);
        two.put(2, 22);
        assert_eq!((one.get(2), two.get(1)), (Some(20), Some(10)));
        one.commit().unwrap();
        assert!(two.conflicts());
    }

    pub(super) fn otv_what_one_transaction_wrote_vanishes_as_a_whole(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        one.put(1, 11);
        one.put(2, 19);
        two.put(1, 12);
        one.commit().unwrap();
        let mut three = store.begin();
        assert_eq!(three.get(1), Some(11));
        two.put(2, 18);
        assert_eq!(three.get(2), Some(19));
        two.commit().unwrap();
        assert_eq!((three.get(2), three.get(1)), (Some(19), Some(11)));
        three.commit().unwrap();
    }

    pub(super) fn pmp_a_predicate_does_not_see_what_came_later(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        assert_eq!(one.rows_where(|value| value == 30), []);
        two.put(3, 30);
        two.commit().unwrap();
        assert_eq!(one.rows_where(|value| value % 3 == 0), []);
        one.commit().unwrap();
    }

    pub(super) fn pmp_a_predicate_that_is_written_by_conflicts(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        for (key, value) in one.rows() {
            one.put(key, value + 10);
        }
        for (key, _) in two.rows_where(|value| value == 20) {
            two.delete(key);
        }
        one.commit().unwrap();
        assert!(two.conflicts());
        assert_eq!(store.rows(), [(1, 20), (2, 30)]);
    }

    pub(super) fn p4_no_update_is_lost(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        assert_eq!((one.get(1), two.get(1)), (Some(10), Some(10)));
        one.put(1, 11);
        two.put(1, 11);
        one.commit().unwrap();
        assert!(two.conflicts());
    }

    pub(super) fn g_single_a_transaction_reads_one_moment(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        assert_eq!(one.get(1), Some(10));
        assert_eq!((two.get(1), two.get(2)), (Some(10), Some(20)));
        two.put(1, 12);
        two.put(2, 18);
        two.commit().unwrap();
        assert_eq!(one.get(2), Some(20));
        one.commit().unwrap();
    }

    pub(super) fn g_single_predicates_read_one_moment(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        assert_eq!(one.rows_where(|value| value % 5 == 0), [(1, 10), (2, 20)]);
        assert_eq!(two.rows_where(|value| value == 10), [(1, 10)]);
        two.put(1, 12);
        two.commit().unwrap();
        assert_eq!(one.rows_where(|value| value % 3 == 0), []);
        one.commit().unwrap();
    }

    pub(super) fn g_single_a_write_by_a_skewed_read_conflicts(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        assert_eq!(one.get(1), Some(10));
        assert_eq!(two.rows(), [(1, 10), (2, 20)]);
        two.put(1, 12);
        two.put(2, 18);
        two.commit().unwrap();
        for (key, _) in one.rows_where(|value| value == 20) {
            one.delete(key);
        }
        assert!(one.conflicts());
        assert_eq!(store.rows(), [(1, 12), (2, 18)]);
    }

    pub(super) fn g2_item_write_skew_conflicts(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        for transaction in [&mut one, &mut two] {
            assert_eq!((transaction.get(1), transaction.get(2)), (Some(10), Some(20)));
        }
        one.put(1, 11);
        two.put(2, 21);
        one.commit().unwrap();
        assert!(two.conflicts());
    }

    pub(super) fn g2_write_skew_over_a_predicate_conflicts(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        for transaction in [&mut one, &mut two] {
            assert_eq!(transaction.rows_where(|value| value % 3 == 0), []);
        }
        one.put(3, 30);
        two.put(4, 42);
        one.commit().unwrap();
        assert!(two.conflicts());
        assert_eq!(store.rows(), [(1, 10), (2, 20), (3, 30)]);
    }

    pub(super) fn g2_two_anti_dependencies_with_a_reader_between_conflict(store: &impl Store) {
        let mut one = store.begin();
        assert_eq!(one.rows(), [(1, 10), (2, 20)]);
        let mut two = store.begin();
        assert_eq!(two.get(2), Some(20));
        two.put(2, 25);
        two.commit().unwrap();
        let mut three = store.begin();
        assert_eq!(three.rows(), [(1, 10), (2, 25)]);
        three.commit().unwrap();
        one.put(1, 0);
        assert!(one.conflicts());
    }

    pub(super) fn g2_an_empty_range_and_a_missing_key_count_as_read(store: &impl Store) {
        let (mut one, mut two) = (store.begin(), store.begin());
        assert_eq!((one.get(7), two.get(8)), (None, None));
        one.put(8, 1);
        two.put(7, 1);
        one.commit().unwrap();
        assert!(two.conflicts());
    }

    /// A transaction conflicts when a key that it read was deleted, but not when a key was deleted that it did not read.
    pub(super) fn g2_a_deleted_key_conflicts_and_one_beside_does_not(store: &impl Store) {
        let (mut one, mut two, mut three) = (store.begin(), store.begin(), store.begin());
        assert_eq!((one.get(1), two.get(2)), (Some(10), Some(20)));
        three.delete(1);
        three.commit().unwrap();
        two.put(3, 30);
        two.commit().unwrap();
        one.put(4, 40);
        assert!(one.conflicts());
        assert_eq!(store.rows(), [(2, 20), (3, 30)]);
    }
}

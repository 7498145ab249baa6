//! openraft's own tests of a storage.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[path = "../examples/cluster/app.rs"]
mod app;

use nofault::Db;
use nofault::settings::Settings;
use nofault_raft::{LogStore, StateMachine};
use openraft::StorageError;
use openraft::testing::{StoreBuilder, Suite};
use tempfile::TempDir;

use crate::app::{Types, VALUES, Values};

struct Builder;

impl StoreBuilder<Types, LogStore<Types>, StateMachine<Types, Values>, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore<Types>, StateMachine<Types, Values>), StorageError<u64>> {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let settings = Settings { cache_bytes: 4 << 20, log_bytes: 1 << 20, ..Settings::default() };
        let db = Db::create(folder.path().join("db"), &settings).await.unwrap();
        let (log, state) =
            nofault_raft::open(&db, "group", &[VALUES], folder.path().join("snapshots"), Values).await.unwrap();
        Ok((folder, log, state))
    }
}

#[test]
fn all_of_openrafts_own_suite_passes() {
    Suite::test_all(Builder).unwrap();
}

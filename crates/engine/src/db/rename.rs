//! Renaming a table: its entry in the catalog moves to the new name, in one commit.
//!
//! Right because neither the root of the table nor its id changes: handles, open transactions and snapshots find it by
//! them. The record names table and names, never the entry: a replay may create the table with another root. Calls that
//! create, drop or rename a table of either name at the same time meet in the commit section, where each looks at both
//! entries.

use super::compression::learn;
use super::tables::in_catalog;
use super::{Db, thread};
use crate::btree::write::check_key;
use crate::error::{Error, ErrorKind, Result};
use crate::format::LateFeature;
use crate::transaction::Op;

impl Db {
    /// Gives a table another name. Durable when it returns; takes as long as a `put`, whatever the size of the table. The
    /// first table of a database that is renamed costs a checkpoint: from then on builds that do not know renamed tables
    /// refuse the database.
    /// Open handles and transactions of the table go on; [`Table::name`](super::Table::name) of a handle stays the name
    /// by which it was opened. A snapshot from before has the table under its old name.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), nofault::error::Error> {
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
    /// let stock = db.create_table("stock").await?;
    /// db.rename_table("stock", "warehouse").await?;
    /// stock.put("apples", "12").await?;
    /// assert_eq!(db.table("warehouse").await?.get("apples").await?, Some(b"12".to_vec()));
    /// assert!(db.table("stock").await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `NotFound` when there is no table `name`; `AlreadyExists` when there is a table `to`, unless both are the same;
    /// `InvalidCall` when `to` is empty or longer than a key may be; otherwise as [`Db::write`].
    pub async fn rename_table(&self, name: &str, to: &str) -> Result<()> {
        if to.is_empty() {
            return Err(Error::new(ErrorKind::InvalidCall, "rename a table: its new name is empty"));
        }
        self.owner.check_open()?;
        let tree = self.core.catalog.table(name.as_bytes()).await?;
        if name == to {
            return Ok(());
        }
        check_key(self.page_bytes(), to.as_bytes())?;
        let owner = self.owner.clone();
        thread::run("nofault-ckpt", move || owner.allow(LateFeature::Properties)).await??;
        let op = Op::RenameTable { tree, name: name.as_bytes().to_vec(), to: to.as_bytes().to_vec() };
        self.core.committer.commit_op(op).await.map_err(in_catalog)?;
        // A call that set the compression under the old name may have found no table of that name any more.
        learn(self, tree, to).await
    }
}

//! The compression of a table: a byte in its catalog entry, and a note in the pool, which packs pages as they are
//! written.

pub use super::dictionaries::CompressionEstimate;
use super::dictionaries::refuse_unavailable;
use super::tables::in_catalog;
use super::{Db, Table, thread};
use crate::btree::Tree;
use crate::codec::Compression;
use crate::error::{Error, ErrorKind, Result};
use crate::transaction::Op;

impl Db {
    /// Estimates the space that compressing a table would save, from a megabyte of its pages chosen at random. `None` where it has
    /// too few pages to tell (fewer than 64). Changes nothing; takes some 100 ms, in a task on a dedicated thread.
    ///
    /// # Errors
    /// `NotFound` when there is no table of this name; the errors of reading.
    pub async fn estimate_compression(&self, name: &str) -> Result<Option<CompressionEstimate>> {
        let (db, tree) = (self.clone(), self.core.catalog.table(name.as_bytes()).await?);
        thread::run("nofault-estimate", move || db.owner.trainer().estimate(tree)).await?
    }
}

/// Creates an empty table, durably.
pub(super) async fn create_table(db: &Db, name: &str, compression: Compression) -> Result<Table> {
    if name.is_empty() {
        return Err(Error::new(ErrorKind::InvalidCall, "create a table: its name is empty"));
    }
    refuse_unavailable(compression)?;
    let op = Op::CreateTable { name: name.as_bytes().to_vec(), compression };
    db.core.committer.commit_op(op).await.map_err(in_catalog)?;
    let table = db.table(name).await?;
    learn(db, table.tree, name).await?;
    Ok(table)
}

/// Sets the compression of a table, durably.
pub(super) async fn set(db: &Db, name: &str, compression: Compression) -> Result<()> {
    refuse_unavailable(compression)?;
    let tree = db.core.catalog.table(name.as_bytes()).await?;
    let op = Op::SetCompression { tree, name: name.as_bytes().to_vec(), compression };
    db.core.committer.commit_op(op).await.map_err(in_catalog)?;
    learn(db, tree, name).await
}

/// Tells the pool which compression the catalog has for a table. Of several calls at a time the last to end has seen
/// the newest entry: each looks again after it has told the pool.
pub(super) async fn learn(db: &Db, tree: Tree, name: &str) -> Result<()> {
    let mut told = None;
    loop {
        let current = match db.core.catalog.compression(tree, name.as_bytes()).await {
            Ok(compression) => compression,
            // The table was dropped since, or renamed: then the call that has renamed it looks at its entry.
            Err(error) if error.kind() == ErrorKind::NotFound => match db.core.tables.refusal(tree) {
                Some(_) => Compression::None,
                None => return Ok(()),
            },
            Err(error) => return Err(error),
        };
        if told == Some(current) {
            return Ok(());
        }
        db.core.store.writer().codecs().set(tree.table, current);
        told = Some(current);
    }
}

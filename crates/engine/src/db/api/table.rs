//! Tables: the calls on one ordered map of a database.

use std::sync::Arc;

use crate::btree::Tree;
use crate::db::open::handle::Db;
use crate::error::{Error, ErrorKind};

/// A table: an ordered map from keys to values. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let stock = db.create_table("stock").await?;
/// assert_eq!(stock.bulk_load([("apples", "12"), ("pears", "3")]).await?, 2);
/// stock.put("plums", "7").await?;
/// stock.delete("pears").await?;
/// assert_eq!(stock.get("plums").await?, Some(b"7".to_vec()));
/// assert!(stock.contains_key("plums").await? && !stock.contains_key("pears").await?);
/// assert_eq!(stock.get_many(&["pears", "apples"]).await?, [None, Some(b"12".to_vec())]);
/// assert_eq!(stock.get_with("apples", |count| count.map_or(0, <[u8]>::len)).await?, 2);
///
/// let mut range = stock.range("b"..);
/// assert_eq!(range.next().await?, Some((b"plums".to_vec(), b"7".to_vec())));
/// assert!(range.next().await?.is_none());
/// assert!(stock.prefix("app").next().await?.is_some() && stock.iter().next().await?.is_some());
///
/// // Read and written in one transaction.
/// let one_more = |count: Option<&[u8]>| Some([count.unwrap_or_default(), b"0"].concat());
/// assert_eq!(stock.update("plums", one_more).await?, Some(b"70".to_vec()));
/// assert_eq!(stock.get_or_insert_with("nuts", || b"500".to_vec()).await?, b"500");
/// assert_eq!((stock.len().await?, stock.is_empty().await?), (3, false));
/// assert_eq!((stock.approximate_len("b"..).await?, stock.approximate_bytes("b"..).await?), (2, 2731));
/// assert_eq!(stock.last().await?, Some((b"plums".to_vec(), b"70".to_vec())));
/// assert_eq!(stock.pop_first().await?, Some((b"apples".to_vec(), b"12".to_vec())));
/// assert_eq!(stock.first().await?, Some((b"nuts".to_vec(), b"500".to_vec())));
/// assert_eq!((stock.delete_range("o"..).await?, stock.clear().await?), (1, 1));
/// assert_eq!((stock.name(), stock.db().page_bytes()), ("stock", 4096));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Table {
    pub(in crate::db) db: Db,
    pub(in crate::db) tree: Tree,
    pub(in crate::db) name: Arc<str>,
}

impl Table {
    /// The name of the table when this handle was opened: see [`Db::rename_table`].
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The database that the table belongs to.
    pub fn db(&self) -> &Db {
        &self.db
    }
}

impl AsRef<Self> for Table {
    fn as_ref(&self) -> &Self {
        self
    }
}

/// Returns the error of a call that got a table of another database.
pub(in crate::db) fn foreign_table() -> Error {
    Error::new(ErrorKind::InvalidCall, "a table of another database was used here")
}

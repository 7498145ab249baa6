//! Applies an increment to a database with the content of the base on which it stands.
//!
//! The first commit of an increment has all tables of its snapshot, with their ids, names and properties; the others have, table by
//! table, the ranges of keys that have changed and the entries in them now. Tables keep their ids when they are renamed,
//! so the tables that were dropped, renamed and created between the two follow from the lists.
//!
//! The states in between belong to no commit: an increment is applied where there are no readers, and a database with an unfinished
//! one is thrown away.

use std::collections::{BTreeMap, BTreeSet};

use nofault::db::{Change, ChangeApplier};
use nofault::{Db, TableId};

use crate::error::{Error, Result};

/// Applies increments.
pub(crate) struct IncrementApplier<'a> {
    db: &'a Db,
    applier: &'a mut ChangeApplier,
    /// Whether the database has the snapshot's tables already.
    has_tables: bool,
}

impl<'a> IncrementApplier<'a> {
    /// Begins with an increment. `applier` knows the tables of the database.
    pub(crate) fn new(db: &'a Db, applier: &'a mut ChangeApplier) -> Self {
        Self { db, applier, has_tables: false }
    }

    /// Applies the changes of the next commit of the increment.
    ///
    /// # Errors
    /// `Corrupt` when they do not belong to an increment; `Database`.
    pub(crate) async fn apply(&mut self, changes: &[Change]) -> Result<()> {
        check(changes, !self.has_tables).map_err(Error::corrupt)?;
        if self.has_tables {
            return Ok(self.applier.apply(changes).await?);
        }
        self.has_tables = true;
        self.set_tables(changes).await
    }

    /// Ends an increment.
    ///
    /// # Errors
    /// `Corrupt` when it had no list of tables.
    pub(crate) fn finish(self) -> Result<()> {
        if self.has_tables { Ok(()) } else { Err(Error::corrupt("an increment has no list of tables")) }
    }

    /// Drops, renames and creates tables until they match a list.
    async fn set_tables(&mut self, list: &[Change]) -> Result<()> {
        let listed: BTreeMap<TableId, &String> = list.iter().filter_map(named).collect();
        let names: BTreeSet<&String> = listed.values().copied().collect();
        if names.len() != list.iter().filter_map(named).count() {
            return Err(Error::corrupt("an increment has two tables of one name, or of one id"));
        }
        let known: BTreeMap<TableId, String> =
            self.applier.tables().map(|(table, found)| (table, found.name().to_owned())).collect();
        for (table, name) in known.iter().filter(|(table, _)| !listed.contains_key(*table)) {
            self.apply_one(Change::DropTable { table: *table, name: name.clone() }).await?;
        }
        // Two tables may have got the names of each other, so all that are renamed first get names that no table has.
        let mut unused = "nofault-renaming-".to_owned();
        while known.values().chain(names.iter().copied()).any(|name| name.starts_with(&unused)) {
            unused.push('-');
        }
        let renamed = || {
            let kept = known.iter().filter_map(|(table, from)| Some((*table, from, *listed.get(table)?)));
            kept.filter(|(_, from, to)| from != to)
                .map(|(table, from, to)| (table, from, to, format!("{unused}{table}")))
        };
        for (table, from, _, between) in renamed() {
            self.apply_one(Change::RenameTable { table, from: from.clone(), to: between }).await?;
        }
        for (table, _, to, between) in renamed() {
            self.apply_one(Change::RenameTable { table, from: between, to: to.clone() }).await?;
        }
        for change in list {
            match change {
                Change::CreateTable { table, .. } if known.contains_key(table) => {}
                Change::SetCompression { table, compression } if self.has_compression(*table, *compression).await? => {}
                change => self.apply_one(change.clone()).await?,
            }
        }
        Ok(())
    }

    async fn apply_one(&mut self, change: Change) -> Result<()> {
        Ok(self.applier.apply(&[change]).await?)
    }

    async fn has_compression(&self, table: TableId, compression: nofault::settings::Compression) -> Result<bool> {
        let Some(found) = self.applier.table(table) else { return Ok(false) };
        Ok(self.db.snapshot().compression(found.name()).await? == compression)
    }
}

fn named(change: &Change) -> Option<(TableId, &String)> {
    match change {
        Change::CreateTable { table, name } => Some((*table, name)),
        _ => None,
    }
}

/// Checks that changes belong to an increment: to its first commit, which has the tables, or to another. Fails with the fault.
pub(crate) fn check(changes: &[Change], is_first: bool) -> std::result::Result<(), String> {
    let is_expected = |change: &&Change| match change {
        Change::CreateTable { .. } | Change::SetCompression { .. } | Change::SetTypes { .. } => is_first,
        Change::Put { .. } | Change::DeleteRange { .. } => !is_first,
        _ => false,
    };
    match changes.iter().find(|change| !is_expected(change)) {
        None => Ok(()),
        Some(change) => Err(format!("an increment has {change:?} where that cannot be")),
    }
}

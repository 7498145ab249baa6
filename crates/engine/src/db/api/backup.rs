//! Copies a database into a new one, table by table. The copy is nothing until all of it is there (`unfinished`).

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::schema;
use super::snapshot::Snapshot;
use crate::db::open::handle::Db;
use crate::db::open::unfinished::UnfinishedDb;
use crate::error::{Error, ErrorKind, Result};
use crate::format::Moment;
use crate::recovery::names::{DATA, LOG, is_part};
use crate::settings::Settings;
use crate::sync::driver::block_on;

/// Memory of the pool writing a backup, in bytes.
const CACHE_BYTES: usize = 16 << 20;
/// Log size of the copy, in bytes. It determines the size of a log segment: two segments are written with zeroes at
/// creation, and a bulk load needs no more.
const LOG_BYTES: u64 = 16 << 20;

/// Returns the folder of the database that a path is or lies in, also through links: of all its parents the nearest
/// that has a database's files. `None` outside of databases. A path that does not exist counts by the parents that do.
/// Folders that this process may not list count as none.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, ..Default::default() };
/// use nofault::db::database_around;
///
/// let shop = folder.path().join("shop");
/// let db = nofault::blocking::Db::create(&shop, &settings)?;
/// assert_eq!(database_around(shop.join("backups/monday")), Some(shop.canonicalize().unwrap()));
/// assert_eq!(database_around(folder.path().join("backups")), None);
/// # Ok::<(), nofault::Error>(())
/// ```
pub fn database_around(path: impl AsRef<Path>) -> Option<PathBuf> {
    let here = Path::new(".");
    let parents = path.as_ref().ancestors().map(|parent| if parent.as_os_str().is_empty() { here } else { parent });
    // A relative path may end without a parent that exists: the present folder is its parent then.
    let real = parents.chain([here]).find_map(|parent| parent.canonicalize().ok())?;
    real.ancestors().find(|folder| has_database(folder)).map(Path::to_path_buf)
}

/// Returns whether a folder has the files of a database, or a part of a striped one.
fn has_database(folder: &Path) -> bool {
    let has = |name| folder.join(name).is_file();
    let has_part = || {
        let entries = folder.read_dir().into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name()).any(|name| name.to_str().is_some_and(is_part))
    };
    (has(DATA) && has(LOG)) || has_part()
}

/// Copies a snapshot of the database into a new database. Blocks.
pub(in crate::db) fn backup(db: &Db, path: &Path) -> Result<()> {
    // A path that is a database itself is refused by the creation.
    let around = database_around(path).filter(|around| path.canonicalize().ok().as_ref() != Some(around));
    if let Some(around) = around {
        let what = format!("{} lies in the database {}: choose a folder outside", path.display(), around.display());
        return Err(Error::new(ErrorKind::InvalidCall, what));
    }
    let snapshot = essential_snapshot(db);
    let settings = Settings {
        page_bytes: db.page_bytes(),
        cache_bytes: CACHE_BYTES,
        log_bytes: LOG_BYTES,
        ..Settings::with_small_pages()
    };
    copy(&snapshot, UnfinishedDb::create_at(path, &settings)?)
}

/// Takes a snapshot that is never evicted: finishing a backup is worth the old pages that it keeps.
fn essential_snapshot(db: &Db) -> Snapshot {
    Snapshot { db: db.clone(), pages: Arc::new(db.core.store.essential_snapshot()) }
}

fn copy(snapshot: &Snapshot, into: UnfinishedDb) -> Result<()> {
    copy_tables(snapshot, into.db())?;
    into.finish_now()
}

fn copy_tables(snapshot: &Snapshot, copy: &Db) -> Result<()> {
    for name in block_on(snapshot.table_names())? {
        let from = block_on(snapshot.table(&name))?;
        let to = block_on(schema::create_table(copy, &name, block_on(snapshot.compression(&name))?))?;
        if let Some(types) = block_on(snapshot.types(&name))? {
            block_on(schema::require(copy, to.tree, &name, &types))?;
        }
        let mut range = snapshot.range::<&[u8]>(&from, ..)?;
        let entries = std::iter::from_fn(|| {
            let entry = block_on(range.next()).transpose()?;
            let expiry = range.expiry().map_or(Moment::NEVER, Moment::at_or_after);
            Some(entry.map(|(key, value)| (key, value, expiry)))
        });
        to.try_load_until(entries)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use nofault_sim::content::Content;
    use nofault_sim::{Call, Effect, Fault, SimOptions, SimStats, SimWorld};

    use super::*;
    use crate::db::tests::rows_of;
    use crate::error::ErrorKind;
    use crate::recovery::names::UNFINISHED;

    const ENOSPC: i32 = 28;

    fn opened(world: &SimWorld) -> Result<Db> {
        Db::open_in(&world.directory(), &Settings::tiny(1))
    }

    fn source() -> Db {
        let directory = SimWorld::new(3, SimOptions::calm()).directory();
        // Without a seed: a thread that works on two databases by turns uses private epochs for one of them at most.
        let db = Db::create_in(&directory, &Settings { seed: None, ..Settings::tiny(1) }).unwrap();
        for (name, rows) in [("a", 40u32), ("empty", 0), ("z", 300)] {
            let table = block_on(db.create_table(name)).unwrap();
            let value = |row: u32| vec![row as u8; if row == 7 { 3000 } else { 30 }];
            table.load((0..rows).map(|row| (row.to_be_bytes(), value(row)))).unwrap();
        }
        db
    }

    fn content(db: &Db) -> Content {
        let rows = |name: &String| rows_of(&block_on(db.table(name)).unwrap()).unwrap();
        let names = block_on(db.table_names()).unwrap();
        names.into_iter().map(|name| (name.clone(), rows(&name))).collect()
    }

    fn copy_of(db: &Db, world: &SimWorld) -> Result<()> {
        copy(&essential_snapshot(db), UnfinishedDb::create_in(&world.directory(), &Settings::tiny(1))?)
    }

    #[test]
    fn a_power_cut_at_any_moment_of_a_backup_leaves_all_of_it_or_nothing() {
        let db = source();
        let all = content(&db);
        let world = SimWorld::new(4, SimOptions::calm());
        copy_of(&db, &world).unwrap();
        let events = world.events();
        for cut in 0..20 {
            assert_eq!(content(&opened(&world.restart(cut)).unwrap()), all, "a finished backup is lost: {world}");
        }
        let mut nothing = 0;
        for cut in 1..=events {
            let world = SimWorld::new(4, SimOptions::calm());
            world.cut_after(cut);
            let _ = copy_of(&db, &world);
            let after = world.restart(cut);
            let names = || after.directory().list().unwrap();
            match opened(&after) {
                Ok(copy) => assert_eq!(content(&copy), all, "cut after {cut} of {events}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "cut after {cut} of {events}: {error}");
                    nothing += 1;
                    // The files that are left hinder neither a new database nor the next backup.
                    if cut % 16 == 0 {
                        drop(Db::create_in(&after.directory(), &Settings::tiny(1)).unwrap());
                        assert_eq!(names(), ["data", "log"], "cut after {cut} of {events}");
                    } else if cut % 4 == 0 {
                        copy_of(&db, &after).unwrap();
                        assert_eq!(names(), ["data", "log"], "cut after {cut} of {events}");
                        assert_eq!(content(&opened(&after).unwrap()), all, "cut after {cut} of {events}");
                    }
                }
            }
        }
        assert!(nothing > 100 && nothing < events, "{nothing} of {events}");
    }

    #[test]
    fn the_durable_writes_of_a_backup_do_not_grow_with_the_tables() {
        let steps = |tables: u32| {
            let db = Db::create_in(
                &SimWorld::new(3, SimOptions::calm()).directory(),
                &Settings { seed: None, ..Settings::tiny(1) },
            )
            .unwrap();
            for number in 0..tables {
                block_on(block_on(db.create_table(&format!("{number}"))).unwrap().put("k", "v")).unwrap();
            }
            let world = SimWorld::new(4, SimOptions::calm());
            copy_of(&db, &world).unwrap();
            let SimStats { durable_write_count, sync_count, directory_sync_count, .. } = world.stats();
            (durable_write_count, sync_count, directory_sync_count)
        };
        assert_eq!(steps(2), steps(60));
    }

    #[test]
    fn a_backup_that_fails_leaves_nothing_behind() {
        let db = source();
        let mut failed = 0;
        for (call, name) in [
            (Call::Write, UNFINISHED),
            (Call::Rename, UNFINISHED),
            (Call::Write, "log.nofault-new"),
            (Call::SyncDirectory, ""),
        ] {
            for after in 0..4 {
                let world = SimWorld::new(4, SimOptions::calm());
                let fault = Fault::new(call, Effect::Errno(ENOSPC)).after(after);
                world.inject(if name.is_empty() { fault } else { fault.on(name) });
                if copy_of(&db, &world).is_err() {
                    failed += 1;
                    let error = opened(&world).expect_err("it opened");
                    assert_eq!(error.kind(), ErrorKind::NotFound, "{call:?} {after} on «{name}»: {error}");
                    copy_of(&db, &world).unwrap();
                    assert_eq!(content(&opened(&world).unwrap()), content(&db), "{call:?} {after} on «{name}»");
                }
            }
        }
        assert!(failed > 6, "only {failed} failed");
    }
}

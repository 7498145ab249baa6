//! A database that is filled at its creation, and is nothing before that: a backup, a restored database, the result of a
//! salvage or of a load.
//!
//! A part of the content would be a sound database: worse than none. So its data file has the name of a database only when all of
//! it is there and durable ([`recovery::finish`]); an interruption before that leaves nothing that `open` takes for a database.
//! No step before the last can be relied on, so none is made durable for itself: every commit is deferred, a bulk load
//! makes no checkpoint, and no call waits for the log (`LogWaits::leave_to_the_end`).
//!
//! Kept true by: the checkpoint that closes the database makes everything durable before the name is given.

use std::path::Path;
use std::sync::Arc;

use nofault_io::disk::{Directory, FileLock};

use super::handle::Db;
use super::opening::{NewDirectory, Place};
use super::{handle, opening};
use crate::db::calls::thread;
use crate::error::Result;
use crate::events;
use crate::recovery::{self, Purpose};
use crate::settings::Settings;

/// A new database that is nothing until it is finished: for content that counts only when all of it is there.
///
/// It is used as any other through [`UnfinishedDb::db`], but nothing in it is durable before [`UnfinishedDb::finish`], which makes
/// everything durable at once: a commit is [`Durability::Deferred`](crate::Durability::Deferred) whatever it asks for, and
/// [`Db::sync`] and [`Db::await_durable`] wait for nothing. So thousands of small tables take a few writes of the disk, where each
/// takes several otherwise. When the process ends before, or the power fails, or this is dropped, the folder holds nothing that
/// [`Db::open`] would take for a database; the next creation there removes the rest, and waits where this process does so.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// use nofault::db::UnfinishedDb;
///
/// let path = folder.path().join("shops");
/// let new = UnfinishedDb::create(&path, &settings).await?;
/// for shop in ["north", "south"] {
///     let stock = new.db().create_table(shop).await?;
///     stock.bulk_load([("apples", "12"), ("pears", "3")]).await?;
/// }
/// assert!(nofault::Db::open(&path, &settings).await.is_err(), "it is none yet");
/// new.finish().await?;
/// assert_eq!(nofault::Db::open(&path, &settings).await?.table_names().await?, ["north", "south"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct UnfinishedDb {
    db: Db,
    files: UnfinishedFiles,
}

/// The files of an unfinished database. Dropping them removes them.
#[derive(Debug)]
struct UnfinishedFiles {
    /// The handle that closes the database; `None` while it is not open.
    db: Option<Db>,
    directory: Arc<dyn Directory>,
    place: Option<Place>,
    /// Keeps other processes from creating a database in the folder until this one has its name, or is removed.
    signed: Option<Arc<dyn FileLock>>,
    is_finished: bool,
    /// Whether dropping them may wait until they are removed.
    may_wait: bool,
}

impl UnfinishedDb {
    /// Creates a database to be filled in `folder`, and the folder itself if it is missing (its parent must exist).
    ///
    /// # Errors
    /// As [`Db::create`].
    pub async fn create(folder: impl AsRef<Path>, settings: &Settings) -> Result<Self> {
        let (folder, settings) = (folder.as_ref().to_path_buf(), settings.clone());
        let created = thread::run("nofault-create", move || Self::create_at(&folder, &settings)).await?;
        created.map(|new| new.with_waiting_drop(false))
    }

    /// As [`UnfinishedDb::create`]. Blocks, and so does dropping it.
    pub(in crate::db) fn create_at(path: &Path, settings: &Settings) -> Result<Self> {
        let _span = events::database(Some(path));
        recovery::check_new(settings)?;
        let NewDirectory { directory, stripes, signed, place } = opening::new_directory(path, settings)?;
        let new = Self::open(&directory, settings, stripes, Some(signed), Some(place))?;
        opening::serve_stats(&new.db, path, settings);
        Ok(new)
    }

    /// As [`UnfinishedDb::create`], on disks of the caller's choice. Blocks, and so does dropping it.
    ///
    /// # Errors
    /// As [`Db::create_in`].
    pub fn create_in(directory: &Arc<dyn Directory>, settings: &Settings) -> Result<Self> {
        let _span = events::database(None);
        Self::open(directory, settings, None, None, None)
    }

    fn open(
        directory: &Arc<dyn Directory>,
        settings: &Settings,
        stripes: Option<String>,
        signed: Option<Arc<dyn FileLock>>,
        place: Option<Place>,
    ) -> Result<Self> {
        let created = opening::create_in(directory, settings, Purpose::Fill, stripes, None).inspect_err(|error| {
            opening::remove_failed(&**directory, error);
            place.iter().for_each(Place::remove);
        });
        let db = created?;
        let directory = Arc::clone(directory);
        let files =
            UnfinishedFiles { db: Some(db.clone()), directory, place, signed, is_finished: false, may_wait: true };
        Ok(Self { db, files })
    }

    /// Returns the database.
    pub fn db(&self) -> &Db {
        &self.db
    }

    /// Sets whether dropping this may wait until the files are closed and removed.
    pub(crate) fn with_waiting_drop(mut self, may_wait: bool) -> Self {
        self.files.may_wait = may_wait;
        Self { db: self.db.with_waiting_drop(may_wait), files: self.files }
    }

    /// Makes everything durable, closes the database and makes it one: [`Db::open`] opens it from then on. Takes a few durable writes,
    /// whatever it holds.
    ///
    /// # Errors
    /// As [`Db::close`]. The folder holds no database then.
    pub async fn finish(self) -> Result<()> {
        thread::run("nofault-finish", move || self.finish_now()).await?
    }

    /// As [`UnfinishedDb::finish`]. Blocks.
    pub(in crate::db) fn finish_now(self) -> Result<()> {
        let Self { db, mut files } = self;
        // Closed for all handles before it becomes a database, so that nothing writes to it afterwards.
        handle::close(&db)?;
        recovery::finish(&*files.directory)?;
        files.is_finished = true;
        Ok(())
    }
}

impl Drop for UnfinishedFiles {
    fn drop(&mut self) {
        // In a forked process they are the parent's, which may finish them.
        let is_forked = self.db.as_ref().is_some_and(|db| db.owner.check_process().is_err());
        if self.is_finished || is_forked {
            return;
        }
        let (db, directory) = (self.db.take(), Arc::clone(&self.directory));
        let (place, signed) = (self.place.take(), self.signed.take());
        // The next creation there waits for it.
        let removal = place.as_ref().map(Place::removal);
        let remove = move || {
            // Fails where it was closed before; else nothing that fails here counts, since the files go.
            let _ = db.map(|db| handle::close(&db));
            recovery::remove_unfinished(&*directory);
            // While the creation of others is kept out.
            place.iter().for_each(Place::remove);
            drop(signed);
            drop(removal);
        };
        if self.may_wait {
            remove();
        } else {
            // Where no thread can be started the files stay, and the next creation removes them.
            let _ = std::thread::Builder::new().name("nofault-remove".into()).spawn(remove);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nofault_sim::{SimOptions, SimWorld};

    use super::*;
    use crate::db::api::batch::Batch;
    use crate::error::ErrorKind;
    use crate::pages::Durability;
    use crate::sync::driver::block_on;

    /// Fills a database with tables in every way in which one gets entries.
    fn fill(db: &Db, tables: u64) -> Result<()> {
        for number in 0..tables {
            let expires = db.now() + Duration::from_secs(3600);
            let loaded = block_on(db.create_table(&format!("loaded {number}")))?;
            loaded.load([("a", "1", None), ("b", "2", Some(expires))])?;
            loaded.load([("b", "3"), ("c", "4")])?;
            let put = block_on(db.create_typed_table::<u64, String>(&format!("put {number}")))?;
            block_on(put.put(&number, "text"))?;
            let mut batch = Batch::new();
            batch.put(&loaded, "d", vec![7; 300]).delete(&loaded, "a");
            block_on(db.write(batch, Durability::Sync))?;
            block_on(db.sync())?;
        }
        Ok(())
    }

    fn content(db: &Db) -> Vec<(String, u64)> {
        let entries = |name: &String| {
            let table = block_on(db.table(name)).unwrap();
            block_on(table.len()).unwrap()
        };
        block_on(db.table_names()).unwrap().into_iter().map(|name| (name.clone(), entries(&name))).collect()
    }

    fn durable_steps(world: &SimWorld) -> u64 {
        let stats = world.stats();
        stats.durable_write_count + stats.sync_count + stats.directory_sync_count
    }

    #[test]
    fn the_durable_writes_of_a_database_that_is_filled_do_not_grow_with_its_tables() {
        let steps = |tables| {
            let world = SimWorld::new(1, SimOptions::calm());
            let directory = world.directory();
            let new = UnfinishedDb::create_in(&directory, &Settings::tiny(1)).unwrap();
            fill(new.db(), tables).unwrap();
            let before = durable_steps(&world);
            block_on(new.finish()).unwrap();
            let after = durable_steps(&world);
            assert_eq!(content(&Db::open_in(&directory, &Settings::tiny(1)).unwrap()).len() as u64, 2 * tables);
            (before, after - before)
        };
        // So few that their entries fit into the buffer of the log.
        assert_eq!(steps(3), steps(40));
    }

    #[test]
    fn a_power_cut_at_any_moment_of_a_filling_leaves_all_of_it_or_nothing() {
        let run = |world: &SimWorld| -> Result<()> {
            let new = UnfinishedDb::create_in(&world.directory(), &Settings::tiny(1))?;
            fill(new.db(), 3)?;
            block_on(new.finish())
        };
        let opened = |world: &SimWorld| Db::open_in(&world.directory(), &Settings::tiny(1));
        let world = SimWorld::new(2, SimOptions::calm());
        run(&world).unwrap();
        let (all, events) = (content(&opened(&world).unwrap()), world.events());
        let mut nothing = 0;
        for cut in 1..=events {
            let world = SimWorld::new(2, SimOptions::calm());
            world.cut_after(cut);
            let _ = run(&world);
            match opened(&world.restart(cut)) {
                Ok(db) => assert_eq!(content(&db), all, "cut after {cut} of {events}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound, "cut after {cut} of {events}: {error}");
                    nothing += 1;
                }
            }
        }
        assert!(nothing > 20 && nothing < events, "{nothing} of {events}");
    }

    #[test]
    fn an_unfinished_database_leaves_its_folder_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let names = || std::fs::read_dir(folder.path()).unwrap().count();
        let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
        let path = folder.path().join("new");
        let new = UnfinishedDb::create_at(&path, &settings).unwrap();
        let error = Db::create_in(&(Arc::new(open_folder(&path)) as Arc<dyn Directory>), &settings).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        fill(new.db(), 2).unwrap();
        drop(new);
        assert_eq!(names(), 0);
        std::fs::create_dir(&path).unwrap();
        drop(UnfinishedDb::create_at(&path, &settings).unwrap());
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0);
        let new = UnfinishedDb::create_at(&path, &settings).unwrap();
        fill(new.db(), 2).unwrap();
        block_on(new.finish()).unwrap();
        assert_eq!(content(&opening::open(&path, &settings).unwrap()).len(), 4);
    }

    #[tokio::test]
    async fn a_database_can_be_created_where_an_unfinished_one_was_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Settings::default() };
        let path = folder.path().join("new");
        for round in 0..20 {
            drop(UnfinishedDb::create(&path, &settings).await.unwrap());
            if round % 2 == 0 {
                // As another process may: the folder that the next creation makes is not the removed one.
                let _ = std::fs::remove_dir_all(&path);
            }
        }
        Db::create(&path, &settings).await.unwrap().close().await.unwrap();
    }

    fn open_folder(path: &Path) -> nofault_io::folder::Folder {
        nofault_io::folder::Folder::open(path, nofault_io::folder::Backend::Auto).unwrap()
    }
}

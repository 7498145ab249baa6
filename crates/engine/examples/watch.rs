//! A cache in memory that follows a table: a thread watches it and applies each commit, others read the cache.
//!
//! The recipe: begin to watch, then read a snapshot, then apply the commits after the snapshot's. When the watch has lost
//! commits, because the thread was slower than the writers, it reads a snapshot again.
//!
//! Run with `cargo run -p nofault --example watch`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use nofault::blocking::{Db, Table, Watch};
use nofault::db::{Change, WatchEvent};
use nofault::settings::Settings;
use nofault::{CommitSeq, Error};

/// The prices beginning with a prefix, by their names.
type Prices = Arc<Mutex<BTreeMap<String, String>>>;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads all prices again. Returns the commit that they show.
fn read(db: &Db, table: &Table, prices: &Prices) -> Result<CommitSeq, Error> {
    let snapshot = db.snapshot();
    let entries =
        snapshot.range::<&str>(table, ..)?.map(|entry| entry.map(|(name, price)| (text(&name), text(&price))));
    let read = entries.collect::<Result<_, _>>()?;
    *prices.lock().unwrap_or_else(PoisonError::into_inner) = read;
    Ok(snapshot.commit())
}

/// Follows the table until it is dropped.
fn follow(db: &Db, table: &Table, watch: Watch, prices: &Prices) -> Result<(), Error> {
    let mut shown = read(db, table, prices)?;
    for event in watch {
        match event? {
            WatchEvent::Commit { commit, changes } if commit > shown => {
                let mut prices = prices.lock().unwrap_or_else(PoisonError::into_inner);
                for change in changes {
                    match change {
                        Change::Put { key, value, .. } => drop(prices.insert(text(&key), text(&value))),
                        Change::Delete { key, .. } => drop(prices.remove(&text(&key))),
                        Change::DropTable { .. } => prices.clear(),
                        _ => {}
                    }
                }
            }
            WatchEvent::Lost { .. } => shown = read(db, table, prices)?,
            _ => {}
        }
    }
    Ok(())
}

pub(crate) fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("nofault-example-watch-{}", std::process::id()));
    let db = Db::create(&folder, &Settings { cache_bytes: 8 << 20, ..Settings::default() })?;
    let table = db.create_table("prices")?;
    table.put("apples", "2.50")?;

    let prices = Prices::default();
    // A queue so small that the thread may have to read everything again; the result is the same.
    let watch = table.watch("")?.bytes_max(4 << 10);
    let followed = std::thread::scope(|scope| {
        let follower = scope.spawn(|| follow(&db, &table, watch, &prices));
        for number in 0..100 {
            table.put(format!("pears {number:02}"), format!("3.{number:02}"))?;
        }
        table.delete("apples")?;
        table.put("plums", "4.00")?;
        // Wait until the cache shows the last commit.
        while !prices.lock().unwrap_or_else(PoisonError::into_inner).contains_key("plums") {
            std::thread::yield_now();
        }
        let count = prices.lock().unwrap_or_else(PoisonError::into_inner).len();
        println!("the cache has {count} prices");
        assert_eq!(count, 101);
        db.drop_table("prices")?;
        follower.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    followed?;
    assert!(prices.lock().unwrap_or_else(PoisonError::into_inner).is_empty());
    drop((table, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

//! A database used from threads: every call waits on the calling thread.
//!
//! Run with `cargo run -p nofault --example sync`.

use nofault::blocking::Db;
use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Durability};

fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("nofault-example-sync-{}", std::process::id()));
    let db = Db::create(&folder, &Settings { cache_bytes: 32 << 20, ..Settings::default() })?;
    let accounts = db.create_table("accounts")?;

    // Many changes share one write of the log.
    let mut batch = Batch::new();
    for number in 0..100u32 {
        batch.put(&accounts, number.to_be_bytes(), 1000u64.to_le_bytes());
    }
    db.write(batch, Durability::Sync)?;

    // Move money. The closure runs again if another transaction changed what it read.
    db.transact(Durability::Sync, |change| {
        let balance = |value: Option<Vec<u8>>| value.and_then(|v| v.try_into().ok()).map_or(0, u64::from_le_bytes);
        let from = balance(change.get(&accounts, 1u32.to_be_bytes())?);
        let to = balance(change.get(&accounts, 2u32.to_be_bytes())?);
        change.put(&accounts, 1u32.to_be_bytes(), (from - 10).to_le_bytes())?;
        change.put(&accounts, 2u32.to_be_bytes(), (to + 10).to_le_bytes())
    })?;

    // A snapshot does not see later writes.
    let before = db.snapshot();
    accounts.delete(7u32.to_be_bytes())?;
    println!("{} accounts, {} before", accounts.iter().count(), before.range::<&[u8]>(&accounts, ..)?.count());

    let found = db.verify()?;
    println!("{} pages and {} blocks checked, {} problems", found.pages, found.blocks, found.problems.len());
    drop((before, accounts, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

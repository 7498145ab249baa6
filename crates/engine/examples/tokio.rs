//! A database used from tasks on a runtime with a single thread: a read from disk never delays the other tasks.
//!
//! Run with `cargo run -p nofault --example tokio`.

use nofault::error::Result;
use nofault::settings::Settings;
use nofault::{Batch, Db, Durability};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("nofault-example-tokio-{}", std::process::id()));
    let db = Db::create(&folder, &Settings { cache_bytes: 8 << 20, ..Settings::default() }).await?;
    // The runtime itself takes completed reads: no other thread stands between the device and a task.
    db.complete_on_tokio()?;
    let items = db.create_table("items").await?;
    items.bulk_load((0..100_000u32).map(|number| (number.to_be_bytes(), [number as u8; 200]))).await?;

    // The reads of all tasks that are ready go to the device together.
    let mut tasks = Vec::new();
    for task in 0..64u32 {
        let items = items.clone();
        tasks.push(tokio::spawn(async move {
            let mut found = 0;
            for step in 0..100u32 {
                let key = (task * 1_009 + step * 7_919) % 100_000;
                found += usize::from(items.get(key.to_be_bytes()).await?.is_some());
            }
            Ok::<_, nofault::error::Error>(found)
        }));
    }
    let mut found = 0;
    for task in tasks {
        found += task.await.expect("no task panics")?;
    }
    println!("{found} keys found, {} pages read from disk", db.stats().pool.misses);

    // A scan reads ahead while it is being consumed.
    let mut range = items.range(1_000u32.to_be_bytes()..2_000u32.to_be_bytes());
    let mut bytes = 0;
    while let Some((_, value)) = range.next().await? {
        bytes += value.len();
    }
    println!("{bytes} bytes between 1,000 and 2,000");

    let mut batch = Batch::new();
    batch.put(&items, "last", "word").delete(&items, 5u32.to_be_bytes());
    db.write(batch, Durability::Sync).await?;
    drop((range, items, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

//! A table with an index by another column, kept exact in the same transaction.
//!
//! The recipe: the index is a table whose keys are the indexed value followed by the key of the row, and whose values are
//! empty. A change of a row reads the old row in its transaction, removes the old index entry and puts the new one. Since
//! the row counts as read, no two changes of it can leave a wrong entry; since both tables change in one commit, no power
//! cut can, either. `nofault::blocking::IndexedTable` does the same for typed tables; this is how, by hand.
//!
//! Run with `cargo run -p nofault --example secondary_index`.

use nofault::blocking::{Db, Table, Transaction};
use nofault::settings::Settings;
use nofault::{Durability, Error};

/// People by number, and their index by city.
struct People {
    rows: Table,
    by_city: Table,
}

/// Returns the key in the index. The zero byte ends the city, so cities must not contain one: then "Ulm" and "Ulmen" stay
/// apart, and the entries of a city are those with its prefix.
fn index_key(city: &str, number: u64) -> Vec<u8> {
    [city.as_bytes(), &[0], &number.to_be_bytes()].concat()
}

impl People {
    fn open(db: &Db) -> Result<Self, Error> {
        Ok(Self { rows: db.open_or_create_table("people")?, by_city: db.open_or_create_table("people by city")? })
    }

    /// Sets the city of a person, or removes the person.
    fn set(&self, change: &Transaction, number: u64, city: Option<&str>) -> Result<(), Error> {
        let key = number.to_be_bytes();
        if let Some(before) = change.get(&self.rows, key)? {
            change.delete(&self.by_city, index_key(&String::from_utf8_lossy(&before), number))?;
        }
        match city {
            Some(city) => {
                change.put(&self.by_city, index_key(city, number), "")?;
                change.put(&self.rows, key, city)
            }
            None => change.delete(&self.rows, key),
        }
    }

    /// Lists the numbers of the people of a city, in order.
    fn of_city(&self, city: &str) -> Result<Vec<u64>, Error> {
        let number = |key: Vec<u8>| key.last_chunk().map_or(0, |number| u64::from_be_bytes(*number));
        let entries = self.by_city.prefix([city.as_bytes(), &[0]].concat());
        entries.map(|entry| entry.map(|(key, _)| number(key))).collect()
    }
}

pub(crate) fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("nofault-example-index-{}", std::process::id()));
    let db = Db::create(&folder, &Settings { cache_bytes: 8 << 20, ..Settings::default() })?;
    let people = People::open(&db)?;
    for (number, city) in [(1, "Ulm"), (2, "Ulmen"), (3, "Ulm")] {
        db.transact(Durability::Sync, |change| people.set(change, number, Some(city)))?;
    }
    assert_eq!(people.of_city("Ulm")?, [1, 3]);
    db.transact(Durability::Sync, |change| people.set(change, 1, Some("Bonn")))?;
    db.transact(Durability::Sync, |change| people.set(change, 2, None))?;
    println!(
        "in Ulm: {:?}, in Bonn: {:?}, in Ulmen: {:?}",
        people.of_city("Ulm")?,
        people.of_city("Bonn")?,
        people.of_city("Ulmen")?
    );
    assert_eq!((people.of_city("Ulm")?, people.of_city("Bonn")?, people.of_city("Ulmen")?), (vec![3], vec![1], vec![]));
    drop((people, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

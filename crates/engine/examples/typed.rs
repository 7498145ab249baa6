//! Typed tables: temperatures by place and time, and the places by name, without a byte encoded by hand.
//!
//! A key of several parts is a tuple. Its entries lie in the order of the first part, then of the second: so the readings
//! of a place are one range, in the order of their times.
//!
//! Run with `cargo run -p nofault --example typed`.

use std::time::{Duration, SystemTime};

use nofault::blocking::{Db, TypedTable};
use nofault::error::ErrorKind;
use nofault::settings::Settings;
use nofault::{Durability, Error};

/// The tables of the application, opened with their types.
struct Weather {
    /// Degrees by place and time.
    readings: TypedTable<(u32, SystemTime), f64>,
    /// The numbers of the places by their names.
    places: TypedTable<String, u32>,
}

impl Weather {
    fn open(db: &Db) -> Result<Self, Error> {
        Ok(Self {
            readings: db.open_or_create_typed_table("readings")?,
            places: db.open_or_create_typed_table("places")?,
        })
    }

    /// Adds a reading, and the place when it is new.
    fn add(&self, db: &Db, place: &str, at: SystemTime, degrees: f64) -> Result<(), Error> {
        db.transact(Durability::Sync, |change| {
            let (places, readings) = (self.places.in_transaction(change), self.readings.in_transaction(change));
            let number = match places.get(place)? {
                Some(number) => number,
                None => {
                    let number = places.iter()?.count() as u32;
                    places.put(place, &number)?;
                    number
                }
            };
            readings.put(&(number, at), &degrees)
        })
    }

    /// The readings of a place from a time on.
    fn since(&self, place: &str, from: SystemTime) -> Result<Vec<f64>, Error> {
        let Some(number) = self.places.get(place)? else { return Ok(Vec::new()) };
        let readings = self.readings.range((number, from)..(number + 1, SystemTime::UNIX_EPOCH));
        readings.map(|entry| entry.map(|(_, degrees)| degrees)).collect()
    }
}

pub(crate) fn main() -> Result<(), Error> {
    let folder = std::env::temp_dir().join(format!("nofault-example-typed-{}", std::process::id()));
    let db = Db::create(&folder, &Settings { cache_bytes: 8 << 20, ..Settings::default() })?;
    let weather = Weather::open(&db)?;
    let at = |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(minutes * 60);
    for (place, minutes, degrees) in [("Ulm", 30, 4.5), ("Bonn", 10, 9.0), ("Ulm", 10, -2.5), ("Ulm", 20, 0.0)] {
        weather.add(&db, place, at(minutes), degrees)?;
    }
    let ulm = weather.since("Ulm", at(15))?;
    println!("in Ulm since the quarter: {ulm:?}");
    assert_eq!(ulm, [0.0, 4.5]);
    assert_eq!(weather.since("Bonn", at(0))?, [9.0]);

    // The types belong to the table: it is not opened as a table of others.
    let error = db.typed_table::<u64, String>("places").expect_err("the keys are strings");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    println!("{error}");
    drop((weather, db));
    // Removes the folder of this example only.
    let _ = std::fs::remove_dir_all(&folder);
    Ok(())
}

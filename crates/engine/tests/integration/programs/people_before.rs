//! People with an index by city, over the calls of bytes.

use std::ops::Bound;

use nofault::blocking::{Db, Table, Transaction};
use nofault::{Durability, Error, ErrorKind};

use super::Person;

pub(crate) struct People {
    db: Db,
    rows: Table,
    by_city: Table,
}

/// Returns the bytes of a string that another part follows, in the order of the strings.
fn ended(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for byte in text.bytes() {
        bytes.push(byte);
        if byte == 0 {
            bytes.push(0xFF);
        }
    }
    bytes.extend_from_slice(&[0, 0]);
    bytes
}

fn index_key(city: &str, number: u64) -> Vec<u8> {
    let mut key = ended(city);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

fn row_of(person: &Person) -> Vec<u8> {
    let mut row = Vec::new();
    for text in [&person.name, &person.city] {
        row.extend_from_slice(&(text.len() as u32).to_le_bytes());
        row.extend_from_slice(text.as_bytes());
    }
    row
}

fn person_in(mut row: &[u8]) -> Option<Person> {
    let mut text = || {
        let (len, rest) = row.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
        row = rest;
        String::from_utf8(text.to_vec()).ok()
    };
    let (name, city) = (text()?, text()?);
    row.is_empty().then_some(Person { name, city })
}

fn open_or_create(db: &Db, name: &str) -> Result<Table, Error> {
    match db.table(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => db.create_table(name),
        opened => opened,
    }
}

impl People {
    pub(crate) fn open(db: &Db) -> Result<Self, Error> {
        let (rows, by_city) = (open_or_create(db, "people")?, open_or_create(db, "people by city")?);
        Ok(Self { db: db.clone(), rows, by_city })
    }

    fn set(&self, change: &Transaction, number: u64, person: Option<&Person>) -> Result<(), Error> {
        let key = number.to_be_bytes();
        if let Some(row) = change.get(&self.rows, key)? {
            let before = person_in(&row).expect("a row");
            change.delete(&self.by_city, index_key(&before.city, number))?;
        }
        match person {
            Some(person) => {
                change.put(&self.by_city, index_key(&person.city, number), "")?;
                change.put(&self.rows, key, row_of(person))
            }
            None => change.delete(&self.rows, key),
        }
    }

    fn commit(&self, work: impl Fn(&Transaction) -> Result<(), Error>) -> Result<(), Error> {
        loop {
            let change = self.db.begin();
            work(&change)?;
            match change.commit(Durability::Sync) {
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                ended => return ended,
            }
        }
    }

    pub(crate) fn put(&self, number: u64, person: &Person) -> Result<(), Error> {
        self.commit(|change| self.set(change, number, Some(person)))
    }

    pub(crate) fn remove(&self, number: u64) -> Result<(), Error> {
        self.commit(|change| self.set(change, number, None))
    }

    pub(crate) fn of_city(&self, city: &str) -> Result<Vec<(u64, Person)>, Error> {
        let snapshot = self.db.snapshot();
        let start = ended(city);
        let mut end = start.clone();
        // The key ends with a zero byte: one more is the end of the prefix.
        if let Some(last) = end.last_mut() {
            *last = 1;
        }
        let mut people = Vec::new();
        for entry in snapshot.range::<Vec<u8>>(&self.by_city, (Bound::Included(start), Bound::Excluded(end)))? {
            let (key, _) = entry?;
            let number = u64::from_be_bytes(*key.last_chunk().expect("a key of the index"));
            if let Some(row) = snapshot.get(&self.rows, number.to_be_bytes())? {
                people.push((number, person_in(&row).expect("a row")));
            }
        }
        Ok(people)
    }
}

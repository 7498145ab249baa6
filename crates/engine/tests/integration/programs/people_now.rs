//! People with an index by city, over the calls of today.

use nofault::Error;
use nofault::blocking::{Db, IndexedTable, TypedTable};
use nofault::typed::{Postcard, TypeName};

use super::Person;

pub(crate) struct People {
    db: Db,
    people: IndexedTable<u64, Postcard<Person>>,
    by_city: TypedTable<(String, u64), ()>,
}

impl TypeName for Person {
    const NAME: &'static str = "person.1";
}

impl People {
    pub(crate) fn open(db: &Db) -> Result<Self, Error> {
        let by_city = db.open_or_create_typed_table("people by city")?;
        let people = IndexedTable::new(&db.open_or_create_typed_table("people")?)
            .with_index(&by_city, |_, person: &Person| [person.city.clone()]);
        Ok(Self { db: db.clone(), people, by_city })
    }

    pub(crate) fn put(&self, number: u64, person: &Person) -> Result<(), Error> {
        self.people.put(&number, person)
    }

    pub(crate) fn remove(&self, number: u64) -> Result<(), Error> {
        self.people.delete(&number)
    }

    pub(crate) fn of_city(&self, city: &str) -> Result<Vec<(u64, Person)>, Error> {
        let snapshot = self.db.begin_read();
        let of_city = self.by_city.in_snapshot(&snapshot).prefix(&(city,))?;
        let numbers = of_city.map(|entry| entry.map(|((_, number), ())| number)).collect::<Result<Vec<_>, _>>()?;
        let rows = self.people.rows().in_snapshot(&snapshot).get_many(&numbers)?;
        Ok(numbers.into_iter().zip(rows).filter_map(|(number, row)| Some((number, row?))).collect())
    }
}

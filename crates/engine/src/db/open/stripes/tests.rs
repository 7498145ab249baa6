use std::collections::BTreeMap;

use nofault_sim::depth::{by_depth, sample};
use nofault_sim::{SimOptions, SimWorld};

use super::*;
use crate::blocking::Db;
use crate::db::open::opening::{create_in, open_in};
use crate::recovery::Purpose;
use crate::recovery::names::{is_part, is_reserved};
use crate::settings::Settings;

#[test]
fn a_list_of_folders_is_whole_or_refused() {
    let whole = format!("{TITLE}\n00000000000000ff\n1048576\n/a\n/b c\n{END}\n");
    assert_eq!(parse(&whole), Some(("00000000000000ff", 1 << 20, vec!["/a", "/b c"])));
    for end in 0..whole.len() - 1 {
        assert_eq!(parse(&whole[..end]), None, "{}", &whole[..end]);
    }
    assert_eq!(parse(&format!("{whole}\n\n")), parse(&whole));
    assert_eq!(parse(&whole.replace("1048576", "1000")), None);
    assert_eq!(parse(&format!("{TITLE}\n00000000000000ff\n1048576\n{END}\n\n")), None);
}

/// Simulated folders on separate devices, which lose power together.
#[derive(Clone)]
struct SimPlaces(BTreeMap<PathBuf, SimWorld>);

const MAIN: &str = "/main";
const OTHERS: [&str; 2] = ["/second", "/third"];

impl SimPlaces {
    fn new(options: SimOptions) -> Self {
        let paths = [MAIN].into_iter().chain(OTHERS);
        Self((0..).zip(paths).map(|(seed, path)| (path.into(), SimWorld::new(seed, options))).collect())
    }

    fn main(&self) -> Arc<dyn Directory> {
        self.0[Path::new(MAIN)].directory()
    }

    /// Returns all folders as a power cut at this moment leaves them.
    fn after_cut(&self, seed: u64) -> Self {
        let after = |(path, world): (&PathBuf, &SimWorld)| (path.clone(), world.restart(seed));
        Self(self.0.iter().map(after).collect())
    }

    fn names(&self, path: &str) -> Vec<String> {
        self.0[Path::new(path)].directory().list().unwrap()
    }

    fn create(&self, id: u64) -> Result<()> {
        let main = self.main();
        remove_unfinished_parts(&*main, self)?;
        let (directory, list) = create(main, &OTHERS.map(PathBuf::from), id, self)?;
        let db = Db(create_in(&directory, &Settings::tiny(1), Purpose::Use, list, None)?);
        db.create_table("t")?.put("key", "value")
    }

    fn open(&self) -> Result<Db> {
        open_in(&open(self.main(), self)?, &Settings::tiny(1), Purpose::Use, None).map(Db)
    }

    /// Checks that there is a complete database and no other file.
    fn assert_created(&self, id: u64, what: &str) {
        let value = self.open().and_then(|db| db.table("t")?.get("key"));
        assert_eq!(value.unwrap_or_else(|error| panic!("{what}: {error}")), Some(b"value".to_vec()), "{what}");
        assert_eq!(self.names(MAIN), ["data", "log", "stripes"], "{what}");
        for (number, other) in (1..).zip(OTHERS) {
            assert_eq!(self.names(other), [format!("data-{id:016x}-{number}")], "{what}");
        }
    }
}

impl Places for SimPlaces {
    fn make(&self, path: &Path) -> nofault_io::error::Result<PathBuf> {
        Ok(path.into())
    }

    fn open(&self, path: &Path) -> nofault_io::error::Result<Arc<dyn Directory>> {
        Ok(self.0[path].directory())
    }
}

/// Creates the database `id` with a power cut of all folders at every event of each folder, and opens `images` states after each cut: a
/// state has either a database, or none, and then another creation succeeds. `begin` has the folders before the creation. Returns the
/// number of states opened, and of those without a database.
fn cut_everywhere(begin: &SimPlaces, id: u64, images: u64) -> (u64, u64) {
    let whole = begin.after_cut(0);
    whole.create(id).unwrap();
    let (mut cuts, mut nothing) = (0, 0);
    for path in [MAIN].into_iter().chain(OTHERS) {
        for event in sample(1..=whole.0[Path::new(path)].events(), 4) {
            let places = begin.after_cut(0);
            places.0[Path::new(path)].cut_after(event);
            let _ = places.create(id);
            for seed in 0..images {
                let what = format!("event {event} of {path}, image {seed}");
                let after = places.after_cut(seed);
                cuts += 1;
                match after.open() {
                    // The creation is complete; the table and its entry, written after it, may be lost.
                    Ok(db) => assert!(db.table_names().is_ok(), "{what}"),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::NotFound, "{what}: {error}");
                        let foreign = after.names(MAIN).into_iter().find(|name| !is_reserved(name) && !is_part(name));
                        assert_eq!(foreign, None, "{what}");
                        nothing += 1;
                        after.create(id + 1).unwrap_or_else(|error| panic!("{what}: {error}"));
                        after.assert_created(id + 1, &what);
                    }
                }
            }
        }
    }
    (cuts, nothing)
}

#[test]
fn a_power_cut_during_the_creation_of_a_striped_database_leaves_it_complete_or_lets_the_next_creation_succeed() {
    for options in [SimOptions::calm(), SimOptions::adversarial()] {
        let (cuts, nothing) = cut_everywhere(&SimPlaces::new(options), 0xA0, 4);
        println!("{cuts} images, {nothing} without a database");
        assert!(nothing > by_depth(25, 100) && nothing < cuts, "{nothing} of {cuts}");
    }
}

#[test]
fn a_power_cut_during_a_creation_after_an_unfinished_one_leaves_it_complete_or_lets_the_next_succeed() {
    // Early, in the middle, and shortly before the end.
    for part in [1, 3, 4, 5, 6] {
        let whole = SimPlaces::new(SimOptions::calm());
        whole.create(0xB0).unwrap();
        let unfinished = (0..).map(|seed| {
            let places = SimPlaces::new(SimOptions::calm());
            let main = Path::new(MAIN);
            places.0[main].cut_after(whole.0[main].events() * part / 7);
            let _ = places.create(0xB0);
            places.after_cut(seed)
        });
        let mut unfinished =
            unfinished.take(20).filter(|places| places.open().is_err() && !places.names(MAIN).is_empty());
        let Some(begin) = unfinished.next() else { continue };
        cut_everywhere(&begin, 0xC0, 2);
    }
}

//! YCSB's core mixes as data, and the next operation of one: shared by the experiments that measure databases.
//! After Cooper and others, "Benchmarking cloud serving systems with YCSB" (SoCC 2010): zipfian but for D, which asks for
//! the latest; scans of up to a hundred entries.

use crate::measure::entries::{Zipfian, mix};

/// Most entries that one scan reads.
pub(crate) const SCAN_MAX: usize = 100;

/// One of YCSB's core mixes: the shares of its operations in percent; the rest are reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mix {
    /// The mix's letter, in lower case.
    pub(crate) id: &'static str,
    /// The mix's letter and a short description, for people.
    pub(crate) name: &'static str,
    update: u64,
    insert: u64,
    scan: u64,
    read_change_write: u64,
    latest: bool,
}

impl Mix {
    /// Whether any operation of the mix changes the table.
    pub(crate) fn writes(&self) -> bool {
        self.update + self.insert + self.read_change_write > 0
    }
}

const NONE: Mix = Mix { id: "", name: "", update: 0, insert: 0, scan: 0, read_change_write: 0, latest: false };
/// YCSB's core mixes A to F.
pub(crate) const MIXES: [Mix; 6] = [
    Mix { id: "a", name: "A: half updates", update: 50, ..NONE },
    Mix { id: "b", name: "B: 5 % updates", update: 5, ..NONE },
    Mix { id: "c", name: "C: reads", ..NONE },
    Mix { id: "d", name: "D: reads of the latest, 5 % inserts", insert: 5, latest: true, ..NONE },
    Mix { id: "e", name: "E: scans, 5 % inserts", scan: 95, insert: 5, ..NONE },
    Mix { id: "f", name: "F: half read-modify-write", read_change_write: 50, ..NONE },
];

/// One operation on a table; a number is the entry's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// Read an entry.
    Read(u64),
    /// Replace the value of an entry.
    Update(u64),
    /// Read an entry, then replace its value.
    ReadChangeWrite(u64),
    /// Add an entry after the last one.
    Insert,
    /// Read the given number of entries, beginning with this one.
    Scan(u64, usize),
}

/// Draws the random operations of one thread.
pub(crate) struct Chooser {
    mix: Mix,
    loaded: u64,
    chance: fastrand::Rng,
    zipfian: Zipfian,
}

impl Chooser {
    /// Draws operations of `mix` on a table of `loaded` entries, for which `zipfian` was made.
    pub(crate) fn new(mix: Mix, loaded: u64, zipfian: &Zipfian, seed: u64) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let zipfian = zipfian.reseeded(chance.u64(..));
        Self { mix, loaded, chance, zipfian }
    }

    /// Draws the next operation on a table that has `known` entries by now.
    pub(crate) fn next(&mut self, known: u64) -> Op {
        let rank = self.zipfian.next();
        // Popular keys are spread over the table, not side by side.
        let number = if self.mix.latest { known.saturating_sub(1 + rank) } else { mix(rank) % self.loaded };
        let mut share = self.chance.u64(0..100);
        let mut is = |percent: u64| {
            let hit = share < percent;
            share = if hit { u64::MAX } else { share - percent };
            hit
        };
        if is(self.mix.insert) {
            Op::Insert
        } else if is(self.mix.update) {
            Op::Update(number)
        } else if is(self.mix.scan) {
            Op::Scan(number, self.chance.usize(1..=SCAN_MAX))
        } else if is(self.mix.read_change_write) {
            Op::ReadChangeWrite(number)
        } else {
            Op::Read(number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_in_the_shares_of_their_mix_and_stay_among_known_keys() {
        for mix in MIXES {
            let mut chooser = Chooser::new(mix, 1000, &Zipfian::new(1000, 0), 3);
            let mut counts = [0_u64; 5];
            for _ in 0..10_000 {
                let op = chooser.next(1200);
                let (kind, number) = match op {
                    Op::Read(number) => (0, number),
                    Op::Update(number) => (1, number),
                    Op::ReadChangeWrite(number) => (2, number),
                    Op::Insert => (3, 0),
                    Op::Scan(number, count) => {
                        assert!((1..=SCAN_MAX).contains(&count));
                        (4, number)
                    }
                };
                counts[kind] += 1;
                assert!(number < 1200, "{}: {op:?}", mix.name);
            }
            for (count, percent) in counts[1..].iter().zip([mix.update, mix.read_change_write, mix.insert, mix.scan]) {
                assert!(count.abs_diff(percent * 100) <= 200, "{}: {counts:?}", mix.name);
            }
        }
    }
}

//! Published claims about mmap that the records of `load` decide.

use super::{COLD, CYCLIC, DATA, ID, LOAD_DIRECT, LOAD_READ, LOAD_TOUCH};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test};
use crate::judge::places::{count_of, is};
use crate::judge::rule::{Among, Each, Limit, Ratio};
use crate::methods::{Family, Pages};
use crate::summary::{Metric, Property, target_title};

/// The published claims about mmap that the records of `load` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "direct-loads-3x-faster",
        hypothesis: "A model comes into memory 3 to 6 times faster by O_DIRECT into huge pages than through a map.",
        source: "llama.cpp, pull request 7420, 2024, on O_DIRECT with transparent huge pages",
        experiment: ID,
        rule: "time to load a cold file once: the fastest way of a map (touches, WILLNEED, POPULATE_READ) over io_uring with O_DIRECT into huge pages, which \
            the claim is about: at least 3",
        needs: &[],
        test: Test::Ratio(Ratio {
            variants: &[COLD],
            metric: Metric::Seconds,
            of: |group| group.family() == Family::Mapped,
            over: |group| group.spec.method == LOAD_DIRECT && group.conditions().pages == Pages::Huge,
            about: &[Property::Pages],
            bound: Bound::at_least(3.0),
            missing: "`nofault lab load` measures it",
        }),
    },
    Claim {
        id: "cache-keeps-nothing-of-a-cycle",
        hypothesis: "A file a little larger than memory, read from front to back again and again, gains nothing from the page cache.",
        source: "llama.cpp, issues 27928 and 29250, 2026, on models larger than memory; the textbook's case against LRU",
        experiment: ID,
        rule: "bytes that the device reads for each byte read of 1.25 times the memory, through a map and by read calls, both told nothing: each at least 0.9",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Places(|variant| variant == CYCLIC),
            which: |group| {
                let is_a_little_larger = count_of(group, DATA).is_some_and(|data| (data - A_LITTLE).abs() < 1e-9);
                is_a_little_larger && !group.never_filled() && (is(group, &LOAD_TOUCH) || is(group, &LOAD_READ))
            },
            figure: |group| group.spread(Metric::Amplification),
            limit: Limit::In(Bound::at_least(0.9)),
            words: |group, read| {
                format!("{}, {}: {}", target_title(&group.spec.target.label), group.title(), read.show(Unit::Ratio))
            },
            missing: "`nofault lab load` measures it",
            ..Each::NONE
        }),
    },
];

/// The size of the data that is a little larger than memory, as a multiple of it.
const A_LITTLE: f64 = 1.25;

//! Published claims about mmap that the records of `access` decide.

use super::{ID, READ};
use crate::format::Unit;
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Test, at_least};
use crate::judge::places::is;
use crate::judge::rule::{Among, Each, Limit, Ratio};
use crate::methods;
use crate::summary::{Family, Metric, Property};

/// The published claims about mmap that the records of `access` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "batching-decides",
        hypothesis: "For one thread, batches of requests decide the rate, and a map cannot batch.",
        source: "Leonardo Benicio, 2022, §6: 1.6 M/s in batches against 0.72 M/s one at a time",
        experiment: ID,
        rule: "random reads per second of the best io_uring batch over the best of map, pread and O_DIRECT, each one thread, on the file: at least 2",
        needs: &[],
        test: Test::Ratio(Ratio {
            variants: &[READ],
            metric: Metric::OpsPerS,
            of: |group| group.family() == Family::Ring && !group.spec.target.kind().is_ram_backed(),
            over: |group| one_at_a_time(group.family()) && !group.spec.target.kind().is_ram_backed(),
            about: &[Property::InFlight, Property::Calls],
            bound: Bound::at_least(2.0),
            missing: "`nofault lab access` measures it",
        }),
    },
    Claim {
        id: "map-beats-read-calls",
        hypothesis: "One thread reads at random faster through a map than by calls through the page cache.",
        source: "Leonardo Benicio, 2022, §6: 780 K/s against 650 K/s",
        experiment: ID,
        rule: "reads per second of the map over buffered pread's, both told RANDOM: more than 1 on each target",
        needs: &[],
        test: at_least(
            &[READ],
            Metric::OpsPerS,
            |group| is(group, &methods::MMAP),
            |group| is(group, &methods::PREAD_BUFFERED),
            1.0,
            "`nofault lab access` measures it",
        ),
    },
    Claim {
        id: "one-thread-720k",
        hypothesis: "One thread makes 720 K synchronous O_DIRECT reads a second from an SSD.",
        source: "Leonardo Benicio, 2022, §6, which itself gives 5 to 15 µs for a read: at most 200 K/s",
        experiment: ID,
        rule: "one at a time, 720 K reads a second leave 1.39 µs for each: the median O_DIRECT read of the file takes no longer",
        needs: &[],
        test: Test::Each(Each {
            among: Among::Places(|variant| variant == READ),
            which: |group| is(group, &methods::PREAD_DIRECT) && group.spec.target.label == "file",
            figure: |group| group.spread(Metric::Latency("op", 500)),
            limit: Limit::In(Bound::at_most(1.39e-6)),
            words: |group, took| {
                let rate = group.primary().map_or("–".to_owned(), |rate| Unit::PerSecond.show(rate.median));
                format!(
                    "file: an O_DIRECT read takes {} (median), and one thread makes {rate}; 720 K/s would leave it 1.39 µs. The source contradicts \
                     itself: its own 5 to 15 µs a read allow 67 to 200 K/s",
                    took.show(Unit::Seconds)
                )
            },
            missing: "`nofault lab access` measures it",
            ..Each::NONE
        }),
    },
];

fn one_at_a_time(family: Family) -> bool {
    matches!(family, Family::Mapped | Family::Buffered | Family::Direct)
}

//! Published claims about mmap that the records of `engines` decide.

use super::{ID, LARGER, SQLITE_MMAP};
use crate::judge::bound::Bound;
use crate::judge::claim::{Claim, Contribution, Test};
use crate::judge::places::{Places, Records, extra, is, of_variant, times};
use crate::judge::rule::{Among, PairFigure, Pairs};
use crate::methods;
use crate::summary::{Metric, target_title};

/// The published claims about mmap that the records of `engines` decide.
pub(super) static CLAIMS: &[Claim] = &[Claim {
    id: "sqlite-gains-from-mmap",
    hypothesis: "SQLite reads faster with mmap_size set.",
    source: "SQLite, documentation of memory-mapped I/O: up to twice for I/O-bound queries",
    experiment: ID,
    rule: "YCSB C operations per second with a large mmap_size over those with mmap_size 0, in memory and larger than memory, each: at least 1.1",
    needs: &[],
    test: Test::Pairs(Pairs {
        among: Among::Variants(&[ZIPFIAN]),
        each: |group| is(group, &SQLITE_MMAP),
        with: |map, other| {
            let (a, b) = (other.spec, map.spec);
            let setting = |name: &str| a.params.extra.get(name) == b.params.extra.get(name);
            let alike = a.params.threads == b.params.threads && setting("durability") && setting("memory");
            is(other, &methods::SQLITE) && alike && a.target.label == b.target.label
        },
        compared: PairFigure::Ratio(Metric::OpsPerS),
        bound: Bound::at_least(1.1),
        place: |group| target_title(&group.spec.target.label),
        words: |pair| {
            let class = extra(pair.of, "durability").unwrap_or("one class");
            let ahead = extra(pair.of, "read_ahead_kb").map_or(String::new(), |kib| format!(", read-ahead {kib} KiB"));
            format!("{}, commits {class}{ahead}: {}", pair.place, times(&pair.ratio))
        },
        missing: "`nofault lab engines` measures it",
        ..Pairs::NONE
    }),
}];

/// The variant of zipfian reads.
pub(super) const ZIPFIAN: &str = "ycsb-c";

/// Finds the bytes that the device reads for a zipfian get through LMDB with MDB_NORDAHEAD, over those without, on a device
/// whose read-ahead is off: a map that loses hot pages reads them again.
pub(super) fn forgets<'s>(records: &'s Records<'s>) -> Contribution<'s> {
    let mut places = Places::default();
    let metric = Metric::PerOp("device_read_bytes");
    let groups = of_variant(records, ID, ZIPFIAN);
    let of = |method: &str, kib: Option<&str>| {
        groups.iter().copied().find(|group| {
            let spec = group.spec;
            spec.method == method && spec.target.label == LARGER && extra(group, "read_ahead_kb") == kib
        })
    };
    // LMDB is told MDB_NORDAHEAD, by which it tells its map MADV_RANDOM; with read-ahead its map has no hint.
    if let (Some(random), Some(plain)) = (of(methods::LMDB.id, None), of(methods::LMDB_READAHEAD.id, Some("0")))
        && let Some(ratio) = places.ratio(LARGER, (random, plain), metric, &[])
    {
        let text =
            format!("YCSB C through {} over {} without read-ahead: {}", random.title(), plain.title(), times(&ratio));
        places.add(Bound::at_least(1.5).decide(&ratio), text, &[random, plain]);
    }
    Contribution { experiment: ID, what: "reads through LMDB with and without MDB_NORDAHEAD", places }
}

//! Published claims about mmap that the records of `scan` decide.

use super::ID;
use super::findings::reads_ahead;
use crate::judge::bound::{Bound, Outcome};
use crate::judge::claim::{Claim, Test, at_most};
use crate::judge::places::{Decision, Places, Records, explicit, is_explicit, is_mapped, mapped, times};
use crate::judge::{self, best_pair};
use crate::record::TargetKind;
use crate::summary::{Group, Metric};

/// The published claims about mmap that the records of `scan` decide.
pub(super) static CLAIMS: &[Claim] = &[
    Claim {
        id: "scan-below-half",
        hypothesis: "A sequential scan through mmap reaches less than half of what direct I/O reaches, from one device.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.2 and figure 3: 2.5 of 6.8 GB/s",
        experiment: ID,
        rule: "bytes per second of the best map over the best O_DIRECT method's under equal conditions are at most 0.5, on each target",
        needs: &[],
        test: at_most(
            &[""],
            Metric::BytesPerS,
            |group| is_mapped(group) && reads_ahead(group),
            is_explicit,
            0.5,
            "`nofault lab scan` measures it",
        ),
    },
    Claim {
        id: "striping-gains-nothing",
        hypothesis: "Scans through mmap gain nothing from more devices, where direct I/O does.",
        source: "Crotty, Leis, Pavlo, CIDR 2022, §4.2 and figure 4: 2.7 of 60 GB/s from ten SSDs",
        experiment: ID,
        rule: "best map striped over best map on one, under equal conditions: at most 1.2, where the same ratio of direct I/O is at least 1.5",
        needs: &[],
        test: Test::Own(striping),
    },
];

/// Decides the claim by the gain from several devices, for a map and for direct I/O.
fn striping(records: &Records<'_>) -> Decision {
    let metric = Metric::BytesPerS;
    let summary = records.summary;
    let mut places = Places::default();
    for (variant, striped) in summary.places(ID) {
        let Some(single) = TargetKind::of(striped).part() else { continue };
        let (many, one) = (summary.at(ID, variant, striped), summary.at(ID, variant, single));
        let map = best_pair(&mapped(&many), &mapped(&one), metric, &[]);
        let direct = best_pair(&explicit(&many), &explicit(&one), metric, &[]);
        let (Some((maps, map)), Some((directs, call))) = (map, direct) else { continue };
        let gain = |many: &Group<'_>, one: &Group<'_>| judge::ratio(many, one, metric, &[]).ok();
        let used = [maps, map, directs, call];
        let (Some(map), Some(direct)) = (gain(maps, map), gain(directs, call)) else { continue };
        let text = format!("{striped}: mmap gains {}, direct I/O {}", times(&map), times(&direct));
        // Devices that add no bandwidth for any method decide nothing.
        let outcome = match Bound::at_least(1.5).decide(&direct) {
            Outcome::Held => Bound::at_most(1.2).decide(&map),
            _ => Outcome::Undecided,
        };
        places.add(outcome, text, &used);
    }
    places.decide(
        "it takes a striped scan: `nofault lab scan` with root's RAM-backed devices, or --stripe-over another disk",
    )
}

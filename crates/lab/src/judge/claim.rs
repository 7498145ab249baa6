//! Claims as data: the source of each, the experiment and the rule that decide it; and its decision from a set of
//! records. The claims themselves are in the folders of the experiments that decide them.
//!
//! No rule has a fixed answer: each is a bound, and a measured spread lies within it, outside of it, or across it
//! ("undecided").

use super::places::{Decision, Pick, Places, Records};
use super::rule::{Curves, Each, Growth, Pairs, Ratio};
use crate::format::Unit;
use crate::judge::bound::{Bound, Outcome};
use crate::record::ExperimentId;
use crate::summary::{Group, Metric};

/// A claim about mmap that records can confirm or refute.
#[derive(Debug)]
pub struct Claim {
    /// Stable id, by which reports and records name it.
    pub id: &'static str,
    /// The claim, in one sentence.
    pub hypothesis: &'static str,
    /// The author of the claim, and the publication or page where it stands.
    pub source: &'static str,
    /// The experiment whose records decide the claim.
    pub experiment: ExperimentId,
    /// The deciding rule in words.
    pub rule: &'static str,
    /// The deciding rule as code.
    pub(crate) test: Test,
    /// The preconditions without which the claim's effect cannot appear. Where one is missing, figures that do not confirm
    /// the claim do not refute it either.
    pub(crate) needs: &'static [Precondition],
}

/// A property of the machine without which the effect of a claim cannot appear: the least amount, and the amount in the
/// claim's source.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Precondition {
    /// Number of CPUs.
    Cpus { least: u32, source: u32 },
    /// Random reads of 4 KiB per second that a device gives past the page cache.
    Reads { least_per_s: f64, source_per_s: f64 },
}

/// The CPUs of the paper's machine. An eviction interrupts every other CPU that uses the map, and one kswapd stands against
/// all of them: with a few CPUs neither can weigh much.
pub(crate) const PAPERS_CPUS: Precondition = Precondition::Cpus { least: 16, source: 128 };
/// The rate of the paper's device. Its map settled at 0.4 M reads/s: a slower device is the limit before eviction is.
pub(crate) const PAPERS_DEVICE: Precondition = Precondition::Reads { least_per_s: 400e3, source_per_s: 900e3 };

impl Precondition {
    /// Returns what is missing, with this machine's figure and the source's; `None` where nothing is, and where the
    /// records do not tell.
    fn missing(self, records: &Records<'_>) -> Option<String> {
        match self {
            Self::Cpus { least, source } => {
                let here = records.file.run.machine.cpu_count;
                let cpus = if here == 1 { "CPU" } else { "CPUs" };
                (here < least).then(|| format!("{here} {cpus} here, {source} in the source; it takes {least}"))
            }
            Self::Reads { least_per_s, source_per_s } => {
                // The claims needing a fast device are about 4 KiB reads, which several experiments make.
                let is_read = |group: &&Group<'_>| {
                    let spec = group.spec;
                    group.family().is_explicit()
                        && spec.params.block_bytes == 4096
                        && group.basis.metric == Metric::OpsPerS
                };
                let rates = records.summary.groups.iter().filter(is_read);
                let most = rates.filter_map(|group| Some(group.spread(Metric::OpsPerS)?.median)).reduce(f64::max)?;
                let show = |per_s: f64| Unit::PerSecond.show(per_s);
                (most < least_per_s).then(|| {
                    let (least, source) = (show(least_per_s), show(source_per_s));
                    format!(
                        "devices give at most {} random reads here, {source} in the source; it takes {least}",
                        show(most)
                    )
                })
            }
        }
    }
}

/// The way a claim is decided.
#[derive(Debug)]
pub(crate) enum Test {
    /// The ratio of a metric between the best of some methods and the best of others, on each target.
    Ratio(Ratio),
    /// A figure of each group by itself.
    Each(Each),
    /// The ratio of each group to a partner.
    Pairs(Pairs),
    /// The growth of a metric with a parameter.
    Growth(Growth),
    /// The ratio of two curves over requests in flight.
    Curves(Curves),
    /// A rule that fits no kind, as a function.
    Own(fn(&Records<'_>) -> Decision),
    /// The joint decision of several experiments, each from its own records.
    Together {
        /// Whether the claim can hold only if every part was measured. One measured part is always enough to refute the
        /// claim.
        every: bool,
        /// The command that measures the claim: shown where the records lack its figures.
        missing: &'static str,
    },
}

/// One experiment's part in a claim that several experiments decide together.
#[derive(Debug)]
pub(crate) struct Contribution<'s> {
    /// The experiment whose records these decisions come from.
    pub(crate) experiment: ExperimentId,
    /// Name of the measurement: shown as missing where the records decide nothing.
    pub(crate) what: &'static str,
    /// The experiment's decisions, one for each place (variant and target).
    pub(crate) places: Places<'s>,
}

impl Claim {
    /// Decides the claim from records. `parts` returns, for a claim that several experiments decide together, the
    /// contribution of each.
    pub(crate) fn decide<'s>(&self, records: &Records<'_>, parts: impl Fn(&str) -> Vec<Contribution<'s>>) -> Decision {
        let decision = match &self.test {
            Test::Ratio(ratio) => ratio.decide(self.experiment, records),
            Test::Each(each) => each.decide(self.experiment, records),
            Test::Pairs(pairs) => pairs.decide(self.experiment, records),
            Test::Growth(growth) => growth.decide(self.experiment, records),
            Test::Curves(curves) => curves.decide(self.experiment, records),
            Test::Own(decide) => decide(records),
            Test::Together { every, missing } => together(parts(self.id), *every, missing),
        };
        self.unless_untestable(decision, records)
    }

    /// Turns a decision that does not confirm the claim into "cannot be tried here" where the machine lacks one of the
    /// claim's preconditions. The text says which, and keeps the figures.
    fn unless_untestable(&self, decision: Decision, records: &Records<'_>) -> Decision {
        if matches!(decision.outcome, Outcome::Held | Outcome::NotMeasured) {
            return decision;
        }
        let missing: Vec<String> = self.needs.iter().filter_map(|need| need.missing(records)).collect();
        if missing.is_empty() {
            return decision;
        }
        let text = format!("{}. Measured all the same: {}", missing.join("; "), decision.text);
        Decision { outcome: Outcome::CannotBeTried, text, ..decision }
    }
}

fn together(parts: Vec<Contribution<'_>>, every: bool, missing: &str) -> Decision {
    let mut all = Places::default();
    let mut untried = Vec::new();
    for part in parts {
        match part.places.is_empty() {
            true => untried.push((part.experiment, part.what)),
            false => all.join(part.places),
        }
    }
    // One part may refute the claim; all parts are needed to confirm it.
    if every && !all.is_empty() && !all.outcomes.contains(&Outcome::DidNotHold) {
        for (experiment, what) in untried {
            let text = format!("{what} were not tried (`nofault lab {experiment} --preset standard`)");
            all.add(Outcome::Undecided, text, &[]);
        }
    }
    all.decide(missing)
}

/// The test that in each of these variants the best of `of` has at least `low` times the figure of the best of `over`.
pub(crate) const fn at_least(
    variants: &'static [&'static str],
    metric: Metric,
    of: Pick,
    over: Pick,
    low: f64,
    missing: &'static str,
) -> Test {
    Test::Ratio(Ratio { variants, metric, of, over, about: &[], bound: Bound::at_least(low), missing })
}

/// The test that in each of these variants the best of `of` has at most `high` times the figure of the best of `over`.
pub(crate) const fn at_most(
    variants: &'static [&'static str],
    metric: Metric,
    of: Pick,
    over: Pick,
    high: f64,
    missing: &'static str,
) -> Test {
    Test::Ratio(Ratio { variants, metric, of, over, about: &[], bound: Bound::at_most(high), missing })
}

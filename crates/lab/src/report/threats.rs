//! Threats to the validity of figures: wrong data, cut-short trials, other users of the device, an interrupted run.

use crate::experiments;
use crate::format::digits;
use crate::judge::keys;
use crate::judge::noise::{Drift, drifts};
use crate::judge::{Finding, Kind};
use crate::record::file::RecordFile;
use crate::record::{CacheState, ExperimentId, Warning, WarningKind};
use crate::summary::{Family, Group, Metric, Summary};

/// Adds a finding for every threat to validity, the worst first.
pub(super) fn find(file: &RecordFile, summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for group in &summary.groups {
        for (repeat, why) in &group.worthless {
            all.push(warning(
                group,
                "worthless",
                "a trial with wrong data, failed operations or no operation has no figure",
                format!("{}, repeat {}: worthless, left out: {why}.", name(group), repeat + 1),
            ));
        }
    }
    run(file, all);
    let mut threats = Threats::default();
    for group in &summary.groups {
        trial(group, &mut threats);
    }
    // The threat with the most trials comes first.
    threats.all.sort_by_key(|threat| std::cmp::Reverse(threat.groups.len()));
    all.extend(threats.all.iter().map(|threat| threat.finding(summary)));
    all.extend(drifts(summary).into_iter().map(|drift| Finding {
        rule: "drift",
        rule_text: "geometric mean, over the methods of an experiment, of the last repeat over the first: more than five percent, and more than chance gives",
        experiment: Some(drift.experiment),
        p: None,
        kind: Kind::Warning,
        text: format!("The machine drifted: {}.", Drift::words(&[drift])),
        trials: Vec::new(),
        key_figure: None,
    }));
    single_runs(summary, all);
}

/// A method in words: `random, file, mmap RANDOM · 16 threads, cold`.
fn name(group: &Group<'_>) -> String {
    let spec = group.spec;
    let variant = if spec.variant.is_empty() { String::new() } else { format!(" {}", spec.variant) };
    let target = crate::summary::target_title(&spec.target.label);
    format!("{}{variant}, {target}, {}, {}", spec.experiment, group.label(), spec.cache)
}

fn warning(group: &Group<'_>, rule: &'static str, rule_text: &'static str, text: String) -> Finding {
    Finding {
        rule,
        rule_text,
        experiment: Some(group.spec.experiment),
        p: None,
        kind: Kind::Warning,
        text,
        trials: keys(&[group]),
        key_figure: None,
    }
}

fn run(file: &RecordFile, all: &mut Vec<Finding>) {
    let mut push = |rule, rule_text, text| {
        all.push(Finding {
            rule,
            rule_text,
            experiment: None,
            p: None,
            kind: Kind::Warning,
            text,
            trials: Vec::new(),
            key_figure: None,
        });
    };
    if !file.is_complete() {
        push(
            "incomplete-run",
            "the records have no end, or the end says that trials are missing",
            format!("The run is not complete ({}); what was measured until then is shown.", file.incomplete_reason()),
        );
    }
    if let Some((line, kind)) = file.unknown.first() {
        push(
            "unknown-records",
            "lines of a type that this version does not know are left aside",
            format!(
                "{} lines are of a kind this version does not know (line {line}: \"{kind}\"); a newer nofault shows them.",
                file.unknown.len()
            ),
        );
    }
    if !file.unknown_settings.is_empty() {
        push(
            "unknown-settings",
            "settings that this version does not know are left aside",
            format!("Settings this version does not know: {}.", file.unknown_settings.join(", ")),
        );
    }
}

/// One kind of threat with all trials that have it: reported once, with the number of trials and the range of its
/// figures.
struct Threat<'s, 'a> {
    rule: &'static str,
    rule_text: &'static str,
    /// The kind of the warning that the threat repeats; `None` for others.
    warning: Option<WarningKind>,
    /// The threat's sentence with `#` for each number; two threats with the same pattern are of one kind.
    pattern: String,
    /// For each `#` of the pattern the smallest and the largest number, as they were written.
    ranges: Vec<(Number, Number)>,
    /// The groups of the trials with the threat: one entry a trial.
    groups: Vec<&'s Group<'a>>,
}

/// A number, and its form in the text that it was read from.
#[derive(Clone, PartialEq, PartialOrd)]
struct Number(f64, String);

/// Threats by kind, in the order of their first appearance.
#[derive(Default)]
struct Threats<'s, 'a> {
    all: Vec<Threat<'s, 'a>>,
}

impl<'s, 'a> Threats<'s, 'a> {
    fn add(&mut self, group: &'s Group<'a>, rule: &'static str, rule_text: &'static str, warning: impl Into<Warning>) {
        let Warning { kind, text } = warning.into();
        let (pattern, numbers) = pattern_of(&text);
        if let Some(known) = self.all.iter_mut().find(|threat| threat.rule == rule && threat.pattern == pattern) {
            known.groups.push(group);
            for (range, number) in known.ranges.iter_mut().zip(&numbers) {
                if number.0 < range.0.0 {
                    range.0 = number.clone();
                } else if number.0 > range.1.0 {
                    range.1 = number.clone();
                }
            }
            return;
        }
        let ranges = numbers.into_iter().map(|number| (number.clone(), number)).collect();
        self.all.push(Threat { rule, rule_text, warning: kind, pattern, ranges, groups: vec![group] });
    }
}

impl Threat<'_, '_> {
    /// The threat's sentence with the range of each number: `others used 40 to 105 % of the CPU time`.
    fn words(&self) -> String {
        let mut pieces = self.pattern.split('#');
        let mut words = pieces.next().unwrap_or_default().to_owned();
        for ((low, high), piece) in self.ranges.iter().zip(pieces) {
            words.push_str(&if low == high { low.1.clone() } else { format!("{} to {}", low.1, high.1) });
            words.push_str(piece);
        }
        words
    }

    fn finding(&self, summary: &Summary<'_>) -> Finding {
        let mut keys: Vec<String> = keys(&self.groups);
        keys.dedup();
        let experiments: Vec<ExperimentId> = experiments::ALL
            .map(|experiment| experiment.id())
            .into_iter()
            .filter(|id| self.groups.iter().any(|g| g.spec.experiment == *id))
            .collect();
        let counts: Vec<String> = experiments
            .iter()
            .map(|id| {
                let trials: usize = summary.of_experiment(*id).map(|group| group.good.len()).sum();
                let affected = self.groups.iter().filter(|group| group.spec.experiment == *id).count();
                format!("{affected} of {trials} trials of {id}")
            })
            .collect();
        let place = if keys.len() == 1 { name(self.groups[0]) } else { format!("in {}", counts.join(", ")) };
        let noise = [WarningKind::OtherLoad, WarningKind::Steal, WarningKind::ForeignReads];
        let is_noise = self.warning.is_some_and(|kind| noise.contains(&kind));
        let so = if is_noise { ": these figures are noisy" } else { "" };
        Finding {
            rule: self.rule,
            rule_text: self.rule_text,
            experiment: if experiments.len() == 1 { experiments.first().copied() } else { None },
            p: None,
            kind: Kind::Warning,
            text: format!("{}{}: {}{so}.", place[..1].to_uppercase(), &place[1..], self.words()),
            trials: keys,
            key_figure: None,
        }
    }
}

/// Replaces each number beginning a word by `#`; returns the pattern and the numbers.
fn pattern_of(text: &str) -> (String, Vec<Number>) {
    let mut numbers = Vec::new();
    let mut words = Vec::new();
    for word in text.split(' ') {
        let end = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
        let digits = word[..end].trim_end_matches('.');
        // A `#` of the text itself must not pass for the place of a number.
        let rest = word[digits.len()..].replace('#', "no.");
        match digits.parse() {
            Ok(number) => {
                numbers.push(Number(number, digits.into()));
                words.push(format!("#{rest}"));
            }
            Err(_) => words.push(format!("{digits}{rest}")),
        }
    }
    (words.join(" "), numbers)
}

fn trial<'s, 'a>(group: &'s Group<'a>, threats: &mut Threats<'s, 'a>) {
    if group.partial > 0 {
        let counts = group.good.iter().any(|trial| trial.outcome.partial);
        let what = if counts { "shown, for want of a whole one" } else { "left out, as whole ones exist" };
        threats.add(
            group,
            "partial",
            "a trial that was cut short counts only where no whole one exists",
            format!("{} cut short; {what}", runs(group.partial)),
        );
    }
    let said = group.good.iter().flat_map(|trial| &trial.outcome.warnings);
    let experiment = experiments::find(group.spec.experiment);
    for warning in said.filter(|text| !experiment.is_some_and(|experiment| experiment.covers_warning(group, text))) {
        threats.add(group, "trial-warning", "what the measuring side noted", warning.clone());
    }
    traffic(group, threats);
    let unproven = group.family() != Family::Baseline
        && group.spec.target.content_seed.is_some()
        && group.good.iter().any(|trial| trial.outcome.checks.verified == 0 && trial.outcome.checks.checksum == 0);
    if unproven {
        threats.add(
            group,
            "unproven",
            "a trial on data of known content that checked nothing is no proof of reading",
            "nothing was checked, so nothing proves that the data was read",
        );
    }
}

/// Compares the bytes that the device read with the bytes that the work asked for, where O_DIRECT makes them equal.
/// Skipped where the trials themselves carry such a warning, tick by tick.
fn traffic<'s, 'a>(group: &'s Group<'a>, threats: &mut Threats<'s, 'a>) {
    let exact = group.family().is_explicit() && group.basis.out_of_core && group.spec.cache == CacheState::Cold;
    let warned = group.good.iter().any(|trial| WarningKind::DeviceTraffic.is_among(&trial.outcome.warnings));
    let Some(read) = group.spread(Metric::Amplification).filter(|_| exact && !warned) else { return };
    let text = if read.median > 1.2 {
        "another program read from the device, or its counters cover more than the target"
    } else if read.median < 0.8 {
        "some of the data did not come from the device, or its counters do not cover it"
    } else {
        return;
    };
    threats.add(
        group,
        "device-traffic",
        "O_DIRECT reads what is asked: device bytes over work bytes outside 0.8 to 1.2 is a foreign influence",
        format!("the device read {} bytes for each byte of work: {text}", digits(read.median)),
    );
}

fn single_runs(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    // Outcomes are not subject to chance: one run is enough for them.
    let by_chance = |group: &&Group<'_>| !matches!(group.basis.metric, Metric::Figure(_));
    let single: Vec<&Group<'_>> =
        summary.groups.iter().filter(by_chance).filter(|group| group.good.len() == 1).collect();
    if single.is_empty() {
        return;
    }
    all.push(Finding {
        rule: "single-run",
        rule_text: "one repeat has no spread: comparisons with it are inconclusive",
        experiment: None,
        p: None,
        kind: Kind::Warning,
        text: format!(
            "{} of {} methods have one usable run: they have no spread, and comparisons with them are inconclusive.",
            single.len(),
            summary.groups.len()
        ),
        trials: keys(&single),
        key_figure: None,
    });
}

fn runs(count: usize) -> String {
    if count == 1 { "one run was".into() } else { format!("{count} runs were") }
}

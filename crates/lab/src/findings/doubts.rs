//! What casts doubt on figures: wrong data, cut-short cells, other users of the device, an interrupted run.

use super::{Finding, Kind, keys};
use crate::format::digits;
use crate::record::file::RecordFile;
use crate::record::{CacheState, ExperimentId};
use crate::summary::{Family, Group, Metric, Summary};

/// Every warning, the worst first.
pub(super) fn find(file: &RecordFile, summary: &Summary<'_>, all: &mut Vec<Finding>) {
    for group in &summary.groups {
        for (repeat, why) in &group.worthless {
            all.push(warning(
                group,
                "worthless",
                "a cell with wrong data, failed operations or no operation has no figure",
                format!("{}, repeat {}: worthless, left out: {why}.", name(group), repeat + 1),
            ));
        }
    }
    run(file, all);
    for group in &summary.groups {
        cell(group, all);
    }
    single_runs(summary, all);
}

/// A contender in words: `random, file, mmap RANDOM · 16 threads, cold`.
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
        kind: Kind::Warning,
        text,
        cells: keys(&[group]),
        key_figure: None,
    }
}

fn run(file: &RecordFile, all: &mut Vec<Finding>) {
    let mut push = |rule, rule_text, text| {
        all.push(Finding {
            rule,
            rule_text,
            experiment: None,
            kind: Kind::Warning,
            text,
            cells: Vec::new(),
            key_figure: None,
        });
    };
    if !file.is_complete() {
        push(
            "incomplete-run",
            "the records have no end, or the end says that cells are missing",
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

fn cell(group: &Group<'_>, all: &mut Vec<Finding>) {
    if group.partial > 0 {
        let counts = group.good.iter().any(|cell| cell.outcome.partial);
        let what = if counts { "shown, for want of a whole one" } else { "left out, as whole ones exist" };
        all.push(warning(
            group,
            "partial",
            "a cell that was cut short counts only where no whole one exists",
            format!("{}: {} cut short; {what}.", name(group), runs(group.partial)),
        ));
    }
    let mut said: Vec<&str> = Vec::new();
    for text in group.good.iter().flat_map(|cell| &cell.outcome.warnings) {
        if !said.contains(&text.as_str()) {
            said.push(text);
            all.push(warning(
                group,
                "cell-warning",
                "what the measuring side noted",
                format!("{}: {text}.", name(group)),
            ));
        }
    }
    traffic(group, all);
    let unproven = group.family() != Family::Baseline
        && group.spec.target.content_seed.is_some()
        && group.good.iter().any(|cell| cell.outcome.checks.verified == 0 && cell.outcome.checks.checksum == 0);
    if unproven {
        all.push(warning(
            group,
            "unproven",
            "a cell on data of known content that checked nothing is no proof of reading",
            format!("{}: nothing was checked, so nothing proves that the data was read.", name(group)),
        ));
    }
}

/// Device bytes against work bytes, where they must agree: O_DIRECT reads exactly what is asked.
fn traffic(group: &Group<'_>, all: &mut Vec<Finding>) {
    let exact = group.family().is_explicit()
        && matches!(group.spec.experiment, ExperimentId::Random | ExperimentId::Scan)
        && group.spec.cache == CacheState::Cold;
    let Some(read) = group.spread(Metric::Amplification).filter(|_| exact) else { return };
    let text = if read.median > 1.2 {
        "somebody else read from the device, or its counters cover more than the target"
    } else if read.median < 0.8 {
        "some of the data did not come from the device, or its counters do not cover it"
    } else {
        return;
    };
    all.push(warning(
        group,
        "device-traffic",
        "O_DIRECT reads what is asked: device bytes over work bytes outside 0.8 to 1.2 is a foreign influence",
        format!("{}: the device read {} bytes for each byte of work: {text}.", name(group), digits(read.median)),
    ));
}

fn single_runs(summary: &Summary<'_>, all: &mut Vec<Finding>) {
    let single: Vec<&Group<'_>> = summary.groups.iter().filter(|group| group.good.len() == 1).collect();
    if single.is_empty() {
        return;
    }
    all.push(Finding {
        rule: "single-run",
        rule_text: "one repeat has no spread: comparisons with it are inconclusive",
        experiment: None,
        kind: Kind::Warning,
        text: format!(
            "{} of {} contenders have one usable run: they have no spread, and comparisons with them are inconclusive.",
            single.len(),
            summary.groups.len()
        ),
        cells: keys(&single),
        key_figure: None,
    });
}

fn runs(count: usize) -> String {
    if count == 1 { "one run was".into() } else { format!("{count} runs were") }
}

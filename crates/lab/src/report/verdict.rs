//! Whether to page *this* database through mmap on *this* machine: the paper's decision rules, applied to records and
//! to the user's description of the workload.
//!
//! The paper: do not use mmap if you (1) need updates that are safe in transactions, (2) must not stall on slow I/O, or
//! must control what is in memory, (3) care about error handling and right answers, (4) need high throughput on fast
//! storage. Maybe use it if (5) the working set fits in memory and is only read. Each is a rule here; each rule looks
//! for its evidence in the records.
//!
//! Kept true by: a rule without evidence gives no reason, only a line that it was not measured; without any evidence
//! there is no recommendation; a comparison that the repeats do not confirm never decides.

mod rules;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde::Serialize;

use crate::judge;
use crate::judge::noise::{Drift, Noise};
use crate::judge::places::Records;
use crate::judge::reason::POOL;
pub use crate::judge::reason::{Reason, Side, Workload};
use crate::judge::statistics::{self, ALPHA};
use crate::record::file::RecordFile;
use crate::summary::Summary;

/// The recommendation of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Advice {
    /// Use explicit I/O and a buffer pool.
    Explicit,
    /// A map is good enough.
    Map,
    /// The records show no reason for either choice.
    Either,
    /// No recommendation, because there is no evidence.
    NoAnswer,
}

/// The confidence in the recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sure {
    /// No confidence, because there is no recommendation.
    Nothing,
    /// Little confidence: one rule, two repeats, or a noisy machine.
    Little,
    /// The deciding rules were measured here and confirmed; other rules were not measured.
    Fairly,
    /// Every rule that applies was measured here and confirmed.
    Very,
}

/// A rule that applies and has no evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotMeasured {
    /// The rule's question in words.
    pub question: String,
    /// The command that measures it.
    pub command: String,
}

impl std::fmt::Display for NotMeasured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; `{}`", self.question, self.command)
    }
}

impl Serialize for NotMeasured {
    /// As one text.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether to use mmap for the described workload, with the reasons.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// The workload as the user described it.
    #[serde(rename = "said")]
    pub stated: Workload,
    /// The workload with assumptions in place of questions that the user left open.
    pub assumed: Workload,
    /// The recommendation.
    pub advice: Advice,
    /// The recommendation in one sentence.
    pub headline: String,
    /// The evidence by the rules that apply. The first figure of each rule leads, whichever side it supports; where it
    /// decides nothing, the first figure of the rule that does follows it. Then come all others.
    pub reasons: Vec<Reason>,
    /// Number of the reasons that lead.
    pub leading: usize,
    /// Rules that apply and have no evidence.
    pub not_measured: Vec<NotMeasured>,
    /// The confidence in the recommendation.
    pub sure: Sure,
    /// The reasons why the confidence is no higher, each as a phrase.
    pub why_no_surer: Vec<String>,
    /// The recommendation for a read-only workload in memory, as one sentence, where the user left both questions open.
    pub otherwise: Option<String>,
}

/// Judges by the paper's rules, from records alone.
pub fn judge(file: &RecordFile, summary: &Summary<'_>, stated: Workload) -> Verdict {
    let records = Records { file, summary };
    let mut verdict = judge_as(&records, stated, stated.assumed());
    let other =
        Workload { read_only: Some(true), fits_in_memory: Some(true), needs_transactions: Some(false), ..stated };
    if !stated.is_whole() && stated.read_only != Some(false) && stated.fits_in_memory != Some(false) {
        let other = judge_as(&records, other, other.assumed());
        let why = other.reasons.iter().find(|reason| reason.side != Side::Neither).map(|reason| reason.text.as_str());
        let why = why.map_or(String::new(), |why| format!(" {}", upper(why)));
        verdict.otherwise = Some(match other.advice {
            Advice::NoAnswer => "No answer for a database that fits in memory and is only read: these records measure nothing of the kind.".into(),
            _ => {
                let sure = other.sure.words();
                format!("If it fits in memory and is only read ({sure}): {}{why}", lower(&other.headline))
            }
        });
    }
    verdict
}

fn judge_as(records: &Records<'_>, stated: Workload, assumed: Workload) -> Verdict {
    let mut found = rules::apply(records, &assumed);
    correct_for_number(&mut found.reasons);
    let sides: Vec<Side> = found.reasons.iter().map(|reason| reason.side).collect();
    let decides = |side: Side| sides.contains(&side);
    let may_map = assumed.read_only == Some(true) && assumed.fits_in_memory == Some(true);
    let advice = match (decides(Side::Against), decides(Side::For)) {
        _ if found.reasons.is_empty() => Advice::NoAnswer,
        // The paper's "maybe": evidence against a map is then a cost, which the verdict names.
        (true, true) if may_map => Advice::Map,
        (true, _) => Advice::Explicit,
        (false, true) => Advice::Map,
        (false, false) => Advice::Either,
    };
    let deciding = match advice {
        Advice::Explicit => Side::Against,
        Advice::Map => Side::For,
        _ => Side::Neither,
    };
    let leading = lead(&mut found.reasons, deciding);
    let (sure, why_no_surer) = how_sure(records, assumed, advice, deciding, &found);
    Verdict {
        stated,
        assumed,
        advice,
        headline: headline(advice, decides(Side::Against)).into(),
        reasons: found.reasons,
        leading,
        not_measured: found.not_measured,
        sure,
        why_no_surer,
        otherwise: None,
    }
}

/// Moves the reasons to the front that lead, and returns their number: of each rule the first figure, and the first one
/// of the deciding side. The rules give their figures in an order that does not depend on them, so the first is the same
/// question in every run.
fn lead(reasons: &mut Vec<Reason>, deciding: Side) -> usize {
    let first = |at: usize, wanted: &dyn Fn(&Reason) -> bool| {
        reasons.iter().position(|other| other.rule == reasons[at].rule && wanted(other)) == Some(at)
    };
    let decides = |reason: &Reason| reason.side == deciding && deciding != Side::Neither;
    let leads: Vec<bool> = (0..reasons.len()).map(|at| first(at, &|_| true) || first(at, &decides)).collect();
    // A rule's own reasons stay together.
    let place = |reason: &Reason| reasons.iter().position(|other| other.rule == reason.rule);
    let mut order: Vec<(bool, Option<usize>, Reason)> =
        leads.iter().zip(reasons.iter()).map(|(leads, reason)| (!leads, place(reason), reason.clone())).collect();
    order.sort_by_key(|(follows, place, _)| (*follows, *place));
    *reasons = order.into_iter().map(|(.., reason)| reason).collect();
    leads.into_iter().filter(|leads| *leads).count()
}

/// Takes the side of each reason whose difference the number of comparisons alone may have given, by Benjamini and
/// Hochberg's method.
fn correct_for_number(reasons: &mut [Reason]) {
    let p_values: Vec<f64> = reasons.iter().filter_map(|reason| reason.p).collect();
    let mut differ = statistics::benjamini_hochberg(&p_values, ALPHA).into_iter();
    for reason in reasons.iter_mut().filter(|reason| reason.p.is_some()) {
        if !differ.next().unwrap_or(false) && reason.side != Side::Neither {
            reason.side = Side::Neither;
            reason.text = format!(
                "{}, which among {} comparisons chance alone may give.",
                reason.text.trim_end_matches('.'),
                p_values.len()
            );
        }
    }
}

fn headline(advice: Advice, has_price: bool) -> &'static str {
    match advice {
        Advice::Map if has_price => {
            "A map will do for this database on this machine, if you can live with what speaks against it."
        }
        Advice::Explicit => {
            "Do not page this database through mmap on this machine: use explicit I/O and a buffer pool."
        }
        Advice::Map => "A map will do for this database on this machine.",
        Advice::Either => {
            "These records show no reason to prefer either: what decides is what you would rather maintain."
        }
        Advice::NoAnswer => "No answer: these records hold no evidence for this workload.",
    }
}

fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |first| first.to_lowercase().chain(letters).collect())
}

fn upper(sentence: &str) -> String {
    let mut letters = sentence.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

fn how_sure(
    records: &Records<'_>,
    assumed: Workload,
    advice: Advice,
    deciding: Side,
    found: &rules::Evaluation,
) -> (Sure, Vec<String>) {
    if advice == Advice::NoAnswer {
        return (Sure::Nothing, Vec::new());
    }
    let mut why = Vec::new();
    let mut sure = Sure::Very;
    let mut at_most = |limit: Sure, reason: String| {
        sure = sure.min(limit);
        why.push(reason);
    };
    let decisive: Vec<&Reason> = found.reasons.iter().filter(|reason| reason.side == deciding).collect();
    if advice == Advice::Either {
        at_most(Sure::Little, "nothing that was measured decides".into());
    }
    if !found.not_measured.is_empty() {
        let count = found.not_measured.len();
        at_most(
            Sure::Fairly,
            format!("{count} of the rules that apply {} not measured", if count == 1 { "was" } else { "were" }),
        );
    }
    let few = decisive.iter().filter(|reason| reason.repeats < 3).count();
    if few > 0 {
        let (count, each) = (decisive.len(), if few == 1 { "has" } else { "have" });
        let text =
            format!("{few} of {count} deciding figures {each} fewer than three repeats (--preset standard has three)");
        at_most(Sure::Fairly, text);
    }
    if decisive.len() == 1 {
        at_most(Sure::Fairly, "one rule alone decides".into());
    }
    if !decisive.is_empty() && decisive.iter().all(|reason| !reason.at_home) {
        at_most(Sure::Little, "only the RAM-backed device decides, not the storage in question".into());
    }
    let mut far: Vec<&str> = decisive.iter().filter_map(|reason| reason.far.as_deref()).collect();
    far.dedup();
    if let Some(wanted) = assumed.threads.filter(|_| !far.is_empty()) {
        at_most(
            Sure::Fairly,
            format!(
                "what decides was in part not measured with about {wanted} at a time, but with others: {}",
                far.join("; ")
            ),
        );
    }
    // Explicit reads would go through a pool, not through bare calls.
    if advice == Advice::Explicit && found.reasons.iter().any(|reason| reason.rule == POOL && reason.side == Side::For)
    {
        at_most(
            Sure::Fairly,
            "the engine's own pool is slower than the map here, so that a database gains what these calls gain only with a faster pool"
                .into(),
        );
    }
    let noise = Noise::of(records.summary, |_| true);
    if noise.is_loud() {
        at_most(Sure::Little, format!("the machine was not quiet: {}", noise.words()));
    } else {
        // The whole run was quiet; the trials that decide may not have been.
        let deciding: BTreeSet<&str> =
            decisive.iter().flat_map(|reason| reason.trials.iter().map(String::as_str)).collect();
        let noise = Noise::of(records.summary, |group| deciding.contains(group.key.as_str()));
        if noise.is_loud() {
            at_most(
                Sure::Little,
                format!("the machine was not quiet while the deciding figures were measured: {}", noise.words()),
            );
        }
    }
    let drifts = judge::noise::drifts(records.summary);
    if !drifts.is_empty() {
        at_most(Sure::Fairly, Drift::words(&drifts));
    }
    if !records.file.is_complete() {
        at_most(Sure::Little, format!("the run is not complete ({})", records.file.incomplete_reason()));
    }
    (sure, why)
}

impl Sure {
    /// The confidence as a word for people.
    pub fn words(self) -> &'static str {
        match self {
            Self::Nothing => "no answer",
            Self::Little => "not very sure",
            Self::Fairly => "fairly sure",
            Self::Very => "sure",
        }
    }
}

impl Verdict {
    /// The assumptions in place of questions that the user left open, in words; empty without any.
    pub fn assumptions(&self) -> String {
        let only = |stated: Option<bool>, assumed: Option<bool>| if stated.is_none() { assumed } else { None };
        Workload {
            read_only: only(self.stated.read_only, self.assumed.read_only),
            fits_in_memory: only(self.stated.fits_in_memory, self.assumed.fits_in_memory),
            threads: None,
            latency_matters: only(self.stated.latency_matters, self.assumed.latency_matters),
            needs_transactions: only(self.stated.needs_transactions, self.assumed.needs_transactions),
        }
        .words()
    }

    /// The lines of the verdict for a terminal: a mark and a sentence each. `short` keeps the reasons that lead and counts
    /// the others by the side that they support.
    pub fn lines(&self, short: bool) -> Vec<(&'static str, String)> {
        let mut lines = vec![("==", self.headline.clone())];
        let mut workload = String::new();
        if !self.stated.words().is_empty() {
            let _ = write!(workload, "You said: {}. ", self.stated.words());
        }
        if !self.assumptions().is_empty() {
            let _ = write!(workload, "Assumed: {}.", self.assumptions());
        }
        lines.push(("  ", workload.trim_end().to_owned()));
        let (shown, others) = self.reasons.split_at(if short { self.leading } else { self.reasons.len() });
        for reason in shown {
            let mark = match reason.side {
                Side::Against => " -",
                Side::For => " +",
                Side::Neither => " =",
            };
            lines.push((mark, format!("{}: {}", reason.rule, reason.text)));
        }
        if !others.is_empty() {
            let count = |side: Side| others.iter().filter(|reason| reason.side == side).count();
            let sides =
                [Side::Against, Side::For, Side::Neither].map(|side| format!("{} {}", count(side), side.words()));
            lines.push(("  ", format!("More figures are in the report: {}.", sides.join(", "))));
        }
        if short && !self.not_measured.is_empty() {
            let all: Vec<&str> = self.not_measured.iter().map(|missing| missing.question.as_str()).collect();
            lines.push((" ?", format!("not measured: {}", all.join("; "))));
        } else {
            lines.extend(self.not_measured.iter().map(|missing| (" ?", format!("not measured: {missing}"))));
        }
        if let Some(otherwise) = &self.otherwise {
            lines.push(("  ", otherwise.clone()));
        }
        if self.advice != Advice::NoAnswer {
            let why = if self.why_no_surer.is_empty() {
                String::new()
            } else {
                format!(": {}", self.why_no_surer.join("; "))
            };
            lines.push(("  ", format!("How sure: {}{why}.", self.sure.words())));
        }
        lines
    }
}

#[cfg(test)]
pub(crate) mod tests;

//! Findings, page, table and JSON: required and forbidden content.

use nofault_lab::experiments;
use nofault_lab::record::file::RecordFile;
use nofault_lab::record::{CacheState, Checks, Outcome, Tick, TrialSpec, Warning, WarningKind};
use nofault_lab::report;
use nofault_lab::report::claims::{self, Outcome as Claimed};
use nofault_lab::report::findings::{Finding, Kind, MainFigure, findings, main_figures, of_lowest_rank};
use nofault_lab::report::table::{brief, summary_json, summary_table};
use nofault_lab::summary::Summary;

use crate::grids;
use crate::synthetic::{self, Like};

fn all_findings(file: &RecordFile) -> Vec<Finding> {
    findings(file, &Summary::of(file))
}

fn by_rule<'f>(findings: &'f [Finding], rule: &str, words: &str) -> &'f Finding {
    let found = findings.iter().find(|finding| finding.rule == rule && finding.text.contains(words));
    found.unwrap_or_else(|| panic!("no finding by {rule} with '{words}' in {findings:#?}"))
}

/// Record files with unusual content, by name.
pub(crate) fn odd_files() -> Vec<(&'static str, RecordFile)> {
    let rng = &mut fastrand::Rng::with_seed(7);
    let like = Like::steady("mmap-random", 2, 1, 1e5, 8.0).mapped(2e5, 1.0, 1e4, 0.4);
    let spec = |repeat| synthetic::spec(experiments::random::ID, "", "file", &like, repeat);
    let mut files = vec![("full", synthetic::full(3)), ("empty", synthetic::empty()), ("a grid", grids::file())];

    let mut one = synthetic::empty();
    one.trials.push(synthetic::timed(rng, spec(0), &like));
    files.push(("a single trial", one.clone()));

    let mut zero = synthetic::empty();
    for repeat in 0..2 {
        let mut trial = synthetic::timed(rng, spec(repeat), &like);
        trial.outcome = Outcome { elapsed_s: 3.0, ticks: vec![Tick::default(); 3], ..Outcome::default() };
        zero.trials.push(trial);
    }
    files.push(("no operations", zero));

    let mut extreme = synthetic::empty();
    for (index, rate) in [1e-6, 1.0, 1e14, f64::from(u32::MAX)].into_iter().enumerate() {
        let like =
            Like::steady(["mmap-normal", "pread-direct", "uring-direct", "fio-uring"][index], 128, 256, rate, 1e-6);
        let mut spec = synthetic::spec(experiments::random::ID, "", "file", &like, 0);
        spec.params
            .extra
            .insert("a_very_long_parameter_name".into(), "with_an_unbreakable_value_that_never_ends".into());
        spec.method.push_str("-<script>alert('&')</script>");
        let mut trial = synthetic::timed(rng, spec, &like);
        trial.outcome.ops = trial.outcome.ops.max(1);
        trial.outcome.ticks[0].at_s = f64::MAX;
        trial.outcome.counters.insert("tlb_shootdowns".into(), f64::MAX);
        extreme.trials.push(trial);
    }
    files.push(("extreme values", extreme));

    let mut cut = one;
    cut.end = None;
    cut.cut_off_line = Some(3);
    cut.unknown = vec![(2, "verdict".into())];
    cut.unknown_settings = vec!["random.colour".into()];
    files.push(("interrupted", cut));

    let mut sweep = synthetic::empty();
    for repeat in 0..2 {
        for (threads, depth) in [(1, 1), (2, 1), (16, 1), (100, 1), (1, 8), (1, 32), (1, 128)] {
            let method = if depth > 1 { "uring-direct" } else { "mmap-random" };
            let like = Like::steady(method, threads, depth, 1e3 * f64::from(threads * depth), 9.0);
            let spec = synthetic::spec(experiments::random::ID, "", "device", &like, repeat);
            sweep.trials.push(synthetic::timed(rng, spec, &like));
        }
    }
    files.push(("a sweep", sweep));
    files
}

#[test]
fn every_odd_file_makes_a_well_formed_page_a_table_and_json() {
    for (name, file) in odd_files() {
        let page = report::html(&file).unwrap();
        if let Ok(folder) = std::env::var("NOFAULT_KEEP_REPORTS") {
            std::fs::write(format!("{folder}/{name}.html"), &page).unwrap();
            std::fs::write(format!("{folder}/{name}.txt"), summary_table(&file, 100)).unwrap();
        }
        assert_eq!(page, report::html(&file).unwrap(), "{name}: the same records give the same page");
        check_tags(name, &page);
        for bad in ["NaN", "inf", "<script>alert", "http://", "https://", "src=", "undefined"] {
            let found = page.find(bad).map(|at| page[at.saturating_sub(80)..].chars().take(160).collect::<String>());
            assert!(found.is_none() || bad == "inf" && !page.contains(">inf"), "{name}: '{bad}' in {found:?}");
        }
        for width in [0, 60, 100, 200] {
            let (text, brief) = (summary_table(&file, width), brief(&file, width));
            let lines = brief.lines().count();
            assert!(name.starts_with("extreme") || width < 100 || lines <= 40, "{name} at {width}: {lines}\n{brief}");
            let widest = text.lines().chain(brief.lines()).map(|line| line.chars().count()).max().unwrap_or(0);
            // A word or path longer than the line stays whole.
            assert!(
                name.starts_with("extreme") || widest <= usize::from(width.max(60)) + 12,
                "{name} at {width}: {widest}\n{text}"
            );
        }
        let json: serde_json::Value = serde_json::from_str(&summary_json(&file).unwrap()).unwrap();
        assert!(json["results"].is_array() && json["findings"].is_array(), "{name}");
    }
}

/// Checks that every element of a page is closed, in order.
fn check_tags(name: &str, page: &str) {
    const VOID: [&str; 2] = ["meta", "br"];
    let start = page.find("<html").unwrap();
    let mut open: Vec<String> = Vec::new();
    let mut rest = &page[start..];
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end =
            rest.find('>').unwrap_or_else(|| panic!("{name}: a tag is not closed: {}", &rest[..40.min(rest.len())]));
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        let word: String = tag.trim_start_matches('/').chars().take_while(|c| c.is_ascii_alphanumeric()).collect();
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "{name}: closed in the wrong order");
        } else if !tag.ends_with('/') && !VOID.contains(&word.as_str()) {
            if word == "style" || word == "script" {
                let until = rest.find(&format!("</{word}")).unwrap();
                rest = &rest[until..];
            }
            open.push(word);
        }
    }
    assert!(open.is_empty(), "{name}: never closed: {open:?}");
}

#[test]
fn the_findings_follow_the_figures() {
    let file = synthetic::full(1);
    let all = all_findings(&file);
    let ram = by_rule(&all, "mapped-against-explicit", "RAM-backed");
    // 222 K/s against 740 K/s are 0.30; the records come from a seed, so their noise is the same each time.
    assert!(ram.kind == Kind::Difference && ram.text.contains("is 0.298× (0.282 to 0.315)"), "{}", ram.text);
    assert_eq!(ram.trials.len(), 2);
    assert_eq!(by_rule(&all, "cpu-per-work", "RAM-backed").kind, Kind::Difference);
    let fio = by_rule(&all, "against-fio", "io_uring O_DIRECT · depth 64");
    assert!(fio.kind == Kind::Fact && fio.text.contains("On the file"), "{}", fio.text);
    let one = by_rule(&all, "async-map-against-one-thread", "random-touch, cold");
    assert!(one.kind == Kind::Inconclusive && one.text.contains("1.0"), "{}", one.text);
    assert_eq!(by_rule(&all, "async-map-against-threads", "random-touch, cold").kind, Kind::Difference);
    assert!(by_rule(&all, "advice", "mmap NORMAL").text.contains("bytes for each byte asked"));
    assert_eq!(by_rule(&all, "batching", "reads").kind, Kind::Difference);
    assert_eq!(by_rule(&all, "coordinated-omission", "mmap RANDOM").kind, Kind::Difference);
    assert!(by_rule(&all, "phases", "RAM-backed").text.contains("TLB shootdowns went from 3/s to 12.5 K/s"));
    by_rule(&all, "striping", "striped-2");
    by_rule(&all, "late-ticker", "random-touch, cold");
}

#[test]
fn no_finding_prefers_an_outcome() {
    // The same rules over records in which mmap wins must say that mmap wins.
    let rng = &mut fastrand::Rng::with_seed(11);
    let mut file = synthetic::empty();
    for repeat in 0..3 {
        for like in [Like::steady("mmap-random", 4, 1, 9e5, 1.0), Like::steady("pread-direct", 4, 1, 1e5, 8.0)] {
            let spec = synthetic::spec(experiments::random::ID, "", "file", &like, repeat);
            file.trials.push(synthetic::timed(rng, spec, &like));
        }
    }
    let all = all_findings(&file);
    let finding = by_rule(&all, "mapped-against-explicit", "");
    assert!(
        finding.kind == Kind::Difference && finding.key_figure.as_ref().unwrap().value.starts_with('9'),
        "{}",
        finding.text
    );
}

#[test]
fn the_main_figures_are_the_same_questions_whatever_the_figures_are() {
    let rows = |file: &RecordFile| {
        let summary = Summary::of(file);
        let all = findings(file, &summary);
        for id in experiments::ids() {
            let own = all.iter().filter(|finding| finding.experiment == Some(id) && finding.key_figure.is_some());
            assert!(own.count() <= 1, "{id}: one finding answers the main question");
        }
        main_figures(file, &summary, &all)
    };
    let asked = |rows: &[MainFigure]| rows.iter().map(|row| (row.experiment, row.figure)).collect::<Vec<_>>();
    let file = synthetic::full(1);
    let measured = rows(&file);
    assert!(measured.iter().any(|row| row.value.is_some() && !row.undecided), "{measured:#?}");
    let is_mapped = |spec: &TrialSpec| spec.method.contains("mmap");

    let mut fast = file.clone();
    for trial in fast.trials.iter_mut().filter(|trial| is_mapped(&trial.spec)) {
        trial.outcome.elapsed_s /= 20.0;
        trial.outcome.steady.iter_mut().for_each(|window| window.elapsed_s /= 20.0);
    }
    let mut once = file.clone();
    once.trials.retain(|trial| trial.spec.repeat == 0);
    let mut unmapped = file.clone();
    unmapped.trials.retain(|trial| !is_mapped(&trial.spec));
    for changed in [&fast, &once, &unmapped] {
        assert_eq!(asked(&rows(changed)), asked(&measured));
        let text = brief(changed, 120);
        for row in of_lowest_rank(rows(changed), 8) {
            let shown = text.lines().find(|line| line.trim_start().starts_with(row.experiment.name()));
            assert!(shown.is_some_and(|line| line.contains(row.figure)), "{row:?}\n{text}");
        }
    }
    let values = |rows: &[MainFigure]| rows.iter().map(|row| row.value.clone()).collect::<Vec<_>>();
    assert_ne!(values(&rows(&fast)), values(&measured), "the values follow the figures");
    let random = |file: &RecordFile| rows(file).into_iter().find(|row| row.experiment == experiments::random::ID);
    assert!(random(&once).is_some_and(|row| row.undecided && row.value.is_some()));
    let missing = random(&unmapped).unwrap();
    assert!(missing.value.is_none() && !missing.detail.is_empty(), "{missing:?}");
    assert!(brief(&unmapped, 120).contains("not measured: rate of random reads"), "{}", brief(&unmapped, 120));
}

#[test]
fn a_trial_with_wrong_data_is_never_a_number() {
    let rng = &mut fastrand::Rng::with_seed(5);
    let mut file = synthetic::empty();
    let like = Like::steady("pread-direct", 4, 1, 123_456.0, 8.0);
    for repeat in 0..2 {
        let mut trial =
            synthetic::timed(rng, synthetic::spec(experiments::random::ID, "", "file", &like, repeat), &like);
        trial.outcome.checks = Checks { verified: 1000, wrong: 1, ..Checks::default() };
        file.trials.push(trial);
    }
    let all = all_findings(&file);
    assert_eq!(all.iter().filter(|finding| finding.rule == "worthless").count(), 2);
    let page = report::html(&file).unwrap();
    assert!(page.contains("1 of 1000 checked blocks held wrong data"));
    let table = summary_table(&file, 100);
    for text in [&page, &table] {
        assert!(!text.contains("123 K/s") && text.contains("worthless"), "{text}");
    }
}

#[test]
fn one_run_of_each_is_inconclusive_however_far_apart() {
    let mut file = synthetic::full(2);
    file.trials.retain(|trial| trial.spec.repeat == 0);
    let all = all_findings(&file);
    assert!(all.iter().all(|finding| finding.kind != Kind::Difference), "{all:#?}");
    assert_eq!(by_rule(&all, "mapped-against-explicit", "RAM-backed").kind, Kind::Inconclusive);
    by_rule(&all, "single-run", "no spread");
    let page = report::html(&file).unwrap();
    assert!(page.contains(">inconclusive</span>") && !page.contains("inconclusive: "), "said by the label, and once");
}

#[test]
fn doubts_about_figures_become_findings() {
    let rng = &mut fastrand::Rng::with_seed(6);
    let mut file = synthetic::full(4);
    let like = Like::steady("pread-direct", 1, 1, 1e4, 8.0).mapped(1e4, 3.0, 0.0, 0.0);
    for repeat in 0..2 {
        file.trials.push(synthetic::timed(
            rng,
            synthetic::spec(experiments::random::ID, "", "device", &like, repeat),
            &like,
        ));
    }
    file.end = None;
    let all = all_findings(&file);
    for (rule, words) in [
        ("worthless", "held wrong data"),
        ("incomplete-run", "stopped before its end"),
        ("partial", "cut short"),
        ("trial-warning", "disagree by 40 %"),
        ("device-traffic", "read 3.00 bytes"),
    ] {
        assert_eq!(by_rule(&all, rule, words).kind, Kind::Warning);
    }
}

#[test]
fn the_page_has_question_machine_sources_and_figures() {
    let page = report::html(&synthetic::full(1)).unwrap();
    for words in [
        "What does paging with mmap cost on this machine?",
        "Synthetic 9000 &lt;test&gt; &amp; Co",
        "6.18.0-synthetic",
        "read_ahead_kb of vda is 8192",
        "Crotty, Leis, Pavlo, CIDR 2022",
        "Huon Wilson, Async hazard, 2024",
        "Leonardo Benicio, 2022",
        "Not reproducible: the table contradicts itself.",
        "TLB shootdowns per second",
        "kswapd, percent of one core",
        "device reads, bytes per second",
        "shootdowns per evicted page",
        "major faults each",
        "SQPOLL needs CAP_SYS_NICE here",
        "load average was 1.9",
        "What would change the answer",
        "data_bytes = 2147483648",
        "prefers-color-scheme:dark",
        "@media print",
    ] {
        assert!(page.contains(words), "'{words}' is missing");
    }
    let file = synthetic::full(1);
    for id in experiments::ids().filter(|id| file.trials.iter().any(|trial| trial.spec.experiment == *id)) {
        assert!(page.contains(&format!("<details class=\"appendix\" id=\"{id}\">")), "{id}");
    }
}

#[test]
fn a_chart_shows_four_lines_and_the_others_where_a_reader_asks_for_them() {
    let page = report::html(&synthetic::full(1)).unwrap();
    let figure = page.split("<h4>Second by second: file</h4>").nth(1).and_then(|rest| rest.split("</figure>").next());
    let (first, whole) = figure.and_then(|figure| figure.split_once("<details class=\"whole\">")).unwrap();
    let lines = |part: &str| part.split("<div class=\"draw\">").next().unwrap().matches("<path class=\"line ").count();
    assert_eq!(lines(first), 4, "{first}");
    assert!(lines(whole) > 4 && whole.contains(&format!("<summary>All {} methods</summary>", lines(whole))), "{whole}");
}

#[test]
fn a_trial_without_eviction_gives_no_finding_about_reclaim() {
    let mut file = synthetic::full(3);
    let rules = ["which-bottleneck-binds", "pinned-to-one-cpu", "scan-under-reclaim", "kswapd-against-cgroup"];
    let found = |file: &RecordFile| all_findings(file).iter().filter(|finding| rules.contains(&finding.rule)).count();
    assert!(found(&file) > 0);
    for trial in file.trials.iter_mut().filter(|trial| trial.spec.experiment == experiments::eviction::ID) {
        let steady = trial.outcome.steady.iter_mut().map(|window| &mut window.counters);
        for counters in steady.chain([&mut trial.outcome.counters]) {
            counters.insert("pgsteal_file".into(), 0.0);
        }
    }
    assert_eq!(found(&file), 0);
}

#[test]
fn the_page_begins_with_the_verdict_and_lists_every_claim() {
    let page = report::html(&synthetic::full(1)).unwrap();
    let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("'{words}' is missing"));
    assert!(at("<section id=\"verdict\">") < at("<h4>Figure 1. "), "top down");
    assert!(at("<h4>Figure 3. ") < at("Table 1."));
    assert!(at("Table 1.") < at("<details class=\"appendix\" id=\"summary\">"));
    assert!(!page.contains("<h4>Figure 4. "), "three figures are a paper of two pages");
    assert!(page.contains("paper: mmap RANDOM"), "the published curves lie over this machine's");
    assert!(at("Do not page this database through mmap") < at("How sure:"));
    assert!(at("id=\"tried\"") < at("id=\"run\""));
    for claim in claims::all() {
        let hypothesis = claim.hypothesis.replace('\'', "&#x27;").replace('/', "&#x2f;");
        assert!(page.contains(&hypothesis), "{hypothesis}");
    }
    let nothing = report::html(&synthetic::empty()).unwrap();
    assert!(nothing.contains("No answer: these records hold no evidence") && !nothing.contains("How sure:"));
}

#[test]
fn claims_are_decided_by_the_figures_in_either_direction() {
    let file = synthetic::full(1);
    let answers = claims::answers(&file, &Summary::of(&file));
    let answer = |id: &str| answers.iter().find(|answer| answer.id == id).unwrap_or_else(|| panic!("{id}"));
    for (id, outcome, words) in [
        ("half-of-direct", Claimed::DidNotHold, "RAM-backed device: mmap RANDOM"),
        ("scan-below-half", Claimed::InPart, "file: mmap NORMAL"),
        ("one-fault-stalls-all", Claimed::Held, "async mmap"),
        ("batching-decides", Claimed::Held, "io_uring O_DIRECT"),
        ("one-thread-720k", Claimed::DidNotHold, "contradicts itself"),
        ("cached-2x-faster", Claimed::InPart, "4 KiB: copied out"),
        ("remap-stalls", Claimed::Held, "16384 copied pages"),
        ("readers-are-free", Claimed::InPart, "redb"),
        ("errors-become-signals", Claimed::Held, "mmap RANDOM read-error: a signal"),
        ("uncommitted-reaches-disk", Claimed::Held, "64.0 found on disk"),
    ] {
        let decision = &answer(id).decision;
        assert_eq!(decision.outcome, outcome, "{id}: {}", decision.text);
        assert!(decision.text.contains(words), "{id}: {}", decision.text);
        assert!(decision.trials.is_empty() == (outcome == Claimed::NotMeasured), "{id}: {decision:?}");
    }
}

#[test]
fn cold_and_warm_are_trials_of_their_own() {
    let file = synthetic::full(1);
    let summary = Summary::of(&file);
    let mmap = |cache| {
        let groups = summary.at(experiments::async_hazard::ID, "random-touch", "file");
        groups.into_iter().find(|g| g.spec.method == "async-mmap" && g.spec.cache == cache).unwrap().primary().unwrap()
    };
    assert!(mmap(CacheState::Cold).min > 10.0 * mmap(CacheState::Warm).max);
}

#[test]
fn an_open_loop_that_lost_its_rate_is_a_doubt_and_no_finding() {
    let mut file = synthetic::full(8);
    let open = file.trials.iter_mut().filter(|trial| trial.spec.variant == "open-loop");
    for trial in open.filter(|trial| trial.spec.method == "mmap-random") {
        trial.outcome.figures.extend([("reads_scheduled".into(), 5229.0), ("reads_started".into(), 4406.0)]);
    }
    let all = all_findings(&file);
    assert!(by_rule(&all, "open-loop-disturbed", "mmap RANDOM").text.contains("rate not kept in 3 of 3 runs"));
    let others: Vec<_> = all.iter().filter(|finding| finding.rule == "coordinated-omission").collect();
    assert!(!others.is_empty() && others.iter().all(|finding| !finding.text.contains("mmap")), "{others:#?}");
}

#[test]
fn a_doubt_about_many_trials_is_reported_once_with_its_range() {
    let mut file = synthetic::full(8);
    let random = file.trials.iter_mut().filter(|trial| trial.spec.experiment == experiments::random::ID);
    for (index, trial) in random.take(9).enumerate() {
        let text = format!("others used {} % of the CPU time", 40 + index);
        trial.outcome.warnings = vec![Warning { kind: Some(WarningKind::OtherLoad), text }];
    }
    let all = all_findings(&file);
    let said: Vec<_> = all.iter().filter(|finding| finding.text.contains("others used")).collect();
    assert!(said.len() == 1 && said[0].text.contains("others used 40 to 48 % of the CPU time"), "{said:#?}");
    // Reported once, the doubt adds at most two lines: nine times nine would push the verdict off the screen.
    let (text, calm) = (summary_table(&file, 120), summary_table(&synthetic::full(8), 120));
    assert!(text.lines().count() <= calm.lines().count() + 2, "{text}");
    // The tables have a row for each method and may scroll; the words below them, verdict included, fit a terminal
    // of 50 lines with the prompt, for any number of trials.
    let words = text.lines().skip_while(|line| !line.starts_with("=>")).count();
    assert!((20..=48).contains(&words), "{words} lines of words\n{text}");
    let lines = text.lines().count();
    assert!(lines < 200, "{lines} lines");
}

//! Synthetic records of `crossover`, and the sentences and pictures that follow from them.

use fastrand::Rng;
use nofault_lab::experiments;
use nofault_lab::record::file::RecordFile;
use nofault_lab::report;
use nofault_lab::report::findings::{Kind, findings};
use nofault_lab::report::table::{brief, summary_table};
use nofault_lab::summary::Summary;

use crate::synthetic::{self, Like};

/// Makes records of the grid: the map wins where the data fits, and loses where more than a tenth of its reads miss.
pub(crate) fn file() -> RecordFile {
    let (mut file, rng) = (synthetic::empty(), &mut Rng::with_seed(5));
    for variant in ["uniform", "zipf"] {
        for (data, miss_rate) in [(0.5, 0.0), (2.0, 0.5), (8.0, 0.9)] {
            // Popular pages are found in memory.
            let miss_rate = if variant == "zipf" { miss_rate * 0.3 } else { miss_rate };
            for in_flight in [1, 16] {
                let most = 20_000.0 * f64::from(in_flight).sqrt();
                let map = if miss_rate > 0.1 { most * 0.7 } else { most * 40.0 };
                let all = [
                    Like::steady("mmap-random", in_flight, 1, map, 9.0).mapped(map, miss_rate, 900.0, 0.1),
                    Like::steady("pread-buffered-random", in_flight, 1, map * 0.5, 12.0)
                        .mapped(map, miss_rate, 9.0, 0.1),
                    Like::steady("pread-direct", in_flight, 1, most * 0.9, 11.0),
                    Like::steady("uring-direct", 1, in_flight, most, 4.0),
                    Like::steady("pool-tasks", 1, in_flight, most * 0.8, 5.0),
                ];
                for repeat in 0..3 {
                    for like in &all {
                        let mut spec = synthetic::spec(experiments::crossover::ID, variant, "file", like, repeat);
                        spec.target.data_bytes = (data * spec.memory.bytes as f64) as u64;
                        spec.params.extra.insert("data_per_memory".into(), data.to_string());
                        let mut trial = synthetic::timed(rng, spec, like);
                        if let Some(steady) = &mut trial.outcome.steady {
                            steady.counters.insert("major_faults".into(), like.amplification * steady.ops as f64);
                        }
                        file.trials.push(trial);
                    }
                }
            }
        }
    }
    file
}

#[test]
fn the_sentence_names_the_miss_rate_from_which_the_map_loses() {
    let file = file();
    let all = findings(&file, &Summary::of(&file));
    let own: Vec<_> = all.iter().filter(|finding| finding.rule == "crossover").collect();
    assert_eq!(own.len(), 4, "against the best, and against each side: {own:#?}");
    let first = own[0];
    assert!(
        first.kind == Kind::Difference
            && first.text.contains(
                "mmap loses to the best of buffered reads, direct reads and the engine's pool above a miss rate of 7"
            )
            && first.text.contains("it won up to 0 % and lost from 15")
            && first.text.contains("(6 of 6 decided points follow)"),
        "{}",
        first.text
    );
    assert!(first.key_figure.as_ref().is_some_and(|key| key.value.ends_with('%')), "{first:?}");
    let buffered = own.iter().find(|finding| finding.text.contains("loses to buffered reads")).unwrap();
    assert!(buffered.text.contains("at no miss rate on this machine: it won up to"), "{}", buffered.text);
}

#[test]
fn the_terminal_shows_the_grid_and_the_sentence_and_the_report_the_map() {
    let file = file();
    for text in [brief(&file, 100), summary_table(&file, 160)] {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [
            "crossover, file data 0.5× data 2× data 8×",
            "uniform, 1 in flight 2.1× buffered 0.69× direct 0.68× direct",
            "zipfian 0.99, miss rate 0 % 15.0 % 27.0 %",
            "=> On the file, mmap loses to the best",
            "above a miss rate of",
        ] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
    let page = report::html(&file).unwrap();
    for words in
        ["mmap against the best explicit method: file", "class=\"contour\"", "zipfian 0.99", "field t0 middling"]
    {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn a_map_that_never_filled_is_no_point_of_the_grid() {
    let mut file = file();
    for trial in file.trials.iter_mut().filter(|trial| trial.spec.target.data_bytes > trial.spec.memory.bytes) {
        trial.outcome.full_at_s = None;
    }
    let all = findings(&file, &Summary::of(&file));
    let text = &all.iter().find(|finding| finding.rule == "crossover").unwrap().text;
    assert!(text.contains("at no miss rate") && text.contains("2 of 2"), "{text}");
}

#[test]
fn a_border_beyond_the_decided_points_is_left_open() {
    let mut file = file();
    // One run has no spread: beyond memory nothing is decided.
    file.trials.retain(|trial| trial.spec.repeat == 0 || trial.spec.target.data_bytes < trial.spec.memory.bytes);
    let all = findings(&file, &Summary::of(&file));
    let first = all.iter().find(|finding| finding.rule == "crossover").unwrap();
    assert!(
        first.kind == Kind::Inconclusive && first.text.contains("at no miss rate that the repeats decide"),
        "{first:?}"
    );
    assert!(first.key_figure.as_ref().is_some_and(|key| key.value == "> 0 %"), "{first:?}");
}

//! Flags that change the measurements: each applies to every chosen experiment with such a parameter, or is refused.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

use crate::common::{Lab, outcome};

/// A call's arguments, and the values that its configuration must have, by name.
type Case<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)]);

/// Returns the output of `--print-config` for a call without the tiny configuration.
fn printed(lab: &Lab, arguments: &[&str]) -> String {
    let ended = outcome(lab.bare(&["--print-config"]).args(arguments));
    assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.stderr);
    ended.stdout
}

/// Finds a value by its name in a printed configuration; returned on one line and without blanks.
fn value(printed: &str, name: &str) -> String {
    let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
    // Lines before the first table belong to none.
    let mut parts = printed.split("\n[");
    let part = match table {
        "" => parts.next(),
        table => parts.find_map(|part| part.strip_prefix(table)?.strip_prefix(']')),
    };
    let part = format!("\n{}\n", part.unwrap());
    let (_, rest) = part.split_once(&format!("\n{key} = ")).unwrap();
    let end = if rest.starts_with('[') { rest.find(']').unwrap() + 1 } else { rest.find('\n').unwrap() };
    rest[..end].split_whitespace().collect::<String>().replace(",]", "]")
}

/// Returns the message of a call that must be refused.
fn refused(lab: &Lab, arguments: &[&str]) -> String {
    let ended = outcome(&mut lab.bare(arguments));
    assert_eq!(ended.code, 2, "{arguments:?}: {}{}", ended.stdout, ended.stderr);
    assert!(!lab.dir.exists(), "{arguments:?}");
    ended.stderr
}

#[test]
fn a_flag_reaches_every_chosen_experiment_that_has_such_a_parameter() {
    let lab = Lab::new();
    let cases: [Case<'_>; 9] = [
        (
            &["engines", "--memory", "1GiB", "--size", "4GiB"],
            &[
                ("engines.memory_bytes", "1073741824"),
                ("engines.data_bytes", "4294967296"),
                ("data_bytes", "2147483648"),
            ],
        ),
        (
            &["--set", "experiments=['engines']", "--memory", "1GiB", "--size", "5GiB"],
            &[
                ("engines.memory_bytes", "1073741824"),
                ("engines.data_bytes", "5368709120"),
                ("data_bytes", "2147483648"),
            ],
        ),
        (
            &["eviction", "random", "--memory", "1GiB"],
            &[
                ("eviction.cgroup_bytes", "1073741824"),
                ("eviction.kswapd_bytes", "1073741824"),
                ("memory_bytes", "1073741824"),
                ("engines.memory_bytes", "100663296"),
            ],
        ),
        (&["claims", "--set", "claims.thorough=true", "--memory", "1GiB"], &[("memory_bytes", "1073741824")]),
        (
            &["random", "scan", "safety", "eviction", "translate", "engines", "claims", "--threads", "3"],
            &[
                ("random.threads", "[3]"),
                ("random.ram_threads", "[3]"),
                ("scan.map_threads", "[3]"),
                ("safety.writers", "[3]"),
                ("eviction.threads", "[3]"),
                ("eviction.scan_threads", "3"),
                ("translate.threads", "[3]"),
                ("engines.threads", "3"),
                ("engines.fit_threads", "3"),
                ("claims.map_threads", "[3]"),
            ],
        ),
        (
            &["random", "engines", "--threads", "1,3"],
            &[("random.threads", "[1,3]"), ("engines.threads", "16"), ("safety.writers", "[8]")],
        ),
        // More than other experiments allow, which are not chosen here.
        (&["random", "--threads", "2000"], &[("random.threads", "[2000]")]),
        (
            &["random", "scan", "access", "--depths", "5,7"],
            &[("random.depths", "[5,7]"), ("scan.depths", "[5,7]"), ("access.batches", "[5,7]")],
        ),
        (&["random", "--threads", "3", "--set", "random.threads=[4]"], &[("random.threads", "[4]")]),
    ];
    for (arguments, expected) in cases {
        let printed = printed(&lab, arguments);
        for (name, wanted) in expected {
            assert_eq!(value(&printed, name), *wanted, "{arguments:?}: {name}");
        }
    }
}

#[test]
fn a_flag_that_no_chosen_experiment_takes_is_refused_with_the_nearest_alternatives() {
    let lab = Lab::new();
    let cases: [(&[&str], &[&str]); 13] = [
        (
            &["translate", "--memory", "1GiB"],
            &["--memory changes nothing in translate", "stalls, eviction, engines and engine"],
        ),
        (&["async", "safety", "--size", "1GiB"], &["in async and safety", "async.file_bytes", "safety.keys"]),
        (&["stalls", "--threads", "3"], &["--threads changes nothing in stalls", "stalls.helpers", "safety"]),
        (&["engines", "--threads", "1,3"], &["a single count for engines"]),
        (&["stalls", "--depths", "3"], &["it is for random, scan, access and batch", "stalls.ahead"]),
        (&["async", "--seconds", "3"], &["async.touches"]),
        (&["claims", "--size", "8GiB"], &["claims.thorough=true"]),
        (&["async", "--device", "/dev/null"], &["async.open_questions=true"]),
        (
            &["errors", "--memory-method", "ballast"],
            &["it is for random, replay, scan, access, crossover, batch, load, rss, stalls, engines and engine"],
        ),
        (&["access", "--stripe-over", "/tmp"], &["it is for scan"]),
        (&["access", "--fio", "require"], &["it is for random and scan"]),
        (&["engines", "--ram-size", "1GiB"], &["it is for random, scan, access, crossover and eviction"]),
        (&["access", "--read-ahead-kb", "128"], &["it is for random, scan, async and engines"]),
    ];
    for (arguments, words) in cases {
        let stderr = refused(&lab, arguments);
        words.iter().for_each(|words| assert!(stderr.contains(words), "{arguments:?}: {stderr}"));
    }
    // Resources left out, or used only where available, require no rights.
    printed(&lab, &["translate", "--fio", "off", "--pool", "off", "--ram-device", "auto", "--memory-method", "auto"]);
}

#[test]
fn data_that_would_fit_is_refused_with_the_flags_that_change_it() {
    let lab = Lab::new();
    for arguments in [["engines", "--memory", "2GiB"], ["random", "--memory", "3GiB"]] {
        let stderr = refused(&lab, &arguments);
        let words = ["at least twice", "--size", "--memory", arguments[2].trim_end_matches("GiB")];
        words.iter().for_each(|words| assert!(stderr.contains(words), "{arguments:?}: {stderr}"));
    }
    // Experiments without a memory limit need no such space.
    let small = outcome(lab.bare(&["--plan", "errors", "--size", "64M"]).args(["--repeats", "1"]));
    assert_eq!(small.code, 0, "{}", small.stderr);
    assert!(small.stdout.contains("no trial needs a limit"), "{}", small.stdout);
}

#[test]
fn the_help_names_the_experiments_that_a_run_without_arguments_leaves_out() {
    let lab = Lab::new();
    let help = outcome(&mut lab.command(&["--help"])).stdout;
    let first = help.lines().find(|line| line.trim_start().starts_with("nofault lab  ")).expect("the plainest example");
    let every = value(&printed(&lab, &["--preset", "standard"]), "experiments");
    let quick = value(&printed(&lab, &[]), "experiments");
    for name in every.trim_matches(['[', ']']).split(',') {
        let word = name.trim_matches('"');
        assert_eq!(first.contains(word), !quick.contains(name), "{word}: {first}");
    }
}

#[test]
fn wrong_calls_are_refused_with_the_right_form() {
    let lab = Lab::new();
    let cases: [(&[&str], &str); 14] = [
        (&["nothing"], "random, replay, scan, async, access"),
        (&["--preset", "slow"], "possible values: quick, standard, paper"),
        (&["--size", "ten"], "as in 512M or 4GiB"),
        (&["access", "--size", "64M", "--memory", "64M"], "at least twice"),
        (&["--repeats", "0"], "must be 1 to 1000"),
        (&["random", "--threads", "0"], "random.threads = 0"),
        (&["access", "--seconds", "nan"], "more than zero"),
        (
            &["random", "--seconds", "1e18"],
            "random.cell_s = 1000000000000000000: must be more than zero and at most 1000000 seconds",
        ),
        (&["engines", "--seconds", "1e300"], "at most 1000000 seconds"),
        (&["access", "--seconds", "inf"], "at most 1000000 seconds"),
        (&["async", "async"], "named twice"),
        (&["--set", "random.block_byte=4096"], "random.block_byte"),
        (&["--set", "random.cell_s=-1"], "random.cell_s"),
        (&["--config", "/nowhere.toml"], "--print-config"),
    ];
    for (arguments, word) in cases {
        let stderr = if arguments[0] == "--config" || arguments[0] == "--preset" {
            outcome(&mut lab.bare(arguments)).stderr
        } else {
            crate::refused(&lab, arguments, 2)
        };
        assert!(stderr.contains(word), "{arguments:?}: {stderr}");
    }
    assert!(!lab.dir.exists());
    for arguments in [["report", "/nowhere"], ["list", "/nowhere"]] {
        let outcome = outcome(&mut lab.command(&arguments));
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("there is no"), "{}", outcome.stderr);
    }
}

//! `nofault lab record` and `--trace`: the accesses of a program of the user's, recorded and replayed.

use std::fs;

use crate::common::{Lab, outcome};

#[test]
fn a_command_is_recorded_and_its_trace_is_planned_for_replay() {
    let lab = Lab::new();
    let data = lab.outer.path().join("data");
    fs::write(&data, vec![7; 40_960]).unwrap();
    let out = lab.outer.path().join("trace.csv");
    let input = format!("if={}", data.display());
    let record = |out: &str| {
        let arguments = ["record", "--out", out, "--", "dd", &input, "of=/dev/null", "bs=4096", "status=none"];
        outcome(&mut lab.command(&arguments))
    };
    let recorded = record(out.to_str().unwrap());
    if recorded.code == 7 {
        return eprintln!("skipped: {}", recorded.stderr);
    }
    assert_eq!(recorded.code, 0, "{}", recorded.stderr);
    assert!(recorded.stderr.contains("recorded: 10 reads, 0 writes, 0 syncs by 1 thread in "), "{}", recorded.stderr);
    let csv = fs::read_to_string(&out).unwrap();
    assert!(csv.starts_with("offset,length,op,thread,time\n0,4096,read,"), "{csv}");
    assert_eq!(record(out.to_str().unwrap()).code, 2, "an earlier file stays");

    let config = outcome(lab.bare(&["--trace", out.to_str().unwrap()]).arg("--print-config"));
    assert!(config.stdout.contains("experiments = [\"random\", \"replay\"]"), "{}", config.stdout);
    assert!(
        config.stdout.contains("read_only = \"yes\"") && config.stdout.contains("\nthreads = 1\n"),
        "{}",
        config.stdout
    );
    fs::write(&out, "0,4096\nfive,1\n").unwrap();
    let wrong = outcome(lab.bare(&["--trace", out.to_str().unwrap()]).arg("--plan"));
    assert!(wrong.code == 2 && wrong.stderr.contains("line 2: offset 'five'"), "{}", wrong.stderr);
}

#[test]
fn page_faults_are_asked_for_by_a_flag_and_a_command_without_a_map_has_none() {
    let lab = Lab::new();
    let out = lab.outer.path().join("faults.csv");
    let record = |flags: &[&str]| {
        let arguments = [&["record", "--out", out.to_str().unwrap()], flags, &["--", "true"]].concat();
        outcome(&mut lab.command(&arguments))
    };
    for (flags, word) in [(&["--every", "5"][..], "--faults"), (&["--faults", "--every", "0"], "0 is not in")] {
        let refused = record(flags);
        assert!(refused.code == 2 && refused.stderr.contains(word), "{flags:?}: {}", refused.stderr);
    }
    let data = lab.outer.path().join("data");
    fs::write(&data, "data").unwrap();
    let none = record(&["--faults", "--of", data.to_str().unwrap()]);
    if none.stderr.contains("perf is not")
        || none.stderr.contains("perf may not")
        || none.stderr.contains("perf does not")
    {
        return eprintln!("skipped: {}", none.stderr);
    }
    assert!(none.code == 2 && none.stderr.contains("no access to"), "{}", none.stderr);
    assert!(!out.exists());
}

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

//! Tests of fio where it is installed, and of the parsing of its reports everywhere.

use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;

use super::*;
use crate::config::Config;
use crate::experiment::Available;
use crate::experiments;
use crate::record::Target;

fn run_shell(script: &str, duration: Duration, cancel: &AtomicBool) -> Result<Outcome> {
    let watch = Watch::new();
    let tick = Duration::from_millis(50);
    let plan = Measurement { duration, tick, watch: &watch, memory_bytes: None, fill_first: false, cancel };
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    run_command(&plan, command, 1, &mut |_| {})
}

fn report(runtime_ms: u64, ops: u64) -> String {
    let bytes = ops * 4096;
    format!(
        r#"{{"jobs":[{{"error":0,"usr_cpu":10.0,"sys_cpu":30.0,"read":{{"runtime":{runtime_ms},"total_ios":{ops},"io_bytes":{bytes},
        "clat_ns":{{"bins":{{"1000":{ops}}}}}}}}}]}}"#
    )
}

#[test]
fn reports_become_totals_and_a_steady_part() {
    let script = format!(
        "echo 'fio: a warning first'; echo '{}'; sleep 0.2; echo '{}'; sleep 0.2; echo '{}'",
        report(100, 50),
        report(300, 250),
        report(500, 450)
    );
    let outcome = run_shell(&script, Duration::from_secs(1), &AtomicBool::new(false)).unwrap();
    assert_eq!((outcome.ops, outcome.bytes, outcome.elapsed_s), (450, 450 * 4096, 0.5));
    let steady = outcome.steady.as_ref().unwrap();
    assert_eq!((steady.ops, steady.bytes), (400, 400 * 4096));
    assert!((steady.elapsed_s - 0.4).abs() < 1e-9, "{steady:?}");
    assert!((outcome.ops_per_s() - 1000.0).abs() < 1e-6);
    assert_eq!(outcome.latency["op"].count, 450);
    let in_ticks: u64 = outcome.ticks.iter().map(|tick| tick.ops).sum();
    assert!(in_ticks <= 450, "{in_ticks}");
}

#[test]
fn the_cpu_time_of_a_read_comes_from_the_living_reading_threads_between_reports() {
    let report = |at_s: f64, ops: u64, cpu_s: Option<f64>| {
        let json = serde_json::from_str(&report((at_s * 1000.0) as u64, ops)).unwrap();
        Report::of(&json, at_s, cpu_s).unwrap()
    };
    let reports = [report(0.1, 100, Some(5.0)), report(0.2, 300, Some(5.5)), report(0.3, 500, None)];
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let tick = Duration::from_millis(100);
    let plan =
        Measurement { duration: tick, tick, watch: &watch, memory_bytes: None, fill_first: false, cancel: &cancel };
    let mut outcome = measure::run(&plan, Vec::new(), &mut |_| {}).unwrap();
    // fio first loads itself from disk, which is no cost of its reads.
    let tick_of = |at_s: f64, device: f64| {
        let counters = BTreeMap::from([("device_read_bytes".to_owned(), device)]);
        Tick { at_s, elapsed_s: 0.05, counters, ..Tick::default() }
    };
    outcome.ticks = vec![tick_of(0.05, 9e9), tick_of(0.15, 500.0), tick_of(0.2, 500.0), tick_of(0.3, 500.0)];
    let steady = with_reports(outcome, &reports, tick).steady.unwrap();
    assert_eq!(steady.ops, 400);
    assert!((steady.counters["device_read_bytes"] - 2000.0).abs() < 1e-6, "{steady:?}");
    // 2.5 ms each for 400 reads, three quarters of it in the kernel; time before the first report is left out.
    assert!((steady.counters["children_cpu_user_s"] - 0.25).abs() < 1e-9, "{steady:?}");
    assert!((steady.counters["children_cpu_system_s"] - 0.75).abs() < 1e-9, "{steady:?}");
}

#[test]
fn a_process_with_fewer_threads_than_the_trial_gives_no_cpu_time() {
    assert_eq!(reading_cpu_s(std::process::id(), 100_000), None);
    assert_eq!(reading_cpu_s(0, 1), None);
    let count = threads_cpu_s(std::process::id()).unwrap().len();
    assert!(count >= 2, "{count}");
}

#[test]
fn another_seed_is_another_order_also_for_its_first_thread() {
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("not run: fio is not installed");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    // Holes: fio reads them on any file system.
    std::fs::File::create(&data).unwrap().set_len(64 << 20).unwrap();
    let order = |seed: u64, name: &str| {
        let target = Target {
            label: "file".into(),
            paths: vec![data.clone()],
            data_bytes: (64 << 20) - 4096,
            content_seed: None,
        };
        let plan =
            experiments::known(experiments::translate::ID).unwrap().plan(&Config::default(), &Available::default());
        let mut spec = TrialSpec { target, seed, ..plan.trials[0].clone() };
        (spec.params.threads, spec.params.depth, spec.params.block_bytes) = (1, 1, 4096);
        let layout = Layout::new(&spec.target, 4096, 4096).unwrap();
        let log = folder.path().join(name);
        let duration = Duration::from_millis(100);
        let arguments = arguments(duration, &spec, &layout, Pattern::Random, Engine::Psync).unwrap();
        // tmpfs has no direct I/O, and the order does not depend on it.
        let arguments = arguments.iter().filter(|argument| *argument != "--direct=1");
        let done = Command::new("fio")
            .args(arguments)
            .args([&format!("--write_iolog={}", log.display()), "--io_size=64k"])
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let log = std::fs::read_to_string(log).unwrap();
        let reads = log.lines().filter(|line| line.contains(" read ")).take(16);
        reads.map(|line| line.split(' ').skip_while(|word| *word != "read").nth(1).unwrap().to_owned()).collect()
    };
    let (one, other): (Vec<String>, Vec<String>) = (order(1, "one"), order(2, "other"));
    assert!(one.len() == 16 && other.len() == 16, "{one:?} {other:?}");
    assert_ne!(one, other);
}

#[test]
fn output_that_is_no_report_is_an_error_that_quotes_fio() {
    let error =
        |script: &str| run_shell(script, Duration::from_secs(1), &AtomicBool::new(false)).unwrap_err().to_string();
    assert!(error("echo hello").contains("hello"));
    assert!(error("echo '{ this is not json'").contains("not json"));
    assert!(error("echo '{\"jobs\": []}'").contains("cannot be understood"));
    assert!(error("echo bad flag >&2; exit 3").contains("bad flag"));
    assert!(error("true").contains("no report"));
    assert!(error("echo '{\"jobs\":[{\"error\":5}]}'; echo pid=0 >&2").contains("Input/output error"));
}

#[test]
fn the_reason_for_a_missing_fio_names_the_way_to_install_it() {
    let (watch, cancel) = (Watch::new(), AtomicBool::new(false));
    let tick = Duration::from_millis(50);
    let plan =
        Measurement { duration: tick, tick, watch: &watch, memory_bytes: None, fill_first: false, cancel: &cancel };
    let error = run_command(&plan, Command::new("no-such-program-as-fio"), 1, &mut |_| {}).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (LabErrorKind::Unsupported, NOT_INSTALLED));
}

#[test]
fn cancelling_ends_fio_and_keeps_its_reports() {
    let cancel = AtomicBool::new(false);
    let script = format!("echo '{}'; exec sleep 60", report(100, 50));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            cancel.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        run_shell(&script, Duration::from_secs(60), &cancel).unwrap()
    });
    assert!(outcome.partial && outcome.ops == 50);
}

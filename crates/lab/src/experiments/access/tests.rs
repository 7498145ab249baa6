//! Every method runs at a tiny size, in this process; overwritten blocks keep their content, and write-protected
//! targets stay untouched.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::AtomicBool;

use nofault_io::counters::Watch;
use nofault_sim::depth::by_depth;

use super::{Parameters, trial, *};
use crate::experiments::cold_in_tests;
use crate::experiments::run_here;
use crate::machine::content;
use crate::machine::data::{self, DataSpec};
use crate::machine::ram::RamDevice;
use crate::record::CacheState;

const SEED: u64 = 11;
const BLOCKS: u64 = 512;

fn file(folder: &Path, name: &str) -> Target {
    let wanted = DataSpec { seed: SEED, data_bytes: BLOCKS * 4096 };
    let path = folder.join(name);
    data::ensure_file(&path, wanted, &|_, _| {}, &AtomicBool::new(false)).unwrap();
    data::target(name, &[&path], wanted)
}

/// Makes a file for each kind of target: the targets differ only in labels and rights.
fn available(folder: &Path) -> Available {
    Available {
        file: file(folder, "file"),
        ram: vec![file(folder, "ram")],
        devices: vec![file(folder, "device")],
        ..Available::default()
    }
}

fn config(preset: Preset) -> Config {
    let mut config = Config::preset(preset);
    config.change(|access: &mut Parameters| {
        access.cell_s = by_depth(0.02, 0.04);
        access.batches = vec![1, 3, 64];
        access.open_loop_shares = vec![0.5];
    });
    config
}

fn first(plan: &Plan, variant: &str, method: &str) -> TrialSpec {
    let found = plan.trials.iter().find(|spec| spec.variant == variant && spec.method == method);
    found.unwrap_or_else(|| panic!("{variant} {method} is not in the plan")).clone()
}

fn assert_whole(target: &Target) {
    let file = std::fs::File::open(&target.paths[0]).unwrap();
    let mut block = vec![0; BLOCK_BYTES];
    for index in 0..BLOCKS {
        file.read_exact_at(&mut block, content::block_offset(index)).unwrap();
        assert!(content::check_block_fully(&block, SEED, index), "block {index} of {}", target.label);
    }
}

#[test]
fn every_planned_trial_sees_the_same_data_and_leaves_the_files_whole() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let plan = plan(&config(Preset::Standard), &available);
    let mut sums = BTreeMap::new();
    for mut spec in plan.trials {
        if spec.variant == OPEN_LOOP {
            // The trial is long enough that its calibration makes at least one read.
            spec.duration_s = by_depth(0.15, 0.4);
        }
        let outcome = run_here(&spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        let key = spec.key();
        assert_eq!((outcome.checks.wrong, outcome.checks.failed), (0, 0), "{key}");
        // Only one in sixteen touches in memory is timed.
        assert!(
            outcome.latency["op"].count + 16 > outcome.ops && outcome.figures.contains_key("op_stddev_ns"),
            "{key}"
        );
        if spec.method == FDATASYNC_CLEAN {
            assert_eq!(outcome.checks.verified, 0, "{key}");
            continue;
        }
        assert!(outcome.checks.verified > 0, "{key}: {:?}", outcome.checks);
        sums.insert(outcome.checks.checksum, key);
    }
    assert_eq!(sums.len(), 1, "methods read different blocks: {sums:#?}");
    for target in [&available.file, &available.ram[0], &available.devices[0]] {
        assert_whole(target);
    }
}

#[test]
fn the_standard_plan_has_every_method_or_a_reason_for_leaving_it_out() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let plan = plan(&config(Preset::Standard), &available);
    let planned: BTreeSet<_> =
        plan.trials.iter().map(|spec| (&*spec.target.label, &*spec.variant, &*spec.method)).collect();
    for (variant, Method { id: method, .. }, _) in METHODS {
        let places: &[&str] = if variant == RING_SETUP { &["file"] } else { &["file", "ram"] };
        for place in places {
            let skipped = plan
                .skips
                .iter()
                .any(|skip| skip.target == *place && skip.method == *method && skip.reason.starts_with(variant));
            assert!(planned.contains(&(place, variant, *method)) || skipped, "{place} {variant} {method}");
        }
    }
    let keys: BTreeSet<String> = plan.trials.iter().map(TrialSpec::key).collect();
    assert_eq!(keys.len(), plan.trials.len(), "two trials share a key");
    assert!(plan.skips.iter().all(|skip| skip.reason.len() > 10));
    assert!(plan.skips.iter().any(|skip| skip.reason.contains("iopoll")));
    assert!(plan.trials.iter().filter(|spec| spec.target.label == "device").all(|spec| spec.variant == READ));
    assert!(plan.trials.iter().all(|spec| spec.cache == CacheState::Cold));
}

#[test]
fn the_quick_plan_stays_within_its_share_of_the_time_and_names_each_omitted_trial() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config::preset(Preset::Quick);
    let available = Available { devices: Vec::new(), ..available(folder.path()) };
    let plan = plan(&config, &available);
    let seconds = plan.trials.iter().map(|spec| spec.duration_s).sum::<f64>() * f64::from(config.repeats);
    assert!(seconds <= 25.0, "{seconds} s");
    for variant in [READ, OVERWRITE, SYNC_COST, OPEN_LOOP] {
        assert!(plan.trials.iter().any(|spec| spec.variant == variant && spec.method != "mmap"), "{variant}");
    }
    assert!(plan.trials.iter().all(|spec| spec.variant == READ || spec.target.label == "file"));
    let left_out: Vec<&Skip> = plan.skips.iter().filter(|skip| skip.reason.contains("--preset standard")).collect();
    assert_eq!(left_out.len(), 2);
    assert!(left_out[0].reason.contains("mmap-normal") && left_out[1].reason.contains("overwrite"));
}

#[test]
fn an_open_loop_latency_is_never_shorter_than_the_service_time() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(Preset::Standard), &available(folder.path()));
    for method in ["mmap", "pread-buffered", "pread-direct", "uring-direct"] {
        // Half of the method's rate can be kept, ten times the rate cannot.
        for share in ["0.5", "10"] {
            let mut spec = first(&plan, OPEN_LOOP, method);
            spec.duration_s = by_depth(0.15, 0.4);
            spec.params.extra.insert("rate_share".into(), share.into());
            let outcome = run_here(&spec).unwrap();
            let (op, open) = (&outcome.latency["op"], &outcome.latency["open_loop"]);
            assert_eq!(op.count, open.count, "{method} {share}");
            assert!(open.mean_ns >= op.mean_ns * 0.999, "{method} {share}: {open:?} {op:?}");
            for (open, op) in [(open.p50_ns, op.p50_ns), (open.p99_ns, op.p99_ns), (open.max_ns, op.max_ns)] {
                assert!(open >= op, "{method} {share}: {open} < {op}");
            }
            let figure = |name: &str| outcome.figures[name];
            assert!(
                (figure("rate_per_s") / figure("closed_loop_ops_per_s") - share.parse::<f64>().unwrap()).abs() < 1e-6
            );
            let behind = figure("reads_started") < figure("reads_scheduled") * RATE_KEPT_SHARE;
            let said = WarningKind::RateNotKept.is_among(&outcome.warnings);
            assert_eq!(behind, said, "{method} {share}: {:?}", outcome.warnings);
        }
    }
}

#[test]
fn syncs_come_as_often_as_asked_and_have_a_distribution_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(Preset::Standard), &available(folder.path()));
    for method in ["mmap", "pwrite-buffered", "pwrite-direct"] {
        let mut spec = first(&plan, OVERWRITE, method);
        spec.params.extra.insert("writes_per_sync".into(), "16".into());
        let outcome = run_here(&spec).unwrap();
        assert_eq!(outcome.latency["sync"].count, outcome.latency["op"].count / 16, "{method}");
        assert!(outcome.figures.contains_key("sync_stddev_ns") && outcome.figures.contains_key("sync_max_ns"));
    }
    let durable = run_here(&first(&plan, OVERWRITE, "pwrite-dsync")).unwrap();
    assert!(!durable.latency.contains_key("sync"), "each write is durable by itself");
    for method in ["msync", "fdatasync", "dsync-direct", "dsync-buffered", FDATASYNC_CLEAN.id] {
        let outcome = run_here(&first(&plan, SYNC_COST, method)).unwrap();
        let (op, sync) = (&outcome.latency["op"], &outcome.latency["sync"]);
        assert!(op.count == sync.count && op.p50_ns >= sync.p50_ns, "{method}: one write, one sync");
    }
}

/// Runs every writing method on a file that must not be written, and checks that its content stays. Returns the kind of
/// the refusal.
fn refused(available: &Available, spoil: impl Fn(&mut TrialSpec)) -> LabErrorKind {
    let before = std::fs::read(&available.file.paths[0]).unwrap();
    let mut kinds = Vec::new();
    for mut spec in plan(&config(Preset::Standard), available).trials {
        if [OVERWRITE, SYNC_COST].contains(&&*spec.variant) && spec.target.label == "file" {
            spoil(&mut spec);
            let error = run_here(&spec).map(|_| ()).expect_err(&spec.key());
            assert!(error.to_string().contains(spec.target.paths[0].to_str().unwrap()), "{error}");
            assert_eq!(std::fs::read(&available.file.paths[0]).unwrap(), before, "{} wrote", spec.key());
            kinds.push(error.kind());
        }
    }
    kinds.dedup();
    assert_eq!(kinds.len(), 1, "{kinds:?}");
    kinds[0]
}

#[test]
fn a_file_without_the_marker_is_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    std::fs::write(&available.file.paths[0], vec![7; (BLOCKS as usize + 1) * BLOCK_BYTES]).unwrap();
    assert_eq!(refused(&available, |_| {}), LabErrorKind::Damaged);
}

#[test]
fn a_file_of_another_content_is_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    assert_eq!(refused(&available, |spec| spec.target.content_seed = Some(SEED + 1)), LabErrorKind::Damaged);
    assert_eq!(refused(&available, |spec| spec.target.data_bytes -= 4096), LabErrorKind::Damaged);
    assert_eq!(refused(&available, |spec| spec.target.content_seed = None), LabErrorKind::Usage);
}

#[test]
fn a_read_only_file_and_a_read_only_target_are_never_written() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    assert_eq!(refused(&available, |spec| spec.target.label = "device".into()), LabErrorKind::Usage);
    assert_eq!(refused(&available, |spec| spec.target.label = "device-vdb".into()), LabErrorKind::Usage);
    std::fs::set_permissions(&available.file.paths[0], std::fs::Permissions::from_mode(0o444)).unwrap();
    assert_eq!(refused(&available, |_| {}), LabErrorKind::NoPermission);
}

#[test]
fn a_damaged_file_is_found_before_it_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let file = std::fs::OpenOptions::new().write(true).open(&available.file.paths[0]).unwrap();
    (0..BLOCKS).for_each(|index| file.write_all_at(&[1], content::block_offset(index) + 99).unwrap());
    file.sync_all().unwrap();
    let spec = first(&plan(&config(Preset::Standard), &available), OVERWRITE, "pwrite-direct");
    let error = run_here(&spec).unwrap_err();
    assert!(error.kind() == LabErrorKind::Damaged && error.to_string().contains("wrong content"), "{error}");
}

#[test]
fn a_foreign_block_device_is_refused_unopened() {
    let Some(disk) = std::fs::read_dir("/sys/block").ok().and_then(|mut all| all.next()?.ok()) else {
        return println!("left out: no block device here");
    };
    let folder = tempfile::tempdir().unwrap();
    let mut spec = first(&plan(&config(Preset::Standard), &available(folder.path())), OVERWRITE, "pwrite-direct");
    let path = Path::new("/dev").join(disk.file_name());
    if !path.exists() {
        return println!("left out: {} is not there", path.display());
    }
    spec.target.paths = vec![path.clone()];
    let error = run_here(&spec).unwrap_err();
    assert!(error.to_string().contains("raw devices are only read"), "{error}");
}

#[test]
fn a_ram_device_of_the_lab_is_overwritten_only_under_its_own_label() {
    let wanted = DataSpec { seed: SEED, data_bytes: BLOCKS * 4096 };
    let device = match RamDevice::create(wanted, &|_, _| {}, &AtomicBool::new(false)) {
        Ok(device) => device,
        Err(error) => return println!("left out: {error}"),
    };
    let folder = tempfile::tempdir().unwrap();
    let available = Available { ram: vec![device.target()], ..available(folder.path()) };
    let plan = plan(&config(Preset::Standard), &available);
    for spec in plan.trials.iter().filter(|spec| spec.target.label == "ram" && spec.variant == OVERWRITE) {
        let outcome = run_here(spec).unwrap_or_else(|error| panic!("{}: {error}", spec.key()));
        assert_eq!(outcome.checks.wrong, 0, "{}", spec.key());
        let mut as_device = spec.clone();
        as_device.target.label = "device".into();
        assert_eq!(run_here(&as_device).unwrap_err().kind(), LabErrorKind::Usage, "{}", spec.key());
    }
    assert_whole(&device.target());
}

#[test]
fn a_full_disk_is_refused_with_the_bytes_that_are_needed() {
    let error = write_check::refuse_full(Path::new("here"), 1 << 20).unwrap_err();
    assert!(error.kind() == LabErrorKind::NoSpace && error.to_string().contains("64 MiB"), "{error}");
    write_check::refuse_full(Path::new("here"), 1 << 30).unwrap();
}

#[test]
fn a_truncated_file_is_an_error_and_not_the_end_of_the_process() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let specs = plan(&config(Preset::Standard), &available).trials;
    std::fs::OpenOptions::new().write(true).open(&available.file.paths[0]).unwrap().set_len(4096).unwrap();
    for spec in specs.iter().filter(|spec| spec.target.label == "file") {
        assert!(run_here(spec).is_err(), "{}", spec.key());
    }
}

#[test]
fn wrong_blocks_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let available = available(folder.path());
    let file = std::fs::OpenOptions::new().write(true).open(&available.file.paths[0]).unwrap();
    (0..BLOCKS).for_each(|index| file.write_all_at(&[0xff; 8], content::block_offset(index)).unwrap());
    file.sync_all().unwrap();
    let plan = plan(&config(Preset::Standard), &available);
    for method in ["mmap", "pread-buffered", "pread-direct", "uring-direct"] {
        for variant in [READ, OPEN_LOOP] {
            let spec = TrialSpec { duration_s: by_depth(0.15, 0.4), ..first(&plan, variant, method) };
            let checks = run_here(&spec).unwrap().checks;
            assert!(checks.wrong >= checks.verified && checks.wrong > 0, "{variant} {method}: {checks:?}");
        }
    }
}

#[test]
fn an_unknown_method_or_parameter_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(Preset::Standard), &available(folder.path()));
    let with = |variant: &str, method: &str, change: &dyn Fn(&mut TrialSpec)| {
        let mut spec = first(&plan, variant, method);
        change(&mut spec);
        run_here(&spec).unwrap_err().to_string()
    };
    assert!(with(READ, "mmap", &|spec| spec.method = "telepathy".into()).contains("telepathy"));
    assert!(with(READ, "mmap", &|spec| spec.params.threads = 2).contains("one thread"));
    assert!(with(READ, "mmap", &|spec| spec.params.depth = 2).contains("depth of 2"));
    assert!(with(READ, "mmap", &|spec| spec.duration_s = f64::NAN).contains("seconds"));
    assert!(with(READ, "mmap", &|spec| spec.target.paths.clear()).contains("0 paths"));
    let change = |name: &'static str, value: &'static str| {
        move |spec: &mut TrialSpec| drop(spec.params.extra.insert(name.into(), value.into()))
    };
    assert!(with(OPEN_LOOP, "mmap", &change("rate_share", "fast")).contains("fast"));
    assert!(with(OVERWRITE, "mmap", &change("writes_per_sync", "0")).contains("writes_per_sync"));
    assert!(with(READ, "uring-direct", &change("flags", "turbo")).contains("turbo"));
}

#[test]
fn the_user_can_stop_every_variant() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(Preset::Standard), &available(folder.path()));
    for (variant, Method { id: method, .. }, _) in METHODS {
        let spec = TrialSpec { duration_s: 3600.0, ..first(&plan, variant, method) };
        let (watch, cancel) = (Watch::new(), AtomicBool::new(true));
        let outcome = execute(
            &spec,
            &mut Context { watch: &watch, cancel: &cancel, cold: cold_in_tests(), on_tick: &mut |_| {} },
        )
        .unwrap();
        assert!(outcome.partial && outcome.checks.wrong == 0, "{variant} {method}");
    }
}

/// Trials and repeats read different blocks, because caches below this machine keep blocks: a block that an earlier
/// trial has read is not cold.
#[test]
fn each_trial_and_each_repeat_goes_to_other_blocks() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(&config(Preset::Standard), &available(folder.path()));
    let ring = first(&plan, READ, "uring-direct");
    let blocks = |spec: &TrialSpec| {
        let layout = Layout::new(&spec.target, 4096, 4096).unwrap();
        let mut positions = trial::Positions::of(spec, &layout);
        (0..20).map(|_| positions.next()).collect::<Vec<_>>()
    };
    assert_eq!(blocks(&ring), blocks(&ring));
    assert_ne!(blocks(&ring), blocks(&TrialSpec { repeat: 1, ..ring.clone() }));
    assert_ne!(blocks(&ring), blocks(&TrialSpec { method: "mmap".into(), ..ring.clone() }));
}

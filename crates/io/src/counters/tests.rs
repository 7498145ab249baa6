use std::io::Write;
use std::os::fd::AsFd;

use proptest::prelude::*;

use super::*;

/// `/proc/interrupts` of an x86 virtual machine with two CPUs, shortened.
const INTERRUPTS_X86: &str = "           CPU0       CPU1       
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 26:    1200000          7  PCI-MSIX-0000:00:02.0   1-edge      Function call interrupts
LOC:      39491      43111   Local timer interrupts
RES:      12155       7482   Rescheduling interrupts
CAL:      45027      28886   Function call interrupts
TLB:       9968       8747   TLB shootdowns
ERR:          0
";

const INTERRUPTS_ARM: &str = "           CPU0       CPU1       CPU2
 11:       4711       4712       4713     GICv3  27 Level     arch_timer
IPI0:       100        200        300       Rescheduling interrupts
IPI1:        10         20         30       Function call interrupts
IPI2:         0          0          0       CPU stop interrupts
Err:          0
";

const VMSTAT: &str = "nr_free_pages 1212442
workingset_refault_file 291668
pgscan_kswapd 11
pgscan_direct 12
pgscan_direct_throttle 99
pgscan_file 13
allocstall_dma 1
allocstall_normal 20
allocstall_movable 300
pgfault 5390062
pgmajfault 1590
thp_split_page 5
thp_split_page_failed 6
";

#[test]
fn interrupts_are_summed_over_cpus_on_x86_and_arm() {
    let x86 = parse::interrupts(INTERRUPTS_X86);
    assert_eq!(x86.tlb, Some(9968 + 8747));
    assert_eq!(x86.function_call, Some(45027 + 28886), "a device that happens to be named so is not taken");
    assert_eq!(x86.rescheduling, Some(12155 + 7482));

    let arm = parse::interrupts(INTERRUPTS_ARM);
    assert_eq!(arm.tlb, None, "arm64 flushes without interrupts: absent, not zero");
    assert_eq!(arm.function_call, Some(60));
    assert_eq!(arm.rescheduling, Some(600));
}

#[test]
fn vmstat_lines_are_taken_by_their_whole_name_and_stalls_summed_over_zones() {
    let mut totals = Delta::default();
    add_vmstat(&mut totals, VMSTAT);
    assert_eq!(totals.pgscan_kswapd, Some(11));
    assert_eq!(totals.pgscan_direct, Some(12));
    assert_eq!(totals.pgscan_file, Some(13));
    assert_eq!(totals.allocstall, Some(321));
    assert_eq!(totals.thp_split_page, Some(5));
    assert_eq!(totals.nr_tlb_remote_flush, None, "this kernel does not count them");
}

#[test]
fn cpu_device_pressure_and_thread_lines_are_understood() {
    let cpu = parse::cpu_ticks("cpu  18553 2 3643 161390 814 3 87 152 0 0\ncpu0 8731 0 1388 82060 77 0 17 75 0 0\n");
    assert_eq!(cpu, Some(parse::CpuTicks { busy: 18553 + 2 + 3643 + 3 + 87, iowait: 814, steal: Some(152) }));

    let vda = "   58367    10048  4568410    28177    28420    22584  4723880    21227        0    11504    50345     9632       13   759912      745     3787      195\n";
    let seen = parse::device(vda).unwrap();
    assert_eq!((seen.reads, seen.read_bytes), (58367, 4568410 * 512));
    assert_eq!((seen.writes, seen.write_bytes), (28420, 4723880 * 512));
    assert_eq!((seen.busy_ms, seen.queue_ms, seen.flushes), (11504, 50345, Some(3787)));
    let old_kernel = "58367 10048 4568410 28177 28420 22584 4723880 21227 0 11504 50345";
    assert_eq!(parse::device(old_kernel).unwrap().flushes, None);

    let memory = "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=99\n";
    assert_eq!(parse::pressure(memory), (Some(1234), Some(99)));
    let cpu_before_5_13 = "some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
    assert_eq!(parse::pressure(cpu_before_5_13), (Some(7), None));

    let kswapd = "45 (kswapd0) S 2 0 0 0 -1 2230336 0 0 0 0 3 40 0 0 20 0 1 0 38 0 0 18446744073709551615 0 0\n";
    let thread = parse::thread(kswapd).unwrap();
    assert_eq!(thread, parse::Thread { name: "kswapd0", is_kernel: true, cpu_ticks: 43 });
    let imitator = "99 (kswapd) (x) S 1 0 0 0 -1 4194304 0 0 0 0 3 40 0 0 20 0 1 0 38\n";
    assert_eq!(parse::thread(imitator).unwrap(), parse::Thread { name: "kswapd) (x", is_kernel: false, cpu_ticks: 43 });
}

#[test]
fn a_mount_is_found_by_its_id_whatever_its_optional_fields() {
    let mounts = "27 1 254:0 / / rw,relatime shared:1 master:2 - ext4 /dev/vda rw,discard\n\
                  35 27 0:33 /sub /data rw - btrfs /dev/sdb1 rw\nnonsense\n36 x - \n";
    assert_eq!(device::mount_source(mounts, 35), Some(("btrfs".into(), "/dev/sdb1".into())));
    assert_eq!(device::mount_source(mounts, 27), Some(("ext4".into(), "/dev/vda".into())));
    assert_eq!(device::mount_source(mounts, 36), None);
    assert_eq!(device::mount_source(mounts, 1), None);
}

proptest! {
    /// The parsers return on any text of a strange kernel.
    #[test]
    fn nonsense_never_panics(text in "(\\PC|[0-9:() \n]|cpu |TLB:|total=|some |18446744073709551615){0,200}") {
        let _ = parse::interrupts(&text);
        let _ = parse::cpu_ticks(&text);
        let _ = parse::device(&text);
        let _ = parse::pressure(&text);
        let _ = parse::thread(&text);
        let _ = parse::number(&text);
        let _ = parse::field(&text, "TLB:");
        let _ = device::mount_source(&text, 1);
        add_vmstat(&mut Delta::default(), &text);
    }
}

#[test]
fn sums_of_enormous_counts_saturate() {
    let line = format!("TLB: {max} {max} shootdowns\n", max = u64::MAX);
    assert_eq!(parse::interrupts(&line).tlb, Some(u64::MAX));
}

#[test]
fn a_snapshot_sees_what_this_process_did_to_its_disk() {
    let folder = tempfile::tempdir().unwrap();
    let watch = match Watch::new().device_of(folder.path()) {
        Ok(watch) => watch,
        Err(error) => return eprintln!("not run: {error}"),
    };
    let before = Snapshot::take(&watch);
    let mut file = File::create(folder.path().join("data")).unwrap();
    file.write_all(&vec![1_u8; 4 << 20]).unwrap();
    file.sync_all().unwrap();
    // Fresh memory is faulted in page by page.
    let touched: u64 = vec![1_u8; 16 << 20].iter().step_by(4096).map(|byte| u64::from(*byte)).sum();
    assert_eq!(touched, 4096);
    let delta = Snapshot::take(&watch).since(&before);

    assert!(delta.wall_s > 0.0);
    assert!(delta.own_cpu_user_s + delta.own_cpu_system_s > 0.0);
    assert!(delta.minor_faults > 0, "{delta:?}");
    assert!(delta.device_write_bytes.unwrap() >= 4 << 20, "{delta:?}");
    assert!(delta.device_writes.unwrap() > 0);
    assert!(delta.page_cache_bytes.unwrap() > 0 && delta.free_bytes.unwrap() > 0);
    assert!(delta.system_busy_s.is_some() && delta.steal_s.is_some());
}

#[test]
fn a_delta_lists_every_counter_that_exists_once_by_its_name() {
    let watch = Watch::new();
    let first = Snapshot::take(&watch);
    let named = Snapshot::take(&watch).since(&first).named();
    let has = |wanted: &str| named.iter().any(|(name, _)| *name == wanted);
    for always in ["wall_s", "own_cpu_user_s", "minor_faults", "major_faults", "voluntary_switches"] {
        assert!(has(always), "{always} missing in {named:?}");
    }
    assert!(!has("device_reads") && !has("cgroup_memory_bytes"), "nothing was asked of them");
    assert_eq!(cfg!(target_arch = "x86_64"), has("tlb_shootdowns"));
    let mut names: Vec<_> = named.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), named.len());
    assert!(named.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{named:?}");
}

#[test]
fn one_device_named_twice_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = tempfile::NamedTempFile::new_in(&folder).unwrap();
    match Watch::new().device_of(folder.path()).and_then(|watch| watch.device_of(file.path())) {
        Ok(watch) => assert_eq!(watch.devices().count(), 1),
        Err(error) => eprintln!("not run: {error}"),
    }
}

#[test]
fn paths_without_a_device_and_folders_without_a_cgroup_are_errors() {
    let error = Watch::new().device_of(Path::new("/proc/self")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = Watch::new().device_of(Path::new("/no/such/file")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    let error = Watch::new().cgroup(Path::new("/proc")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn a_cgroup_of_either_version_is_read() {
    // Laid out as the kernel does it, so that the test needs no rights.
    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    put("memory.stat", "cache 1\ntotal_cache 4096\npgfault 1\ntotal_pgfault 70\ntotal_pgmajfault 3\n");
    put("memory.usage_in_bytes", "8192\n");
    put("memory.failcnt", "5\n");
    let watch = Watch::new().cgroup(folder.path()).unwrap();
    let first = Snapshot::take(&watch);
    put("memory.failcnt", "12\n");
    put("memory.stat", "cache 1\ntotal_cache 12288\npgfault 1\ntotal_pgfault 71\ntotal_pgmajfault 3\n");
    let delta = Snapshot::take(&watch).since(&first);
    assert_eq!(delta.cgroup_limit_hits, Some(7));
    assert_eq!(delta.cgroup_page_cache_bytes, Some(12288), "a level, not a difference");
    assert_eq!((delta.cgroup_pgfault, delta.cgroup_pgmajfault), (Some(1), Some(0)));
    assert_eq!((delta.cgroup_memory_bytes, delta.cgroup_pgscan), (Some(8192), None));

    let folder = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    put("memory.stat", "anon 1\nfile 4096\npgscan 9\npgsteal 8\npgfault 7\n");
    put("memory.current", "100\n");
    put("memory.events", "low 0\nhigh 0\nmax 4\noom 0\n");
    put("cpu.stat", "usage_usec 2500000\nuser_usec 1\n");
    let watch = Watch::new().cgroup(folder.path()).unwrap();
    let Snapshot(totals) = Snapshot::take(&watch);
    assert_eq!((totals.cgroup_limit_hits, totals.cgroup_pgscan, totals.cgroup_pgsteal), (Some(4), Some(9), Some(8)));
    assert_eq!(totals.cgroup_cpu_s, Some(2.5));
}

#[test]
fn thread_time_counts_this_thread_only() {
    let before = thread_cpu_seconds();
    let elsewhere = std::thread::spawn(|| {
        let start = thread_cpu_seconds();
        while thread_cpu_seconds() - start < 0.05 {}
    });
    elsewhere.join().unwrap();
    let waited = thread_cpu_seconds() - before;
    assert!((0.0..0.04).contains(&waited), "waiting for 50 ms of another thread's work cost {waited} s");
    while thread_cpu_seconds() == before {}
}

#[test]
fn cachestat_and_mincore_agree_on_what_was_just_written() {
    let mut file = tempfile::tempfile().unwrap();
    let page = rustix::param::page_size() as u64;
    file.write_all(&vec![7_u8; 64 * page as usize]).unwrap();
    let whole = cachestat(&file, 0..64 * page).unwrap();
    assert_eq!(whole.cached_bytes, 64 * page);
    if let Some(dirty) = whole.dirty_bytes {
        assert!(dirty <= 64 * page);
    } else {
        eprintln!("only mincore here");
    }
    let by_map = cachestat::by_mincore(file.as_fd(), &(0..64 * page)).unwrap();
    assert_eq!((by_map.cached_bytes, by_map.dirty_bytes), (64 * page, None));
    // A piece that begins and ends within pages; an end beyond the file; an empty range.
    assert_eq!(cachestat(&file, page + 1..3 * page - 1).unwrap().cached_bytes, 2 * page);
    assert_eq!(cachestat::by_mincore(file.as_fd(), &(page + 1..3 * page - 1)).unwrap().cached_bytes, 2 * page);
    assert_eq!(cachestat(&file, 60 * page..u64::MAX).unwrap().cached_bytes, 4 * page);
    assert_eq!(cachestat::by_mincore(file.as_fd(), &(60 * page..u64::MAX)).unwrap().cached_bytes, 4 * page);
    assert_eq!(cachestat(&file, 9..9).unwrap().cached_bytes, 0);
    // A pipe has no page cache.
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(cachestat(&reader, 0..page).map(|stat| stat.cached_bytes).unwrap_or(0), 0);
}

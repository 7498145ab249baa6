//! Tests of the memory limits, on the machine running them.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use super::*;

const MIB: u64 = 1 << 20;

/// Makes a cgroup; `None`, after printing the reason, where none can be made.
fn group(bytes: u64) -> Option<CgroupGuard> {
    CgroupGuard::create(bytes).inspect_err(|error| eprintln!("skipped: {error}")).ok()
}

#[test]
fn page_cache_of_a_process_in_the_group_stays_below_the_limit() {
    let Some(guard) = group(32 * MIB) else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let mut file = File::create(&path).unwrap();
    (0..96).for_each(|_| file.write_all(&vec![1; MIB as usize]).unwrap());
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    // The process waits for a line of input, so that it is in the group before it reads.
    let script = format!("read line; cat '{}' > /dev/null; echo done; read line", path.display());
    let mut child =
        Command::new("sh").args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    guard.add_pid(child.id()).unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"go\n").unwrap();
    let mut answer = [0; 5];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut answer).unwrap();
    let usage = guard.usage().unwrap();
    assert!(usage.usage_bytes <= 32 * MIB && usage.cached_bytes > MIB, "{usage:?}");
    assert!(usage.limit_hits > 0, "96 MiB went through 32 MiB: {usage:?}");
    let path = guard.path().to_path_buf();
    drop(guard);
    assert!(!path.exists(), "the group goes even while a process is in it");
    drop(stdin);
    child.wait().unwrap();
}

#[test]
fn a_group_that_a_crash_left_behind_is_removed_by_the_next_start() {
    let Some(guard) = group(32 * MIB) else { return };
    let alive = guard.path().to_path_buf();
    let left = alive.with_file_name(format!("nofault-lab-{}-1-0", std::process::id()));
    std::fs::create_dir(&left).unwrap();
    let dead_maker = format!("{}-1", std::process::id());
    crate::machine::leftovers::record_as("cgroup", &dead_maker, &left.display().to_string());
    let messages = remove_leftovers().unwrap();
    assert!(messages.iter().any(|line| line.contains("removed")), "{messages:?}");
    assert!(!left.exists() && alive.exists());
}

const GIB: u64 = 1 << 30;

fn refused() -> LabError {
    LabError::new(LabErrorKind::NoPermission, "no group may be made")
}

/// A machine of 16 GiB whose user has no rights.
fn plain_user() -> Facts {
    Facts {
        cgroup: Err(refused()),
        lock_bytes_max: 8 * MIB,
        swap_bytes: 2 * GIB,
        available_bytes: 12 * GIB,
        total_bytes: 16 * GIB,
    }
}

fn required(choice: MemoryChoice) -> Requirement {
    Requirement { choice, ballast_allowed: true, memory_bytes: GIB, data_bytes: 4 * GIB, data_bytes_max: 4 * GIB }
}

#[test]
fn a_cgroup_comes_first_then_locked_ballast() {
    let with = |facts: Facts| decide(&required(MemoryChoice::Auto), &facts).unwrap();
    let plan = with(Facts { cgroup: Ok(MemoryMethod::CgroupV2), ..plain_user() });
    let limit = |method| MemoryLimit { method, bytes: GIB };
    assert_eq!((plan.limit, plan.notes), (limit(MemoryMethod::CgroupV2), Vec::new()));
    let plan = with(Facts { lock_bytes_max: u64::MAX, ..plain_user() });
    assert_eq!(plan.limit, limit(MemoryMethod::Ballast));
    assert!(plan.notes[0].contains("no group may be made") && plan.notes.len() == 1, "{:?}", plan.notes);
}

#[test]
fn nearly_all_memory_is_taken_only_where_the_user_allows_it() {
    let careful = Requirement { ballast_allowed: false, ..required(MemoryChoice::Auto) };
    let able = Facts { lock_bytes_max: u64::MAX, ..plain_user() };
    let error = decide(&careful, &able).unwrap_err().to_string();
    assert!(error.contains("it would hold 11 GiB") && error.contains("--memory-ballast"), "{error}");
    let named = Requirement { ballast_allowed: false, ..required(MemoryChoice::Ballast) };
    assert_eq!(decide(&named, &able).unwrap().limit.method, MemoryMethod::Ballast);
    // A cgroup needs no permission, and data larger than memory takes none.
    let group = Facts { cgroup: Ok(MemoryMethod::CgroupV2), ..able.clone() };
    assert_eq!(decide(&careful, &group).unwrap().limit.method, MemoryMethod::CgroupV2);
    let large = Requirement { data_bytes: 17 * GIB, ..careful };
    assert_eq!(decide(&large, &able).unwrap().limit.method, MemoryMethod::LargeFile);
}

#[test]
fn without_swap_and_rights_the_ballast_is_touched_and_says_so() {
    let plan = decide(&required(MemoryChoice::Auto), &Facts { swap_bytes: 0, ..plain_user() }).unwrap();
    assert_eq!(plan.limit, MemoryLimit { method: MemoryMethod::Ballast, bytes: GIB });
    assert!(plan.notes.iter().any(|note| note.contains("touched and not locked")), "{:?}", plan.notes);
    // Every process has to live in the memory that a ballast leaves.
    let small = Requirement { memory_bytes: 64 * MIB, ..required(MemoryChoice::Auto) };
    let plan = decide(&small, &Facts { swap_bytes: 0, ..plain_user() }).unwrap();
    assert_eq!(plan.limit.bytes, 512 * MIB);
    assert!(plan.notes.iter().any(|note| note.contains("and not 64 MiB")), "{:?}", plan.notes);
}

#[test]
fn with_swap_and_without_rights_the_data_is_enlarged_where_it_may_be() {
    let roomy = Requirement { data_bytes_max: 100 * GIB, ..required(MemoryChoice::Auto) };
    let plan = decide(&roomy, &plain_user()).unwrap();
    assert_eq!(plan.limit, MemoryLimit { method: MemoryMethod::LargeFile, bytes: 16 * GIB });
    assert_eq!(plan.data_bytes, 20 * GIB);
    assert!(plan.notes.iter().any(|note| note.contains("from 4 GiB to 20 GiB")), "{:?}", plan.notes);
    // Data that is large enough already stays as it was asked for.
    let large = Requirement { data_bytes: 17 * GIB, data_bytes_max: 17 * GIB, ..required(MemoryChoice::Auto) };
    assert_eq!(decide(&large, &plain_user()).unwrap().data_bytes, 17 * GIB);
}

#[test]
fn where_nothing_is_possible_every_means_is_named_with_its_reason() {
    let error = decide(&required(MemoryChoice::Auto), &plain_user()).unwrap_err();
    assert_eq!(error.kind(), LabErrorKind::NoPermission);
    for part in ["no group may be made", "RLIMIT_MEMLOCK", "16 GiB of RAM; 20 GiB would do"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    // A means that the user asked for by name is not replaced by another.
    let no_lock = decide(&required(MemoryChoice::Ballast), &plain_user()).unwrap_err().to_string();
    assert!(no_lock.contains("RLIMIT_MEMLOCK") && !no_lock.contains("group"), "{no_lock}");
    let small = Facts { available_bytes: GIB / 2, ..plain_user() };
    let full = decide(&required(MemoryChoice::Cgroup), &small).unwrap_err().to_string();
    assert!(full.contains("would limit nothing"), "{full}");
}

#[test]
fn this_machine_gets_a_plan_or_a_reason() {
    match choose(&Requirement { memory_bytes: 64 * MIB, data_bytes: GIB, ..required(MemoryChoice::Auto) }) {
        Ok(plan) => assert!(plan.limit.method != MemoryMethod::None && plan.limit.bytes >= 64 * MIB),
        Err(error) => assert!(error.to_string().contains("cgroup"), "{error}"),
    }
    assert!(available_bytes() <= total_bytes());
}

#[test]
fn impossible_requirements_are_refused_with_the_next_step() {
    let total = total_bytes();
    let refuse = |choice, memory_bytes, data_bytes| {
        let required =
            Requirement { choice, ballast_allowed: true, memory_bytes, data_bytes, data_bytes_max: data_bytes };
        choose(&required).unwrap_err().to_string()
    };
    assert!(refuse(MemoryChoice::Auto, 64 * MIB, 64 * MIB).contains("more data or less memory"));
    assert!(refuse(MemoryChoice::Auto, 4096, 64 * MIB).contains("too small"));
    assert!(refuse(MemoryChoice::LargeFile, 64 * MIB, 128 * MIB).contains("would do (--size)"));
    assert!(refuse(MemoryChoice::Ballast, 2 * total, 3 * total).contains("would limit nothing"));
    let required = Requirement { data_bytes: 2 * total, ..required(MemoryChoice::LargeFile) };
    let limit = MemoryLimit { method: MemoryMethod::LargeFile, bytes: total };
    assert_eq!(choose(&required).unwrap().limit, limit);
}

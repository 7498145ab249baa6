//! Stories of the memory limits, on the machine that runs them.

use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

use super::*;

const MIB: u64 = 1 << 20;

/// A group, or the reason why there is none here.
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
    // It waits for a line, so that it is in the group before it reads.
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
    let told = remove_leftovers().unwrap();
    assert!(told.iter().any(|line| line.contains("removed")), "{told:?}");
    assert!(!left.exists() && alive.exists());
}

#[test]
fn the_choice_is_the_best_possible_or_says_why_none_is() {
    match choose(MemoryChoice::Auto, 64 * MIB, 128 * MIB) {
        Ok(plan) => {
            assert_eq!(plan.limit.bytes, 64 * MIB);
            assert!(plan.limit.method != MemoryMethod::None);
        }
        Err(error) => {
            for part in ["cgroup", "ballast", "larger than RAM"] {
                assert!(error.to_string().contains(part), "{error}");
            }
        }
    }
}

#[test]
fn impossible_wishes_are_refused_with_the_next_step() {
    let total = meminfo_bytes("MemTotal").unwrap();
    let refuse = |choice, wanted, data| choose(choice, wanted, data).unwrap_err().to_string();
    assert!(refuse(MemoryChoice::Auto, 64 * MIB, 64 * MIB).contains("more data or less memory"));
    assert!(refuse(MemoryChoice::Auto, 4096, 64 * MIB).contains("too small"));
    assert!(refuse(MemoryChoice::LargeFile, 64 * MIB, 128 * MIB).contains("ask for more data"));
    assert!(refuse(MemoryChoice::Ballast, 2 * total, 3 * total).contains("would limit nothing"));
    let plan = choose(MemoryChoice::LargeFile, 64 * MIB, 2 * total).unwrap();
    assert_eq!(plan.limit, MemoryLimit { method: MemoryMethod::LargeFile, bytes: total });
}

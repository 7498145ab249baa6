//! A mount is only ever read by `dd` and `cat` here: never by this process, which serves it.

use std::process::{Command, Output};

use super::*;

/// Mounts a folder with one file of eight pages; `None`, after printing the reason, where mounting is not possible.
fn mounted() -> Option<(tempfile::TempDir, FaultyFs)> {
    let outer = tempfile::tempdir().unwrap();
    let (base, point) = (outer.path().join("base"), outer.path().join("point"));
    fs::create_dir(&base).unwrap();
    fs::create_dir(&point).unwrap();
    fs::write(base.join("file"), vec![7; 8 * 4096]).unwrap();
    match FaultyFs::mount(&base, &point) {
        Ok(mounted) => Some((outer, mounted)),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

/// Reads one page in another process, which is killed if it hangs.
fn page(mounted: &FaultyFs, page: u64) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "20", "dd", "bs=4096", "count=1", "status=none", "iflag=direct"]);
    command.arg(format!("skip={page}")).arg(format!("if={}", mounted.point().join("file").display()));
    command.output().unwrap()
}

#[test]
fn reads_of_failing_ranges_fail_until_the_repair() {
    let Some((_outer, mounted)) = mounted() else { return };
    assert_eq!(page(&mounted, 3).stdout, vec![7; 4096]);
    mounted.fail_reads("file", 3 * 4096..4 * 4096);
    let failed = page(&mounted, 3);
    assert!(!failed.status.success() && String::from_utf8_lossy(&failed.stderr).contains("error"), "{failed:?}");
    assert!(mounted.reads_failed() >= 1);
    assert_eq!(page(&mounted, 2).stdout, vec![7; 4096], "its neighbours are well");
    mounted.repair();
    assert_eq!(page(&mounted, 3).stdout, vec![7; 4096]);
}

#[test]
fn the_mount_passes_a_whole_folder_through() {
    let Some((outer, mounted)) = mounted() else { return };
    let script =
        "set -e; cd \"$1\"; echo hello > new; mv new old; cat old; ls; rm old; truncate -s 4096 file; sync file";
    let output = Command::new("timeout")
        .args(["-s", "KILL", "20", "sh", "-c", script, "sh"])
        .arg(mounted.point())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\nfile\nold\n");
    assert_eq!(fs::metadata(outer.path().join("base/file")).unwrap().len(), 4096);
}

#[test]
fn a_mount_is_removed_when_dropped_and_the_mount_of_a_dead_server_at_the_next_start() {
    let Some((outer, mounted)) = mounted() else { return };
    let is_mounted = |point: &Path| system::mounts().iter().any(|mount| mount.point == point);
    let point = mounted.point().to_path_buf();
    assert!(is_mounted(&point));
    drop(mounted);
    assert!(!is_mounted(&point));

    // As after kill -9: the mount is there without a server, and the entry names a process that is dead.
    let orphan = FaultyFs::mount(&outer.path().join("base"), &point).unwrap();
    let mut orphan = std::mem::ManuallyDrop::new(orphan);
    orphan.entry.take().unwrap().forget();
    leftovers::record_as(KIND, &format!("{}-1", std::process::id()), &point.display().to_string());
    let messages = remove_leftovers().unwrap();
    assert!(messages.iter().any(|line| line.contains(&*point.to_string_lossy())), "{messages:?}");
    assert!(!is_mounted(&point));
    drop(orphan.session.take());
}

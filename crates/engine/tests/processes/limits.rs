//! Databases of a process that may have few descriptors, threads, locked bytes or addresses: each call succeeds, or its
//! error names the limit, and a creation that fails leaves nothing.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll, Waker};

use nofault::blocking::Db;
use nofault::error::{ErrorKind, Result};
use nofault::settings::Settings;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{FOLDER, folder};

/// The user and group of the children: limits on processes and locked memory do not bind root.
const OTHER_USER: u32 = 65_534;

/// Runs `work` under a limit of this process.
fn under<R>(resource: Resource, limit: u64, work: impl FnOnce() -> R) -> R {
    let before = getrlimit(resource);
    let limit = before.maximum.map_or(limit, |maximum| limit.min(maximum));
    setrlimit(resource, Rlimit { current: Some(limit), ..before }).unwrap();
    let result = work();
    setrlimit(resource, before).unwrap();
    result
}

/// Opens the database «there», reads and writes; creates another one. Under each limit either works, or is refused by an error
/// that contains `remedy`. Returns how many calls were refused.
fn sweep(folder: &Path, resource: Resource, limits: impl Iterator<Item = u64>, remedy: &str) -> usize {
    let (there, new) = (folder.join("there"), folder.join("new"));
    let mut refused = 0;
    let mut judge = |what: &str, limit, outcome: Result<()>| {
        let Err(error) = outcome else { return true };
        // A ring may need a thread of the kernel for a sync: a failed sync poisons the database for any reason.
        let is_right = matches!(error.kind(), ErrorKind::NoResources | ErrorKind::Poisoned);
        let is_right = is_right && error.to_string().contains(remedy);
        assert!(is_right, "{what} with a limit of {limit}: {error:?}");
        refused += 1;
        false
    };
    for limit in limits {
        let opened = under(resource, limit, || {
            let db = Db::open(&there, &Settings::small(16, 1))?;
            let table = db.table("t")?;
            table.put("b", limit.to_be_bytes())?;
            assert_eq!(table.get("a")?, Some(b"1".to_vec()));
            drop(table);
            db.close()
        });
        judge("opening", limit, opened);
        let created = under(resource, limit, || Db::create(&new, &Settings::small(16, 1)).and_then(Db::close));
        if judge("creating", limit, created) {
            std::fs::remove_dir_all(&new).unwrap();
        }
        assert!(!new.exists(), "left behind with a limit of {limit}: {:?}", std::fs::read_dir(&new));
        let db = Db::open(&there, &Settings::small(16, 1)).unwrap();
        assert_eq!(db.table("t").unwrap().get("a").unwrap(), Some(b"1".to_vec()));
    }
    refused
}

#[test]
#[ignore = "run as a child by the tests below"]
fn child_with_few_descriptors() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let refused = sweep(Path::new(&folder), Resource::Nofile, 3..64, "`ulimit -n`");
    assert!((2..120).contains(&refused), "{refused} of 122 calls are refused");
}

#[test]
#[ignore = "run as a child by the tests below"]
fn child_with_few_threads() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let refused = sweep(Path::new(&folder), Resource::Nproc, 0..24, "`ulimit -u`");
    assert!(refused >= 2, "{refused} of 48 calls are refused");
    // A task needs a thread to open a database.
    let opened = under(Resource::Nproc, 0, || {
        let settings = Settings::small(16, 1);
        let mut opening = pin!(nofault::Db::open(Path::new(&folder).join("there"), &settings));
        opening.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(|opened| opened.map(drop))
    });
    let Poll::Ready(Err(error)) = opened else { panic!("there is no thread for it") };
    assert!(error.kind() == ErrorKind::NoResources && error.to_string().contains("`ulimit -u`"), "{error:?}");
}

#[test]
#[ignore = "run as a child by the tests below"]
fn child_with_little_locked_memory() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let limits = [0, 1, 4 << 10, 64 << 10, 1 << 20, 8 << 20];
    // A ring without registered buffers serves.
    sweep(Path::new(&folder), Resource::Memlock, limits.into_iter(), "`ulimit -l`");
}

#[test]
#[ignore = "run as a child by the tests below"]
fn child_with_few_addresses() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    // Asked for again each time: the memory allocator keeps the memory of ended threads.
    let now_bytes = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').next().unwrap().parse::<u64>().unwrap() * rustix::param::page_size() as u64
    };
    let limits = (1..100).map(|more| now_bytes() + (more << 20));
    let refused = sweep(Path::new(&folder), Resource::As, limits, "`ulimit -v`");
    assert!((2..198).contains(&refused), "{refused} of 198 calls are refused");
}

/// Runs one of the tests above as a user who is not root.
fn run(name: &str) {
    let folder = folder();
    let path = folder.path().join("home");
    std::fs::create_dir(&path).unwrap();
    let db = Db::create(path.join("there"), &Settings::small(16, 1)).unwrap();
    db.create_table("t").unwrap().put("a", "1").unwrap();
    db.close().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    if rustix::process::geteuid().is_root() {
        for part in [folder.path().to_owned(), path.clone(), path.join("there")] {
            std::fs::set_permissions(&part, std::fs::Permissions::from_mode(0o777)).unwrap();
        }
        for file in std::fs::read_dir(path.join("there")).unwrap() {
            std::fs::set_permissions(file.unwrap().path(), std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        command.uid(OTHER_USER).gid(OTHER_USER);
    }
    let name = format!("limits::{name}");
    let ended = command
        .args([&name, "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env(FOLDER, &path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(ended.status.success(), "{name}: {}\n{}{}", ended.status, text(&ended.stdout), text(&ended.stderr));
    assert!(text(&ended.stdout).contains("1 passed"), "{name} did not run");
}

#[test]
fn with_few_descriptors_every_call_works_or_names_the_limit() {
    run("child_with_few_descriptors");
}

#[test]
fn with_few_threads_every_call_works_or_names_the_limit() {
    run("child_with_few_threads");
}

#[test]
fn with_little_locked_memory_every_call_works_or_names_the_limit() {
    run("child_with_little_locked_memory");
}

#[test]
fn with_few_addresses_every_call_works_or_names_the_limit() {
    run("child_with_few_addresses");
}

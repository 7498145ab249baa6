//! Tests of a killed lab: the resources that end with its process, and the resources that the next start removes.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::data::DataSpec;
use super::memory::{Ballast, CgroupGuard};
use super::ram::RamDevice;
use super::system;
use super::workdir::WorkDir;

const VICTIM: &str = "NOFAULT_TEST_VICTIM_FOLDER";
const WANTED: DataSpec = DataSpec { seed: 8, data_bytes: 4 << 20 };

/// The process that the test below kills. It takes every resource that it may, prints their names, and waits. Not a
/// test by itself.
#[test]
fn victim_that_holds_everything() {
    let Ok(folder) = std::env::var(VICTIM) else { return };
    let _folder = WorkDir::open(folder.as_ref(), false).unwrap();
    let group = CgroupGuard::create(64 << 20).inspect_err(|error| eprintln!("no group: {error}")).ok();
    let device = RamDevice::create(WANTED, &|_, _| (), &AtomicBool::new(false));
    let device = device.inspect_err(|error| eprintln!("no device: {error}")).ok();
    let room = system::meminfo_bytes("MemAvailable").unwrap() - (256 << 20);
    let ballast = Ballast::leaving(room).inspect_err(|error| eprintln!("no ballast: {error}")).ok();
    for path in group.iter().map(|group| group.path().to_path_buf()).chain(device.iter().map(RamDevice::path)) {
        println!("\nholds {}", path.display());
    }
    println!("\nholder {}", ballast.as_ref().map_or(0, Ballast::holder));
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn a_killed_lab_leaves_nothing_after_the_next_start() {
    let outer = tempfile::tempdir().unwrap();
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "machine::tests::victim_that_holds_everything", "--nocapture"])
        .env(VICTIM, outer.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut held, mut holder) = (Vec::new(), 0);
    for line in BufReader::new(victim.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(path) = line.strip_prefix("holds ") {
            // A device's file may be removed late; the kernel's own state is under /sys.
            held.push(PathBuf::from(path.replace("/dev/", "/sys/block/")));
        } else if let Some(pid) = line.strip_prefix("holder ") {
            holder = pid.parse().unwrap();
            break;
        }
    }
    let existed = held.iter().all(|path| path.exists());
    // A device's name may be given to the next one, in another test perhaps; its sequence number never is.
    let sequence = |path: &PathBuf| std::fs::read_to_string(path.join("diskseq")).ok();
    let sequences: Vec<_> = held.iter().map(sequence).collect();
    let busy = WorkDir::open(outer.path(), false).is_err();
    victim.kill().unwrap();
    victim.wait().unwrap();
    assert!(existed, "{held:?}");
    assert!(busy, "the folder was the victim's");
    let gone = (0..200).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        system::process_start(holder).is_none()
    });
    assert!(gone, "the ballast's holder {holder} outlived the lab");
    // The sweep of another test may have removed it first.
    let messages = super::remove_leftovers();
    let is_left = |(path, before): (&PathBuf, &Option<String>)| path.exists() && sequence(path) == *before;
    assert!(!held.iter().zip(&sequences).any(is_left), "{held:?}: {messages:?}");
    WorkDir::open(outer.path(), false).unwrap();
}

//! Shared by the tests of the command: a folder for each test, calls of the command in it, the results of a call, and the result of one
//! tiny run for the tests that only read one.

#![expect(clippy::unwrap_used, reason = "helpers of tests: an unexpected error fails the test")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use nofault_sim::depth::is_deep;

/// Configuration of the smallest run: seventeen trials of some milliseconds.
const TINY: &str = "\
experiments = ['async']
ram_device = 'off'
fio = 'off'
repeats = 1
data_bytes = 67108864
memory_bytes = 33554432
ram_data_bytes = 67108864
ram_memory_bytes = 33554432
[async]
files = 2
file_bytes = 1048576
touches = 8
runs = 1
sequential = false
";

/// The result of the tiny run with two repeats, made once: its outer folder as text, and each of its files as name and content.
static MEASURED: LazyLock<(String, Vec<(String, String)>)> = LazyLock::new(|| {
    let lab = Lab::new();
    let outcome = lab.run(&["--repeats", "2"]);
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let files = fs::read_dir(lab.only_result()).unwrap().map(|entry| entry.unwrap());
    let files = files.map(|file| (file.file_name().into_string().unwrap(), fs::read_to_string(file.path()).unwrap()));
    (lab.outer.path().to_str().unwrap().to_owned(), files.collect())
});

/// Id of a user without any rights.
const NOBODY: u32 = 65534;

pub(crate) struct Lab {
    pub(crate) outer: tempfile::TempDir,
    /// The lab's folder for data and results, which does not exist yet.
    pub(crate) dir: PathBuf,
    pub(crate) config: PathBuf,
}

/// How a command ended: exit code, standard output, standard error.
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn outcome(command: &mut Command) -> Outcome {
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Outcome { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

impl Lab {
    pub(crate) fn new() -> Self {
        let outer = tempfile::tempdir().unwrap();
        let (dir, config) = (outer.path().join("lab"), outer.path().join("tiny.toml"));
        fs::write(&config, TINY).unwrap();
        Self { outer, dir, config }
    }

    /// Makes a lab with the result of an earlier tiny run in its folder: in a deep run a new one, otherwise a copy, which lies there as if it had
    /// been made there.
    pub(crate) fn measured() -> Self {
        let lab = Self::new();
        if is_deep() {
            assert_eq!(lab.run(&["--repeats", "2"]).code, 0);
            return lab;
        }
        let result = lab.dir.join("2020-01-01T00-00-00");
        fs::create_dir_all(&result).unwrap();
        let (outer, files) = &*MEASURED;
        for (name, text) in files {
            fs::write(result.join(name), text.replace(outer, lab.outer.path().to_str().unwrap())).unwrap();
        }
        lab
    }

    /// Returns `nofault lab` with these arguments only.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_nofault"));
        spare_caches(&mut command);
        command.arg("lab").args(arguments);
        command
    }

    /// Returns `nofault lab` with these arguments, and `--dir` for the test's folder.
    pub(crate) fn command_in_dir(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.arg("--dir").arg(&self.dir);
        command
    }

    /// Returns `nofault lab` in the test's folder with these arguments, without the tiny configuration.
    pub(crate) fn bare(&self, arguments: &[&str]) -> Command {
        let mut command = self.command(&["--dir"]);
        command.arg(&self.dir).args(arguments);
        command
    }

    /// Runs the tiny configuration with further arguments.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        outcome(self.command_in_dir(arguments).arg("--config").arg(&self.config))
    }

    /// Writes a configuration file that repeats the tiny run for longer than any test waits.
    pub(crate) fn endless(&self) -> PathBuf {
        let path = self.outer.path().join("endless.toml");
        fs::write(&path, TINY.replace("runs = 1", "runs = 5000")).unwrap();
        path
    }

    /// Returns `nofault lab` as a user without rights; `None`, with the reason printed, where this process cannot
    /// change its user.
    pub(crate) fn as_nobody(&self, arguments: &[&str]) -> Option<Command> {
        fs::set_permissions(self.outer.path(), fs::Permissions::from_mode(0o755)).unwrap();
        if !is_root() {
            eprintln!("not root: this user is taken as the one without rights");
            let mut command = self.command_in_dir(arguments);
            command.arg("--config").arg(&self.config);
            return Some(command);
        }
        // The program is copied: other users may have no access to the folders above the original.
        let program = self.outer.path().join("nofault");
        fs::copy(env!("CARGO_BIN_EXE_nofault"), &program).unwrap();
        let mut command = Command::new(program);
        command.arg("lab").args(arguments).arg("--dir").arg(&self.dir).arg("--config").arg(&self.config);
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
        match Command::new("/bin/true").uid(NOBODY).gid(NOBODY).current_dir("/").status() {
            Ok(_) => Some(command),
            Err(error) => {
                eprintln!("skipped: cannot become another user here: {error}");
                None
            }
        }
    }

    /// Names of the files in the lab's folder.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    }

    /// The result folders in the lab's folder, oldest first.
    pub(crate) fn results(&self) -> Vec<PathBuf> {
        let mut results: Vec<PathBuf> =
            self.names().iter().map(|name| self.dir.join(name)).filter(|path| path.is_dir()).collect();
        results.sort();
        results
    }

    pub(crate) fn only_result(&self) -> PathBuf {
        let results = self.results();
        assert_eq!(results.len(), 1, "{results:?}");
        results.into_iter().next().unwrap()
    }
}

/// Lets a command that drops the page cache of the machine, as the lab does for root, drop nothing but the pages of its files, for which it
/// also gives advice: for each trial every other program would have to read its files again. In a deep run, and where this is not possible,
/// the command does what it always does.
pub(crate) fn spare_caches(command: &mut Command) {
    if is_deep() || !is_root() {
        return;
    }
    let spare = || {
        let (none, private) = (std::ptr::null(), libc::MS_REC | libc::MS_PRIVATE);
        // SAFETY: the texts end with zero; the calls concern only the mounts that the new process sees.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) == 0
                && libc::mount(none, c"/".as_ptr(), none, private, none.cast()) == 0
            {
                let drop_caches = c"/proc/sys/vm/drop_caches".as_ptr();
                libc::mount(c"/dev/null".as_ptr(), drop_caches, none, libc::MS_BIND, none.cast());
            }
        }
        Ok(())
    };
    // SAFETY: between fork and exec nothing is allocated and no lock is taken.
    unsafe { command.pre_exec(spare) };
}

/// A running command. Dropping it kills the process.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<std::process::ChildStderr>,
    stderr: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap());
        Self { child, lines, stderr: String::new() }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Reads standard error until a line starts with `word`.
    pub(crate) fn until(&mut self, word: &str) {
        loop {
            let from = self.stderr.len();
            assert!(self.lines.read_line(&mut self.stderr).unwrap() > 0, "it ended before '{word}': {}", self.stderr);
            if self.stderr[from..].starts_with(word) {
                return;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let signal = match name {
            "INT" => rustix::process::Signal::INT,
            "TERM" => rustix::process::Signal::TERM,
            _ => rustix::process::Signal::KILL,
        };
        let pid = rustix::process::Pid::from_raw(self.id().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Sends the command the same signal again and again until it ends; returns as [`Self::end`].
    pub(crate) fn end_under_signals(&mut self, name: &str) -> (Option<i32>, String) {
        while self.child.try_wait().unwrap().is_none() {
            self.signal(name);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.end()
    }

    /// Waits for the end of the command; returns its exit code and everything that it wrote to standard error.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        while self.lines.read_line(&mut self.stderr).unwrap() > 0 {}
        (self.child.wait().unwrap().code(), std::mem::take(&mut self.stderr))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A loop device over an empty file. Dropping it removes the device.
pub(crate) struct Loop {
    pub(crate) path: String,
}

impl Loop {
    /// Makes the device; `None`, with the reason printed, where that is not possible.
    pub(crate) fn new(folder: &Path) -> Option<Self> {
        let file = folder.join("image");
        fs::File::create(&file).unwrap().set_len(80 << 20).unwrap();
        match Command::new("losetup").args(["--find", "--show"]).arg(&file).output() {
            Ok(output) if output.status.success() => {
                Some(Self { path: String::from_utf8(output.stdout).unwrap().trim().to_owned() })
            }
            Ok(output) => {
                eprintln!("skipped: no loop device: {}", String::from_utf8_lossy(&output.stderr));
                None
            }
            Err(error) => {
                eprintln!("skipped: no losetup: {error}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.path]).status();
    }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The living children of a process.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let parent = parent.to_string();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| status_of(*pid, "PPid:").is_some_and(|id| id == parent))
        .collect()
}

/// Whether a process exists and is not a zombie.
pub(crate) fn lives(pid: u32) -> bool {
    status_of(pid, "State:").is_some_and(|state| !state.starts_with('Z'))
}

fn status_of(pid: u32, name: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

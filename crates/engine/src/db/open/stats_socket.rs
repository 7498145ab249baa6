//! Serves the counters of a running database through a socket in its folder, for `nofault db top`.
//!
//! A connection gets the counters as one JSON object in a line, and is closed. A histogram is a list of its buckets that are not
//! empty, each with its greatest value and its count. Nothing is computed while no process
//! connects: the thread waits in the kernel.
//!
//! Kept true by: the socket lies in a separate folder that only this user may enter, made so before the socket is. A
//! socket that a process left when it was killed refuses connections, and the next opening, which holds the lock of the
//! database, replaces it. Failing to serve is no error of the database.

use std::fs::File;
use std::io::{ErrorKind, Result, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::AtFlags;

use crate::histogram::Histogram;

/// The folder of the socket, in the folder of the database.
const FOLDER: &str = "stats.nofault";
/// The name of the socket in it.
const SOCKET: &str = "socket";
/// Longest time for which a reader that does not read is waited for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after an error of the system, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The counters and histograms, by their names.
#[derive(Default)]
pub(in crate::db) struct Counters {
    pub(in crate::db) numbers: Vec<(&'static str, u64)>,
    pub(in crate::db) histograms: Vec<(&'static str, Histogram)>,
}

/// A socket, and the thread that serves it. Dropping it ends the thread and removes the socket.
pub(in crate::db) struct StatsSocket {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// The socket's folder, and the database's, which may have moved.
    folder: File,
    above: File,
}

impl StatsSocket {
    /// Serves `counters` in the folder of a database that this process has locked.
    ///
    /// # Errors
    /// The error of the system, as on file systems without sockets.
    pub(in crate::db) fn serve(path: &Path, counters: impl Fn() -> Counters + Send + 'static) -> Result<Self> {
        let above = File::open(path)?;
        // By descriptor: names of sockets are short, and paths of folders need not be.
        let own = |file: &File, name: &str| format!("/proc/self/fd/{}/{name}", file.as_raw_fd());
        let folder_path = own(&above, FOLDER);
        match std::fs::DirBuilder::new().mode(0o700).create(&folder_path) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => created?,
        }
        // Not through a link: only a folder that is really there is opened.
        let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
        let folder = File::from(rustix::fs::openat(&above, FOLDER, flags, rustix::fs::Mode::empty())?);
        folder.set_permissions(std::fs::Permissions::from_mode(0o700))?;
        // What another process left is dead: this one has the lock.
        match rustix::fs::unlinkat(&folder, SOCKET, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
        let listener = UnixListener::bind(own(&folder, SOCKET))?;
        listener.set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("nofault-stats".into())
            .stack_size(128 << 10)
            .spawn(move || serve(&listener, &stopped, counters))?;
        Ok(Self { stop, thread: Some(thread), folder, above })
    }
}

impl Drop for StatsSocket {
    fn drop(&mut self) {
        // Cannot fail: the counter of a new eventfd has room for a one.
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // What cannot be removed is replaced by the next opening.
        let _ = rustix::fs::unlinkat(&self.folder, SOCKET, AtFlags::empty());
        let _ = rustix::fs::unlinkat(&self.above, FOLDER, AtFlags::REMOVEDIR);
    }
}

/// Answers connections until the thread is to end.
fn serve(listener: &UnixListener, stop: &OwnedFd, counters: impl Fn() -> Counters) {
    loop {
        let mut ready = [PollFd::new(listener, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let polled = poll(&mut ready, None);
        if !ready[1].revents().is_empty() {
            return;
        }
        match polled.map_err(std::io::Error::from).and_then(|_| listener.accept()) {
            // A reader that has gone is no error of this process.
            Ok((stream, _)) => drop(answer(&stream, &counters())),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

fn answer(mut stream: &UnixStream, counters: &Counters) -> Result<()> {
    // A line fits into the buffer of a socket, so this waits only for a reader that is not there. Histograms have some hundred
    // buckets that are not empty at most.
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let numbers = counters.numbers.iter().map(|(name, count)| format!("\"{name}\":{count}"));
    let histograms = counters.histograms.iter().map(|(name, histogram)| {
        let buckets: Vec<String> =
            histogram.buckets().map(|bucket| format!("[{},{}]", bucket.greatest, bucket.count)).collect();
        format!("\"{name}\":[{}]", buckets.join(","))
    });
    let fields: Vec<String> = numbers.chain(histograms).collect();
    stream.write_all(format!("{{{}}}\n", fields.join(",")).as_bytes())
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    fn ask(folder: &Path) -> Result<String> {
        let mut text = String::new();
        UnixStream::connect(folder.join(FOLDER).join(SOCKET))?.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn each_connection_gets_the_counters_and_nothing_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let count = std::sync::atomic::AtomicU64::new(0);
        let times = crate::histogram::AtomicHistogram::default();
        (1..=3).for_each(|value| times.add(value / 2));
        let counters = move || Counters {
            numbers: vec![("calls", count.fetch_add(1, std::sync::atomic::Ordering::Relaxed)), ("seven", 7)],
            histograms: vec![("times", times.copy())],
        };
        let socket = StatsSocket::serve(folder.path(), counters).unwrap();
        assert_eq!(ask(folder.path()).unwrap(), "{\"calls\":0,\"seven\":7,\"times\":[[0,1],[1,2]]}\n");
        // One that goes at once, and one that never reads.
        drop(UnixStream::connect(folder.path().join(FOLDER).join(SOCKET)).unwrap());
        let idle = UnixStream::connect(folder.path().join(FOLDER).join(SOCKET)).unwrap();
        assert!(ask(folder.path()).unwrap().contains("\"seven\":7"));
        let mode = folder.path().join(FOLDER).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        drop((socket, idle));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_a_killed_process_left_is_replaced_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join(FOLDER)).unwrap();
        drop(UnixListener::bind(folder.path().join(FOLDER).join(SOCKET)).unwrap());
        assert_eq!(ask(folder.path()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
        drop(StatsSocket::serve(folder.path(), Counters::default).unwrap());
        let elsewhere = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), folder.path().join(FOLDER)).unwrap();
        assert!(StatsSocket::serve(folder.path(), Counters::default).is_err());
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    }
}

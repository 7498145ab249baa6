//! The name that a process leaves in a lock file, and its meaning for a reader in another process.
//!
//! The number of a process means something inside its own PID namespace only: two containers with one volume both have a
//! process 1. So the name has the host, the boot of its kernel and the namespace, and a reader says no more than they prove.
//! Earlier versions left a number and a command alone; they read the names of this one as they are.

use rustix::io::Errno;
use rustix::process::Pid;

/// The beginning of the name that a process leaves in a lock file.
const SIGNATURE: &str = "process ";

/// A process, as its name in a lock file describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Holder {
    /// Its number, in its own PID namespace.
    number: u32,
    command: String,
    /// Missing in names that earlier versions left, and where /proc does not say.
    place: Option<Place>,
}

/// The place where a number stands for one process.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The host's name, as the process saw it: in a container mostly the container's.
    host: String,
    /// The random number of the boot of the kernel: the same in all containers of a host.
    boot: String,
    /// The inode of the PID namespace.
    pid_namespace: u64,
}

impl Place {
    fn here() -> Option<Self> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
        let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
        let pid_namespace = namespace.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()?;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Some(Self { host, boot, pid_namespace })
    }
}

impl Holder {
    /// Returns this process.
    pub(super) fn here() -> Self {
        let command = std::fs::read_to_string("/proc/self/comm").unwrap_or_else(|_| "unknown".into());
        Self { number: std::process::id(), command: command.trim().to_owned(), place: Place::here() }
    }

    /// Returns the text for the lock file: one line.
    pub(super) fn to_text(&self) -> String {
        let place = self.place.as_ref().map_or(String::new(), |Place { host, boot, pid_namespace }| {
            format!(" on {host} (boot {boot}, pid namespace {pid_namespace})")
        });
        format!("{SIGNATURE}{} ({}){place}\n", self.number, self.command)
    }

    /// Parses the text of a lock file; `None` when it is not the name of a process.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.trim().strip_prefix(SIGNATURE)?;
        let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest[..end].parse().ok()?;
        // A command may contain anything, also parentheses.
        let place = rest.rsplit_once(" (boot ").and_then(|(before, place)| {
            let (boot, pid_namespace) = place.strip_suffix(')')?.split_once(", pid namespace ")?;
            let (named, host) = before.rsplit_once(") on ")?;
            let place = Place { host: host.into(), boot: boot.into(), pid_namespace: pid_namespace.parse().ok()? };
            Some((named.len(), place))
        });
        let (command_end, place) = match place {
            Some((end, place)) => (end, Some(place)),
            None => (rest.strip_suffix(')').unwrap_or(rest).len(), None),
        };
        let command = rest.get(end..command_end).and_then(|command| command.strip_prefix(" (")).unwrap_or_default();
        Some(Self { number, command: command.to_owned(), place })
    }

    /// Describes the process for a message in this process: no more than its name proves.
    pub(super) fn described(&self) -> String {
        self.described_in(Place::here().as_ref(), exists)
    }

    fn described_in(&self, here: Option<&Place>, exists: impl FnOnce(u32) -> bool) -> String {
        let named = match self.command.as_str() {
            "" => format!("process {}", self.number),
            command => format!("process {} ({command})", self.number),
        };
        match (&self.place, here) {
            (Some(place), Some(here)) if place.boot != here.boot => {
                format!("{named} on another host, or before this one was started (its host name is {})", place.host)
            }
            (Some(place), Some(here)) if place.pid_namespace != here.pid_namespace => {
                format!(
                    "{named} in another container of this machine, by its number there (its host name is {})",
                    place.host
                )
            }
            // The name is left behind when its process is killed, and the next holder may not have left its own.
            (Some(_), Some(_)) if !exists(self.number) => "another process, which has left no name".to_owned(),
            (Some(_), Some(_)) => named,
            _ => format!("{named}, by its number in its own container or on its own host"),
        }
    }
}

/// Returns whether there is a process of this number in the PID namespace of this one.
fn exists(number: u32) -> bool {
    let Some(pid) = i32::try_from(number).ok().and_then(Pid::from_raw) else { return false };
    // Another user's process cannot be signalled, and is there.
    rustix::process::test_kill_process(pid) != Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(boot: &str, pid_namespace: u64) -> Place {
        Place { host: "db-7".into(), boot: boot.into(), pid_namespace }
    }

    fn holder(command: &str, place: Option<Place>) -> Holder {
        Holder { number: 1, command: command.into(), place }
    }

    #[test]
    fn names_of_this_and_of_earlier_versions_are_read_and_nothing_else_is() {
        for command in ["nofault", "", "a) on b", "x (boot y)", "process 7 (z)"] {
            for place in [None, Some(place("5f-1", 4_026_531_836))] {
                let holder = holder(command, place);
                assert_eq!(Holder::parse(&holder.to_text()).as_ref().map(|found| &found.place), Some(&holder.place));
            }
        }
        let whole = holder("nofault", Some(place("5f-1", 4_026_531_836)));
        assert_eq!(Holder::parse(&whole.to_text()), Some(whole));
        assert_eq!(Holder::parse("process 1 (nofault)\n"), Some(holder("nofault", None)));
        assert_eq!(Holder::parse("process 77"), Some(Holder { number: 77, ..holder("", None) }));
        for foreign in ["", "process ", "process of elimination", "flock of sheep", "process 99999999999 (x)"] {
            assert_eq!(Holder::parse(foreign), None, "{foreign:?}");
        }
        let here = Holder::here();
        assert_eq!(Holder::parse(&here.to_text()), Some(here));
    }

    #[test]
    fn a_number_is_given_with_the_place_in_which_it_means_something() {
        let here = place("5f-1", 11);
        let said = |of: Option<Place>, exists| holder("nofault", of).described_in(Some(&here), |_| exists);
        assert_eq!(said(Some(here.clone()), true), "process 1 (nofault)");
        assert_eq!(said(Some(here.clone()), false), "another process, which has left no name");
        // Process 1 is there in each container; it is another one.
        let contained = said(Some(place("5f-1", 12)), true);
        assert!(contained.contains("in another container") && contained.contains("db-7"), "{contained}");
        let remote = said(Some(place("9c-2", 11)), true);
        assert!(remote.contains("another host") && remote.contains("db-7"), "{remote}");
        for unknown in [said(None, true), holder("x", Some(here.clone())).described_in(None, |_| true)] {
            assert!(unknown.contains("in its own container"), "{unknown}");
        }
    }

    #[test]
    fn a_process_that_has_ended_is_not_there_and_this_one_is() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        assert!(!exists(ended.id()) && !exists(0) && !exists(u32::MAX));
        assert!(exists(std::process::id()));
    }
}

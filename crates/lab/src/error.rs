//! The lab's error: a kind, which decides the exit code, and a message naming the next step.

use std::fmt;

/// The result of an operation of the lab.
pub type Result<T> = std::result::Result<T, LabError>;

/// The kind of an error: one for each next step that a caller can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LabErrorKind {
    /// A flag, a configuration or a name is wrong: fix the call.
    Usage,
    /// The process lacks the rights for the operation.
    NoPermission,
    /// Not enough disk or memory for the request.
    NoSpace,
    /// A limit of the process or the machine is reached: descriptors, threads, memory, address space.
    NoResources,
    /// The file, device or folder is in use: by another lab, or by a mount.
    Busy,
    /// A file is not valid: no marker, damaged records, a newer schema.
    Damaged,
    /// This machine, kernel or file system cannot do what was asked.
    Unsupported,
    /// The user stopped the run; its results so far are kept.
    Interrupted,
    /// A method read other data than was written, so its figures are invalid.
    WrongData,
    /// A system call failed.
    System,
}

const KIND_NAMES: [(LabErrorKind, &str); 10] = [
    (LabErrorKind::Usage, "usage"),
    (LabErrorKind::NoPermission, "no_permission"),
    (LabErrorKind::NoSpace, "no_space"),
    (LabErrorKind::NoResources, "no_resources"),
    (LabErrorKind::Busy, "busy"),
    (LabErrorKind::Damaged, "damaged"),
    (LabErrorKind::Unsupported, "unsupported"),
    (LabErrorKind::Interrupted, "interrupted"),
    (LabErrorKind::WrongData, "wrong_data"),
    (LabErrorKind::System, "system"),
];

impl LabErrorKind {
    /// The kind's name, as processes of the lab send it to each other.
    pub(crate) fn name(self) -> &'static str {
        KIND_NAMES.iter().find(|(known, _)| *known == self).map_or("system", |(_, name)| name)
    }

    /// The exit code of a process that ends with an error of this kind: the one table of codes, for the engine's errors too. Never 1:
    /// `compare` returns that when it finds a regression, and a command for a key that is not there.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Usage => 2,
            Self::NoPermission => 3,
            Self::NoSpace => 4,
            Self::Busy => 5,
            Self::Damaged => 6,
            Self::Unsupported => 7,
            Self::WrongData => 8,
            Self::System => 9,
            Self::NoResources => 10,
            Self::Interrupted => 130,
        }
    }

    /// Finds the kind by its name; `System` for an unknown name.
    pub(crate) fn of_name(name: &str) -> Self {
        KIND_NAMES.iter().find(|(_, known)| *known == name).map_or(Self::System, |(kind, _)| *kind)
    }
}

/// An error: its kind and a message for a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabError {
    kind: LabErrorKind,
    message: String,
}

impl LabError {
    /// Creates an error; its message says what failed and the next step.
    pub fn new(kind: LabErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Creates the error of a run that the user stopped.
    pub fn interrupted() -> Self {
        Self::new(LabErrorKind::Interrupted, "interrupted")
    }

    /// Creates the error for a system call that failed while doing `action`. Its kind follows from the system's error.
    pub fn system(action: impl fmt::Display, error: &std::io::Error) -> Self {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem => LabErrorKind::NoPermission,
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => LabErrorKind::NoSpace,
            std::io::ErrorKind::OutOfMemory => LabErrorKind::NoResources,
            std::io::ErrorKind::ResourceBusy => LabErrorKind::Busy,
            // EMFILE and ENFILE, for which the standard library has no kind.
            _ => {
                return match error.raw_os_error() {
                    Some(libc::EMFILE | libc::ENFILE) => {
                        nofault_io::error::Error::from_io(action.to_string(), error).into()
                    }
                    _ => Self::new(LabErrorKind::System, format!("{action}: {error}")),
                };
            }
        };
        Self::new(kind, format!("{action}: {error}"))
    }

    /// Creates the error for a system call that failed for a path that the user has named: as [`LabError::system`], but `Usage` where
    /// the path is the reason.
    pub fn of_path(action: impl fmt::Display, error: &std::io::Error) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput => Self::new(LabErrorKind::Usage, format!("{action}: {error}")),
            _ => Self::system(action, error),
        }
    }

    /// Creates the error of a thread that could not be started.
    pub fn no_thread(error: &std::io::Error) -> Self {
        nofault_io::error::Error::from_spawn("start a thread", error).into()
    }

    /// The kind of the error.
    pub fn kind(&self) -> LabErrorKind {
        self.kind
    }

    /// The exit code of a process that ends with this error, by its kind.
    pub fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for LabError {}

impl From<nofault_io::error::Error> for LabError {
    fn from(error: nofault_io::error::Error) -> Self {
        use nofault_io::error::ErrorKind;
        let kind = match error.kind() {
            ErrorKind::NoPermission => LabErrorKind::NoPermission,
            ErrorKind::NoSpace => LabErrorKind::NoSpace,
            ErrorKind::NoResources => LabErrorKind::NoResources,
            ErrorKind::Busy | ErrorKind::AlreadyExists => LabErrorKind::Busy,
            ErrorKind::Unsupported => LabErrorKind::Unsupported,
            _ => LabErrorKind::System,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<nofault::error::ErrorKind> for LabErrorKind {
    fn from(kind: nofault::error::ErrorKind) -> Self {
        use nofault::error::ErrorKind;
        match kind {
            ErrorKind::InvalidCall
            | ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::ReadOnly
            | ErrorKind::WrongType => Self::Usage,
            ErrorKind::NoPermission => Self::NoPermission,
            ErrorKind::NoSpace => Self::NoSpace,
            ErrorKind::NoResources => Self::NoResources,
            ErrorKind::Busy => Self::Busy,
            ErrorKind::Corrupt => Self::Damaged,
            ErrorKind::Unsupported => Self::Unsupported,
            _ => Self::System,
        }
    }
}

impl From<nofault::error::Error> for LabError {
    fn from(error: nofault::error::Error) -> Self {
        Self::new(error.kind().into(), format!("the engine: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_error_survives_a_pipe() {
        for (kind, name) in KIND_NAMES {
            assert_eq!((kind.name(), LabErrorKind::of_name(name)), (name, kind));
        }
    }
}

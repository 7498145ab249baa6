//! Tries io_uring: a ring, its set-up flags, registered buffers; and derives the cause of a refusal from the errno.

use io_uring::IoUring;

use super::{Ability, memlock_bytes_max, read_trimmed};
use crate::aligned::{IoBuf, PageKind};
use crate::uring::try_no_op;

/// The results of the trials: the fields of the same names in [`super::Probe`].
pub(super) struct Rings {
    pub(super) io_uring: Ability,
    pub(super) single_issuer: Ability,
    pub(super) defer_taskrun: Ability,
    pub(super) coop_taskrun: Ability,
    pub(super) sqpoll: Ability,
    pub(super) registered_buffers: Ability,
}

pub(super) fn try_rings() -> Rings {
    let io_uring = match try_ring(&IoUring::builder()) {
        Ok(()) => Ability::Yes,
        Err(error) => Ability::No(refusal(errno_of(&error), &Limits::here())),
    };
    if let Ability::No(reason) = &io_uring {
        let no = || Ability::because(format!("there is no io_uring: {reason}"));
        return Rings {
            single_issuer: no(),
            defer_taskrun: no(),
            coop_taskrun: no(),
            sqpoll: no(),
            registered_buffers: no(),
            io_uring,
        };
    }
    let with = |since: &str, set: fn(&mut io_uring::Builder) -> &mut io_uring::Builder| {
        let mut builder = IoUring::builder();
        set(&mut builder);
        match try_ring(&builder) {
            Ok(()) => Ability::Yes,
            Err(error) if errno_of(&error) == libc::EINVAL => {
                Ability::because(format!("this kernel does not know it; it needs Linux {since}"))
            }
            Err(error) => Ability::No(refusal(errno_of(&error), &Limits::here())),
        }
    };
    Rings {
        single_issuer: with("6.0", |builder| builder.setup_single_issuer()),
        defer_taskrun: with("6.1", |builder| builder.setup_single_issuer().setup_defer_taskrun()),
        coop_taskrun: with("5.19", |builder| builder.setup_coop_taskrun()),
        sqpoll: with("5.11 (before it, root)", |builder| builder.setup_sqpoll(1)),
        registered_buffers: try_registered_buffers(),
        io_uring,
    }
}

/// Sets a ring up and sends a no-op through: a filter may allow the one call and forbid the other.
fn try_ring(builder: &io_uring::Builder) -> std::io::Result<()> {
    try_no_op(&mut builder.build(2)?)
}

fn try_registered_buffers() -> Ability {
    let attempt = || -> std::result::Result<(), String> {
        let say = |error: std::io::Error| match errno_of(&error) {
            libc::ENOMEM => format!("memory may not be locked: {}", Limits::here().memlock()),
            errno => refusal(errno, &Limits::here()),
        };
        let mut page = IoBuf::zeroed(4096, PageKind::Small).map_err(|error| error.to_string())?;
        let ring = IoUring::new(2).map_err(say)?;
        let pieces = [libc::iovec { iov_base: page.address_mut().cast(), iov_len: page.len() }];
        // SAFETY: the page outlives the ring (it was made before, so it is dropped after), and no operation uses it.
        unsafe { ring.submitter().register_buffers(&pieces) }.map_err(say)?;
        ring.submitter().unregister_buffers().map_err(say)
    };
    match attempt() {
        Ok(()) => Ability::Yes,
        Err(reason) => Ability::No(reason),
    }
}

fn errno_of(error: &std::io::Error) -> i32 {
    error.raw_os_error().unwrap_or(0)
}

/// The settings of the system that may forbid a ring.
pub(super) struct Limits {
    /// `kernel.io_uring_disabled`: 0 allows every process, 1 a group and privileged processes, 2 none.
    pub(super) disabled: Option<String>,
    /// Whether a seccomp filter is on this thread.
    pub(super) seccomp: bool,
    /// RLIMIT_MEMLOCK in bytes; `None` is unlimited.
    pub(super) memlock_bytes_max: Option<u64>,
}

impl Limits {
    pub(super) fn here() -> Self {
        let status = read_trimmed("/proc/thread-self/status").unwrap_or_default();
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        Self {
            disabled: read_trimmed("/proc/sys/kernel/io_uring_disabled"),
            seccomp: mode.is_some_and(|mode| mode.trim() != "0"),
            memlock_bytes_max: memlock_bytes_max(),
        }
    }

    fn memlock(&self) -> String {
        match self.memlock_bytes_max {
            Some(max) => format!("RLIMIT_MEMLOCK is {max} bytes (`ulimit -l`); raise it, or allow CAP_IPC_LOCK"),
            None => "although RLIMIT_MEMLOCK is unlimited; memory is short".into(),
        }
    }
}

/// Explains the cause of a refusal of io_uring, and the remedy.
pub(super) fn refusal(errno: i32, limits: &Limits) -> String {
    const SECCOMP: &str = "a seccomp filter forbids it, as the default profiles of Docker and containerd do; \
        run with a profile that allows io_uring_setup, io_uring_enter and io_uring_register";
    let said = std::io::Error::from_raw_os_error(errno);
    match (errno, limits.disabled.as_deref()) {
        (libc::EPERM | libc::EACCES, Some("2")) => {
            "the sysctl kernel.io_uring_disabled is 2: forbidden to everyone; root may set it to 0".into()
        }
        (libc::EPERM | libc::EACCES, Some("1")) => "the sysctl kernel.io_uring_disabled is 1: only for members of the \
             group kernel.io_uring_group and with CAP_SYS_ADMIN; root may set it to 0"
            .into(),
        (libc::EPERM | libc::EACCES, _) if limits.seccomp => SECCOMP.into(),
        (libc::EPERM | libc::EACCES, _) => {
            format!(
                "refused ({said}), but neither by a sysctl nor by seccomp: see the security module (SELinux, AppArmor)"
            )
        }
        (libc::ENOSYS, _) if limits.seccomp => format!("either the kernel has no io_uring, or {SECCOMP}"),
        (libc::ENOSYS, _) => {
            "this kernel has no io_uring (before Linux 5.1, built without it, or a sandbox like gVisor)".into()
        }
        (libc::ENOMEM, _) => {
            format!("no memory for the ring; before Linux 5.12 it counts as locked: {}", limits.memlock())
        }
        (libc::EMFILE | libc::ENFILE, _) => format!("{said}: no descriptor left (`ulimit -n`)"),
        (errno, _) if errno > 0 => said.to_string(),
        _ => "it failed without an errno".into(),
    }
}

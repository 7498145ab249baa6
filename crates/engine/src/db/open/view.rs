//! What a database that is only read was opened from: its handle holds it, and `read_only` opens it anew.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use nofault_io::disk::Directory;

use crate::readers::Registration;
use crate::settings::Settings;

/// The place from which a database that is only read is opened, also again.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) settings: Settings,
}

/// The files that a database that is only read was opened from.
#[derive(Debug)]
pub(in crate::db) struct View {
    pub(super) source: Arc<Source>,
    pub(super) attempt: Attempt,
}

impl View {
    /// Ends the registration as a reader: the database is closed.
    pub(in crate::db) fn end(&self) {
        if let Some(registration) = &self.attempt.registration {
            registration.end();
        }
    }
}

/// One attempt to open a database.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) directory: Arc<dyn Directory>,
    /// None where a lock keeps processes that write out.
    pub(super) registration: Option<Arc<Registration>>,
    /// Device and inode of the data file.
    pub(super) file: (u64, u64),
    /// Length of the log's file before it was read.
    pub(super) log_bytes: Option<u64>,
    /// Locked by the handle that looks whether there is anything new: there is one registration for all clones of it.
    pub(super) looking: Mutex<()>,
}

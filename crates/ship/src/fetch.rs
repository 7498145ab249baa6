//! Reads objects ahead of their use, in order.

use std::collections::VecDeque;

use tokio::task::{JoinHandle, spawn_blocking};

use crate::error::{Error, ErrorKind, Result};
use crate::manifest::NamedObject;
use crate::object::raw_commits;
use crate::remote::Remote;

/// Objects read at a time. Each takes its length, and its length before compression, in memory.
const AHEAD: usize = 3;

/// Reads objects in order and returns the commits of each, still encoded. While one is in use, the next ones are being read; dropping this
/// ends the reading.
pub(crate) struct Fetcher {
    remote: Remote,
    objects: std::vec::IntoIter<NamedObject>,
    begun: VecDeque<JoinHandle<Result<Vec<u8>>>>,
}

impl Fetcher {
    /// Begins to read. To be called within a runtime of tokio.
    pub(crate) fn new(remote: &Remote, objects: Vec<NamedObject>) -> Self {
        let mut fetcher = Self { remote: remote.clone(), objects: objects.into_iter(), begun: VecDeque::new() };
        fetcher.begin();
        fetcher
    }

    fn begin(&mut self) {
        while self.begun.len() < AHEAD
            && let Some(object) = self.objects.next()
        {
            let remote = self.remote.clone();
            self.begun.push_back(tokio::spawn(async move {
                let bytes = object.read(&remote).await?;
                let decoded = spawn_blocking(move || raw_commits(&bytes)).await;
                decoded.map_err(|error| ended(&error))?.map_err(|error| error.met_in(&object.name))
            }));
        }
    }

    /// Returns the commits of the next object; `None` after the last.
    ///
    /// # Errors
    /// `Corrupt` when it is damaged or gone; `Store`. The next call returns the object behind it.
    pub(crate) async fn next(&mut self) -> Option<Result<Vec<u8>>> {
        let next = self.begun.front_mut()?;
        let outcome = next.await;
        self.begun.pop_front();
        self.begin();
        Some(outcome.unwrap_or_else(|error| Err(ended(&error))))
    }
}

impl Drop for Fetcher {
    fn drop(&mut self) {
        self.begun.iter().for_each(JoinHandle::abort);
    }
}

fn ended(error: &tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Closed, format!("reading an object ended: {error}"))
}

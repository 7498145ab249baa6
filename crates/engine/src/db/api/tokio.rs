//! Reads that complete on a tokio runtime (feature `tokio`): a task of the runtime takes the completions.
//!
//! The task holds no handle of the database. It ends when the database is closed; if its runtime ends before, the task is
//! dropped and a thread of the database takes the completions again.

use std::task::Poll;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

use super::completions::Completions;
use crate::db::open::handle::Db;
use crate::error::{Error, ErrorKind, Result};

impl Db {
    /// Lets the tokio runtime of the caller take the completions of reads, from now until the database is closed or the
    /// runtime ends: with one thread the reads of its tasks then complete without any other thread. The recommended
    /// set-up for a program on one runtime; one call after opening is enough. Where the disk has no descriptor to poll
    /// (no io_uring), nothing changes: a thread of the database keeps taking them.
    ///
    /// Tasks wait for their reads until the runtime polls its descriptors: a task that computes for long delays all of
    /// them, as it delays sockets. A current-thread runtime polls only inside `block_on`: tasks of other runtimes that
    /// use the same database wait for it, so let the runtime with most of the reads call this. They do not wait for ever:
    /// after 50 to 100 ms a thread of the database takes the completions, until this runtime polls again (see
    /// [`Completions`]).
    ///
    /// ```
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("shop");
    /// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
    /// #[tokio::main(flavor = "current_thread")]
    /// # async fn start(path: &std::path::Path, settings: &nofault::settings::Settings) -> nofault::error::Result<()> {
    /// let db = nofault::Db::create(path, settings).await?;
    /// db.complete_on_tokio()?;
    /// let stock = db.create_table("stock").await?;
    /// stock.put("apples", "12").await?;
    /// assert_eq!(stock.get("apples").await?.as_deref(), Some(&b"12"[..]));
    /// # Ok(())
    /// # }
    /// # start(&path, &settings)?;
    /// # Ok::<(), nofault::error::Error>(())
    /// ```
    ///
    /// # Errors
    /// `InvalidCall` outside a tokio runtime. The system's error when it does not poll the descriptor.
    ///
    /// # Panics
    /// As tokio's own sockets do when the runtime was built without `enable_io` or `enable_all`.
    pub fn complete_on_tokio(&self) -> Result<()> {
        let runtime = Handle::try_current().map_err(|error| {
            let what = format!("completions can be taken by a tokio runtime only if it is running the caller: {error}");
            Error::new(ErrorKind::InvalidCall, what)
        })?;
        let Some(completions) = self.completions() else { return Ok(()) };
        // SAFETY: the descriptor is the same, and open, for as long as `completions` lives, which the `AsyncFd` owns.
        let registered = unsafe { AsyncFd::register_with_interest(completions, Interest::READABLE) };
        let ready = registered.map_err(|error| {
            let what = format!("the runtime does not poll the descriptor of the read queue: {error}");
            Error::new(ErrorKind::Io, what)
        })?;
        runtime.spawn(take_until_closed(ready));
        Ok(())
    }
}

/// Takes completions whenever the descriptor becomes readable, until the database is closed.
async fn take_until_closed(ready: AsyncFd<Completions>) {
    std::future::poll_fn(|cx| {
        if ready.get_ref().poll_closed(cx).is_ready() {
            return Poll::Ready(());
        }
        while let Poll::Ready(guard) = ready.poll_read_ready(cx) {
            let Ok(mut guard) = guard else { return Poll::Ready(()) };
            // Cleared before they are taken: what completes in between makes it readable again.
            guard.clear_ready();
            ready.get_ref().take();
        }
        Poll::Pending
    })
    .await;
}

//! Waiting and waking: a fair semaphore for tasks and threads, a notifier for background threads, an event for tasks,
//! a mutex that tells whether it is waited for, and calls of wakers.

pub(crate) mod awaited_mutex;
pub(crate) mod event;
pub(crate) mod notifier;
pub(crate) mod semaphore;
pub(crate) mod wakers;

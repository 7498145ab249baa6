//! Waiting and waking: a fair semaphore for tasks and threads, a notifier for background threads, an event for tasks,
//! a mutex that tells whether it is waited for, and calls of wakers; how a blocking call waits ([`driver`]), when a long one lets others run
//! ([`budget`]), and the threads of background work ([`background`]).

pub(crate) mod awaited_mutex;
pub(crate) mod background;
pub(crate) mod budget;
pub(crate) mod driver;
pub(crate) mod event;
pub(crate) mod notifier;
pub(crate) mod semaphore;
pub(crate) mod wakers;

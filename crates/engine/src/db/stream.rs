//! A range as a stream of the `futures` crates (feature `stream`).

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::Range;
use crate::error::Result;

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// The next entry, and the range that has given it.
type NextEntry = Pin<Box<dyn Future<Output = (Box<Range>, Result<Option<Entry>>)> + Send>>;

/// The entries of a [`Range`] as a stream. After an error it ends. Each wait for the disk allocates once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// # let stock = db.create_table("stock").await?;
/// # stock.put("apples", "12").await?;
/// # stock.put("pears", "3").await?;
/// use futures_core::Stream;
/// use std::pin::Pin;
///
/// let mut entries = stock.range::<&str>(..).into_stream();
/// // `StreamExt::next` of the crate `futures` does the same.
/// let mut names = Vec::new();
/// while let Some(entry) = std::future::poll_fn(|context| Pin::new(&mut entries).poll_next(context)).await {
///     names.push(entry?.0);
/// }
/// assert_eq!(names, [b"apples".to_vec(), b"pears".to_vec()]);
/// # Ok(())
/// # }
/// ```
pub struct RangeStream {
    state: State,
}

enum State {
    Idle(Box<Range>),
    Waiting(NextEntry),
    Over,
}

impl Range {
    /// Returns the entries to come as a [`Stream`].
    pub fn into_stream(self) -> RangeStream {
        RangeStream { state: State::Idle(Box::new(self)) }
    }
}

impl Stream for RangeStream {
    type Item = Result<Entry>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut next = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return Poll::Ready(None),
            State::Waiting(next) => next,
            State::Idle(mut range) => {
                if let Some(entry) = range.take() {
                    self.state = State::Idle(range);
                    return Poll::Ready(Some(Ok(entry)));
                }
                Box::pin(async move {
                    let next = range.next().await;
                    (range, next)
                })
            }
        };
        match next.as_mut().poll(context) {
            Poll::Pending => {
                self.state = State::Waiting(next);
                Poll::Pending
            }
            Poll::Ready((range, next)) => {
                if let Ok(Some(_)) = next {
                    self.state = State::Idle(range);
                }
                Poll::Ready(next.transpose())
            }
        }
    }
}

impl std::fmt::Debug for RangeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeStream").finish_non_exhaustive()
    }
}

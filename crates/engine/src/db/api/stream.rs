//! Ranges and watches as streams of the `futures` crates (feature `stream`).

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;

use super::snapshot::Range;
use super::transaction_handle::TransactionRange;
use super::typed_entries::{TypedRange, TypedTransactionRange};
use super::watch::{Watch, WatchEvent};
use crate::error::Result;
use crate::typed::{Key, Value};

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// The types of this crate that an [`ItemStream`] is made of.
pub trait StreamSource: Send + 'static {
    /// An item of the stream.
    type Item;

    /// Returns the next item if that takes no wait.
    fn take_ready(&mut self) -> Option<Self::Item> {
        None
    }

    /// Waits for the next item; `None` at the end.
    fn next_item(&mut self) -> impl Future<Output = Result<Option<Self::Item>>> + Send;
}

/// A wait for the next item: returns that, and the source it comes from.
type NextItem<S> = Pin<Box<dyn Future<Output = (Box<S>, Result<Option<<S as StreamSource>::Item>>)> + Send>>;

/// The items of a range, or the events of a watch, as a [`Stream`]. After an error it ends. Each wait allocates once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), nofault::error::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// # let settings = nofault::settings::Settings { cache_bytes: 16 << 20, log_bytes: 1 << 20, ..Default::default() };
/// # let db = nofault::Db::create(folder.path().join("shop"), &settings).await?;
/// use futures_core::Stream;
/// use std::pin::Pin;
///
/// /// `StreamExt::next` of the crate `futures`.
/// async fn next<S: Stream + Unpin>(stream: &mut S) -> Option<S::Item> {
///     std::future::poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
/// }
///
/// let stock = db.create_typed_table::<String, u32>("stock").await?;
/// let mut events = stock.watch().await?.into_stream();
/// stock.put("apples", &12).await?;
/// stock.put("pears", &3).await?;
/// let mut entries = stock.iter().into_stream();
/// let mut found = Vec::new();
/// while let Some(entry) = next(&mut entries).await {
///     found.push(entry?);
/// }
/// assert_eq!(found, [("apples".to_string(), 12), ("pears".to_string(), 3)]);
///
/// db.drop_table("stock").await?;
/// let mut commits = 0;
/// while let Some(event) = next(&mut events).await {
///     event?;
///     commits += 1;
/// }
/// assert_eq!(commits, 3);
/// # Ok(())
/// # }
/// ```
pub struct ItemStream<S: StreamSource> {
    state: State<S>,
}

enum State<S: StreamSource> {
    Idle(Box<S>),
    Waiting(NextItem<S>),
    Over,
}

impl<S: StreamSource> ItemStream<S> {
    fn new(source: S) -> Self {
        Self { state: State::Idle(Box::new(source)) }
    }
}

impl<S: StreamSource> Stream for ItemStream<S> {
    type Item = Result<S::Item>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let mut next: NextItem<S> = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return Poll::Ready(None),
            State::Waiting(next) => next,
            State::Idle(mut source) => {
                if let Some(item) = source.take_ready() {
                    self.state = State::Idle(source);
                    return Poll::Ready(Some(Ok(item)));
                }
                Box::pin(async move {
                    let next = source.next_item().await;
                    (source, next)
                })
            }
        };
        match next.as_mut().poll(context) {
            Poll::Pending => {
                self.state = State::Waiting(next);
                Poll::Pending
            }
            Poll::Ready((source, next)) => {
                if let Ok(Some(_)) = next {
                    self.state = State::Idle(source);
                }
                Poll::Ready(next.transpose())
            }
        }
    }
}

impl<S: StreamSource> std::fmt::Debug for ItemStream<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ItemStream").finish_non_exhaustive()
    }
}

impl StreamSource for Range {
    type Item = Entry;

    fn take_ready(&mut self) -> Option<Entry> {
        self.take()
    }

    fn next_item(&mut self) -> impl Future<Output = Result<Option<Entry>>> + Send {
        self.next()
    }
}

impl Range {
    /// Returns the entries to come as a [`Stream`].
    pub fn into_stream(self) -> ItemStream<Self> {
        ItemStream::new(self)
    }
}

impl StreamSource for TransactionRange {
    type Item = Entry;

    fn next_item(&mut self) -> impl Future<Output = Result<Option<Entry>>> + Send {
        self.next()
    }
}

impl TransactionRange {
    /// Returns the entries to come as a [`Stream`].
    pub fn into_stream(self) -> ItemStream<Self> {
        ItemStream::new(self)
    }
}

impl<K: Key + 'static, V: Value + 'static> StreamSource for TypedRange<K, V> {
    type Item = (K, V::Item);

    fn next_item(&mut self) -> impl Future<Output = Result<Option<Self::Item>>> + Send {
        self.next()
    }
}

impl<K: Key + 'static, V: Value + 'static> TypedRange<K, V> {
    /// Returns the entries to come as a [`Stream`].
    pub fn into_stream(self) -> ItemStream<Self> {
        ItemStream::new(self)
    }
}

impl<K: Key + 'static, V: Value + 'static> StreamSource for TypedTransactionRange<K, V> {
    type Item = (K, V::Item);

    fn next_item(&mut self) -> impl Future<Output = Result<Option<Self::Item>>> + Send {
        self.next()
    }
}

impl<K: Key + 'static, V: Value + 'static> TypedTransactionRange<K, V> {
    /// Returns the entries to come as a [`Stream`].
    pub fn into_stream(self) -> ItemStream<Self> {
        ItemStream::new(self)
    }
}

impl StreamSource for Watch {
    type Item = WatchEvent;

    fn next_item(&mut self) -> impl Future<Output = Result<Option<WatchEvent>>> + Send {
        self.next()
    }
}

impl Watch {
    /// Returns the events to come as a [`Stream`].
    pub fn into_stream(self) -> ItemStream<Self> {
        ItemStream::new(self)
    }
}

//! Requests to an object store, repeated until they are done: names below the prefix, pauses, time-outs.
//!
//! A request that fails may have been carried out all the same. Every request here may be made twice: an object is written once under
//! a name that nothing else has, with the same bytes each time, and removing twice is removing. Only the manifest is written again under
//! the same name; `manifest` deals with that.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use object_store::path::Path;
use object_store::{
    Error as StoreError, GetOptions, GetRange, ObjectStore, ObjectStoreExt as _, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};

use crate::error::{Error, ErrorKind, Result, cause_in_system, kind_of_system};
use crate::names::FOLDER_STORE;

/// A request that moves this many bytes gets a second more before it counts as failed: the slowest link that is expected.
const BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// When a request is made again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Pause before the second attempt; each further one is twice as long.
    pub(crate) first: Duration,
    /// Longest pause.
    pub(crate) longest: Duration,
    /// Time after which a request counts as failed, besides that for its bytes.
    pub(crate) timeout: Duration,
    /// Number of attempts; `None` for as many as it takes.
    pub(crate) attempts: Option<u32>,
    /// Time after which there is no further attempt where their number has a limit. A lock that others hold is waited for so long, however many attempts that
    /// takes.
    pub(crate) limit: Duration,
}

impl Patience {
    /// Returns the pause after this number of attempts.
    fn pause(&self, attempts: u32) -> Duration {
        self.first.saturating_mul(1 << attempts.saturating_sub(1).min(16)).min(self.longest)
    }
}

/// Counts of requests, and the error of the last one while it is made again.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) trouble: Mutex<Option<Error>>,
    pub(crate) requests: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) objects_put: AtomicU64,
    pub(crate) bytes_put: AtomicU64,
}

/// The objects of one name in a store.
#[derive(Debug, Clone)]
pub(crate) struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    patience: Patience,
    counts: Arc<Counts>,
}

/// An object as a list has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ListedObject {
    pub(crate) name: String,
    pub(crate) bytes: u64,
}

/// A request, which may be made several times.
enum Request<'r> {
    Put(PutPayload, PutMode),
    /// With the number of bytes that the object should have.
    Get(u64),
    /// The first bytes.
    Head(u64),
    /// Not if the object is still as this tag tells.
    GetUnless(Option<String>),
    Delete,
    List(&'r Path),
}

/// The result of a request.
enum Answer {
    Put(UpdateVersion),
    Got(Vec<u8>, UpdateVersion),
    NotModified,
    Deleted,
    List(Vec<ListedObject>),
}

impl Remote {
    /// Creates the remote for a name.
    ///
    /// # Errors
    /// `InvalidCall` for an empty name, or one that is no path.
    pub(crate) fn new(store: Arc<dyn ObjectStore>, name: &str, patience: Patience) -> Result<Self> {
        let prefix = Path::parse(name)
            .map_err(|error| Error::new(ErrorKind::InvalidCall, format!("the name {name:?} is no path: {error}")))?;
        if prefix.as_ref().is_empty() {
            return Err(Error::new(ErrorKind::InvalidCall, "the name under which a database is shipped is empty"));
        }
        Ok(Self { store, prefix, patience, counts: Arc::default() })
    }

    /// Returns the same remote, with another number of attempts.
    pub(crate) fn with_attempts(&self, attempts: Option<u32>) -> Self {
        Self { patience: Patience { attempts, ..self.patience }, ..self.clone() }
    }

    /// Returns the store, and the name in it.
    pub(crate) fn place(&self) -> (Arc<dyn ObjectStore>, String) {
        (Arc::clone(&self.store), self.prefix.to_string())
    }

    pub(crate) fn counts(&self) -> &Arc<Counts> {
        &self.counts
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.prefix))
    }

    /// Writes an object, whether or not it is there.
    pub(crate) async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<()> {
        let request = Request::Put(PutPayload::from(bytes), PutMode::Overwrite);
        self.repeat(name, &request).await.map(drop)
    }

    /// Makes one attempt to write an object in this mode. Returns its version.
    pub(crate) async fn try_put(
        &self,
        name: &str,
        bytes: Vec<u8>,
        mode: PutMode,
    ) -> std::result::Result<UpdateVersion, StoreError> {
        match self.once(name, &Request::Put(PutPayload::from(bytes), mode)).await? {
            Answer::Put(version) => Ok(version),
            _ => Ok(UpdateVersion { e_tag: None, version: None }),
        }
    }

    /// Reads an object of about `bytes` bytes and its version; `None` if it is not there.
    pub(crate) async fn find(&self, name: &str, bytes: u64) -> Result<Option<(Vec<u8>, UpdateVersion)>> {
        match self.repeat(name, &Request::Get(bytes)).await? {
            Some(Answer::Got(bytes, version)) => Ok(Some((bytes, version))),
            _ => Ok(None),
        }
    }

    /// Reads an object unless it is still the one of this version; `None` then.
    ///
    /// # Errors
    /// `NotFound` when it is not there.
    pub(crate) async fn get_newer(
        &self,
        name: &str,
        known: Option<&UpdateVersion>,
    ) -> Result<Option<(Vec<u8>, UpdateVersion)>> {
        let request = Request::GetUnless(known.and_then(|known| known.e_tag.clone()));
        match self.repeat(name, &request).await? {
            Some(Answer::Got(bytes, version)) => Ok(Some((bytes, version))),
            Some(Answer::NotModified) => Ok(None),
            _ => Err(self.missing(name)),
        }
    }

    /// Reads the first bytes of an object that is not empty; `None` if it is not there.
    pub(crate) async fn head(&self, name: &str, bytes: u64) -> Result<Option<Vec<u8>>> {
        match self.repeat(name, &Request::Head(bytes)).await? {
            Some(Answer::Got(bytes, _)) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    fn missing(&self, name: &str) -> Error {
        Error::new(ErrorKind::NotFound, format!("there is no object {}", self.path(name)))
    }

    /// Reads an object of `bytes` bytes that a manifest, or a list, names.
    ///
    /// # Errors
    /// `Corrupt` when it is gone.
    pub(crate) async fn get(&self, name: &str, bytes: u64) -> Result<Vec<u8>> {
        let gone = || Error::corrupt(format!("object {} is gone", self.path(name)));
        Ok(self.find(name, bytes).await?.ok_or_else(gone)?.0)
    }

    /// Removes an object, if it is there.
    pub(crate) async fn delete(&self, name: &str) -> Result<()> {
        self.repeat(name, &Request::Delete).await.map(drop)
    }

    /// Returns all objects.
    pub(crate) async fn list(&self) -> Result<Vec<ListedObject>> {
        match self.repeat("", &Request::List(&self.prefix)).await? {
            Some(Answer::List(listed)) => Ok(listed),
            _ => Ok(Vec::new()),
        }
    }

    /// Returns whether a request has had its last attempt, which ended with this error. There is no other one for an error that does not pass by itself.
    pub(crate) fn is_over(&self, attempt: u32, begun: Instant, error: &StoreError) -> bool {
        let Patience { attempts, limit, .. } = self.patience;
        let is_counted = kind_of(error) != ErrorKind::Busy;
        attempts.is_some_and(|most| is_refusal(error) || begun.elapsed() >= limit || (is_counted && attempt >= most))
    }

    /// Makes a request until it is done. `None` when the object is not there.
    async fn repeat(&self, name: &str, request: &Request<'_>) -> Result<Option<Answer>> {
        let (mut attempt, begun) = (0, Instant::now());
        loop {
            attempt += 1;
            match self.once(name, request).await {
                Ok(answer) => return Ok(Some(answer)),
                Err(StoreError::NotFound { .. }) if !matches!(request, Request::Put(..)) => return Ok(None),
                Err(StoreError::NotModified { .. }) => return Ok(Some(Answer::NotModified)),
                Err(error) if is_final_for(request, &error) || self.is_over(attempt, begun, &error) => {
                    return Err(failed(&self.path(name), &error));
                }
                Err(_) => self.pause(attempt).await,
            }
        }
    }

    /// Pauses after this number of attempts.
    pub(crate) async fn pause(&self, attempts: u32) {
        tokio::time::sleep(self.patience.pause(attempts)).await;
    }

    async fn once(&self, name: &str, request: &Request<'_>) -> std::result::Result<Answer, StoreError> {
        let bytes = match request {
            Request::Put(payload, _) => payload.content_length() as u64,
            Request::Get(bytes) | Request::Head(bytes) => *bytes,
            Request::GetUnless(_) | Request::Delete | Request::List(_) => 0,
        };
        let limit = self.patience.timeout.saturating_add(Duration::from_secs(bytes / BYTES_PER_SECOND_MIN));
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        let outcome = match tokio::time::timeout(limit, self.send(&self.path(name), request)).await {
            Ok(outcome) => outcome,
            Err(late) => Err(StoreError::Generic { store: "nofault-ship", source: Box::new(late) }),
        };
        match (&outcome, request) {
            (Ok(_), Request::Put(..)) => {
                self.counts.objects_put.fetch_add(1, Ordering::Relaxed);
                self.counts.bytes_put.fetch_add(bytes, Ordering::Relaxed);
            }
            (Err(error), _) if !is_final_for(request, error) => {
                self.counts.failed.fetch_add(1, Ordering::Relaxed);
                *self.counts.trouble.lock().unwrap_or_else(PoisonError::into_inner) =
                    Some(failed(&self.path(name), error));
                return outcome;
            }
            _ => {}
        }
        *self.counts.trouble.lock().unwrap_or_else(PoisonError::into_inner) = None;
        outcome
    }

    async fn send(&self, path: &Path, request: &Request<'_>) -> std::result::Result<Answer, StoreError> {
        match request {
            Request::Put(payload, mode) => {
                let options = PutOptions::from(mode.clone());
                let put = self.store.put_opts(path, payload.clone(), options).await?;
                Ok(Answer::Put(UpdateVersion { e_tag: put.e_tag, version: put.version }))
            }
            Request::Get(_) | Request::GetUnless(_) | Request::Head(_) => {
                let tag = if let Request::GetUnless(tag) = request { tag.clone() } else { None };
                let range = if let Request::Head(bytes) = request { Some(GetRange::Bounded(0..*bytes)) } else { None };
                let options = GetOptions { if_none_match: tag, range, ..GetOptions::default() };
                let found = self.store.get_opts(path, options).await?;
                let version = UpdateVersion { e_tag: found.meta.e_tag.clone(), version: found.meta.version.clone() };
                Ok(Answer::Got(found.bytes().await?.to_vec(), version))
            }
            Request::Delete => self.store.delete(path).await.map(|()| Answer::Deleted),
            Request::List(prefix) => {
                let (mut stream, mut listed) = (self.store.list(Some(prefix)), Vec::new());
                let start = format!("{prefix}/");
                while let Some(found) = poll_fn(|context| stream.as_mut().poll_next(context)).await.transpose()? {
                    let name = found.location.as_ref().strip_prefix(&start);
                    listed.extend(name.map(|name| ListedObject { name: name.to_owned(), bytes: found.size }));
                }
                Ok(Answer::List(listed))
            }
        }
    }
}

/// Creates the error for a request that failed and is not made again.
pub(crate) fn failed(path: &Path, error: &StoreError) -> Error {
    let what = format!("the store, object {path}");
    // A folder's error names the file, which may be another one.
    if let StoreError::Generic { store: FOLDER_STORE, source } = error
        && kind_of(error) != ErrorKind::NoResources
    {
        return Error::new(kind_of(error), format!("the store: {source}"));
    }
    match (kind_of(error), cause_in_system(error)) {
        (kind @ ErrorKind::NoResources, Some(cause)) => Error::of_system(what, cause, kind),
        (kind, _) => Error::new(kind, format!("{what}: {error}")),
    }
}

/// Returns the kind of an error of a store, whose cause in the system counts first.
fn kind_of(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::NotFound { .. } => ErrorKind::NotFound,
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => ErrorKind::Unsupported,
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => ErrorKind::NoPermission,
        error => cause_in_system(error).and_then(kind_of_system).unwrap_or(ErrorKind::Store),
    }
}

/// Returns whether the cause of an error does not pass by itself: rights, a wrong place, a file system that cannot be written, a limit of the process. A person may mend
/// it, and a key may be renewed, so a shipper that has begun tries on all the same.
fn is_refusal(error: &StoreError) -> bool {
    matches!(kind_of(error), ErrorKind::Refused | ErrorKind::NoPermission | ErrorKind::NoResources)
}

/// Returns whether another attempt of this request has the same outcome. A put without a condition is refused only for a time: by a
/// conflict with another request, or where the bucket cannot be seen.
fn is_final_for(request: &Request<'_>, error: &StoreError) -> bool {
    let for_a_time = matches!(
        error,
        StoreError::NotFound { .. } | StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }
    );
    is_final(error) && !(for_a_time && matches!(request, Request::Put(_, PutMode::Overwrite)))
}

/// Returns whether another attempt has the same outcome.
pub(crate) fn is_final(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NotFound { .. }
            | StoreError::AlreadyExists { .. }
            | StoreError::Precondition { .. }
            | StoreError::NotModified { .. }
            | StoreError::NotSupported { .. }
            | StoreError::NotImplemented { .. }
            | StoreError::InvalidPath { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_of_an_error_of_a_folder_is_the_one_of_its_cause() {
        use std::io::{Error as IoError, ErrorKind as Io};

        // As `LocalFileSystem` hides it, behind its private error.
        #[derive(Debug)]
        struct Hiding(IoError);
        impl std::fmt::Display for Hiding {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "Unable to do it: {}", self.0)
            }
        }
        impl std::error::Error for Hiding {
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                Some(&self.0)
            }
        }
        // ENOTDIR, EISDIR, ENAMETOOLONG, EACCES, EROFS, ENOSPC, EDQUOT, EFBIG, EMFILE, ENFILE, ENOMEM, EIO.
        let of_system = [
            (ErrorKind::Refused, &[20, 21, 36][..]),
            (ErrorKind::NoPermission, &[13, 30]),
            (ErrorKind::NoSpace, &[28, 122, 27]),
            (ErrorKind::NoResources, &[24, 23, 12]),
            (ErrorKind::Store, &[5]),
        ];
        let of_system = of_system.iter().flat_map(|(kind, numbers)| numbers.iter().map(|number| (*kind, *number)));
        let of_system = of_system.map(|(kind, number)| (kind, IoError::from_raw_os_error(number)));
        let others = [
            (ErrorKind::Busy, IoError::new(Io::WouldBlock, "another process holds the lock")),
            (ErrorKind::Store, Io::ConnectionReset.into()),
        ];
        for (kind, error) in of_system.chain(others) {
            let what = error.to_string();
            let error = StoreError::Generic { store: "s", source: Box::new(Hiding(error)) };
            let is_refused = matches!(kind, ErrorKind::Refused | ErrorKind::NoPermission | ErrorKind::NoResources);
            let failed = failed(&"x".into(), &error);
            assert_eq!((failed.kind(), is_refusal(&error)), (kind, is_refused), "{what}");
            assert!(failed.to_string().contains(&what), "{failed}");
            let is_told = failed.to_string().contains("raise");
            assert_eq!(is_told, kind == ErrorKind::NoResources, "{failed}");
        }
        assert!(is_refusal(&StoreError::PermissionDenied { path: "x".into(), source: "no".into() }));
    }

    #[test]
    fn pauses_between_attempts_double_up_to_the_longest() {
        let ms = Duration::from_millis;
        let patience = Patience { first: ms(50), longest: ms(10_000), timeout: ms(1), attempts: None, limit: ms(1) };
        let pauses: Vec<_> = (1..=4).map(|attempts| patience.pause(attempts)).collect();
        assert_eq!(pauses, [ms(50), ms(100), ms(200), ms(400)]);
        assert_eq!([9, 40, u32::MAX].map(|attempts| patience.pause(attempts)), [ms(10_000); 3]);
    }
}

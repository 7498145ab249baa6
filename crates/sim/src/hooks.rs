//! A directory and disks that stand before others and ask a test's hooks: to count calls, to pause or refuse them, to
//! change their results, or to answer instead.
//!
//! A call without a hook goes on unchanged. Every operation passes the hooks of [`Hooks::push`] and [`Hooks::reap`]:
//! `Disk::perform`, `Queue::run`, `Directory::read_text` and `write_text` are made of these here.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use nofault_io::completion::{Completion, Op};
use nofault_io::disk::{Directory, Disk, DiskInfo, FileLock, Queue, QueueOptions, ReaderWatch, RefusedOp, describe_op};
use nofault_io::error::{Error, ErrorKind, Result};

type Pushed = std::result::Result<(), RefusedOp>;
type Hook<F> = Option<Box<F>>;

/// The hooks of a directory or a disk. Each but [`Hooks::each`] is given the queue, disk or directory behind it, and carries the
/// call out with it, or not.
///
/// They are dropped after the last directory, disk, queue and lock that was opened through them.
#[derive(Default)]
#[expect(clippy::type_complexity, reason = "the names of the fields say what the closures are")]
pub struct Hooks {
    file: Option<&'static str>,
    each: Hook<dyn Fn() -> bool + Send + Sync>,
    push: Hook<dyn Fn(&mut dyn Queue, Op) -> Pushed + Send + Sync>,
    submit: Hook<dyn Fn(&mut dyn Queue) -> Result<()> + Send + Sync>,
    reap: Hook<dyn Fn(&mut dyn Queue, usize, &mut Vec<Completion>) -> Result<()> + Send + Sync>,
    len_bytes: Hook<dyn Fn(&dyn Disk) -> Result<u64> + Send + Sync>,
    rename: Hook<dyn Fn(&dyn Directory, &str, &str) -> Result<()> + Send + Sync>,
    lock: Hook<dyn Fn(&dyn Directory, &str, &str) -> Result<Box<dyn FileLock>> + Send + Sync>,
}

impl Hooks {
    /// Returns no hooks at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Restricts the hooks of disks to the disk of this name in a directory.
    #[must_use]
    pub fn on(self, file: &'static str) -> Self {
        Self { file: Some(file), ..self }
    }

    /// Sets the hook before each call, and after completions: it may count, pause or panic. Once it returns false, the
    /// process is treated as killed: calls fail with `Stopped` and so do operations that have completed, while the disk keeps
    /// all that it was given.
    #[must_use]
    pub fn each(self, hook: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self { each: Some(Box::new(hook)), ..self }
    }

    /// Sets the hook in place of `Queue::push`.
    #[must_use]
    pub fn push(self, hook: impl Fn(&mut dyn Queue, Op) -> Pushed + Send + Sync + 'static) -> Self {
        Self { push: Some(Box::new(hook)), ..self }
    }

    /// Sets the hook in place of `Queue::submit`.
    #[must_use]
    pub fn submit(self, hook: impl Fn(&mut dyn Queue) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { submit: Some(Box::new(hook)), ..self }
    }

    /// Sets the hook in place of `Queue::reap`.
    #[must_use]
    pub fn reap(
        self,
        hook: impl Fn(&mut dyn Queue, usize, &mut Vec<Completion>) -> Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self { reap: Some(Box::new(hook)), ..self }
    }

    /// Sets the hook in place of `Disk::len_bytes`.
    #[must_use]
    pub fn len_bytes(self, hook: impl Fn(&dyn Disk) -> Result<u64> + Send + Sync + 'static) -> Self {
        Self { len_bytes: Some(Box::new(hook)), ..self }
    }

    /// Sets the hook in place of `Directory::rename`.
    #[must_use]
    pub fn rename(self, hook: impl Fn(&dyn Directory, &str, &str) -> Result<()> + Send + Sync + 'static) -> Self {
        Self { rename: Some(Box::new(hook)), ..self }
    }

    /// Sets the hook in place of `Directory::lock`.
    #[must_use]
    pub fn lock(
        self,
        hook: impl Fn(&dyn Directory, &str, &str) -> Result<Box<dyn FileLock>> + Send + Sync + 'static,
    ) -> Self {
        Self { lock: Some(Box::new(hook)), ..self }
    }

    /// Returns a disk that asks these hooks before it uses `inner`.
    pub fn disk(self, inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
        Arc::new(Layer { inner, hooks: Arc::new(self) })
    }

    /// Returns a directory that asks these hooks before it uses `inner` and its disks.
    pub fn directory(self, inner: Arc<dyn Directory>) -> Arc<dyn Directory> {
        Arc::new(Layer { inner, hooks: Arc::new(self) })
    }

    fn call(&self, action: impl FnOnce() -> String) -> Result<()> {
        match &self.each {
            Some(hook) if !hook() => Err(Error::new(ErrorKind::Stopped, action(), "this process was killed")),
            _ => Ok(()),
        }
    }

    fn is_of_disk(&self, name: &str) -> bool {
        let has_any = self.each.is_some()
            || self.push.is_some()
            || self.submit.is_some()
            || self.reap.is_some()
            || self.len_bytes.is_some();
        has_any && self.file.is_none_or(|file| file == name)
    }
}

/// A directory, disk, queue or lock, and the hooks before it, which are dropped after it.
struct Layer<T> {
    inner: T,
    hooks: Arc<Hooks>,
}

impl<T> Layer<T> {
    fn with<U>(&self, inner: U) -> Layer<U> {
        Layer { inner, hooks: Arc::clone(&self.hooks) }
    }

    fn call(&self, action: &str) -> Result<()> {
        self.hooks.call(|| action.to_owned())
    }
}

impl<T: fmt::Debug> fmt::Debug for Layer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Layer<Arc<dyn Directory>> {
    fn disk(&self, name: &str, disk: Arc<dyn Disk>) -> Arc<dyn Disk> {
        if self.hooks.is_of_disk(name) { Arc::new(self.with(disk)) } else { disk }
    }
}

impl Directory for Layer<Arc<dyn Directory>> {
    fn create(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.call("create")?;
        self.inner.create(name).map(|disk| self.disk(name, disk))
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Disk>> {
        self.call("open")?;
        self.inner.open(name).map(|disk| self.disk(name, disk))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.call("rename")?;
        match &self.hooks.rename {
            Some(hook) => hook(&*self.inner, from, to),
            None => self.inner.rename(from, to),
        }
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.call("remove")?;
        self.inner.remove(name)
    }

    fn list(&self) -> Result<Vec<String>> {
        self.call("list")?;
        self.inner.list()
    }

    fn sync(&self) -> Result<()> {
        self.call("sync the directory")?;
        self.inner.sync()
    }

    fn lock(&self, name: &str, signed: &str) -> Result<Box<dyn FileLock>> {
        let lock = match &self.hooks.lock {
            Some(hook) => hook(&*self.inner, name, signed)?,
            None => self.inner.lock(name, signed)?,
        };
        Ok(Box::new(self.with(lock)))
    }

    fn sign(&self, name: &str) -> Result<Box<dyn FileLock>> {
        self.inner.sign(name).map(|lock| Box::new(self.with(lock)) as Box<dyn FileLock>)
    }
}

impl FileLock for Layer<Box<dyn FileLock>> {
    fn check(&self, name: &str) -> Result<()> {
        self.inner.check(name)
    }

    fn id(&self) -> Option<(u64, u64)> {
        self.inner.id()
    }

    fn readers(&self, record: &str) -> Result<Option<Arc<dyn ReaderWatch>>> {
        self.inner.readers(record)
    }
}

impl Disk for Layer<Arc<dyn Disk>> {
    fn info(&self) -> DiskInfo {
        self.inner.info()
    }

    fn len_bytes(&self) -> Result<u64> {
        self.call("find the length")?;
        match &self.hooks.len_bytes {
            Some(hook) => hook(&*self.inner),
            None => self.inner.len_bytes(),
        }
    }

    fn extent_bytes(&self) -> Result<u64> {
        self.call("find the length")?;
        self.inner.extent_bytes()
    }

    fn truncate(&self, len_bytes: u64) -> Result<()> {
        self.call("truncate")?;
        self.inner.truncate(len_bytes)
    }

    fn queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        self.call("open a queue")?;
        Ok(Box::new(self.with(self.inner.queue(options)?)))
    }
}

impl Queue for Layer<Box<dyn Queue>> {
    fn push(&mut self, op: Op) -> Pushed {
        if let Err(error) = self.hooks.call(|| describe_op(&op)) {
            return Err(RefusedOp { op, error });
        }
        match &self.hooks.push {
            Some(hook) => hook(&mut *self.inner, op),
            None => self.inner.push(op),
        }
    }

    fn submit(&mut self) -> Result<()> {
        self.call("submit")?;
        match &self.hooks.submit {
            Some(hook) => hook(&mut *self.inner),
            None => self.inner.submit(),
        }
    }

    fn reap(&mut self, wait_for: usize, into: &mut Vec<Completion>) -> Result<()> {
        let before = into.len();
        let reaped = match &self.hooks.reap {
            Some(hook) => hook(&mut *self.inner, wait_for, into),
            None => self.inner.reap(wait_for, into),
        };
        if !into[before..].is_empty() && self.hooks.call(String::new).is_err() {
            // The operations completed, but a killed process gets no completions.
            for completion in &mut into[before..] {
                let error = Error::new(ErrorKind::Stopped, describe_op(&completion.op), "this process was killed");
                completion.result = Err(error);
            }
        }
        reaped
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn ready_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.ready_fd()
    }

    fn end_watch(&mut self) {
        self.inner.end_watch();
    }
}

//! The writing side of a shipper: the remote, the manifest that it has written last, and names that no other object has.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use crate::error::{Error, ErrorKind, Result};
use crate::manifest::{Current, Manifest, hex};
use crate::options::ShipOptions;
use crate::remote::Remote;

/// The name of the object with which a shipper finds out whether a store keeps to conditions.
pub(crate) const PROBE: &str = "probe";

/// Attempts to take a name over from a shipper that advances its manifest meanwhile. Each takes two requests, as many as the other
/// one needs to advance.
const TAKEOVERS_MAX: u32 = 100;

/// The writing side of a shipper.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) remote: Remote,
    pub(crate) options: ShipOptions,
    pub(crate) current: Current,
    /// The number of this shipper, which no other has, in hexadecimal.
    id: String,
    /// Number of objects that it has named.
    objects: u64,
}

impl Writer {
    /// Takes a name over: from now on no other writer changes its manifest. Also returns the names of the objects that were there before
    /// that.
    ///
    /// # Errors
    /// The errors of the store; `Fenced` when others take it over at the same time, again and again.
    pub(crate) async fn begin(remote: Remote, options: ShipOptions) -> Result<(Self, Vec<String>)> {
        let id = hex(RandomState::new().build_hasher().finish());
        for _ in 0..TAKEOVERS_MAX {
            // First the objects and then the manifest: see `upkeep::remove_orphans`.
            let present = remote.list().await?;
            let current = Current::find(&remote).await?.unwrap_or_else(Current::new);
            let mut writer =
                Self { remote: remote.clone(), options: options.clone(), current, id: id.clone(), objects: 0 };
            match writer.advance(|manifest| manifest.writer.clone_from(&id)).await {
                Ok(()) => return Ok((writer, present)),
                // The shipper that is to be fenced was faster.
                Err(error) if error.kind() == ErrorKind::Fenced => {}
                Err(error) => return Err(error),
            }
        }
        let what = "other shippers advance the manifest of this name all the time: end them first";
        Err(Error::new(ErrorKind::Fenced, what))
    }

    /// Replaces the manifest. See [`Current::advance`].
    pub(crate) async fn advance(&mut self, change: impl FnOnce(&mut Manifest)) -> Result<()> {
        self.current.advance(&self.remote, self.options.single_writer, change).await
    }

    /// Returns the number of this shipper.
    pub(crate) fn id(&self) -> String {
        self.id.clone()
    }

    /// Makes a name for a piece of the log.
    pub(crate) fn log_name(&mut self, last: u64) -> String {
        self.objects += 1;
        format!("log/{last:020}-{}-{}", self.id, self.objects)
    }

    /// Makes a name for a base, which its parts go on from.
    pub(crate) fn base_name(&mut self) -> String {
        self.objects += 1;
        format!("base/{}-{}", self.id, self.objects)
    }
}

/// Makes the name of a part of a base.
pub(crate) fn part_name(base: &str, part: usize) -> String {
    format!("{base}/{part:06}")
}

/// Returns whether an object has a name as shippers make them. Others under the same prefix are not theirs.
pub(crate) fn is_of_a_shipper(name: &str) -> bool {
    let number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let id = |text: &str| text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let pieces = |text: &str| text.split('-').map(str::to_owned).collect::<Vec<_>>();
    match name.split('/').collect::<Vec<_>>()[..] {
        ["log", log] => match &pieces(log)[..] {
            [last, writer, count] => last.len() == 20 && number(last) && id(writer) && number(count),
            _ => false,
        },
        ["base", base, part] => match &pieces(base)[..] {
            [writer, count] => id(writer) && number(count) && number(part),
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_that_shippers_make_are_theirs() {
        let log = format!("log/{:020}-{}-17", 5, hex(77));
        let base = format!("base/{}-3", hex(u64::MAX));
        assert!(
            is_of_a_shipper(&log)
                && is_of_a_shipper(&part_name(&base, 0))
                && is_of_a_shipper(&part_name(&base, 9_999_999))
        );
        let nested = format!("eu/{log}");
        for other in [
            "manifest",
            "probe",
            "log",
            "log/manifest",
            "log/1-2-3",
            "base/manifest",
            "base/a-1/000000",
            "",
            &base,
            &nested,
        ] {
            assert!(!is_of_a_shipper(other), "{other}");
        }
    }
}

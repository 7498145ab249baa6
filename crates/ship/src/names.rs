//! The names of objects below the prefix of a database.
//!
//! A name says the purpose of an object and never proves to which history it belongs: its label does (`label`), and a manifest's own content.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

/// The name of the manifest.
pub(crate) const MANIFEST: &str = "manifest";
/// The name of a manifest that could not be read, kept by the rebuilding that replaced it.
pub(crate) const DAMAGED_MANIFEST: &str = "manifest-damaged";
/// The name of the object with which a shipper finds out whether a store keeps to conditions.
pub(crate) const PROBE: &str = "probe";

/// The name of the store of a folder in its errors, which name the file by themselves.
pub(crate) const FOLDER_STORE: &str = "folder";

/// Makes the name of a copy of the manifest with this sequence number.
pub(crate) fn copy_name(sequence: u64, history: &str) -> String {
    format!("{MANIFEST}-{sequence:020}-{history}")
}

/// Returns the sequence number and the history of a copy of the manifest; `None` for any other name.
pub(crate) fn parse_copy(name: &str) -> Option<(u64, &str)> {
    let (sequence, history) = name.strip_prefix(MANIFEST)?.strip_prefix('-')?.split_once('-')?;
    if sequence.len() != 20 || !is_number(sequence) || !is_id(history) {
        return None;
    }
    Some((sequence.parse().ok()?, history))
}

/// Makes the name of a part of a base.
pub(crate) fn part_name(base: &str, part: usize) -> String {
    format!("{base}/{part:06}")
}

/// Returns the shipper that wrote an object, in hexadecimal, if the name is as shippers make them. Other objects under the same prefix
/// are not theirs.
pub(crate) fn shipper_of(name: &str) -> Option<&str> {
    let mut parts = name.split('/');
    let (kind, first, part) = (parts.next()?, parts.next()?, parts.next());
    let mut pieces = first.split('-');
    if kind == "log" {
        pieces.next().filter(|last| last.len() == 20 && is_number(last))?;
    }
    let (writer, count) = (pieces.next()?, pieces.next()?);
    let is_whole = parts.next().is_none() && pieces.next().is_none() && is_id(writer) && is_number(count);
    let has_its_parts = match kind {
        "log" => part.is_none(),
        "base" => part.is_some_and(is_number),
        _ => false,
    };
    (is_whole && has_its_parts).then_some(writer)
}

/// Returns the last commit of a piece of the log by its name.
pub(crate) fn last_of_log(name: &str) -> Option<u64> {
    shipper_of(name)?;
    name.strip_prefix("log/")?.split('-').next()?.parse().ok()
}

/// Returns whether an object is the first part of a base by its name.
pub(crate) fn is_first_part(name: &str) -> bool {
    shipper_of(name).is_some() && name.rsplit_once('/').is_some_and(|(base, _)| name == part_name(base, 0))
}

/// Makes a number that no shipper and no history has, in hexadecimal.
pub(crate) fn random_id() -> String {
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn is_id(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_names_that_shippers_make_are_theirs() {
        let id = format!("{:016x}", 77);
        let log = format!("log/{:020}-{id}-17", 5);
        let base = format!("base/{:016x}-3", u64::MAX);
        assert_eq!(shipper_of(&log), Some(&*id));
        assert_eq!((last_of_log(&log), last_of_log(&part_name(&base, 0)), last_of_log("log/5")), (Some(5), None, None));
        assert_eq!([0, 1].map(|part| is_first_part(&part_name(&base, part))), [true, false]);
        for part in [0, 9_999_999] {
            assert_eq!(shipper_of(&part_name(&base, part)), Some(&*format!("{:016x}", u64::MAX)));
        }
        let (nested, copy, longer) = (format!("eu/{log}"), copy_name(3, &id), format!("{log}/000001"));
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
            &copy,
            &longer,
        ] {
            assert_eq!(shipper_of(other), None, "{other}");
        }
        assert_eq!(parse_copy(&copy), Some((3, &*id)));
        for other in ["manifest", DAMAGED_MANIFEST, "manifest-3", "manifest-00000000000000000003-history", &log] {
            assert_eq!(parse_copy(other), None, "{other}");
        }
    }
}

//! Paths as text. A path is any bytes but NUL, so it has two forms: [`to_text`], from which the same path can be read, for JSON and TOML; and
//! [`shown`], one harmless line for people.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Deserializer, Serializer};

use crate::error::{LabError, LabErrorKind, Result};
use crate::format::harmless;

/// The prefix before the base64 of a path that is no UTF-8.
const BASE64: &str = "base64:";

/// Returns a path as text, from which [`from_text`] makes the same path: the path itself, and `base64:` with the base64 of its bytes where they
/// are not UTF-8.
pub fn to_text(path: &Path) -> String {
    match path.to_str() {
        // Such a name would be read as the other form.
        Some(text) if !text.starts_with(BASE64) => text.to_owned(),
        _ => format!("{BASE64}{}", STANDARD.encode(path.as_os_str().as_bytes())),
    }
}

/// Returns the path of a text of [`to_text`].
pub fn from_text(text: &str) -> PathBuf {
    let bytes = text.strip_prefix(BASE64).and_then(|coded| STANDARD.decode(coded).ok());
    bytes.map_or_else(|| PathBuf::from(text), |bytes| PathBuf::from(OsString::from_vec(bytes)))
}

/// Shows a path in one line of text that acts on no terminal: bytes that are no UTF-8 as `\xff`, line breaks as `\n`, and other control
/// characters as [`harmless`] has them.
pub fn shown(path: &(impl AsRef<Path> + ?Sized)) -> Shown<'_> {
    Shown(path.as_ref())
}

/// A path as [`shown`] shows it.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(&'a Path);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for chunk in self.0.as_os_str().as_bytes().utf8_chunks() {
            text.push_str(&harmless(chunk.valid()).replace('\n', "\\n"));
            chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
        }
        // With the width that the caller asks for.
        f.pad(&text)
    }
}

/// Opens a file for reading, and never waits: opening a pipe would wait for its writer, where no signal is heard.
///
/// # Errors
/// The system's.
pub(crate) fn open_at_once(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Opens an ordinary file for reading, and never waits.
///
/// # Errors
/// `Usage` for anything but an ordinary file; the system's error.
pub(crate) fn open_ordinary(path: &Path) -> Result<File> {
    let file = open_at_once(path).and_then(|file| Ok((file.metadata()?.is_file(), file)));
    match file.map_err(|error| LabError::system(format_args!("open {}", shown(path)), &error))? {
        (true, file) => Ok(file),
        (false, _) => Err(LabError::new(LabErrorKind::Usage, format!("{} is no ordinary file", shown(path)))),
    }
}

/// A field with a path, for `#[serde(with)]`.
pub(crate) mod field {
    use super::*;

    /// Writes the path's text.
    pub(crate) fn serialize<S: Serializer>(path: &Path, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(&to_text(path))
    }

    /// Reads the path's text.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<PathBuf, D::Error> {
        Ok(from_text(&String::deserialize(deserializer)?))
    }
}

/// A field with several paths, for `#[serde(with)]`.
pub(crate) mod fields {
    use super::*;

    /// Writes the texts of the paths.
    pub(crate) fn serialize<S: Serializer>(paths: &[PathBuf], serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| to_text(path)))
    }

    /// Reads the texts of the paths.
    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Vec<PathBuf>, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.iter().map(|text| from_text(text)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn any_path_comes_back_from_its_text_and_is_shown_in_one_harmless_line(
            bytes in proptest::collection::vec(1u8.., 0..40)
        ) {
            let path = PathBuf::from(OsString::from_vec(bytes));
            assert_eq!(from_text(&to_text(&path)), path);
            assert!(!shown(&path).to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn a_path_of_utf_8_is_its_own_text_and_others_are_lossless() {
        for text in ["nofault-lab", "/srv/ä b", "", "a\\xff"] {
            assert_eq!((to_text(Path::new(text)).as_str(), from_text(text)), (text, PathBuf::from(text)));
        }
        let odd = PathBuf::from(OsString::from_vec(b"a\xff\n\x1b[2J".to_vec()));
        assert_eq!(to_text(&odd), "base64:Yf8KG1sySg==");
        assert_eq!(shown(&odd).to_string(), "a\\xff\\n\\u001b[2J");
        let alike = PathBuf::from("base64:YQ==");
        assert_eq!(from_text(&to_text(&alike)), alike);
        assert_eq!(from_text("base64:?"), PathBuf::from("base64:?"));
    }
}

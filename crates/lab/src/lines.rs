//! Text that other programs write, as lines with a bound: a byte order mark at the start is left out, a line may end with LF or CRLF,
//! and UTF-16 and UTF-32 are refused.
//!
//! Kept true by: no more of the text is in memory than one line of the bound, so that a file without line breaks costs no memory.

use std::fmt;
use std::io::{self, BufRead, Read};
use std::ops::Range;

use crate::error::{LabError, LabErrorKind};
use crate::format;

/// The byte order mark that some programs write before UTF-8.
pub const MARK: &[u8] = b"\xef\xbb\xbf";

/// Why a text cannot be read as lines.
#[derive(Debug)]
pub enum LineError {
    /// The system's error.
    System(io::Error),
    /// A line is longer than the bound.
    TooLong {
        /// Number of the line, from 1.
        line: u64,
        /// The bound, in bytes.
        limit_bytes: usize,
    },
    /// The text is in another encoding, with several bytes for each character.
    Wide(Wide),
    /// A line is not UTF-8.
    NotUtf8 {
        /// Number of the line, from 1.
        line: u64,
    },
}

impl LineError {
    /// The error of the lab for a text with the name `name`: the system's, or one of kind `kind`.
    pub fn of(self, name: impl fmt::Display, kind: LabErrorKind) -> LabError {
        match self {
            Self::System(error) => LabError::system(format_args!("read {name}"), &error),
            Self::TooLong { .. } | Self::Wide(_) | Self::NotUtf8 { .. } => {
                LabError::new(kind, format!("{name}: {self}"))
            }
        }
    }
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(error) => error.fmt(f),
            Self::TooLong { line, limit_bytes } => {
                write!(f, "line {line} is longer than {}", format::bytes(*limit_bytes as u64))
            }
            Self::Wide(wide) => {
                let name = wide.name();
                write!(f, "this is {name} text: save it as UTF-8 (iconv -f {name} -t UTF-8)")
            }
            Self::NotUtf8 { line } => write!(f, "line {line} is not UTF-8 text"),
        }
    }
}

impl From<io::Error> for LineError {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The lines of a text.
#[derive(Debug)]
pub struct Lines<R> {
    from: R,
    limit_bytes: usize,
    is_exact: bool,
    number: u64,
    buffer: Vec<u8>,
    /// The place of the present line in the buffer.
    place: Range<usize>,
    has_mark: bool,
    is_ended: bool,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `from`, of `limit_bytes` at most, without their line ends.
    pub fn new(from: R, limit_bytes: usize) -> Self {
        Self {
            from,
            limit_bytes,
            is_exact: false,
            number: 0,
            buffer: Vec::new(),
            place: 0..0,
            has_mark: false,
            is_ended: false,
        }
    }

    /// Makes every byte count: a line ends with LF only, and neither a byte order mark nor another encoding is looked for.
    pub fn exact(self) -> Self {
        Self { is_exact: true, ..self }
    }

    /// Reads the next line, without its line end: LF or CRLF, or at the end of the text nothing or CR. Returns `None` at the end of the text.
    ///
    /// # Errors
    /// `TooLong` after a line's first `limit_bytes`, `Wide` for a text that begins like one, `System`.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        self.buffer.clear();
        self.place = 0..0;
        // A byte more than the line and its end, with a mark before it.
        let most = self.limit_bytes as u64 + 3 + MARK.len() as u64;
        if self.from.by_ref().take(most).read_until(b'\n', &mut self.buffer)? == 0 {
            return Ok(None);
        }
        self.number += 1;
        let is_first = self.number == 1 && !self.is_exact;
        if is_first && let Some(wide) = Wide::of(&self.buffer) {
            return Err(LineError::Wide(wide));
        }
        self.is_ended = self.buffer.last() == Some(&b'\n');
        let mut line = self.buffer.strip_suffix(b"\n").unwrap_or(&self.buffer);
        if !self.is_exact {
            line = line.strip_suffix(b"\r").unwrap_or(line);
        }
        self.has_mark |= is_first && line.starts_with(MARK);
        let start = if is_first && self.has_mark { MARK.len() } else { 0 };
        self.place = start..line.len();
        match self.place.len() > self.limit_bytes {
            true => Err(LineError::TooLong { line: self.number, limit_bytes: self.limit_bytes }),
            false => Ok(Some(self.line())),
        }
    }

    /// The line read last.
    pub fn line(&self) -> &[u8] {
        self.buffer.get(self.place.clone()).unwrap_or_default()
    }

    /// Number of the line read last, from 1; 0 before the first.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether a byte order mark was left out.
    pub fn has_mark(&self) -> bool {
        self.has_mark
    }

    /// Whether the line read last has a line feed at its end.
    pub fn is_ended(&self) -> bool {
        self.is_ended
    }
}

/// Reads a whole text of UTF-8, without a byte order mark.
///
/// # Errors
/// `TooLong` with the line at which the text exceeds `limit_bytes`; otherwise as [`Lines::next_line`], and `NotUtf8`.
pub fn read_text(from: impl Read, limit_bytes: usize) -> Result<String, LineError> {
    let mut bytes = Vec::new();
    from.take(limit_bytes as u64 + 1).read_to_end(&mut bytes)?;
    let line_at = |end: usize| bytes[..end].iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
    if bytes.len() > limit_bytes {
        return Err(LineError::TooLong { line: line_at(limit_bytes), limit_bytes });
    }
    if let Some(wide) = Wide::of(&bytes) {
        return Err(LineError::Wide(wide));
    }
    if let Err(error) = std::str::from_utf8(&bytes) {
        return Err(LineError::NotUtf8 { line: line_at(error.valid_up_to()) });
    }
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    String::from_utf8(bytes).map_err(|_| LineError::NotUtf8 { line: 1 })
}

/// An encoding with several bytes for each character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wide {
    /// Two bytes, or four.
    Utf16,
    /// Four bytes.
    Utf32,
}

/// Number of characters by which a text without a byte order mark is recognised: data with zero bytes is no other encoding.
const CHARACTERS_MIN: usize = 4;
/// Number of characters looked at.
const CHARACTERS_MAX: usize = 8;

impl Wide {
    /// Recognises an encoding by the beginning of a text: by its byte order mark, or by several characters of which all bytes but one are
    /// zero. A text of other characters without a mark is not recognised.
    fn of(text: &[u8]) -> Option<Self> {
        match text {
            // Before the mark of UTF-16, with which it begins.
            [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => return Some(Self::Utf32),
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Some(Self::Utf16),
            _ => {}
        }
        [(Self::Utf32, 4), (Self::Utf16, 2)].into_iter().find_map(|(wide, width)| {
            let is_wide = [0, width - 1].into_iter().any(|place| is_ascii_in(text, width, place));
            is_wide.then_some(wide)
        })
    }

    /// Its name, also for `iconv`.
    fn name(self) -> &'static str {
        match self {
            Self::Utf16 => "UTF-16",
            Self::Utf32 => "UTF-32",
        }
    }
}

/// Whether a text begins with several ASCII characters of `width` bytes, which are zero but at `place`. The last one may be a line feed
/// after which the text was cut.
fn is_ascii_in(text: &[u8], width: usize, place: usize) -> bool {
    let is_character = |bytes: &[u8]| {
        let is_right = |(at, byte): (usize, &u8)| (1..0x80).contains(byte) == (at == place);
        bytes.iter().enumerate().all(is_right) && (bytes.len() == width || bytes == b"\n")
    };
    let characters = || text.chunks(width).take(CHARACTERS_MAX);
    characters().count() >= CHARACTERS_MIN && characters().all(is_character)
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;

    /// The lines of a text, or the error in words.
    fn lines(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut lines = Lines::new(text, 100);
        let mut all = Vec::new();
        while let Some(line) = lines.next_line().map_err(|error| error.to_string())? {
            all.push(line.to_vec());
        }
        Ok(all)
    }

    #[test]
    fn marks_and_line_ends_of_any_program_are_no_data() {
        for text in ["a\nb\n", "a\r\nb\r\n", "\u{feff}a\r\nb", "a\nb\r", "\u{feff}a\nb\r\n"] {
            assert_eq!(lines(text.as_bytes()).unwrap(), [b"a", b"b"], "{text:?}");
        }
        assert_eq!(lines(b"a\rb\r\r\n").unwrap(), [b"a\rb\r"], "one CR belongs to the line's end");
        assert!(lines(b"").unwrap().is_empty());
        let text = "\u{feff}a\r\n\0b";
        let mut exact = Lines::new(text.as_bytes(), 100).exact();
        assert_eq!(exact.next_line().unwrap(), Some("\u{feff}a\r".as_bytes()));
        assert_eq!(exact.next_line().unwrap(), Some(&b"\0b"[..]));
        assert!(!exact.is_ended());
    }

    #[test]
    fn text_of_several_bytes_a_character_is_refused_with_or_without_its_mark() {
        let wide = |text: &str, mark: bool, width: usize, is_little: bool| -> Vec<u8> {
            let mark = if mark { "\u{feff}" } else { "" };
            let of_character = |character: char| -> Vec<u8> {
                let mut bytes = u32::from(character).to_be_bytes()[4 - width..].to_vec();
                if is_little {
                    bytes.reverse();
                }
                bytes
            };
            format!("{mark}{text}").chars().flat_map(of_character).collect()
        };
        for (width, expected) in [(2, Wide::Utf16), (4, Wide::Utf32)] {
            for is_little in [true, false] {
                for (text, marks) in [
                    ("a\t1\n", &[true, false][..]),
                    ("{\"key\":\"a\"}\n", &[true, false]),
                    ("a\n", &[true]),
                    ("ä", &[true]),
                ] {
                    for mark in marks {
                        let bytes = wide(text, *mark, width, is_little);
                        let told = lines(&bytes).unwrap_err();
                        assert!(
                            told.contains(&format!("{0} text: save it as UTF-8 (iconv -f {0} ", expected.name())),
                            "{told}"
                        );
                        let whole = read_text(&bytes[..], 100);
                        assert!(matches!(whole, Err(LineError::Wide(found)) if found == expected), "{text:?} {mark}");
                    }
                }
            }
        }
        assert_eq!(lines("ä\n".as_bytes()).unwrap(), ["ä".as_bytes()]);
    }

    #[test]
    fn zero_bytes_are_data() {
        for text in [
            &b"k\0\tv"[..],
            b"\0k\tv",
            b"\0",
            b"\0\0\0\0\tv",
            b"k\0k\0\tv",
            b"k\0\0\0\tv",
            b"\0k\0k\tv\0v",
            b"a\0b\0c\0value",
            b"\0\0\0\x01\0\0\0\x02\0\0\0\x03\t1",
        ] {
            assert_eq!(lines(text).unwrap(), [text]);
            assert_eq!(lines(&[text, b"\n"].concat()).unwrap(), [text]);
        }
    }

    /// A text without an end that counts the bytes it gave.
    struct Endless(u64);

    impl Read for &mut Endless {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            to.fill(b'x');
            self.0 += to.len() as u64;
            Ok(to.len())
        }
    }

    #[test]
    fn of_a_line_without_an_end_no_more_than_the_bound_is_read() {
        let mut endless = Endless(0);
        let start = &b"first\n"[..];
        let mut lines = Lines::new(BufReader::with_capacity(16, start.chain(&mut endless)), 1000);
        assert_eq!(lines.next_line().unwrap(), Some(&b"first"[..]));
        let error = lines.next_line().unwrap_err();
        assert!(matches!(error, LineError::TooLong { line: 2, limit_bytes: 1000 }), "{error:?}");
        assert_eq!(error.of("f", LabErrorKind::Damaged).to_string(), "f: line 2 is longer than 1000 B");
        assert!(lines.buffer.capacity() <= 2048, "{} bytes", lines.buffer.capacity());
        drop(lines);
        assert!(endless.0 <= 1000 + 6 + 16, "{} bytes were read", endless.0);
        let mut endless = Endless(0);
        assert!(matches!(read_text(&mut endless, 1000), Err(LineError::TooLong { line: 1, .. })));
        assert!(endless.0 <= 1001, "{} bytes were read", endless.0);
        assert_eq!(Lines::new(&[b'x'; 1000][..], 1000).next_line().unwrap().map(<[u8]>::len), Some(1000));
    }

    #[test]
    fn a_whole_text_is_read_without_its_mark_and_its_error_names_the_line() {
        assert_eq!(read_text("\u{feff}a = 1\r\n".as_bytes(), 100).unwrap(), "a = 1\r\n");
        assert!(matches!(read_text(&b"a\nb\n\xff"[..], 100), Err(LineError::NotUtf8 { line: 3 })));
    }
}

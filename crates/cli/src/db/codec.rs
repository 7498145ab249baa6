//! Bytes in the forms of people and files: text, hexadecimal, base64, JSON objects, plain lines. Every encoded form can
//! be decoded to the same bytes.

use std::borrow::Cow;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nofault_lab::format::harmless;
use serde::{Deserialize, Serialize};

use crate::db_args::Encoding;
use crate::times::time_of_ms;

/// The result of decoding. The error is a sentence about the defect of the text, without its place.
type Result<T> = std::result::Result<T, String>;

impl Encoding {
    /// Decodes a key or value from the command line.
    pub(crate) fn decode(self, text: &str) -> Result<Vec<u8>> {
        match self {
            Self::Text => unescape(text.as_bytes()).map_err(|why| format!("'{text}': {why}")),
            Self::Hex => decode_hex(text),
            Self::Base64 => STANDARD.decode(text).map_err(|error| format!("'{text}' is no base64: {error}")),
        }
    }

    /// Encodes a key or value for the output, without line breaks.
    pub(crate) fn encode(self, bytes: &[u8]) -> String {
        match self {
            Self::Text => escape(bytes),
            Self::Hex => bytes.iter().fold("0x".to_owned(), |text, byte| text + &format!("{byte:02x}")),
            Self::Base64 => STANDARD.encode(bytes),
        }
    }
}

fn decode_hex(text: &str) -> Result<Vec<u8>> {
    let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
    let wrong = || format!("'{text}' is not hexadecimal; write pairs of digits, as in 0x00ff");
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some(hex_digit(*high)? << 4 | hex_digit(*low)?),
        _ => None,
    });
    pairs.collect::<Option<_>>().ok_or_else(wrong)
}

fn hex_digit(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Encodes bytes in base64.
pub(crate) fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Escapes bytes as text in one line without tabs; [`unescape`] restores the bytes.
pub(crate) fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\t' => text.push_str("\\t"),
                '\n' => text.push_str("\\n"),
                '\r' => text.push_str("\\r"),
                '\\' => text.push_str("\\\\"),
                other if is_acting(other) => escape_bytes(other.encode_utf8(&mut [0; 4]).as_bytes(), &mut text),
                other => text.push(other),
            }
        }
        escape_bytes(chunk.invalid(), &mut text);
    }
    text
}

fn escape_bytes(bytes: &[u8], into: &mut String) {
    bytes.iter().for_each(|byte| into.push_str(&format!("\\x{byte:02x}")));
}

/// Returns whether a character acts on a terminal, or on the order of the text around it, or breaks a line, or would be left out as a byte
/// order mark.
fn is_acting(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// Restores the bytes of an escaped text.
pub(crate) fn unescape(text: &[u8]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'\\') => b'\\',
            Some(b'x') => match (rest.next().and_then(hex_digit), rest.next().and_then(hex_digit)) {
                (Some(high), Some(low)) => high << 4 | low,
                _ => return Err("\\x must be followed by two hexadecimal digits".into()),
            },
            _ => return Err("a backslash must be followed by t, n, r, x or a backslash; write \\\\ for one".into()),
        });
    }
    Ok(bytes)
}

/// One line of a dump: an entry, or the name of a table that begins with this line and may be empty.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The table of the entry, if the line names one.
    pub(crate) table: Option<String>,
    /// Key and value; `None` where the line only names a table.
    pub(crate) entry: Option<(Vec<u8>, Vec<u8>)>,
    /// The time at which the entry expires, if it does.
    pub(crate) expiry: Option<SystemTime>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Json<'a> {
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    table: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    key_base64: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    value: Option<Cow<'a, str>>,
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    value_base64: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_ms: Option<u64>,
}

/// Formats an entry with the time at which it expires, if it does; or a key; or for `None` the name of a table: as a JSON object
/// in one line without control characters.
pub(crate) fn to_json(
    table: &str,
    key: Option<&[u8]>,
    value: Option<&[u8]>,
    expiry: Option<SystemTime>,
) -> serde_json::Result<String> {
    let since = expiry.map(|expiry| expiry.duration_since(UNIX_EPOCH).unwrap_or_default());
    let expires_ms = since.and_then(|since| u64::try_from(since.as_millis()).ok());
    let mut json = Json { table: Some(table.into()), expires_ms, ..Json::default() };
    if let Some(key) = key {
        (json.key, json.key_base64) = text_or_base64(key);
    }
    if let Some(value) = value {
        (json.value, json.value_base64) = text_or_base64(value);
    }
    // The characters that JSON leaves as they are occur in strings only, where the escapes stand for the same characters.
    Ok(harmless(&serde_json::to_string(&json)?).into_owned())
}

fn text_or_base64(bytes: &[u8]) -> (Option<Cow<'_, str>>, Option<Cow<'_, str>>) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Some(text.into()), None),
        Err(_) => (None, Some(STANDARD.encode(bytes).into())),
    }
}

/// Parses one line of NDJSON, which is one JSON object: an entry, or the name of a table by itself.
pub(crate) fn from_json(line: &[u8]) -> Result<Line> {
    // From an array the fields would be taken in their order.
    if line.trim_ascii_start().first() != Some(&b'{') {
        return Err(r#"not an entry: write one JSON object in a line, such as {"key":"a","value":"1"}"#.into());
    }
    let json: Json<'_> = serde_json::from_slice(line).map_err(|error| format!("not an entry: {error}"))?;
    let bytes = |what: &str, text: Option<Cow<'_, str>>, coded: Option<Cow<'_, str>>| match (text, coded) {
        (Some(text), None) => Ok(Some(text.into_owned().into_bytes())),
        (None, Some(coded)) => Encoding::Base64.decode(&coded).map(Some),
        (None, None) => Ok(None),
        (Some(_), Some(_)) => Err(format!("has both {what} and {what}_base64")),
    };
    let table = json.table.map(Cow::into_owned);
    let expiry = json.expires_ms.map(|ms| time_of_ms(ms).ok_or("its expires_ms is later than any time")).transpose()?;
    let key = bytes("key", json.key, json.key_base64)?;
    let value = bytes("value", json.value, json.value_base64)?;
    match (key, value) {
        (Some(key), Some(value)) => Ok(Line { table, entry: Some((key, value)), expiry }),
        (None, None) if table.is_some() && expiry.is_none() => Ok(Line { table, entry: None, expiry: None }),
        (None, _) => Err("has no key".into()),
        (_, None) => Err("has no value".into()),
    }
}

/// Parses one plain line: key, tab, value.
pub(crate) fn from_plain(line: &[u8]) -> Result<Line> {
    let tab = line.iter().position(|byte| *byte == b'\t').ok_or("has no tab between key and value")?;
    let entry = Some((unescape(&line[..tab])?, unescape(&line[tab + 1..])?));
    Ok(Line { table: None, entry, expiry: None })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use nofault_lab::lines::Lines;

    use super::*;

    /// Returns whether text of one line can be printed on any terminal.
    fn is_plain(text: &str) -> bool {
        !text.chars().any(is_acting)
    }

    fn check_every_form_of(bytes: &[u8]) {
        for encoding in [Encoding::Text, Encoding::Hex, Encoding::Base64] {
            let encoded = encoding.encode(bytes);
            assert!(is_plain(&encoded), "{encoded:?}");
            assert_eq!(encoding.decode(&encoded).unwrap(), bytes);
        }
        let line = to_json("t", Some(bytes), Some(bytes), None).unwrap();
        assert!(is_plain(&line.replace(['\u{2028}', '\u{2029}'], "")), "{line:?}");
        let entry = Some((bytes.to_vec(), bytes.to_vec()));
        let parsed = Line { table: Some("t".into()), entry: entry.clone(), expiry: None };
        assert_eq!(from_json(line.as_bytes()).unwrap(), parsed);
        let expiry = UNIX_EPOCH + Duration::from_millis(7);
        let line = to_json("t", Some(bytes), Some(bytes), Some(expiry)).unwrap();
        assert_eq!(from_json(line.as_bytes()).unwrap(), Line { expiry: Some(expiry), ..parsed });
        let line = format!("{}\t{}", escape(bytes), escape(bytes));
        let plain = Line { table: None, entry, expiry: None };
        assert_eq!(from_plain(line.as_bytes()).unwrap(), plain);
        // As it is written, and as programs with other line ends and byte order marks write it again.
        for text in [format!("{line}\n"), format!("{line}\r\n"), format!("\u{feff}{line}\r\n")] {
            let mut lines = Lines::new(text.as_bytes(), 1 << 20);
            assert_eq!(from_plain(lines.next_line().unwrap().unwrap()).unwrap(), plain);
        }
    }

    #[test]
    fn every_encoded_form_decodes_to_the_same_bytes_and_acts_on_no_terminal() {
        let all_bytes: Vec<u8> = (0..=255).collect();
        let texts =
            ["", "apples", "tab\tbreak\nreturn\r\\x41\"", "\u{e4}pfel \u{1f34e}", "\x1b[2J\u{9b}31m\x7f\u{202e}gnp"];
        texts.iter().map(|text| text.as_bytes()).chain([&all_bytes[..]]).for_each(check_every_form_of);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_go_through_every_form(bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            check_every_form_of(&bytes);
        }

        #[test]
        fn any_text_goes_through_every_form(characters in proptest::collection::vec(proptest::prelude::any::<char>(), 0..32)) {
            check_every_form_of(characters.into_iter().collect::<String>().as_bytes());
        }

        #[test]
        fn any_line_is_read_or_refused(line in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..64)) {
            let _ = (from_json(&line), from_plain(&line), Encoding::Hex.decode(&String::from_utf8_lossy(&line)));
        }
    }

    #[test]
    fn the_error_of_a_wrong_line_names_the_defect() {
        for (line, why) in [
            ("{}", "has no key"),
            (r#"{"key":"a"}"#, "has no value"),
            (r#"{"key":"a","key_base64":"YQ==","value":""}"#, "both key and key_base64"),
            (r#"{"key_base64":"?","value":""}"#, "no base64"),
            (r#"{"kee":"a","value":""}"#, "unknown field"),
            (r#"{"table":"t","expires_ms":1}"#, "has no key"),
            ("[", "one JSON object in a line"),
            (r#"["t","a",null,"1",null,null]"#, "one JSON object in a line"),
            (r#" [{"key":"a","value":"1"}]"#, "one JSON object in a line"),
            ("[]", "one JSON object in a line"),
            (r#""key""#, "one JSON object in a line"),
            ("null", "one JSON object in a line"),
            (r#"{"key":"a","value":"1"} {"key":"b","value":"2"}"#, "not an entry"),
            (r#"{"key":"a","value":1}"#, "not an entry"),
            (r#"{"key":"a","key":"b","value":""}"#, "duplicate field"),
        ] {
            let error = from_json(line.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
        assert!(from_plain(b"no tab here").unwrap_err().contains("tab"));
        assert!(from_plain(b"a\\q\tb").unwrap_err().contains("backslash"));
        assert!(Encoding::Hex.decode("0xabc").is_err() && Encoding::Hex.decode("0xzz").is_err());
    }
}

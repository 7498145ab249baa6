//! The bytes of keys without parts: numbers, strings, bytes, times.

use std::time::{Duration, SystemTime};

use super::{AsKey, AsPrefix, Key};

/// Takes `N` bytes off the front of `bytes`.
pub(super) fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (taken, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*taken)
}

macro_rules! unsigned {
    ($($number:ty),*) => {$(
        impl AsKey<$number> for $number {
            fn encode(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl Key for $number {
            fn type_name() -> String {
                stringify!($number).into()
            }

            fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
                take(bytes).map(Self::from_be_bytes)
            }
        }
    )*};
}

unsigned!(u8, u16, u32, u64, u128);

macro_rules! signed {
    ($($number:ty),*) => {$(
        impl AsKey<$number> for $number {
            fn encode(&self, into: &mut Vec<u8>) {
                into.extend_from_slice(&(self ^ Self::MIN).to_be_bytes());
            }
        }

        impl Key for $number {
            fn type_name() -> String {
                stringify!($number).into()
            }

            fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
                take(bytes).map(|bytes| Self::from_be_bytes(bytes) ^ Self::MIN)
            }
        }
    )*};
}

signed!(i8, i16, i32, i64, i128);

macro_rules! float {
    ($($number:ty, $bits:ty);*) => {$(
        impl AsKey<$number> for $number {
            fn encode(&self, into: &mut Vec<u8>) {
                let bits = self.to_bits();
                let highest: $bits = 1 << (<$bits>::BITS - 1);
                let ordered = if bits & highest == 0 { bits | highest } else { !bits };
                into.extend_from_slice(&ordered.to_be_bytes());
            }
        }

        impl Key for $number {
            fn type_name() -> String {
                stringify!($number).into()
            }

            fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
                let ordered = <$bits>::from_be_bytes(take(bytes)?);
                let highest: $bits = 1 << (<$bits>::BITS - 1);
                Some(Self::from_bits(if ordered & highest == 0 { !ordered } else { ordered ^ highest }))
            }
        }
    )*};
}

float!(f32, u32; f64, u64);

impl AsKey<bool> for bool {
    fn encode(&self, into: &mut Vec<u8>) {
        into.push(u8::from(*self));
    }
}

impl Key for bool {
    fn type_name() -> String {
        "bool".into()
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        match take(bytes)? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }
}

impl AsKey<char> for char {
    fn encode(&self, into: &mut Vec<u8>) {
        u32::from(*self).encode(into);
    }
}

impl Key for char {
    fn type_name() -> String {
        "char".into()
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        Self::from_u32(u32::decode_part(bytes)?)
    }
}

/// Appends bytes that another part follows: zero bytes as `00 FF`, and `00 00` at the end.
fn encode_ended(bytes: &[u8], into: &mut Vec<u8>) {
    for run in bytes.split_inclusive(|byte| *byte == 0) {
        into.extend_from_slice(run);
        if run.ends_with(&[0]) {
            into.push(0xFF);
        }
    }
    into.extend_from_slice(&[0, 0]);
}

/// Takes bytes that [`encode_ended`] wrote off the front of `bytes`.
fn decode_ended(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let mut found = Vec::new();
    loop {
        let zero = bytes.iter().position(|byte| *byte == 0)?;
        found.extend_from_slice(&bytes[..zero]);
        *bytes = &bytes[zero + 1..];
        match take(bytes)? {
            [0] => return Some(found),
            [0xFF] => found.push(0),
            _ => return None,
        }
    }
}

macro_rules! text_or_bytes {
    ($key:ty, $name:literal, $from:expr; $($like:ty),*) => {
        $(
            impl AsKey<$key> for $like {
                fn encode(&self, into: &mut Vec<u8>) {
                    into.extend_from_slice(AsRef::<[u8]>::as_ref(self));
                }

                fn encode_part(&self, into: &mut Vec<u8>) {
                    encode_ended(AsRef::<[u8]>::as_ref(self), into);
                }
            }

            impl AsPrefix<$key> for $like {
                fn encode_prefix(&self, into: &mut Vec<u8>) {
                    into.extend_from_slice(AsRef::<[u8]>::as_ref(self));
                }
            }
        )*

        impl Key for $key {
            fn type_name() -> String {
                $name.into()
            }

            fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
                let from: fn(Vec<u8>) -> Option<Self> = $from;
                from(decode_ended(bytes)?)
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                let from: fn(Vec<u8>) -> Option<Self> = $from;
                from(bytes.to_vec())
            }
        }
    };
}

text_or_bytes!(String, "string", |bytes| String::from_utf8(bytes).ok(); String, str);
text_or_bytes!(Vec<u8>, "bytes", Some; Vec<u8>, [u8]);

impl AsKey<Duration> for Duration {
    fn encode(&self, into: &mut Vec<u8>) {
        self.as_secs().encode(into);
        self.subsec_nanos().encode(into);
    }
}

/// Takes nanoseconds below a second off the front of `bytes`.
fn take_nanos(bytes: &mut &[u8]) -> Option<u32> {
    u32::decode_part(bytes).filter(|nanos| *nanos < 1_000_000_000)
}

impl Key for Duration {
    fn type_name() -> String {
        "duration".into()
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        let seconds = u64::decode_part(bytes)?;
        Some(Self::new(seconds, take_nanos(bytes)?))
    }
}

impl AsKey<SystemTime> for SystemTime {
    fn encode(&self, into: &mut Vec<u8>) {
        // No system has times that are further from 1970 than an `i64` of seconds.
        let (seconds, nanos) = match self.duration_since(Self::UNIX_EPOCH) {
            Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => ((before.as_secs() as i64).wrapping_neg(), 0),
                    nanos => (!(before.as_secs() as i64), 1_000_000_000 - nanos),
                }
            }
        };
        seconds.encode(into);
        nanos.encode(into);
    }
}

impl Key for SystemTime {
    fn type_name() -> String {
        "time".into()
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        let (seconds, nanos) = (i64::decode_part(bytes)?, take_nanos(bytes)?);
        let whole = Duration::from_secs(seconds.unsigned_abs());
        let second = match seconds {
            0.. => Self::UNIX_EPOCH.checked_add(whole),
            _ => Self::UNIX_EPOCH.checked_sub(whole),
        };
        second?.checked_add(Duration::from_nanos(nanos.into()))
    }
}

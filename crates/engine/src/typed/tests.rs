//! The bytes sort as the keys do, for every type, and every key and value is read back.

use std::cmp::Ordering;
use std::fmt::Debug;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;

use super::{AsKey, AsPrefix, AsValue, Key, Value, key_bytes, prefix_bytes, value_bytes};

fn part_bytes<K: Key>(key: &K) -> Vec<u8> {
    let mut bytes = Vec::new();
    key.encode_part(&mut bytes);
    bytes
}

/// Checks two keys of a type: their order, that they are read back, and that neither of two parts begins the other.
fn check<K: Key + Debug>(a: &K, b: &K, order: Ordering) -> Result<(), TestCaseError> {
    prop_assert_eq!(key_bytes::<K, K>(a).cmp(&key_bytes::<K, K>(b)), order, "{:?} and {:?}", a, b);
    prop_assert_eq!(part_bytes(a).cmp(&part_bytes(b)), order, "parts {:?} and {:?}", a, b);
    if order != Ordering::Equal {
        let (a, b) = (part_bytes(a), part_bytes(b));
        prop_assert!(!a.starts_with(&b) && !b.starts_with(&a));
    }
    for key in [a, b] {
        let bytes = key_bytes::<K, K>(key);
        let read = K::decode(&bytes);
        prop_assert_eq!(read.map(|read| key_bytes::<K, K>(&read)), Some(bytes));
        let mut part = part_bytes(key);
        part.push(77);
        let mut rest = part.as_slice();
        let read = K::decode_part(&mut rest);
        prop_assert_eq!(read.map(|read| format!("{read:?}")), Some(format!("{key:?}")));
        prop_assert_eq!(rest, &[77]);
    }
    Ok(())
}

macro_rules! ordered {
    ($($test:ident: $key:ty = $values:expr;)*) => {proptest! {$(
        #[test]
        fn $test(a in $values, b in $values) {
            check::<$key>(&a, &b, a.cmp(&b))?;
        }
    )*}};
}

/// Text with many zero bytes, and many equal beginnings.
fn text() -> impl Strategy<Value = String> {
    "[a\0\u{1}ÿ]{0,5}"
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop::sample::select(vec![0, 1, 0x61, 0xFE, 0xFF]), 0..5)
}

fn time() -> impl Strategy<Value = SystemTime> {
    (-5i64..5, 0u32..3).prop_map(|(seconds, nanos)| {
        let epoch = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::from(nanos) * 400_000_000);
        if seconds < 0 {
            epoch - Duration::from_secs(-seconds as u64)
        } else {
            epoch + Duration::from_secs(seconds as u64)
        }
    })
}

ordered! {
    unsigned_numbers: u32 = prop_oneof![any::<u32>(), 0u32..300];
    long_unsigned_numbers: u128 = any::<u128>();
    signed_numbers: i16 = any::<i16>();
    long_signed_numbers: i128 = any::<i128>();
    bytes_of_one: i8 = any::<i8>();
    truths: bool = any::<bool>();
    characters: char = any::<char>();
    strings: String = text();
    strings_of_bytes: Vec<u8> = bytes();
    durations: Duration = (0u64..3, 0u32..1_000_000_000).prop_map(|(s, n)| Duration::new(s, n));
    times: SystemTime = time();
    keys_that_may_be_missing: Option<String> = prop::option::of(text());
    arrays: [String; 2] = [text(), text()];
    arrays_of_numbers: [i32; 3] = any::<[i32; 3]>();
    arrays_of_bytes: [u8; 4] = any::<[u8; 4]>();
    singles: (String,) = (text(),);
    pairs: (String, i8) = (text(), any::<i8>());
    pairs_of_strings: (Vec<u8>, String) = (bytes(), text());
    nested: ((String, Option<u8>), (u8, String), String) =
        ((text(), prop::option::of(any::<u8>())), (0u8..3, text()), text());
    six: (u8, String, bool, i8, Vec<u8>, String) = (0u8..2, text(), any::<bool>(), any::<i8>(), bytes(), text());
}

proptest! {
    #[test]
    fn floats_have_the_order_of_total_cmp(a in any::<f64>(), b in any::<f64>(), c in any::<f32>(), d in any::<f32>()) {
        check(&a, &b, a.total_cmp(&b))?;
        check(&c, &d, c.total_cmp(&d))?;
    }

    #[test]
    fn any_bits_are_a_float(bits in any::<u64>()) {
        let float = f64::from_bits(bits);
        prop_assert_eq!(<f64 as Key>::decode(&key_bytes::<f64, f64>(&float)).map(f64::to_bits), Some(bits));
    }

    #[test]
    fn arbitrary_bytes_are_a_key_or_none(bytes in bytes()) {
        type Nested = ((String, Option<u8>), [Vec<u8>; 2]);
        if let Some(key) = Nested::decode(&bytes) {
            prop_assert_eq!(&key_bytes::<Nested, Nested>(&key), &bytes);
        } else if let Some(key) = <(bool, String)>::decode(&bytes) {
            prop_assert_eq!(&key_bytes::<(bool, String), (bool, String)>(&key), &bytes);
        }
        let _ = (Duration::decode(&bytes), SystemTime::decode(&bytes), char::decode(&bytes), <[u8; 0] as Key>::decode(&bytes));
    }

    #[test]
    fn exactly_the_keys_with_a_prefix_begin_with_its_bytes(a in text(), b in text(), c in text(), number in 0u8..2) {
        let key = key_bytes::<(String, u8, String), _>(&(a.as_str(), number, c.as_str()));
        prop_assert_eq!(key.starts_with(&prefix_bytes::<(String, u8, String), _>(&(b.as_str(),))), a == b);
        prop_assert_eq!(key.starts_with(&prefix_bytes::<(String, u8, String), _>(&(b.as_str(), 1u8))), a == b && number == 1);
        prop_assert_eq!(key_bytes::<String, str>(&a).starts_with(&prefix_bytes::<String, str>(&b)), a.starts_with(&b));
    }

    #[test]
    fn values_are_read_back(number in any::<i64>(), float in any::<f32>(), text in text(), bytes in bytes()) {
        fn back<V: Value + AsValue<V>>(value: &V) -> Option<V::Item> {
            V::decode(&value_bytes::<V, V>(value).unwrap())
        }
        prop_assert_eq!(back(&number), Some(number));
        prop_assert_eq!(back(&float).map(f32::to_bits), Some(float.to_bits()));
        prop_assert_eq!(back(&text), Some(text));
        prop_assert_eq!(back(&bytes), Some(bytes.clone()));
        prop_assert_eq!(<i64 as Value>::decode(&bytes).is_some(), bytes.len() == 8);
        prop_assert_eq!(<() as Value>::decode(&bytes).is_some(), bytes.is_empty());
        prop_assert_eq!(<[u8; 3] as Value>::decode(&bytes).is_some(), bytes.len() == 3);
    }
}

#[test]
fn the_bytes_are_those_of_the_table_in_the_documentation() {
    fn bytes<K: Key>(key: K) -> Vec<u8> {
        key_bytes::<K, K>(&key)
    }
    assert_eq!(bytes(0x0102_u16), [1, 2]);
    assert_eq!((bytes(-1_i16), bytes(1_i16)), (vec![0x7F, 0xFF], vec![0x80, 1]));
    assert_eq!(bytes(1.0_f32), [0xBF, 0x80, 0, 0]);
    assert_eq!(bytes(-1.0_f32), [0x40, 0x7F, 0xFF, 0xFF]);
    assert_eq!((bytes(true), bytes('a')), (vec![1], vec![0, 0, 0, 0x61]));
    assert_eq!(bytes("a\0b".to_string()), b"a\0b");
    assert_eq!(bytes(("a\0b".to_string(), 5_u8)), b"a\0\xFFb\0\0\x05");
    assert_eq!(bytes((5_u8, "a\0b".to_string())), b"\x05a\0b");
    assert_eq!(bytes(Duration::new(1, 2)), [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
    let before = SystemTime::UNIX_EPOCH - Duration::from_nanos(1);
    assert_eq!(bytes(before), [0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x3B, 0x9A, 0xC9, 0xFF]);
    assert_eq!((bytes(None::<u8>), bytes(Some(7_u8))), (vec![0], vec![1, 7]));
    assert_eq!(bytes(["a".to_string(), "b".to_string()]), b"a\0\0b");
    assert_eq!(value_bytes::<u16, u16>(&0x0102).unwrap(), [2, 1]);
    assert_eq!(<(String, [u8; 16], Option<i64>)>::type_name(), "(string,[u8;16],option<i64>)");
}

#[test]
fn numbers_of_a_duration_beyond_its_range_are_none() {
    let nanos = [&[0; 8][..], &1_000_000_000_u32.to_be_bytes()].concat();
    assert_eq!((Duration::decode(&nanos), SystemTime::decode(&nanos)), (None, None));
    let latest = [&[0xFF; 8][..], &999_999_999_u32.to_be_bytes()].concat();
    assert_eq!(SystemTime::decode(&latest).map(|time| key_bytes::<SystemTime, SystemTime>(&time)), Some(latest));
}

fn takes_a_key<K, Q: AsKey<K> + ?Sized>(_: &Q) {}
fn takes_a_prefix<K, P: AsPrefix<K> + ?Sized>(_: &P) {}
fn takes_a_value<V: Value, W: AsValue<V> + ?Sized>(_: &W) {}

#[test]
fn keys_may_be_given_in_any_form_that_has_their_bytes() {
    takes_a_key::<u64, _>(&5);
    takes_a_key::<String, _>("text");
    takes_a_key::<String, _>(&String::new());
    takes_a_key::<Vec<u8>, _>(&b"bytes"[..]);
    takes_a_key::<(String, u64), _>(&("text", 5));
    takes_a_key::<Option<(String, i8)>, _>(&Some(("text", -5)));
    takes_a_prefix::<(String, u64, bool), _>(&("text", 5));
    takes_a_prefix::<Vec<u8>, _>(&b"by"[..]);
    // References, as an iterator over keys has them.
    let (text, number) = (String::from("a\0b"), 5_u64);
    takes_a_key::<u64, _>(&&number);
    takes_a_key::<Option<(String, u64)>, _>(&Some((&text, &number)));
    takes_a_prefix::<(String, u64), _>(&(&text,));
    takes_a_prefix::<(String, u64, bool), _>(&&(&text, &number));
    takes_a_value::<String, _>(&&text);
    let by_reference = key_bytes::<(String, u64), _>(&&(&text, &number));
    assert_eq!(by_reference, key_bytes::<(String, u64), _>(&(text.as_str(), number)));
}

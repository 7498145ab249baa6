//! The bytes of keys that have parts: tuples, arrays, and keys that may be missing.

use super::key::take;
use super::{AsKey, AsPrefix, Key};

impl<K: Key, Q: AsKey<K>> AsKey<Option<K>> for Option<Q> {
    fn encode(&self, into: &mut Vec<u8>) {
        into.push(u8::from(self.is_some()));
        self.iter().for_each(|key| key.encode(into));
    }

    fn encode_part(&self, into: &mut Vec<u8>) {
        into.push(u8::from(self.is_some()));
        self.iter().for_each(|key| key.encode_part(into));
    }
}

impl<K: Key> Key for Option<K> {
    fn type_name() -> String {
        format!("option<{}>", K::type_name())
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        match take(bytes)? {
            [0] => Some(None),
            [1] => K::decode_part(bytes).map(Some),
            _ => None,
        }
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (0, []) => Some(None),
            (1, rest) => K::decode(rest).map(Some),
            _ => None,
        }
    }
}

impl<K: Key, Q: AsKey<K>, const N: usize> AsKey<[K; N]> for [Q; N] {
    fn encode(&self, into: &mut Vec<u8>) {
        if let Some((last, others)) = self.split_last() {
            others.iter().for_each(|key| key.encode_part(into));
            last.encode(into);
        }
    }

    fn encode_part(&self, into: &mut Vec<u8>) {
        self.iter().for_each(|key| key.encode_part(into));
    }
}

impl<K: Key, const N: usize> Key for [K; N] {
    fn type_name() -> String {
        format!("[{};{N}]", K::type_name())
    }

    fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
        let keys: Option<Vec<K>> = (0..N).map(|_| K::decode_part(bytes)).collect();
        keys?.try_into().ok()
    }

    fn decode(mut bytes: &[u8]) -> Option<Self> {
        let mut keys = Vec::with_capacity(N);
        for _ in 1..N {
            keys.push(K::decode_part(&mut bytes)?);
        }
        if N > 0 {
            keys.push(K::decode(bytes)?);
        } else if !bytes.is_empty() {
            return None;
        }
        keys.try_into().ok()
    }
}

/// Implements the traits for a tuple: the types of its parts, of the parts in a call, and the number of each; the last
/// part apart.
macro_rules! tuple {
    ($($part:ident $like:ident $index:tt),*; $last:ident $last_like:ident $last_index:tt) => {
        impl<$($part: Key, $like: AsKey<$part>,)* $last: Key, $last_like: AsKey<$last>>
            AsKey<($($part,)* $last,)> for ($($like,)* $last_like,)
        {
            fn encode(&self, into: &mut Vec<u8>) {
                $(self.$index.encode_part(into);)*
                self.$last_index.encode(into);
            }

            fn encode_part(&self, into: &mut Vec<u8>) {
                $(self.$index.encode_part(into);)*
                self.$last_index.encode_part(into);
            }
        }

        impl<$($part: Key,)* $last: Key> Key for ($($part,)* $last,) {
            fn type_name() -> String {
                let names: &[String] = &[$($part::type_name(),)* $last::type_name()];
                format!("({})", names.join(","))
            }

            fn decode_part(bytes: &mut &[u8]) -> Option<Self> {
                Some(($($part::decode_part(bytes)?,)* $last::decode_part(bytes)?,))
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                let rest: &mut &[u8] = &mut &*bytes;
                Some(($($part::decode_part(rest)?,)* $last::decode(rest)?,))
            }
        }
    };
}

tuple!(; A P 0);
tuple!(A P 0; B Q 1);
tuple!(A P 0, B Q 1; C R 2);
tuple!(A P 0, B Q 1, C R 2; D S 3);
tuple!(A P 0, B Q 1, C R 2, D S 3; E T 4);
tuple!(A P 0, B Q 1, C R 2, D S 3, E T 4; F U 5);

/// Implements [`AsPrefix`] for the first parts of a tuple.
macro_rules! prefix {
    ($($part:ident $like:ident $index:tt),*; $($rest:ident),*) => {
        impl<$($part: Key, $like: AsKey<$part>,)* $($rest: Key),*>
            AsPrefix<($($part,)* $($rest,)*)> for ($($like,)*)
        {
            fn encode_prefix(&self, into: &mut Vec<u8>) {
                $(self.$index.encode_part(into);)*
            }
        }
    };
}

prefix!(A P 0; B);
prefix!(A P 0; B, C);
prefix!(A P 0; B, C, D);
prefix!(A P 0; B, C, D, E);
prefix!(A P 0; B, C, D, E, F);
prefix!(A P 0, B Q 1; C);
prefix!(A P 0, B Q 1; C, D);
prefix!(A P 0, B Q 1; C, D, E);
prefix!(A P 0, B Q 1; C, D, E, F);
prefix!(A P 0, B Q 1, C R 2; D);
prefix!(A P 0, B Q 1, C R 2; D, E);
prefix!(A P 0, B Q 1, C R 2; D, E, F);
prefix!(A P 0, B Q 1, C R 2, D S 3; E);
prefix!(A P 0, B Q 1, C R 2, D S 3; E, F);
prefix!(A P 0, B Q 1, C R 2, D S 3, E T 4; F);

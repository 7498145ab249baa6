use proptest::prelude::*;

use super::*;
use crate::ids::TableId;

fn decompress(compression: Compression, bytes: &[u8], into: &mut [u8]) -> Result<(), Undecodable> {
    Dictionaries::default().decompress(compression.to_byte(), 0, bytes, into)
}

fn available() -> impl Iterator<Item = Compression> {
    [Compression::Fast, Compression::Small].into_iter().filter(|compression| compression.is_available())
}

proptest! {
    #[test]
    fn bytes_come_back(words in prop::collection::vec(0u8..4, 0..5000), before in 0usize..100) {
        for compression in available() {
            let mut into = vec![9; before];
            let len = Dictionaries::default().compress(compression, None, &words, &mut into).unwrap();
            prop_assert_eq!(into.len(), before + len);
            let mut back = vec![7; words.len()];
            prop_assert_eq!(decompress(compression, &into[before..], &mut back), Ok(()));
            prop_assert_eq!(&back, &words);
            // Neither fewer nor more bytes than were compressed.
            let more = decompress(compression, &into[before..], &mut vec![0; words.len() + 1]);
            prop_assert_eq!(more, Err(Undecodable::Bytes));
            if let Some(less) = words.len().checked_sub(1) {
                let less = decompress(compression, &into[before..], &mut vec![0; less]);
                prop_assert_eq!(less, Err(Undecodable::Bytes));
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_fill_the_page(
        bytes in prop::collection::vec(any::<u8>(), 0..300), len in 0usize..9000, frame in any::<bool>(),
    ) {
        let bytes = if frame { [&[0x28, 0xB5, 0x2F, 0xFD][..], &bytes].concat() } else { bytes };
        for compression in available() {
            let _ = decompress(compression, &bytes, &mut vec![0; len]);
        }
    }
}

#[test]
fn every_compression_has_a_byte_of_its_own() {
    for compression in [Compression::None, Compression::Fast, Compression::Small] {
        assert_eq!(Compression::from_byte(compression.to_byte()), Some(compression));
    }
    assert_eq!(Compression::from_byte(255), None);
}

fn samples() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    let row = |random: &mut fastrand::Rng| {
        format!(r#"{{"customer":"{:012x}","state":"shipped","department":"returns"}}"#, random.u64(..1 << 40))
    };
    (0..200).map(|_| (0..30).map(|_| row(&mut random)).collect::<String>().into_bytes()).collect()
}

fn dictionary(number: u16, bytes: &[u8]) -> Arc<Dictionary> {
    let origin = DictionaryOrigin { table: TableId(7), ordinal: 1, ratio: 2000 };
    Arc::new(Dictionary::new(number, origin, bytes).unwrap())
}

use std::sync::Arc;

#[test]
fn a_dictionary_makes_pages_smaller_and_without_it_they_are_not_decompressed() {
    if !HAS_ZSTD {
        println!("left out: this build has no zstd");
        return;
    }
    let (samples, dictionaries) = (samples(), Dictionaries::default());
    let (bytes, ratio) = trained(&dictionaries, &samples, 4096).unwrap();
    assert!(bytes.len() <= 4096 && u32::from(ratio) * 10 < u32::from(dictionaries.ratio(None, [&samples[0][..]])) * 9);
    assert_eq!(trained(&dictionaries, &samples, 4096).unwrap().0, bytes, "training depends on the samples alone");
    let (mut into, small) = (Vec::new(), Compression::Small);
    let len = dictionaries.compress(small, Some(&dictionary(3, &bytes)), &samples[0], &mut into).unwrap();
    let mut back = vec![0; samples[0].len()];
    let decompress = |number, back: &mut [u8]| dictionaries.decompress(small.to_byte(), number, &into[..len], back);
    assert_eq!(decompress(3, &mut back), Err(Undecodable::Dictionary));
    assert_eq!(dictionaries.free_number(), Some(1));
    let before = dictionaries.memory_bytes();
    dictionaries.add(3, Some(dictionary(3, &bytes)));
    let unused = dictionaries.memory_bytes() - before;
    assert!(unused <= 4096 + 256, "{unused} bytes for a dictionary that no page has needed");
    dictionaries.add(1, None);
    assert_eq!(decompress(1, &mut back), Err(Undecodable::Dictionary), "one that cannot be read");
    assert_eq!(dictionaries.free_number(), Some(2));
    assert_eq!(decompress(3, &mut back), Ok(()));
    assert_eq!(back, samples[0]);
    assert_eq!(dictionaries.decompress(Compression::Fast.to_byte(), 3, &[], &mut []), Err(Undecodable::Dictionary));
    assert!(dictionaries.memory_bytes() - before > 4 * unused && dictionaries.all().len() == 1);
    dictionaries.remove(3);
    assert_eq!(decompress(3, &mut back), Err(Undecodable::Dictionary));
}

#[test]
fn samples_that_have_nothing_in_common_make_no_dictionary() {
    let mut random = fastrand::Rng::with_seed(1);
    let random: Vec<Vec<u8>> =
        (0..100).map(|_| std::iter::repeat_with(|| random.u8(..)).take(1000).collect()).collect();
    for samples in [&random[..], &random[..1], &[]] {
        assert!(trained(&Dictionaries::default(), samples, 4096).is_none());
    }
}

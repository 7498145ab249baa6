use super::*;
use crate::codec::{Dictionaries, DictionaryOrigin, HAS_ZSTD};
use crate::format::compressed::restore_page;
use crate::format::node_mut::{NodeSpec, init};
use crate::format::seal_page;

const PAGE_BYTES: usize = 4096;
const TABLE: TableId = TableId(5 << 32 | 7);

type Sealed = (PageId, Vec<u8>);

/// Returns a leaf of the table that takes about a tenth of a page when it is compressed.
fn leaf(page: u64, commit: u64) -> Sealed {
    let mut bytes = vec![0; PAGE_BYTES];
    init(&mut bytes[HEADER_BYTES..], &NodeSpec { level: 0, table: TABLE, lower: &[], upper: None, first_child: None });
    let mut random = fastrand::Rng::with_seed(page);
    bytes[1000..1000 + 300].iter_mut().for_each(|byte| *byte = random.u8(..));
    seal_page(1, PageId(page), CommitSeq(commit), &mut bytes);
    (PageId(page), bytes)
}

fn packed(codecs: &TableCodecs, dictionaries: &Dictionaries, pages: &[Sealed]) -> Vec<BlockContent<Sealed>> {
    let file = FileCodec { file_id: 1, dictionaries };
    pack(codecs, (file, PAGE_BYTES), pages.iter().cloned(), |(page, bytes)| (*page, bytes))
}

#[test]
fn pages_of_compressed_tables_share_blocks_from_which_they_are_restored() {
    let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
    let pages: Vec<Sealed> = (1..40).map(|page| leaf(page, page)).collect();
    let whole = packed(&codecs, &dictionaries, &pages);
    assert!(whole.len() == 39 && whole.iter().all(|content| content.sharing() == 0), "no table is compressed");
    codecs.set(TABLE, Compression::Fast);
    let mut restored = 0;
    for content in packed(&codecs, &dictionaries, &pages) {
        let BlockContent::Packed { block, pages } = &content else { panic!("a page alone") };
        assert!(pages.len() > 1);
        let file = FileCodec { file_id: 1, dictionaries: &dictionaries };
        for ((page, bytes), tag) in pages {
            let at = Location { block: BlockId(9), tag: *tag, is_compressed: true };
            let mut into = vec![0; PAGE_BYTES];
            restore_page(file, *page, at, block, &mut into).unwrap();
            assert!(into == *bytes);
            restored += 1;
        }
    }
    assert_eq!(restored, 39);
}

#[test]
fn two_versions_of_a_page_never_share_a_block() {
    let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
    codecs.set(TABLE, Compression::Fast);
    let pages: Vec<Sealed> = (1..30).map(|number| leaf(number % 5, number)).collect();
    for content in packed(&codecs, &dictionaries, &pages) {
        if let BlockContent::Packed { pages, .. } = content {
            let mut ids: Vec<PageId> = pages.iter().map(|((page, _), _)| *page).collect();
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), pages.len(), "a block tells the versions of a page apart by nothing");
        }
    }
}

#[test]
fn a_page_names_a_dictionary_only_where_every_checkpoint_that_names_the_page_has_it() {
    if !HAS_ZSTD {
        println!("left out: this build has no zstd");
        return;
    }
    let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
    let dictionary = |number, ordinal| {
        let origin = DictionaryOrigin { table: TABLE, ordinal, ratio: 1000 };
        Arc::new(Dictionary::new(number, origin, &leaf(1, 1).1[900..2000]).unwrap())
    };
    // The numbers of the dictionaries that pages of the commits 8 and 9 name.
    let named = || {
        let content = packed(&codecs, &dictionaries, &[leaf(1, 8), leaf(2, 9)]).remove(0);
        let BlockContent::Packed { block, .. } = content else { panic!("a page alone") };
        let records =
            [1, 2].map(|entry| usize::from(u16::from_le_bytes([block[entry * 8 + 14], block[entry * 8 + 15]])));
        records.map(|at| u16::from_le_bytes([block[at + 20], block[at + 21]]))
    };
    codecs.use_dictionary(dictionary(4, 1), CommitSeq(9));
    codecs.set(TABLE, Compression::Fast);
    assert_eq!(named(), [0, 0], "another codec");
    codecs.set(TABLE, Compression::Small);
    assert!(codecs.needs_zstd());
    assert_eq!(named(), [0, 4]);
    codecs.checkpoint_durable(CommitSeq(8));
    assert_eq!(named(), [0, 4]);
    codecs.checkpoint_durable(CommitSeq(9));
    assert_eq!(named(), [4, 4]);
    codecs.use_dictionary(dictionary(3, 0), CommitSeq(1));
    assert_eq!(named(), [4, 4], "an older one of the table");
    codecs.use_dictionary(dictionary(2, 2), CommitSeq(9));
    assert_eq!(named(), [2, 2]);
    codecs.set(TABLE, Compression::None);
    codecs.set(TABLE, Compression::Small);
    assert_eq!(named(), [2, 2]);
    codecs.forget(TABLE);
    codecs.set(TABLE, Compression::Small);
    assert_eq!(named(), [0, 0]);
}

#[test]
fn tables_are_looked_at_when_enough_was_written_and_pages_have_become_larger() {
    if !HAS_ZSTD {
        println!("left out: this build has no zstd");
        return;
    }
    let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
    codecs.set(TABLE, Compression::Small);
    let pages: Vec<Sealed> = (1..40).map(|page| leaf(page, page)).collect();
    packed(&codecs, &dictionaries, &pages[..2]);
    assert!(codecs.take_untrained(100_000, 1.15).is_empty(), "too little");
    packed(&codecs, &dictionaries, &pages);
    assert_eq!(codecs.take_untrained(100_000, 1.15), [TABLE.0 as u32], "it has no dictionary");
    packed(&codecs, &dictionaries, &pages);
    assert!(codecs.take_untrained(100_000, 1.15).is_empty(), "the last look was in vain");
    packed(&codecs, &dictionaries, &pages);
    assert_eq!(codecs.take_untrained(100_000, 1.15), [TABLE.0 as u32]);
    for (ordinal, ratio, is_due) in [(1, 5000, false), (2, 100, true)] {
        let origin = DictionaryOrigin { table: TABLE, ordinal, ratio };
        let dictionary = Dictionary::new(1, origin, &leaf(1, 1).1[900..2000]).unwrap();
        codecs.use_dictionary(Arc::new(dictionary), CommitSeq(0));
        assert!(codecs.take_untrained(1, 1.15).is_empty(), "nothing was written since");
        packed(&codecs, &dictionaries, &pages);
        assert_eq!(!codecs.take_untrained(100_000, 1.15).is_empty(), is_due, "ratio {ratio}");
        assert!(codecs.take_untrained(1, 1.15).is_empty(), "counted anew");
    }
}

/// Returns a leaf of the table with this many random bytes.
fn leaf_of(page: u64, random_bytes: usize) -> Sealed {
    let (page, mut bytes) = leaf(page, 1);
    let mut random = fastrand::Rng::with_seed(page.0);
    bytes[1000..1000 + random_bytes].iter_mut().for_each(|byte| *byte = random.u8(..));
    seal_page(1, page, CommitSeq(1), &mut bytes);
    (page, bytes)
}

#[test]
fn packed_tightly_pages_stay_compressed_and_find_partners_wherever_they_are() {
    let (codecs, dictionaries) = (TableCodecs::default(), Dictionaries::default());
    // The first half takes more than half of a block each, the second half the rest of one.
    let pages: Vec<Sealed> = (1..41).map(|page| leaf_of(page, if page <= 20 { 2300 } else { 1300 })).collect();
    let pack_these = |pages: &[Sealed], were_compressed: bool| {
        let shape = (FileCodec { file_id: 1, dictionaries: &dictionaries }, PAGE_BYTES);
        pack_tightly(&codecs, shape, pages.to_vec(), |(page, bytes)| (*page, bytes), |_| were_compressed)
    };
    let tightly = |were_compressed| pack_these(&pages, were_compressed);
    assert_eq!(tightly(false).len(), 40, "the table is not compressed, and was not");
    let kept = tightly(true);
    assert!(kept.len() == 20 && kept.iter().all(|content| content.sharing() == 2), "{} blocks", kept.len());
    codecs.set(TABLE, Compression::Fast);
    assert!(packed(&codecs, &dictionaries, &pages).len() > 25, "in order, they find fewer partners");
    assert_eq!(tightly(false).len(), 20);
    assert_eq!(pack_these(&pages[..1], false)[0].sharing(), 1, "it is known to share its block");
}

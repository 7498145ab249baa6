use super::*;

#[test]
fn every_byte_has_one_place_and_lengths_agree_with_it() {
    let layout = Layout { stripe: 8, count: 3 };
    let mut lens = [0; 3];
    for at in 0..200 {
        let (child, place) = layout.place(at);
        assert_eq!(place, lens[child], "bytes of a child follow each other");
        assert_eq!(layout.first_missing(child as u64, place), at);
        lens[child] += 1;
        assert_eq!([0, 1, 2].map(|child| layout.child_len(child, at + 1)), lens);
    }
    assert_eq!(layout.first_missing(2, u64::MAX), u64::MAX);
}

#[test]
fn a_long_write_is_one_gathered_write_per_disk_until_it_has_too_many_pieces() {
    let layout = Layout { stripe: 4096, count: 2 };
    let buffer = IoBuf::zeroed(4096 * 4, crate::aligned::PageKind::Small).unwrap();
    let whole: Arc<dyn StableBytes> = Arc::new(buffer);
    let writes = gathers(layout, 4096, &[whole.clone(), whole.clone()], false);
    let seen: Vec<_> = writes.iter().map(|(child, op)| (*child, op.offset_bytes, op.kind.len_bytes())).collect();
    assert_eq!(seen, [(1, 0, 4 * 4096), (0, 4096, 4 * 4096)]);
    let parts = vec![whole; PARTS_MAX];
    let writes = gathers(layout, 0, &parts, false);
    let seen: Vec<_> = writes.iter().map(|(child, op)| (*child, op.offset_bytes)).collect();
    assert_eq!(seen, [(0, 0), (1, 0), (0, 512 * 4096), (1, 512 * 4096)]);
}

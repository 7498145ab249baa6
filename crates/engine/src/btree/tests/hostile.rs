//! Nodes that nofault never wrote, with checksums that are right.

use super::*;
use crate::format::node_mut::{NodeSpec, child_payload, init, insert};

#[test]
fn leaves_with_keys_shorter_than_what_their_fences_share_are_not_joined() {
    let (store, mut seq, tree) = new_tree(4096, Residency::Everything);
    for number in 0..60u64 {
        commit(&store, &mut seq, |copies| tree.put(copies, &number.to_be_bytes(), Cell::Inline(&[1; 100]))).unwrap();
    }
    let mut leaves = store.live_pages().into_iter().filter(|page| *page != tree.root);
    let (left, right) = (leaves.next().unwrap(), leaves.next().unwrap());
    let fence = |end: u8| [[b'p'; 900].as_slice(), &[end]].concat();
    let (lower, middle, upper) = (fence(b'a'), fence(b'm'), fence(b'z'));
    let spec = NodeSpec { level: 0, table: TableId(1), lower: &lower, upper: Some(&middle), first_child: None };
    let mut payload = Vec::new();
    Cell::Inline(&[7; 50]).encode(&mut payload);
    // More cells than the page has room for: all slots name the same bytes.
    store.damage(left, |body| {
        init(body, &spec);
        assert!(insert(left, body, 0, &fence(b'b'), &payload).unwrap());
        (1..100).for_each(|slot| body.copy_within(32..40, 32 + slot * 8));
        body[2..4].copy_from_slice(&100u16.to_le_bytes());
    });
    // Keys without the prefix that the fences would allow, and a header that declares nearly all bytes unused.
    store.damage(right, |body| {
        init(body, &NodeSpec { lower: &middle, upper: Some(&upper), ..spec });
        body[4..6].fill(0);
        (0..8).for_each(|key| assert!(insert(right, body, usize::from(key), &[b's', key], &payload).unwrap()));
        body[14..16].copy_from_slice(&3000u16.to_le_bytes());
    });
    store.damage(tree.root, |body| {
        init(body, &NodeSpec { level: 1, lower: &[], upper: None, first_child: Some(left), ..spec });
        assert!(insert(tree.root, body, 0, b"r", &child_payload(right)).unwrap());
    });
    let old = commit(&store, &mut seq, |copies| tree.delete(copies, b"s\x03")).unwrap();
    assert_eq!(old, Some(ReplacedValue::Short));
    for key in 0..8 {
        let found = drive(&store, || tree.get(&store.latest(), &[b's', key])).unwrap();
        assert_eq!(found, (key != 3).then(|| FoundValue::Inline(vec![7; 50])), "key {key}");
    }
}

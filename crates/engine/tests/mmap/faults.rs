//! Damaged files under a map: an error where one is possible, and a documented wrong answer where none is.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use nofault::error::ErrorKind;
use nofault::mmap::{Protocol, Settings, WriteBack};

use crate::{PROTOCOLS, create, folder, open, tiny};

#[test]
fn a_file_truncated_under_the_map_is_an_error_and_no_signal() {
    for protocol in PROTOCOLS {
        let folder = folder();
        let settings = Settings { page_bytes: 4096, ..tiny(protocol) };
        let store = create(folder.path(), &settings).unwrap();
        for number in 0..300u32 {
            store.put(number.to_be_bytes(), vec![7; 500]).unwrap();
        }
        store.checkpoint().unwrap();
        store.remap().unwrap();
        let data = OpenOptions::new().write(true).open(folder.path().join("data")).unwrap();
        data.set_len(8192).unwrap();
        let error = store.get(&0u32.to_be_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{protocol:?}: {error}");
        assert!(error.to_string().contains("truncated"), "{protocol:?}: {error}");
        assert!(store.snapshot().range(b"", None).any(|entry| entry.is_err()));
        store.put("k", "v").unwrap_err();
        drop(store);
        assert_eq!(open(folder.path(), &settings).err().unwrap().kind(), ErrorKind::Corrupt, "{protocol:?}");
    }
}

#[test]
fn a_durable_commit_is_acknowledged_even_if_its_pages_cannot_be_applied() {
    let folder = folder();
    // The protocol whose pages wait outside the map and reach the file by stores.
    let settings = Settings { page_bytes: 4096, ..tiny(Protocol::UserCow(WriteBack::Map)) };
    let store = create(folder.path(), &settings).unwrap();
    let data = folder.path().join("data");
    let whole = std::fs::read(&data).unwrap();
    store.put("key", 0u64.to_le_bytes()).unwrap();
    // From here on the page is outside the map only, and cannot be stored into it.
    OpenOptions::new().write(true).open(&data).unwrap().set_len(8192).unwrap();
    let mut last = 0u64;
    let error = loop {
        match store.put("key", (last + 1).to_le_bytes()) {
            Ok(()) => last += 1,
            Err(error) => break error,
        }
        assert!(last < 10_000, "nothing ever reaches the file");
    };
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    assert!(error.to_string().contains("truncated"), "{error}");
    store.get(b"key").unwrap_err();
    assert!(!error.to_string().contains("reads go on"), "they do not: {error}");
    drop(store);
    std::fs::write(&data, whole).unwrap();
    let store = open(folder.path(), &settings).unwrap();
    assert_eq!(store.get(b"key").unwrap(), Some(last.to_le_bytes().to_vec()));
}

#[test]
fn a_failed_commit_says_whether_reads_go_on() {
    let folder = folder();
    let settings = Settings { page_bytes: 4096, ..tiny(Protocol::Shadow(WriteBack::Map)) };
    let store = create(folder.path(), &settings).unwrap();
    store.put("key", "value").unwrap();
    let found = store.verify().unwrap();
    let data = OpenOptions::new().write(true).open(folder.path().join("data")).unwrap();
    // All that is there stays, and there is no room for more.
    data.set_len((found.pages_used + found.pages_free) * 4096).unwrap();
    assert_eq!(store.get(b"key").unwrap(), Some(b"value".to_vec()));
    let error = store.put("long", vec![1; 100_000]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Poisoned, "{error}");
    store.get(b"key").unwrap_err();
    assert!(!error.to_string().contains("reads go on"), "they do not: {error}");
}

#[test]
fn a_flipped_bit_is_found_where_every_access_checks() {
    for protocol in PROTOCOLS {
        for checksums in [true, false] {
            let folder = folder();
            let settings = Settings { page_bytes: 4096, checksums, ..tiny(protocol) };
            let store = create(folder.path(), &settings).unwrap();
            store.put("key", "the right value").unwrap();
            drop(store);
            drop(open(folder.path(), &settings).unwrap());
            let data = OpenOptions::new().read(true).write(true).open(folder.path().join("data")).unwrap();
            let mut bytes = std::fs::read(folder.path().join("data")).unwrap();
            let places: Vec<_> =
                bytes.windows(15).enumerate().filter(|(_, part)| *part == b"the right value").collect();
            let places: Vec<_> = places.into_iter().map(|(at, _)| at).collect();
            for at in places {
                bytes[at + 4] = b'n';
                data.write_all_at(&bytes[at + 4..at + 5], at as u64 + 4).unwrap();
            }
            let store = open(folder.path(), &settings).unwrap();
            match (checksums, store.get(b"key")) {
                (true, answer) => assert_eq!(answer.unwrap_err().kind(), ErrorKind::Corrupt, "{protocol:?}"),
                // Without checksums there is no error: the wrong answer that the lab shows.
                (false, answer) => assert_eq!(answer.unwrap(), Some(b"the night value".to_vec()), "{protocol:?}"),
            }
        }
    }
}

#[test]
fn a_full_map_refuses_commits_until_space_is_free() {
    for protocol in PROTOCOLS {
        let folder = folder();
        let settings = Settings { map_bytes: 128 << 10, ..tiny(protocol) };
        let store = create(folder.path(), &settings).unwrap();
        let mut count = 0u32;
        let error = loop {
            match store.put(count.to_be_bytes(), vec![1; 100]) {
                Ok(()) => count += 1,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{protocol:?}: {error}");
        assert_eq!(store.verify().unwrap().entries, u64::from(count), "{protocol:?}");
        // Deleting needs a few pages where pages are copied: LMDB has the same.
        let deleted = (0..count).take_while(|number| store.delete(number.to_be_bytes()).is_ok()).count();
        if deleted > 0 {
            assert_eq!(store.verify().unwrap().entries, u64::from(count) - deleted as u64);
        }
        assert!(deleted > 0 || matches!(protocol, nofault::mmap::Protocol::Shadow(_)), "{protocol:?}");
    }
}

//! Databases that earlier builds wrote, from `fixtures/`: their files, and how they are put into a folder.

use std::path::Path;

/// Format version, ending and content of each fixture.
pub(crate) const FIXTURES: [(u32, &str, &[u8]); 4] = [
    (1, "closed", include_bytes!("../fixtures/format1-closed.sparse")),
    (1, "killed", include_bytes!("../fixtures/format1-killed.sparse")),
    (2, "closed", include_bytes!("../fixtures/format2-closed.sparse")),
    (2, "killed", include_bytes!("../fixtures/format2-killed.sparse")),
];

/// Removes the next `N` bytes and returns them.
fn take<const N: usize>(from: &mut &[u8]) -> [u8; N] {
    let (head, rest) = from.split_at(N);
    *from = rest;
    head.try_into().expect("as many bytes as were split off")
}

fn next_file(from: &mut &[u8]) -> Vec<u8> {
    let mut file = vec![0; u64::from_le_bytes(take(from)) as usize];
    for _ in 0..u32::from_le_bytes(take(from)) {
        let (start, len) = (u64::from_le_bytes(take(from)) as usize, u32::from_le_bytes(take(from)) as usize);
        let (run, rest) = from.split_at(len);
        file[start..start + len].copy_from_slice(run);
        *from = rest;
    }
    file
}

/// Returns the files `data` and `log` of a fixture.
pub(crate) fn unpacked(mut fixture: &[u8]) -> [Vec<u8>; 2] {
    let files = [next_file(&mut fixture), next_file(&mut fixture)];
    assert!(fixture.is_empty(), "the fixture ends with its second file");
    files
}

/// Writes the files `data` and `log` into a folder.
pub(crate) fn put_into(folder: &Path, files: &[Vec<u8>; 2]) {
    std::fs::write(folder.join("data"), &files[0]).expect("room for the data file");
    std::fs::write(folder.join("log"), &files[1]).expect("room for the log");
}

/// Returns the files `data` and `log` of a folder.
pub(crate) fn files_in(folder: &Path) -> [Vec<u8>; 2] {
    ["data", "log"].map(|name| std::fs::read(folder.join(name)).expect("a file that is there"))
}

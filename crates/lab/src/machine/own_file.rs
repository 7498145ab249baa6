//! A file of the user's as the data of trials, and the sizes of the lab's own data in the place of a file that a recorded program of the user's
//! accessed. The user's file is opened for reading only, here and by every method, and never written.

use std::path::Path;

use super::content::BLOCK_BYTES;
use super::system::fail;
use crate::error::{LabError, LabErrorKind, Result};
use crate::paths::{open_at_once, shown};
use crate::record::Target;
use crate::trace::Trace;

/// Least size of a file that can be larger than the memory of a trial.
const BYTES_MIN: u64 = 64 << 20;

/// The file is at least this many times the memory of its trials, so that the largest part of a grid fits in it.
const SHARE: u64 = 8;
/// Least memory of trials: a process needs as much.
const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// The memory of trials on a file with this much data, where `wanted_bytes` are wanted.
pub(crate) fn memory_bytes(data_bytes: u64, wanted_bytes: u64) -> u64 {
    wanted_bytes.min(data_bytes / SHARE).max(MEMORY_BYTES_MIN)
}

/// The sentence for the records of a run over the file.
pub(crate) fn note(data_bytes: u64) -> String {
    format!(
        "the data is the user's own file, {}, opened for reading only: its content cannot be verified, and the engine's pool takes part only \
         with --pool require, which makes a database of its size",
        crate::format::bytes(data_bytes)
    )
}

/// The bytes of the data and of the memory for the replay of a trace, and the sentence for the records about them. The data has the
/// size of the recorded file where `may_shrink`, between 64 MiB and the configured size, and the memory shrinks with it.
pub(crate) fn sizes_for_trace(
    trace: &Trace,
    data_bytes: u64,
    wanted_memory_bytes: u64,
    may_shrink: bool,
) -> (u64, u64, String) {
    let recorded_bytes = trace.data_bytes();
    let (data_bytes, memory_bytes) = match may_shrink {
        true => {
            let data_bytes = recorded_bytes.clamp(BYTES_MIN, data_bytes.max(BYTES_MIN));
            (data_bytes, memory_bytes(data_bytes, wanted_memory_bytes))
        }
        false => (data_bytes, wanted_memory_bytes),
    };
    let (recorded, data) = (crate::format::bytes(recorded_bytes), crate::format::bytes(data_bytes));
    let mut note = format!("the recorded accesses reach to {recorded}; the data has {data}");
    if recorded_bytes > data_bytes {
        note.push_str(
            ": an access beyond it is counted from the start again, so that blocks are met more often than by the program (--size sets the size of \
             the data)",
        );
    }
    (data_bytes, memory_bytes, note)
}

/// Looks at the file, and returns it as a target whose content is unknown. Its first block is left out, as every data
/// file's is, and so is a part of a block at its end.
///
/// # Errors
/// `Usage` for a file too small, and for something other than an ordinary file; the system's error where it cannot be
/// opened for reading.
pub(crate) fn target(path: &Path) -> Result<Target> {
    let usage = |why: String| LabError::new(LabErrorKind::Usage, format!("--file {}: {why}", shown(path)));
    let file = open_at_once(path).map_err(|error| fail("open for reading", path, &error))?;
    let about = file.metadata().map_err(|error| fail("look at", path, &error))?;
    if !about.is_file() {
        return Err(usage("it is no ordinary file; a block device is read by --device".into()));
    }
    if about.len() < BYTES_MIN {
        let (size, least) = (crate::format::bytes(about.len()), crate::format::bytes(BYTES_MIN));
        return Err(usage(format!("{size} are too little: it takes {least} to be larger than memory")));
    }
    let whole = std::path::absolute(path).map_err(|error| fail("find", path, &error))?;
    let block = BLOCK_BYTES as u64;
    Ok(Target {
        label: "file".into(),
        paths: vec![whole],
        data_bytes: (about.len() / block - 1) * block,
        content_seed: None,
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::trace::{Access, Op};

    #[test]
    fn a_file_is_a_target_of_whole_blocks_without_its_first_and_with_unknown_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("my.db");
        let file = File::create(&path).unwrap();
        file.set_len(BYTES_MIN + 100).unwrap();
        let target = target(&path).unwrap();
        assert_eq!((target.data_bytes, target.content_seed), (BYTES_MIN - 4096, None));
        assert!(Path::new(&target.paths[0]).is_absolute() && target.label == "file");
    }

    #[test]
    fn the_data_of_a_replay_has_the_size_of_the_recorded_file_within_bounds() {
        let trace = |bytes: u64| {
            let access = Access { offset_bytes: bytes - 1, length_bytes: 1, op: Op::Read, thread: 0, at_s: 0.0 };
            Trace { accesses: vec![access], ..Trace::default() }
        };
        let sizes = |recorded: u64, may_shrink| sizes_for_trace(&trace(recorded), 4 << 30, 256 << 20, may_shrink);
        let (data, memory, note) = sizes(1 << 30, true);
        assert!((data, memory) == (1 << 30, 128 << 20) && !note.contains("--size"), "{note}");
        assert_eq!(sizes(4096, true).0, BYTES_MIN);
        let (data, _, note) = sizes(1 << 40, true);
        assert!(data == 4 << 30 && note.contains("--size"), "{note}");
        assert_eq!(sizes(4096, false).0, 4 << 30);
    }

    #[test]
    fn small_files_folders_and_missing_files_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let small = folder.path().join("small");
        std::fs::write(&small, "x").unwrap();
        let refused = |path: &Path| target(path).unwrap_err();
        assert!(refused(&small).kind() == LabErrorKind::Usage && refused(&small).to_string().contains("64"));
        assert!(refused(folder.path()).to_string().contains("--device"));
        assert!(refused(&folder.path().join("none")).to_string().contains("none"));
    }
}

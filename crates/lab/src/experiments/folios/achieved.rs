//! Finds the folios holding the pages of a map. `/proc/self/pagemap` gives the frame of each mapped page;
//! `/proc/kpageflags` tells whether a frame begins a compound page, lies in one, or stands alone.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use nofault_io::mapped::MappedFile;

use crate::error::{LabError, LabErrorKind, Result};
use crate::workload::PAGE_BYTES;

/// Bit of a pagemap entry that says that the page is in memory and mapped.
const PRESENT: u64 = 1 << 63;
/// Bits of a pagemap entry that hold the number of the frame; zero for callers without the right to see it.
const FRAME: u64 = (1 << 55) - 1;
/// Bits of a kpageflags entry that mark the first page and the further pages of a compound page.
const HEAD: u64 = 1 << 15;
const TAIL: u64 = 1 << 16;

/// Counts the map's pages by the size in bytes of the folio holding each. Every page of the map must have been
/// touched.
///
/// # Errors
/// `Unsupported` where the kernel hides the frames or their flags; `System` when a page is not mapped although it was
/// touched.
pub(super) fn folios_of(map: &MappedFile) -> Result<BTreeMap<u64, u64>> {
    let open = |path: &str| {
        let refused = |error: std::io::Error| unsupported(&format!("{path} cannot be read: {error}"));
        File::open(path).map_err(refused)
    };
    let (pagemap, kpageflags) = (open("/proc/self/pagemap")?, open("/proc/kpageflags")?);
    let entry = |file: &File, index: u64| -> Result<u64> {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, index * 8)
            .map_err(|error| LabError::system("look at a page's frame", &error))?;
        Ok(u64::from_le_bytes(bytes))
    };
    let first = map.bytes().as_ptr() as u64 / PAGE_BYTES as u64;
    let mut folios = BTreeMap::new();
    let mut pages_in_folio = 0;
    let mut end = |pages: &mut u64| {
        if *pages > 0 {
            *folios.entry(*pages * PAGE_BYTES as u64).or_insert(0) += *pages;
        }
        *pages = 0;
    };
    for page in 0..(map.len_bytes() / PAGE_BYTES) as u64 {
        let mapped = entry(&pagemap, first + page)?;
        if mapped & PRESENT == 0 {
            return Err(LabError::new(LabErrorKind::System, "folios: a page was not mapped after it was touched"));
        }
        if mapped & FRAME == 0 {
            return Err(unsupported("the kernel hides the frames of pages from this process"));
        }
        let flags = entry(&kpageflags, mapped & FRAME)?;
        if flags & TAIL == 0 {
            end(&mut pages_in_folio);
        }
        pages_in_folio += 1;
        if flags & (HEAD | TAIL) == 0 {
            end(&mut pages_in_folio);
        }
    }
    end(&mut pages_in_folio);
    Ok(folios)
}

fn unsupported(why: &str) -> LabError {
    LabError::new(LabErrorKind::Unsupported, format!("the size of folios is not available here: {why}"))
}

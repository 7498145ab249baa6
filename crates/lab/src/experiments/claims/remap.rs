//! Remaps a private view of a file with changed pages, which drops the copies, as MongoDB's MMAPv1 did every two
//! seconds with all its threads waiting.

use std::fs::File;
use std::time::Instant;

use super::raw_map::RawMap;
use super::{MMAP_PRIVATE, number, only_path, run_timed};
use crate::error::{LabError, LabErrorKind, Result};
use crate::experiment::Context;
use crate::measure::{Work, Worker};
use crate::paths::shown;
use crate::record::{Outcome, TrialSpec};
use crate::workload::{Layout, PAGE_BYTES};

/// Measures the variant `private-remap`: `op` is the time of remapping, `touch_again` the time of the first touches
/// of all pages that were copies, `copy` the time of making the copies.
pub(super) fn execute(spec: &TrialSpec, layout: &Layout, context: &mut Context<'_>) -> Result<Outcome> {
    if spec.method != MMAP_PRIVATE {
        return Err(crate::read_loops::unknown(spec));
    }
    let path = only_path(spec, layout)?;
    let copied = usize::try_from(number(spec, "copied_pages")?).unwrap_or(usize::MAX);
    // The first page of the file holds the lab's marker.
    let pages = (layout.file_bytes() as usize / PAGE_BYTES).saturating_sub(1);
    if copied == 0 || copied > pages {
        let message = format!("{}: {copied} pages to be copied of {pages}", spec.key());
        return Err(LabError::new(LabErrorKind::Usage, message));
    }
    let file = File::open(path).map_err(|error| LabError::system(format!("open {}", shown(&path)), &error))?;
    let file = &file;
    let work: Work<'_> = Box::new(move |worker: &mut Worker<'_>| {
        let mut map = RawMap::map(file, PAGE_BYTES as u64, pages * PAGE_BYTES, true)?;
        // The changed pages are spread over the whole view, as updates are.
        let at = |number: usize| number * pages / copied;
        worker.start();
        while worker.running() {
            let before = Instant::now();
            (0..copied).for_each(|number| map.change(at(number), u64::MAX));
            worker.latency("copy", before.elapsed());
            let before = Instant::now();
            map.map_again()?;
            worker.latency("op", before.elapsed());
            let before = Instant::now();
            for number in 0..copied {
                let offset_bytes = ((at(number) + 1) * PAGE_BYTES) as u64;
                worker.verified(layout.is_right_word(map.word(at(number)), offset_bytes));
            }
            worker.latency("touch_again", before.elapsed());
            worker.done(1, (copied * PAGE_BYTES) as u64);
        }
        Ok(())
    });
    run_timed(spec, vec![work], context)
}

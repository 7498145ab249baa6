//! `buffer_pool::compressed_tier`: a block in memory is found without a lock, with bytes that are no older than the
//! location by which it is found. Its frame is retired once, and used again only when no thread can look at it.

use super::*;

/// A set of the index has more words. The model has one block, so a word is a frame's number plus one.
const WAYS: usize = 2;
const OLD: u64 = 1;
const NEW: u64 = 2;

struct Frame {
    content: UnsafeCell<u64>,
    times_retired: AtomicUsize,
}

struct Tier {
    words: [AtomicUsize; WAYS],
    frames: [Frame; 2],
    /// The lock of a page's shard, and whether a version of the page lies in the old content of the block.
    shard: Mutex<bool>,
    /// The content to which the page's location leads.
    location: AtomicU64,
    pinned: AtomicUsize,
}

impl Tier {
    fn new() -> Arc<Self> {
        let frame = |_| Frame { content: UnsafeCell::new(0), times_retired: AtomicUsize::new(0) };
        Arc::new(Self {
            words: std::array::from_fn(|_| AtomicUsize::new(0)),
            frames: std::array::from_fn(frame),
            shard: Mutex::new(true),
            location: AtomicU64::new(OLD),
            pinned: AtomicUsize::new(0),
        })
    }

    fn fill(&self, frame: usize, content: u64) {
        self.frames[frame].content.with_mut(|bytes| {
            // SAFETY: the subject of this model; the checker reports a race if it is wrong.
            unsafe { *bytes = content }
        });
    }

    /// `BlockIndex::insert`.
    fn insert(&self, frame: usize) {
        let put = |word: &AtomicUsize| word.compare_exchange(0, frame + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        assert!(self.words.iter().any(put), "there are as many words as frames");
    }

    /// `BlockIndex::candidates`.
    fn found(&self) -> impl Iterator<Item = (&AtomicUsize, usize)> {
        self.words.iter().filter_map(|word| Some((word, word.load(Ordering::Acquire).checked_sub(1)?)))
    }

    /// Removes all frames of the block, as the clock and the writer do, and uses those again that no thread can be
    /// looking at.
    fn remove_all(&self) {
        for (word, frame) in self.found() {
            if word.compare_exchange(frame + 1, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                self.retire(frame);
            }
        }
    }

    fn retire(&self, frame: usize) {
        assert_eq!(self.frames[frame].times_retired.fetch_add(1, Ordering::Relaxed), 0, "retired twice");
        // The promise of epochs.
        fence(Ordering::SeqCst);
        if self.pinned.load(Ordering::SeqCst) == 0 {
            self.fill(frame, 0);
        }
    }

    /// The read that brings the old content ends: `PageTable::end_read`.
    fn end_read(&self) {
        self.fill(0, OLD);
        let lies_there = self.shard.lock().unwrap();
        if *lies_there {
            self.insert(0);
        }
    }

    /// The page is written elsewhere and dropped, and other content takes its place: `Writer`.
    fn write(&self) {
        *self.shard.lock().unwrap() = false;
        self.remove_all();
        self.location.store(NEW, Ordering::Release);
        self.fill(1, NEW);
        self.insert(1);
    }

    /// A page is missed: `Installer`.
    fn restore(&self) {
        self.pinned.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let wanted = self.location.load(Ordering::Acquire);
        for (_, frame) in self.found() {
            let content = self.frames[frame].content.with(|bytes| {
                // SAFETY: as in `fill`.
                unsafe { *bytes }
            });
            assert!(content >= wanted, "found content {content} for location {wanted}");
        }
        self.pinned.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn a_block_is_found_with_its_present_content_and_its_frame_is_retired_once() {
    model(|| {
        let tier = Tier::new();
        let spawn = |work: fn(&Tier)| {
            let tier = Arc::clone(&tier);
            thread::spawn(move || work(&tier))
        };
        // The clock evicts alongside the writer.
        let threads = [spawn(Tier::end_read), spawn(Tier::restore), spawn(Tier::remove_all)];
        tier.write();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

//! Where bytes of a striped disk lie: plain arithmetic on positions.

use std::ops::Range;

/// The mapping from bytes of the whole to bytes of the disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Length of a stripe, in bytes.
    pub(super) stripe: u64,
    /// Number of disks.
    pub(super) count: u64,
}

/// The part of a request that lies in one stripe.
pub(super) struct Piece {
    pub(super) child: usize,
    pub(super) offset: u64,
    /// The range of the request's bytes.
    pub(super) part: Range<usize>,
}

impl Layout {
    /// Returns the disk on which a byte of the whole lies, and its offset there.
    pub(super) fn place(self, offset: u64) -> (usize, u64) {
        let stripe = offset / self.stripe;
        ((stripe % self.count) as usize, stripe / self.count * self.stripe + offset % self.stripe)
    }

    /// Cuts a request that [`check_op`](crate::disk::check_op) accepts into pieces that lie in one stripe each.
    pub(super) fn pieces(self, offset: u64, len: usize) -> impl Iterator<Item = Piece> {
        let mut done = 0;
        std::iter::from_fn(move || {
            (done < len).then(|| {
                let at = offset + done as u64;
                let (child, child_offset) = self.place(at);
                let count = usize::try_from(self.stripe - at % self.stripe).unwrap_or(usize::MAX).min(len - done);
                let part = done..done + count;
                done += count;
                Piece { child, offset: child_offset, part }
            })
        })
    }

    /// Returns the number of bytes among the first `end` that lie on a child, which is the length that the child needs
    /// for them.
    pub(super) fn child_len(self, child: u64, end: u64) -> u64 {
        let row = self.stripe.saturating_mul(self.count);
        let rest = (end % row).saturating_sub(child * self.stripe).min(self.stripe);
        end / row * self.stripe + rest
    }

    /// Returns the first byte of the whole that a child of this length lacks.
    pub(super) fn first_missing(self, child: u64, len: u64) -> u64 {
        let stripe = (len / self.stripe).saturating_mul(self.count).saturating_add(child);
        stripe.saturating_mul(self.stripe).saturating_add(len % self.stripe)
    }
}

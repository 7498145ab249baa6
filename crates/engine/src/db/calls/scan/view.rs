//! The pages that a scan sees: the pages read for it alone, and otherwise the pages of the store's view.

use std::cell::RefCell;
use std::ops::{Deref, Range};

use crate::format::{Moment, PageId};
use crate::pages::{Attempt, OwnPage, Pages, RangeScan as _, Store};

/// The pages of a scan in one attempt. It notes the requested private pages.
pub(super) struct ScanView<'a, S: Store + 'a> {
    /// The pages that all readers share.
    pub(super) shared: S::View<'a>,
    own: Option<&'a S::RangeScan>,
    used: RefCell<Vec<PageId>>,
}

impl<'a, S: Store> ScanView<'a, S> {
    pub(super) fn new(shared: S::View<'a>, own: Option<&'a S::RangeScan>) -> Self {
        Self { shared, own, used: RefCell::default() }
    }

    /// Returns whether a page of the scan's own cannot be used.
    pub(super) fn has_refused(&self, id: PageId) -> bool {
        self.own.and_then(|scan| scan.page(id)) == Some(OwnPage::Refused)
    }

    /// Returns the pages of the scan's own that were used.
    pub(super) fn into_used(self) -> Vec<PageId> {
        self.used.into_inner()
    }
}

/// The body of a page of a [`ScanView`].
pub(super) enum ScanPage<'a, P> {
    Own(&'a [u8]),
    Shared(P),
}

impl<P: Deref<Target = [u8]>> Deref for ScanPage<'_, P> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(body) => body,
            Self::Shared(page) => page,
        }
    }
}

impl<'a, S: Store + 'a> Pages for ScanView<'a, S> {
    type Page<'b>
        = ScanPage<'b, <S::View<'a> as Pages>::Page<'b>>
    where
        Self: 'b;

    fn page_bytes(&self) -> usize {
        self.shared.page_bytes()
    }

    #[inline]
    fn page(&self, id: PageId) -> Attempt<Self::Page<'_>> {
        if let Some(own) = self.own.and_then(|scan| scan.page(id)) {
            self.used.borrow_mut().push(id);
            if let OwnPage::Shown(body) = own {
                return Ok(ScanPage::Own(body));
            }
        }
        self.shared.page(id).map(ScanPage::Shared)
    }

    #[inline]
    fn has_expired(&self, expiry: Moment) -> bool {
        self.shared.has_expired(expiry)
    }

    /// Pages read for the scan alone are to be used, so it passes none while it reads far ahead.
    #[inline]
    fn has_only_expired(&self, leaf: PageId) -> bool {
        self.own.is_none() && self.shared.has_only_expired(leaf)
    }

    fn note_latest_expiry(&self, leaf: PageId, latest: Moment) {
        self.shared.note_latest_expiry(leaf, latest);
    }

    fn expect(&self, id: PageId) {
        self.shared.expect(id);
    }

    fn fetch(&self, id: PageId, bytes: Range<usize>) {
        self.shared.fetch(id, bytes);
    }
}

//! Pages as a bulk load of the same entries would fill them, only in memory: from them a dictionary is trained before
//! the load begins.

use super::packed::{self, is_worth_it};
use crate::format::cell::{Cell, VALUES_HEADER_BYTES, inline_value_bytes_max};
use crate::format::node::key_bytes_max;
use crate::format::node_mut::{Cells, NodeSpec, separator};
use crate::format::{HEADER_BYTES, PageId, TableId};

/// Fills leaves and pages of values.
pub(crate) struct SamplePages {
    table: TableId,
    page_bytes: usize,
    /// The cells of the leaf that is being filled. Without the last one they fit.
    cells: Cells,
    /// The lower fence of that leaf.
    lower: Vec<u8>,
    /// The page of values that is being filled.
    values: Vec<u8>,
    bodies: Vec<Vec<u8>>,
}

impl SamplePages {
    pub(crate) fn new(table: TableId, page_bytes: usize) -> Self {
        let (lower, values) = (Vec::new(), Vec::new());
        Self { table, page_bytes, cells: Cells::default(), lower, values, bodies: Vec::new() }
    }

    /// Adds an entry. Leaves out one that a load would refuse.
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8]) {
        let last = self.cells.len().checked_sub(1).map(|last| self.cells.key(last));
        if key.len() > key_bytes_max(self.page_bytes) || last.is_some_and(|last| last >= key) {
            return;
        }
        let is_beside = value.len() > inline_value_bytes_max(self.page_bytes)
            || is_worth_it(self.page_bytes, key.len(), value.len());
        if is_beside {
            return self.push_beside(value);
        }
        if let Some(last) = last
            && !self.cells.fit(0..self.cells.len(), &self.spec(separator(last, key)), self.body_bytes())
        {
            self.cut();
        }
        self.cells.push_with(&[key], |payload| Cell::Inline(value).encode(payload));
    }

    /// Returns the bodies of the pages that are full.
    pub(crate) fn into_bodies(self) -> Vec<Vec<u8>> {
        self.bodies
    }

    fn body_bytes(&self) -> usize {
        self.page_bytes - HEADER_BYTES
    }

    fn spec<'a>(&'a self, upper: &'a [u8]) -> NodeSpec<'a> {
        NodeSpec { level: 0, table: self.table, lower: &self.lower, upper: Some(upper), first_child: None }
    }

    /// Ends the leaf before its last cell.
    fn cut(&mut self) {
        let Some(count) = self.cells.len().checked_sub(1).filter(|count| *count > 0) else {
            self.cells = Cells::default();
            return;
        };
        let upper = separator(self.cells.key(count - 1), self.cells.key(count)).to_vec();
        let mut body = vec![0; self.body_bytes()];
        if self.cells.write(0..count, &self.spec(&upper), PageId(0), &mut body).is_ok() {
            self.bodies.push(body);
        }
        (self.lower, self.cells) = (upper, self.cells.tail(count));
    }

    /// Adds a value to the page of values, and begins new ones as often as the page is full.
    fn push_beside(&mut self, mut value: &[u8]) {
        let body_bytes = self.body_bytes();
        while !value.is_empty() {
            if self.values.is_empty() {
                self.values.resize(body_bytes, 0);
                packed::init(&mut self.values, self.table);
                self.values.truncate(VALUES_HEADER_BYTES);
            }
            let (now, later) = value.split_at(value.len().min(body_bytes - self.values.len()));
            self.values.extend_from_slice(now);
            value = later;
            if self.values.len() == body_bytes {
                self.bodies.push(std::mem::take(&mut self.values));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::node::Node;

    #[test]
    fn sample_pages_hold_the_entries_in_order_whatever_the_entries_are() {
        let mut pages = SamplePages::new(TableId(7), 4096);
        let long = vec![9; 10_000];
        for number in 0..1000u32 {
            let value = if number % 50 == 7 { &long[..] } else { &[number as u8; 30] };
            pages.push(&number.to_be_bytes(), value);
            pages.push(&(number - number % 50).to_be_bytes(), b"a key that is there already");
        }
        pages.push(&[8; 2000], b"a key that is too long");
        let bodies = pages.into_bodies();
        assert!(bodies.iter().all(|body| body.len() == 4056));
        let (mut next, mut values) = (0u32, 0);
        for body in &bodies {
            let Ok(node) = Node::open(PageId(0), body) else {
                values += body.len() - VALUES_HEADER_BYTES;
                continue;
            };
            for index in 0..node.count() {
                next += u32::from(next % 50 == 7);
                assert_eq!(node.key(index).unwrap(), next.to_be_bytes());
                next += 1;
            }
        }
        assert!((800..=1000).contains(&next) && values > 190_000, "{next} {values}");
    }
}

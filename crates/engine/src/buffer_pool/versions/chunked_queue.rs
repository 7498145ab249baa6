//! A queue in chunks: it grows without moving its elements, accepts whole lists at once, and returns one element at a
//! time. So no operation on it under a lock takes longer when the queue is longer.

use std::collections::VecDeque;

/// Capacity of a piece that `push` begins, in elements.
const PIECE: usize = 1024;

/// A queue that keeps its elements in pieces of bounded size, so that no single call moves many elements.
#[derive(Debug)]
pub(crate) struct ChunkedQueue<T> {
    /// The pieces, none of them empty.
    pieces: VecDeque<VecDeque<T>>,
    len: usize,
}

impl<T> Default for ChunkedQueue<T> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), len: 0 }
    }
}

impl<T> ChunkedQueue<T> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one element at the end.
    pub(crate) fn push(&mut self, element: T) {
        self.len += 1;
        match self.pieces.back_mut().filter(|piece| piece.len() < PIECE) {
            Some(piece) => piece.push_back(element),
            None => self.pieces.push_back(VecDeque::from([element])),
        }
    }

    /// Adds a list at the end as one piece, without moving its elements.
    pub(crate) fn push_all(&mut self, list: Vec<T>) {
        if !list.is_empty() {
            self.len += list.len();
            self.pieces.push_back(list.into());
        }
    }

    /// Adds all elements of another queue at the end, moving whole pieces (of about a thousand elements each).
    pub(crate) fn append(&mut self, mut other: Self) {
        self.len += other.len;
        self.pieces.append(&mut other.pieces);
    }

    /// Removes the first element and returns it.
    pub(crate) fn pop(&mut self) -> Option<T> {
        let piece = self.pieces.front_mut()?;
        let element = piece.pop_front()?;
        self.len -= 1;
        if piece.is_empty() {
            self.pieces.pop_front();
        }
        Some(element)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_element_comes_out_once_and_in_order() {
        let mut queue = ChunkedQueue::default();
        (0..3000).for_each(|number| queue.push(number));
        queue.push_all((3000..5000).collect());
        queue.push_all(Vec::new());
        queue.push(5000);
        let mut other = ChunkedQueue::default();
        (5001..7000).for_each(|number| other.push(number));
        queue.append(other);
        assert_eq!((queue.len(), queue.is_empty()), (7000, false));
        assert!((0..7000).all(|number| queue.pop() == Some(number)));
        assert_eq!((queue.pop(), queue.len(), queue.is_empty()), (None, 0, true));
    }
}

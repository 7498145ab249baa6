//! The mapped files of a process, by address. A later mapping replaces the parts of earlier ones that it covers, as in the kernel, so that
//! an address always belongs to the file mapped there last.

use std::collections::BTreeMap;
use std::rc::Rc;

/// A range of addresses, without its start.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mapping {
    /// The first address behind the range.
    pub(super) end: u64,
    /// Position in the file of the first address, in bytes.
    pub(super) offset_bytes: u64,
    /// The path of the file, `None` for anonymous memory.
    pub(super) path: Option<Rc<str>>,
}

/// The mappings of one process, by their first address. They do not overlap.
#[derive(Debug, Clone, Default)]
pub(super) struct Maps(BTreeMap<u64, Mapping>);

impl Maps {
    /// Adds a mapping, and cuts away the earlier ones below it. An empty range changes nothing.
    pub(super) fn put(&mut self, start: u64, mapping: Mapping) {
        let end = mapping.end;
        if start >= end {
            return;
        }
        let before = self.0.range(..start).next_back().filter(|(_, old)| old.end > start).map(|(at, _)| *at);
        let covered: Vec<u64> = before.into_iter().chain(self.0.range(start..end).map(|(at, _)| *at)).collect();
        for at in covered {
            let Some(old) = self.0.remove(&at) else { continue };
            if at < start {
                self.0.insert(at, Mapping { end: start, ..old.clone() });
            }
            if old.end > end {
                self.0.insert(end, Mapping { offset_bytes: old.offset_bytes.saturating_add(end - at), ..old });
            }
        }
        self.0.insert(start, mapping);
    }

    /// The mapping at an address, and the position of the address in its file.
    pub(super) fn find(&self, address: u64) -> Option<(&Mapping, u64)> {
        let (start, mapping) = self.0.range(..=address).next_back()?;
        (address < mapping.end).then(|| (mapping, mapping.offset_bytes.saturating_add(address - start)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_address_belongs_to_the_file_that_was_mapped_there_last(
            ranges in prop::collection::vec((0_u64..64, 0_u64..24, 0_u64..1000, any::<bool>()), 0..24)
        ) {
            let mut maps = Maps::default();
            let mut model: BTreeMap<u64, (Option<Rc<str>>, u64)> = BTreeMap::new();
            for (number, (start, length, offset_bytes, is_file)) in ranges.into_iter().enumerate() {
                let path: Option<Rc<str>> = is_file.then(|| format!("/{number}").into());
                maps.put(start, Mapping { end: start + length, offset_bytes, path: path.clone() });
                for at in start..start + length {
                    model.insert(at, (path.clone(), offset_bytes + at - start));
                }
            }
            for at in 0..100 {
                let found = maps.find(at).map(|(mapping, offset)| (mapping.path.clone(), offset));
                prop_assert_eq!(found, model.get(&at).cloned());
            }
        }
    }
}

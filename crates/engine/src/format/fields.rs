//! Little-endian fields of fixed headers: written and read one after the other, or at an offset.

/// Writes little-endian fields one after the other.
pub(crate) struct Writer<'a> {
    pub(crate) bytes: &'a mut [u8],
    pub(crate) at: usize,
}

impl Writer<'_> {
    pub(crate) fn put(&mut self, field: &[u8]) {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }
}

/// Reads little-endian fields one after the other, from bytes of a length that the caller has checked.
pub(crate) struct Reader<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn take(&mut self, count: usize) -> &'a [u8] {
        self.at += count;
        &self.bytes[self.at - count..self.at]
    }

    pub(crate) fn u32(&mut self) -> u32 {
        let mut field = [0; 4];
        field.copy_from_slice(self.take(4));
        u32::from_le_bytes(field)
    }

    pub(crate) fn u64(&mut self) -> u64 {
        let mut field = [0; 8];
        field.copy_from_slice(self.take(8));
        u64::from_le_bytes(field)
    }
}

/// Returns the eight bytes at offset `at` as a little-endian number.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    Reader { bytes, at }.u64()
}

//! Prefetching memory into the CPU caches.
//!
//! Code that is about to look at many places outside of all caches prefetches all of them first: the misses then
//! overlap, where one after the other would each cost its full time.

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// Prefetches the cache line at an address, for reading. Costs one instruction, waits for nothing and changes nothing;
/// any address is allowed. Does nothing on an unknown architecture.
#[inline]
pub fn prefetch_read<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads no value and never faults, at any address. SSE is part of every x86-64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above; it touches no register, no flag and no stack.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = at;
}

/// Prefetches all cache lines of `bytes`, for reading.
#[inline]
pub fn prefetch_bytes(bytes: &[u8]) {
    for line in bytes.chunks(LINE_BYTES) {
        prefetch_read(line.as_ptr());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_for_memory_changes_nothing_and_needs_no_memory_to_be_there() {
        let bytes: Vec<u8> = (0..200).collect();
        prefetch_bytes(&bytes);
        prefetch_bytes(&[]);
        prefetch_read(std::ptr::null::<u64>());
        prefetch_read(usize::MAX as *const u8);
        assert!(bytes.iter().enumerate().all(|(at, byte)| at == usize::from(*byte)));
    }
}

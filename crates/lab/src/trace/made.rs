//! Traces of a made-up program, for tests: the same seed gives the same trace.

use super::{Access, Op, Trace};

/// The properties of a made-up program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Number of accesses.
    pub(crate) count: usize,
    /// Number of threads.
    pub(crate) threads: u32,
    /// Bytes of the file.
    pub(crate) data_bytes: u64,
    /// Share of the accesses that write.
    pub(crate) write_share: f64,
    /// Number of writes of a thread after which it syncs.
    pub(crate) writes_per_sync: usize,
    /// Seconds from the first access to the last.
    pub(crate) span_s: f64,
}

impl Default for Shape {
    fn default() -> Self {
        Self { count: 200, threads: 2, data_bytes: 1 << 20, write_share: 0.3, writes_per_sync: 4, span_s: 0.2 }
    }
}

impl Trace {
    /// Makes the trace of a program: short and long accesses, aligned and not, all within the file.
    pub(crate) fn made(seed: u64, shape: Shape) -> Self {
        let mut chance = fastrand::Rng::with_seed(seed);
        let threads: Vec<String> = (0..shape.threads).map(|thread| format!("t{thread}")).collect();
        let mut trace = Self { threads, ..Self::default() };
        let mut unsynced = vec![0; shape.threads as usize];
        for number in 0..shape.count {
            let at_s = shape.span_s * number as f64 / (shape.count - 1).max(1) as f64;
            // Each thread once first, so that their numbers are in the order of the file.
            let thread = if number < unsynced.len() { number as u32 } else { chance.u32(0..shape.threads) };
            let written: &mut usize = &mut unsynced[thread as usize];
            if *written == shape.writes_per_sync {
                *written = 0;
                trace.accesses.push(Access { offset_bytes: 0, length_bytes: 0, op: Op::Sync, thread, at_s });
                continue;
            }
            let length_bytes = if chance.bool() { 4096 } else { chance.u64(1..=20_000) };
            let mut offset_bytes = chance.u64(0..=shape.data_bytes - length_bytes);
            if chance.bool() {
                offset_bytes &= !4095;
            }
            let op = if chance.f64() < shape.write_share { Op::Write } else { Op::Read };
            *written += usize::from(op == Op::Write);
            trace.accesses.push(Access { offset_bytes, length_bytes, op, thread, at_s });
        }
        trace
    }
}

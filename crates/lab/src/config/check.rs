//! Whether a configuration makes sense: what types cannot tell.

use super::{Config, MIB};
use crate::error::{LabError, LabErrorKind, Result};
use crate::format::bytes;

impl Config {
    /// Checks what types cannot: sizes, counts and lengths that make sense together.
    ///
    /// # Errors
    /// `Usage`, naming the first value that makes no sense and what it may be.
    pub fn validate(&self) -> Result<()> {
        let positive =
            |name: &str, values: &[f64]| match values.iter().find(|value| !(**value > 0.0 && value.is_finite())) {
                Some(value) => Err(format!("{name} = {value}: must be more than zero")),
                None => Ok(()),
            };
        let counts =
            |name: &str, values: &[u32], max: u32| match values.iter().find(|value| !(1..=max).contains(*value)) {
                Some(value) => Err(format!("{name} = {value}: must be 1 to {max}")),
                None if values.is_empty() => Err(format!("{name}: at least one is needed")),
                None => Ok(()),
            };
        let block = |name: &str, bytes: u64| {
            let fine = bytes.is_power_of_two() && (4096..=64 * MIB).contains(&bytes);
            if fine { Ok(()) } else { Err(format!("{name} = {bytes}: must be a power of two from 4096 to 64 MiB")) }
        };
        let at_least = |name: &str, bytes: u64, least: u64| {
            let fine = (least..=1 << 50).contains(&bytes);
            if fine { Ok(()) } else { Err(format!("{name} = {bytes}: must be {least} to 2^50 bytes")) }
        };
        let larger = |(name, data): (&str, u64), (limit, memory): (&str, u64)| {
            let fine = data >= memory.saturating_mul(2);
            if fine {
                Ok(())
            } else {
                let (data, memory) = (bytes(data), bytes(memory));
                Err(format!("{name}: {data} of data must be at least twice the {memory} of memory, {limit}"))
            }
        };
        let again = self.experiments.iter().enumerate().find(|(at, id)| self.experiments[..*at].contains(id));
        let device = self.devices.iter().enumerate().find(|(at, path)| self.devices[..*at].contains(path));
        let checks = [
            device.map_or(Ok(()), |(_, path)| Err(format!("devices: {} is named twice", path.display()))),
            again.map_or(Ok(()), |(_, id)| Err(format!("experiments: {id} is named twice"))),
            if self.experiments.is_empty() { Err("experiments: at least one is needed".to_owned()) } else { Ok(()) },
            counts("repeats", &[self.repeats], 1000),
            at_least("data_bytes", self.data_bytes, 64 * MIB),
            at_least("memory_bytes", self.memory_bytes, 32 * MIB),
            match self.limits_file() {
                true => {
                    larger(("data_bytes (--size)", self.data_bytes), ("memory_bytes (--memory)", self.memory_bytes))
                }
                false => Ok(()),
            },
            at_least("ram_data_bytes", self.ram_data_bytes, 64 * MIB),
            at_least("ram_memory_bytes", self.ram_memory_bytes, 32 * MIB),
            larger(
                ("ram_data_bytes (--ram-size)", self.ram_data_bytes),
                ("ram_memory_bytes (--set ram_memory_bytes=BYTES)", self.ram_memory_bytes),
            ),
            positive("random.cell_s", &[self.random.cell_s, self.random.ram_cell_s]),
            counts("random.threads", &self.random.threads, 4096),
            counts("random.ram_threads", &self.random.ram_threads, 4096),
            counts("random.depths", &self.random.depths, 4096),
            block("random.block_bytes", self.random.block_bytes),
            positive("scan.cell_s", &[self.scan.cell_s]),
            counts("scan.map_threads", &self.scan.map_threads, 4096),
            counts("scan.depths", &self.scan.depths, 4096),
            block("scan.block_bytes", self.scan.block_bytes),
            block("scan.raid_stripe_bytes", self.scan.raid_stripe_bytes),
            at_least("scan.map_stripe_bytes", self.scan.map_stripe_bytes, MIB),
            counts("async.files", &[self.async_.files], 1024),
            counts("async.runs", &[self.async_.runs], 10_000),
            counts("async.touches", &[self.async_.touches], 1 << 24),
            at_least("async.file_bytes", self.async_.file_bytes, MIB),
            positive("access.cell_s", &[self.access.cell_s]),
            counts("access.batches", &self.access.batches, 4096),
            counts("access.writes_per_sync", &[self.access.writes_per_sync], 1 << 20),
            positive("access.open_loop_shares", &self.access.open_loop_shares),
            self.safety.check(),
            positive("stalls.cell_s", &[self.stalls.cell_s]),
            counts("stalls.ahead", &[self.stalls.ahead], 4096),
            counts("stalls.helpers", &self.stalls.helpers, 1024),
            at_least("stalls.scan_bytes", self.stalls.scan_bytes, MIB),
            positive("errors.cell_s", &[self.errors.cell_s]),
            self.errors.working_sets.iter().try_for_each(|bytes| at_least("errors.working_sets", *bytes, 4096)),
            self.engines.wrong().map_or(Ok(()), Err),
            positive("eviction.cell_s", &[self.eviction.cell_s, self.eviction.part_s]),
            counts("eviction.threads", &self.eviction.threads, 4096),
            counts("eviction.scan_threads", &[self.eviction.scan_threads], 4096),
            at_least("eviction.cgroup_bytes", self.eviction.cgroup_bytes, 32 * MIB),
            at_least("eviction.kswapd_bytes", self.eviction.kswapd_bytes, 32 * MIB),
            at_least("eviction.fault_bytes", self.eviction.fault_bytes, MIB),
            positive("translate.cell_s", &[self.translate.cell_s]),
            counts("translate.threads", &self.translate.threads, 4096),
            self.translate
                .working_set_bytes
                .iter()
                .try_for_each(|bytes| at_least("translate.working_set_bytes", *bytes, 1 << 16)),
            self.claims.check(),
        ];
        match checks.into_iter().find_map(std::result::Result::err) {
            Some(wrong) => Err(LabError::new(LabErrorKind::Usage, format!("configuration: {wrong}"))),
            None => Ok(()),
        }
    }
}

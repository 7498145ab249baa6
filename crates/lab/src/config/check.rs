//! Checks of single values, with the messages of a refusal.

use super::MIB;
use crate::format::bytes;

/// Checks that each value is positive and finite.
pub(crate) fn positive(name: &str, values: &[f64]) -> Result<(), String> {
    match values.iter().find(|value| !(**value > 0.0 && value.is_finite())) {
        Some(value) => Err(format!("{name} = {value}: must be more than zero")),
        None => Ok(()),
    }
}

/// Longest trial that makes sense, in seconds: eleven days. It keeps every sum of times within its type.
const SECONDS_MAX: f64 = 1e6;

/// Checks that each length of time is more than zero and at most eleven days.
pub(crate) fn seconds(name: &str, values: &[f64]) -> Result<(), String> {
    match values.iter().find(|value| !(**value > 0.0 && **value <= SECONDS_MAX)) {
        Some(value) => Err(format!("{name} = {value}: must be more than zero and at most {SECONDS_MAX} seconds")),
        None => Ok(()),
    }
}

/// Checks that the list is not empty, and that each value is from 1 to `max`.
pub(crate) fn counts(name: &str, values: &[u32], max: u32) -> Result<(), String> {
    match values.iter().find(|value| !(1..=max).contains(*value)) {
        Some(value) => Err(format!("{name} = {value}: must be 1 to {max}")),
        None if values.is_empty() => Err(format!("{name}: at least one is needed")),
        None => Ok(()),
    }
}

/// Checks the size of a block: a power of two that any disk can read in one call.
pub(crate) fn block(name: &str, bytes: u64) -> Result<(), String> {
    let fine = bytes.is_power_of_two() && (4096..=64 * MIB).contains(&bytes);
    if fine { Ok(()) } else { Err(format!("{name} = {bytes}: must be a power of two from 4096 to 64 MiB")) }
}

/// Checks that a size of data or memory is from `least` to 2^50 bytes.
pub(crate) fn at_least(name: &str, bytes: u64, least: u64) -> Result<(), String> {
    let fine = (least..=1 << 50).contains(&bytes);
    if fine { Ok(()) } else { Err(format!("{name} = {bytes}: must be {least} to 2^50 bytes")) }
}

/// Checks that the data is at least twice as large as the memory.
pub(crate) fn larger((name, data): (&str, u64), (limit, memory): (&str, u64)) -> Result<(), String> {
    if data >= memory.saturating_mul(2) {
        return Ok(());
    }
    let (data, memory) = (bytes(data), bytes(memory));
    Err(format!("{name}: {data} of data must be at least twice the {memory} of memory, {limit}"))
}

//! The experiments that bring many blocks into memory together, which a map on one thread does one by one: a request's random pages
//! (`batch`), and a file from front to back (`load`).

pub mod batch;
pub mod load;

use crate::judge::places::with_value;
use crate::summary::Group;

/// The groups with a valid figure in which a parameter, by which sizes are compared, has this value.
fn of_size<'g, 'a>(groups: &[&'g Group<'a>], name: &str, size: f64) -> Vec<&'g Group<'a>> {
    with_value(groups, name, size).into_iter().filter(|group| !group.never_filled()).collect()
}

//! How deep tests go. An ordinary run takes a share of the cases of a long test, `cargo xtask deep` takes all of them, with the environment
//! variable `NOFAULT_DEEP` set. The share is the same in each run, so a failure repeats by itself; `NOFAULT_SEED` chooses another one.

/// Whether tests take all of their cases.
pub fn is_deep() -> bool {
    std::env::var_os("NOFAULT_DEEP").is_some()
}

/// Returns `deep` in a deep run, otherwise `short`.
pub fn by_depth<T>(short: T, deep: T) -> T {
    if is_deep() { deep } else { short }
}

/// Returns all cases in a deep run, otherwise one in `step` of them, beginning with one of the first `step`.
///
/// # Panics
/// For a `step` of 0, and where `NOFAULT_SEED` is no number.
pub fn sample<T>(cases: impl IntoIterator<Item = T>, step: usize) -> impl Iterator<Item = T> {
    let seed = std::env::var("NOFAULT_SEED").map_or(0, |seed| seed.parse().expect("NOFAULT_SEED is a number"));
    part(cases, step, if is_deep() { None } else { Some(seed) })
}

fn part<T>(cases: impl IntoIterator<Item = T>, step: usize, seed: Option<usize>) -> impl Iterator<Item = T> {
    let (first, step) = seed.map_or((0, 1), |seed| (seed % step, step));
    cases.into_iter().skip(first).step_by(step)
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn a_share_begins_where_the_seed_says_and_all_shares_are_all_cases() {
        let taken = |seed| part(0..10, 3, seed).collect::<Vec<_>>();
        assert_eq!(taken(None), (0..10).collect::<Vec<_>>());
        let mut all: Vec<i32> = (6..9).flat_map(|seed| taken(Some(seed))).collect();
        all.sort_unstable();
        assert_eq!((taken(Some(4)), all), (vec![1, 4, 7], taken(None)));
    }
}

//! The conditions of a measurement that must be equal where two figures are compared: requests in flight, page size,
//! batching and warmth. A method and its trial carry them as data; the rules ([`crate::judge`]) refuse to divide figures
//! of unequal conditions.

use serde::Serialize;

use crate::methods::{Calls, InFlight, Method, Pages, Warmth};
use crate::record::{CacheState, TrialSpec};

/// The conditions of a trial that every comparison requires to be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Conditions {
    /// Number of requests that the work has for the method at a time. A method that cannot serve them at once, such as
    /// a map on one thread, is measured under them all the same: that it cannot is the finding.
    pub in_flight: u32,
    /// The pages of the memory through which the data is reached.
    pub pages: Pages,
    /// How many requests one call answers.
    pub calls: Calls,
    /// Where the data is when the trial starts.
    pub warmth: Warmth,
}

/// One of the conditions that a comparison requires to be equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// The number of requests in flight.
    InFlight,
    /// The size of pages.
    Pages,
    /// The batching of requests.
    Calls,
    /// The state of the data at the start.
    Warmth,
}

impl Conditions {
    /// Returns the conditions of a trial, given its method (`None` for a method of a newer nofault), and pages and batching
    /// where the trial's experiment gives the method others than usual.
    pub fn of(method: Option<&Method>, spec: &TrialSpec, pages: Option<Pages>, calls: Option<Calls>) -> Self {
        let params = &spec.params;
        let by_threads = params.threads.max(1).saturating_mul(params.depth.max(1));
        let in_flight = match method.map(|method| method.in_flight) {
            Some(InFlight::OfParameter(name)) => params.extra.get(name).and_then(|text| text.parse().ok()),
            Some(InFlight::OfThreads) | None => None,
        };
        let in_flight = in_flight.unwrap_or(by_threads);
        let pages = match params.extra.get("buffers").map(String::as_str) {
            Some("small") => Pages::Small,
            Some("huge") => Pages::Huge,
            _ => pages.or(method.map(|method| method.pages)).unwrap_or(Pages::Small),
        };
        let warmth = match spec.cache {
            CacheState::Cold => Warmth::Cold,
            CacheState::Warm => method.map_or(Warmth::Cached, |method| method.warm),
        };
        let calls = calls.or(method.map(|method| method.calls)).unwrap_or(Calls::Single);
        // A batch of one request is a single call.
        let calls = if in_flight > 1 { calls } else { Calls::Single };
        Self { in_flight, pages, calls, warmth }
    }

    /// Returns the differences to other conditions in words, each as `16 requests in flight against 64`; empty where the
    /// two are equal. `about` names the properties whose effect the comparison is about, which may differ.
    pub fn differences(self, other: Self, about: &[Property]) -> Vec<String> {
        let same_pages = self.pages == other.pages || [self.pages, other.pages].contains(&Pages::Own);
        let same_warmth = self.warmth == other.warmth
            || [self.warmth, other.warmth].contains(&Warmth::Calls)
                && ![self.warmth, other.warmth].contains(&Warmth::Cold);
        let all = [
            (
                Property::InFlight,
                self.in_flight == other.in_flight,
                format!("{} requests in flight against {}", self.in_flight, other.in_flight),
            ),
            (Property::Pages, same_pages, format!("{} against {}", self.pages.words(), other.pages.words())),
            (
                Property::Calls,
                self.calls == other.calls,
                format!("{} against {}", self.calls.words(), other.calls.words()),
            ),
            (Property::Warmth, same_warmth, format!("{} against {}", self.warmth.words(), other.warmth.words())),
        ];
        let unequal = all.into_iter().filter(|(property, same, _)| !same && !about.contains(property));
        unequal.map(|(.., words)| words).collect()
    }
}

impl Pages {
    fn words(self) -> &'static str {
        match self {
            Self::Small => "small pages",
            Self::Huge => "huge pages",
            Self::Own => "pages of the store's choice",
        }
    }
}

impl Calls {
    fn words(self) -> &'static str {
        match self {
            Self::Single => "requests one by one",
            Self::Batches => "requests in batches",
        }
    }
}

impl Warmth {
    fn words(self) -> &'static str {
        match self {
            Self::Cold => "cold data",
            Self::Cached | Self::Calls => "data in the page cache",
            Self::Ready => "data in the process's own memory or page tables",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::methods::Family;

    const MAP: Method = Method::new("map", "map", Family::Mapped);
    const READ: Method = Method::new("read", "read", Family::Buffered);
    const POOL: Method = Method::new("pool", "pool", Family::Pool).huge();
    const MANY: Method = Method::new("many", "many", Family::Pool).batched();
    const TASKS: Method = Method::new("tasks", "tasks", Family::Mapped).in_flight_of("files");

    fn of(method: &Method, threads: u32, depth: u32, cache: CacheState, extra: &[(&str, &str)]) -> Conditions {
        let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[("mmap-random", 1.0)]);
        let mut spec = file.trials[0].spec.clone();
        (spec.params.threads, spec.params.depth, spec.cache) = (threads, depth, cache);
        spec.params.extra = extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Conditions::of(Some(method), &spec, None, None)
    }

    #[test]
    fn an_experiment_may_give_a_method_other_pages_and_calls_than_usual() {
        let file = crate::report::verdict::tests::file(crate::experiments::random::ID, "", &[("mmap-random", 1.0)]);
        let mut spec = file.trials[0].spec.clone();
        let given = |spec: &TrialSpec| Conditions::of(Some(&MAP), spec, Some(Pages::Huge), Some(Calls::Batches));
        assert_eq!((given(&spec).pages, given(&spec).calls), (Pages::Huge, Calls::Batches));
        spec.params.extra.insert("buffers".into(), "small".into());
        assert_eq!(given(&spec).pages, Pages::Small, "the trial's own parameter counts");
    }

    #[test]
    fn conditions_come_from_the_method_and_the_parameters_of_the_trial() {
        let cold = CacheState::Cold;
        assert_eq!(of(&MAP, 16, 1, cold, &[]).in_flight, 16);
        assert_eq!(of(&MAP, 2, 32, cold, &[]).in_flight, 64);
        assert_eq!(of(&TASKS, 1, 1, cold, &[("files", "8")]).in_flight, 8);
        assert_eq!(of(&POOL, 1, 1, cold, &[]).pages, Pages::Huge);
        assert_eq!(of(&POOL, 1, 1, cold, &[("buffers", "small")]).pages, Pages::Small);
        assert_eq!(of(&MAP, 1, 1, cold, &[("buffers", "huge")]).pages, Pages::Huge);
        assert_eq!([1, 8].map(|depth| of(&MANY, 1, depth, cold, &[]).calls), [Calls::Single, Calls::Batches]);
        assert_eq!(of(&POOL, 1, 1, cold, &[]).warmth, Warmth::Cold);
        assert_eq!(of(&POOL, 1, 1, CacheState::Warm, &[]).warmth, Warmth::Ready);
    }

    #[test]
    fn each_unequal_property_is_named_and_the_one_in_question_may_differ() {
        let (cold, warm) = (CacheState::Cold, CacheState::Warm);
        let (a, b) = (of(&MAP, 16, 1, cold, &[]), of(&MANY, 1, 64, warm, &[("buffers", "huge")]));
        let named = a.differences(b, &[]);
        assert_eq!(named.len(), 4, "{named:?}");
        assert!(named[0] == "16 requests in flight against 64" && named[1] == "small pages against huge pages");
        let about = [Property::InFlight, Property::Pages, Property::Calls];
        assert_eq!(a.differences(b, &about), ["cold data against data in the process's own memory or page tables"]);
        assert!(a.differences(a, &[]).is_empty());
    }

    #[test]
    fn calls_are_warm_in_the_cache_and_a_map_only_once_it_is_touched() {
        let warm = |method: &Method| of(method, 1, 1, CacheState::Warm, &[]);
        let touched = MAP.ready();
        assert!(warm(&READ).differences(warm(&MAP), &[]).is_empty());
        assert!(warm(&READ).differences(warm(&touched), &[]).is_empty());
        assert_eq!(warm(&MAP).differences(warm(&touched), &[]).len(), 1);
        assert_eq!(warm(&READ).differences(of(&READ, 1, 1, CacheState::Cold, &[]), &[]).len(), 1);
    }

    #[test]
    fn a_whole_database_has_pages_of_its_own() {
        let database = MAP.database();
        let (own, huge) = (of(&database, 1, 1, CacheState::Warm, &[]), of(&POOL, 1, 1, CacheState::Warm, &[]));
        assert!(own.differences(huge, &[]).is_empty());
    }
}

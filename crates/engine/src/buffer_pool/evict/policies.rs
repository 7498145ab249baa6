//! Compares eviction policies: hit rates over a few traces, of the pool's clock and of policies that other systems use.
//!
//! In the ordinary tests it runs small and checks only one property: that a scan does not empty the pool. For the table:
//! `cargo test --release -p nofault buffer_pool::evict::policies -- --ignored --nocapture`.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use fastrand::Rng;

use crate::buffer_pool::frames::Ghosts;

/// A request for a page, in a trace: by an operation that waits for the page, or by a scan that requested the page
/// early and now reaches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    Get(u32),
    Scan(u32),
}

impl Request {
    fn page(self) -> u32 {
        match self {
            Self::Get(page) | Self::Scan(page) => page,
        }
    }
}

trait Policy {
    /// Requests a page, which enters the cache if it was missing. Returns whether the page was in the cache.
    fn request(&mut self, request: Request) -> bool;
}

/// A clock: each page in the cache has a counter, raised up to `usage_max` by each use and lowered when the clock's
/// hand passes.
struct Clock {
    frames: Vec<(u32, u8)>,
    at: HashMap<u32, usize>,
    hand: usize,
    capacity: usize,
    usage_max: u8,
    /// Initial usage count of a page that a `Get` brought in, and of one that a `Scan` brought in.
    born: [u8; 2],
}

impl Clock {
    fn new(capacity: usize, usage_max: u8, born: [u8; 2]) -> Self {
        Self { frames: Vec::new(), at: HashMap::new(), hand: 0, capacity, usage_max, born }
    }
}

impl Policy for Clock {
    fn request(&mut self, request: Request) -> bool {
        let page = request.page();
        if let Some(at) = self.at.get(&page) {
            let usage = &mut self.frames[*at].1;
            *usage = (*usage + 1).min(self.usage_max);
            return true;
        }
        let usage = self.born[usize::from(matches!(request, Request::Scan(_)))];
        if self.frames.len() < self.capacity {
            self.at.insert(page, self.frames.len());
            self.frames.push((page, usage));
            return false;
        }
        while self.frames[self.hand].1 > 0 {
            self.frames[self.hand].1 -= 1;
            self.hand = (self.hand + 1) % self.capacity;
        }
        self.at.remove(&self.frames[self.hand].0);
        self.at.insert(page, self.hand);
        self.frames[self.hand] = (page, usage);
        self.hand = (self.hand + 1) % self.capacity;
        false
    }
}

/// The policy of the buffer pool: new pages in the probationary queue, all others on the clock.
struct Pool {
    clock: Clock,
    probation: VecDeque<u32>,
    ghosts: Ghosts,
}

impl Pool {
    fn new(capacity: usize) -> Self {
        let clock = Clock::new(capacity, 3, [1, 1]);
        Self { clock, probation: VecDeque::new(), ghosts: Ghosts::new(capacity) }
    }

    /// Returns the frame of the oldest page in the probationary queue, which is to be evicted, if the queue is longer
    /// than its share.
    fn newcomer(&mut self) -> Option<usize> {
        while self.probation.len() > self.clock.capacity / 10 {
            let page = self.probation.pop_front()?;
            let Some(at) = self.clock.at.get(&page).copied().filter(|at| self.clock.frames[*at].1 <= 1) else {
                continue;
            };
            self.ghosts.add(page.into());
            return Some(at);
        }
        None
    }
}

impl Policy for Pool {
    fn request(&mut self, request: Request) -> bool {
        let page = request.page();
        if self.clock.at.contains_key(&page) || self.clock.frames.len() < self.clock.capacity {
            let hit = self.clock.request(request);
            if !hit {
                self.probation.push_back(page);
            }
            return hit;
        }
        match self.newcomer() {
            Some(at) => {
                self.clock.at.remove(&self.clock.frames[at].0);
                self.clock.at.insert(page, at);
                self.clock.frames[at] = (page, 1);
            }
            None => drop(self.clock.request(request)),
        }
        if !self.ghosts.contains(page.into()) {
            self.probation.push_back(page);
        }
        false
    }
}

/// The policy that evicts the least recently used page.
#[derive(Default)]
struct Lru {
    used: HashMap<u32, u64>,
    order: BTreeMap<u64, u32>,
    now: u64,
    capacity: usize,
}

impl Policy for Lru {
    fn request(&mut self, request: Request) -> bool {
        self.now += 1;
        let before = self.used.insert(request.page(), self.now);
        before.map(|before| self.order.remove(&before));
        self.order.insert(self.now, request.page());
        if self.used.len() > self.capacity
            && let Some((_, page)) = self.order.pop_first()
        {
            self.used.remove(&page);
        }
        before.is_some()
    }
}

/// SIEVE (Zhang and others, NSDI 2024): a queue in which no page is moved, a bit for each page that was used, and a
/// hand that moves from the oldest page to the newest.
struct Sieve {
    queue: VecDeque<(u32, bool)>,
    inside: HashMap<u32, bool>,
    hand: usize,
    capacity: usize,
}

impl Policy for Sieve {
    fn request(&mut self, request: Request) -> bool {
        let page = request.page();
        if let Some(visited) = self.inside.get_mut(&page) {
            *visited = true;
            return true;
        }
        if self.queue.len() == self.capacity {
            // The front is the oldest. The bit lives in `inside`.
            loop {
                self.hand %= self.queue.len();
                let candidate = self.queue[self.hand].0;
                match self.inside.get_mut(&candidate) {
                    Some(visited) if *visited => *visited = false,
                    _ => {
                        self.queue.remove(self.hand);
                        self.inside.remove(&candidate);
                        break;
                    }
                }
                self.hand += 1;
            }
        }
        self.queue.push_back((page, false));
        self.inside.insert(page, false);
        false
    }
}

/// S3-FIFO (Yang and others, SOSP 2023): a small queue for newcomers, a main queue, and ghosts of newcomers evicted early.
struct S3Fifo {
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    uses: HashMap<u32, u8>,
    ghosts: VecDeque<u32>,
    is_ghost: HashSet<u32>,
    capacity: usize,
}

impl S3Fifo {
    fn evict(&mut self) {
        while self.small.len() + self.main.len() >= self.capacity {
            if self.small.len() > self.capacity / 10
                && let Some(page) = self.small.pop_front()
            {
                if self.uses.get(&page).is_some_and(|uses| *uses > 1) {
                    self.uses.insert(page, 0);
                    self.main.push_back(page);
                } else {
                    self.uses.remove(&page);
                    self.ghosts.push_back(page);
                    self.is_ghost.insert(page);
                    if self.ghosts.len() > self.capacity
                        && let Some(oldest) = self.ghosts.pop_front()
                    {
                        self.is_ghost.remove(&oldest);
                    }
                }
            } else if let Some(page) = self.main.pop_front() {
                match self.uses.get_mut(&page) {
                    Some(uses) if *uses > 0 => {
                        *uses -= 1;
                        self.main.push_back(page);
                    }
                    _ => drop(self.uses.remove(&page)),
                }
            }
        }
    }
}

impl Policy for S3Fifo {
    fn request(&mut self, request: Request) -> bool {
        let page = request.page();
        if let Some(uses) = self.uses.get_mut(&page) {
            *uses = (*uses + 1).min(3);
            return true;
        }
        self.evict();
        self.uses.insert(page, 0);
        if self.is_ghost.contains(&page) {
            self.main.push_back(page)
        } else {
            self.small.push_back(page)
        }
        false
    }
}

/// A distribution over numbers below `count` that prefers small ones: Zipf with exponent 0.99, drawn from a table of
/// sums.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(count: usize) -> Self {
        let mut sum = 0.0;
        let sums = (1..=count).map(|rank| {
            sum += (rank as f64).powf(-0.99);
            sum
        });
        Self(sums.collect())
    }

    fn next(&self, rng: &mut Rng) -> u32 {
        let total = self.0.last().copied().unwrap_or(1.0);
        let at = rng.f64() * total;
        // Scattered, so that neighbours of a hot page are not hot as well.
        let rank = self.0.partition_point(|sum| *sum < at) as u64;
        (rank.wrapping_mul(2_654_435_761) % self.0.len() as u64) as u32
    }
}

/// Returns named traces, each of `length` requests over `pages` pages.
fn traces(pages: u32, length: usize) -> Vec<(&'static str, Vec<Request>)> {
    let mut rng = Rng::with_seed(1);
    let zipf = Zipf::new(pages as usize);
    let points = |rng: &mut Rng| Request::Get(zipf.next(rng));
    let plain = (0..length).map(|_| points(&mut rng)).collect();
    let uniform = (0..length).map(|_| Request::Get(rng.u32(..pages))).collect();
    // A scan of everything runs alongside the points, a page for every point.
    let beside = |rng: &mut Rng, at: usize| {
        if at.is_multiple_of(2) { points(rng) } else { Request::Scan((at / 2) as u32 % pages) }
    };
    let scans = (0..length).map(|at| beside(&mut rng, at)).collect();
    // The hot set changes after every tenth of the trace.
    let moved = |rng: &mut Rng, at: usize| {
        let shift = (at * 10 / length) as u32 * (pages / 10);
        Request::Get((zipf.next(rng) + shift) % pages)
    };
    let shift = (0..length).map(|at| moved(&mut rng, at)).collect();
    // A loop over a fifth more than fits: LRU keeps nothing of it.
    let round = pages / 10 * 12 / 10;
    let circle = (0..length).map(|at| Request::Get(at as u32 % round)).collect();
    vec![
        ("zipf", plain),
        ("zipf beside a scan", scans),
        ("zipf that moves", shift),
        ("loop of 1.2 x the cache", circle),
        ("uniform", uniform),
    ]
}

fn policies(capacity: usize) -> Vec<(&'static str, Box<dyn Policy>)> {
    vec![
        ("the pool: probation and clock", Box::new(Pool::new(capacity))),
        ("clock, newcomers at 2", Box::new(Clock::new(capacity, 3, [2, 1]))),
        ("clock, newcomers at 0", Box::new(Clock::new(capacity, 3, [0, 0]))),
        ("clock of one bit", Box::new(Clock::new(capacity, 1, [1, 1]))),
        ("LRU", Box::new(Lru { capacity, ..Lru::default() })),
        ("SIEVE", Box::new(Sieve { queue: VecDeque::new(), inside: HashMap::new(), hand: 0, capacity })),
        (
            "S3-FIFO",
            Box::new(S3Fifo {
                small: VecDeque::new(),
                main: VecDeque::new(),
                uses: HashMap::new(),
                ghosts: VecDeque::new(),
                is_ghost: HashSet::new(),
                capacity,
            }),
        ),
    ]
}

/// Returns the hit rates of a policy in percent: of all requests, and of the `Get`s alone.
fn rates(policy: &mut dyn Policy, trace: &[Request]) -> [f64; 2] {
    let (mut hits, mut counts) = ([0u32; 2], [0u32; 2]);
    for request in trace {
        let hit = policy.request(*request);
        for kind in [Some(0), matches!(request, Request::Get(_)).then_some(1)].into_iter().flatten() {
            counts[kind] += 1;
            hits[kind] += u32::from(hit);
        }
    }
    [0, 1].map(|kind| f64::from(hits[kind]) * 100.0 / f64::from(counts[kind].max(1)))
}

#[test]
fn a_scan_beside_hot_pages_does_not_push_them_out() {
    let pages = 5_000;
    let traces = traces(pages, 60_000);
    let points = |name: &str, policy: &mut dyn Policy| {
        let trace = traces.iter().find(|(which, _)| *which == name).map(|(_, trace)| trace.as_slice());
        rates(policy, trace.unwrap_or_default())[1]
    };
    let capacity = pages as usize / 10;
    let alone = points("zipf", &mut Pool::new(capacity));
    let beside = points("zipf beside a scan", &mut Pool::new(capacity));
    let lru = points("zipf beside a scan", &mut Lru { capacity, ..Lru::default() });
    println!("hits of gets: {alone:.1} % alone, {beside:.1} % beside a scan (LRU {lru:.1} %)");
    assert!(beside > alone - 10.0 && beside > lru, "{alone:.1} % alone, {beside:.1} % beside a scan, LRU {lru:.1} %");
}

#[test]
#[ignore = "a table for people"]
fn hit_rates_of_policies_over_traces() {
    let pages = 100_000;
    for (name, trace) in traces(pages, 3_000_000) {
        println!("{name}, a cache of a tenth of the pages:");
        for (policy, mut state) in policies(pages as usize / 10) {
            let [all, gets] = rates(&mut *state, &trace);
            println!("  {policy:<28} {all:5.1} % of all, {gets:5.1} % of gets");
        }
    }
}

//! Finds anomalies in a history of transactions, as Elle does: as cycles in the graph of transactions that must precede others.
//!
//! Keys hold lists to which transactions append unique elements, so a read of a list also tells the order of the
//! appends before it. Or they hold registers with unique values: the order of two values is known where a transaction
//! reads one and writes the next. Three kinds of edges follow. They lead from the writer of a version to the writer of
//! the next version (`ww`), from the writer of a version to its readers (`wr`), and from a reader of a version to the
//! writer of the next version (`rw`). A transaction that ended before another began comes before it too (`rt`): with
//! those edges the check is one for strict serializability. A history passes when its graph has no cycle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// One operation of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    Append {
        key: u32,
        element: u64,
    },
    /// Reads all elements of a list, in order. `ranged`: the list was found by reading a range, which also shows absent
    /// keys.
    ReadList {
        key: u32,
        elements: Vec<u64>,
        ranged: bool,
    },
    Write {
        key: u32,
        value: u64,
    },
    Read {
        key: u32,
        value: Option<u64>,
        ranged: bool,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Committed,
    /// The transaction certainly had no effect.
    Aborted,
    /// The outcome is unknown: the transaction counts as committed if another one has seen its writes.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Txn {
    /// A moment before the transaction began, in ticks of a shared clock. `ended` is a moment after its end, if that is
    /// known.
    pub(crate) begun: u64,
    pub(crate) ended: Option<u64>,
    pub(crate) outcome: Outcome,
    pub(crate) steps: Vec<Step>,
}

/// The kind of an anomaly, which makes a history not strictly serializable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A transaction does not see its own writes, or one key in two ways.
    Internal,
    /// A read shows a value that no transaction wrote, or one element twice.
    Garbage,
    /// A read shows a write of an aborted transaction.
    G1a,
    /// A read shows a part of a transaction's writes to a key.
    G1b,
    /// Two reads of a list disagree about its order.
    Order,
    /// A committed append is not in a list read after it had ended.
    Lost,
    G0,
    G1c,
    GSingle,
    G2Item,
    /// A cycle with several edges from reads to later writes, of which at least one is of a range read.
    G2,
    /// As `G0`, in a cycle that also contains edges of real time.
    G0Realtime,
    G1cRealtime,
    GSingleRealtime,
    G2Realtime,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Edge {
    Ww,
    Wr,
    Rt,
    Rw,
    /// An edge from a range read to a later write in the range.
    RwRange,
}

/// An anomaly, and the transactions that form it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Anomaly {
    pub(crate) kind: Kind,
    why: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.why)
    }
}

/// The numbers of transactions and edges that a check covered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) txns: usize,
    pub(crate) edges: usize,
}

type Key = (bool, u32);

/// Checks a history.
///
/// # Errors
/// The first anomaly, the plainest kinds first.
pub(crate) fn check(history: &[Txn]) -> Result<Counts, Anomaly> {
    let mut graph = Graph::new(history)?;
    graph.check_reads()?;
    graph.add_list_edges()?;
    graph.add_register_edges();
    graph.refuse_cycles(false)?;
    graph.add_time_edges();
    graph.refuse_cycles(true)?;
    let edges = graph.edges.iter().map(BTreeMap::len).sum();
    Ok(Counts { txns: graph.is_in.iter().filter(|is_in| **is_in).count(), edges })
}

struct Graph<'a> {
    history: &'a [Txn],
    /// For each element or value the transaction that wrote it, and whether that is the last write of this transaction to the key.
    writer: BTreeMap<(Key, u64), (usize, bool)>,
    /// For each transaction whether it counts: it committed, or its outcome is unknown and another transaction read one of its writes.
    is_in: Vec<bool>,
    /// For each transaction the transactions that must come later, with the strongest reason.
    edges: Vec<BTreeMap<usize, Edge>>,
}

fn anomaly<T>(kind: Kind, why: String) -> Result<T, Anomaly> {
    Err(Anomaly { kind, why })
}

/// The reads of a transaction that precede its own writes to the same key: the key, the values found, and whether a range found them.
fn outer_reads(txn: &Txn) -> impl Iterator<Item = (Key, Vec<u64>, bool)> {
    let mut written = BTreeSet::new();
    txn.steps.iter().filter_map(move |step| match step {
        Step::Append { key, .. } => {
            written.insert((true, *key));
            None
        }
        Step::Write { key, .. } => {
            written.insert((false, *key));
            None
        }
        Step::ReadList { key, elements, ranged } => {
            (!written.contains(&(true, *key))).then(|| ((true, *key), elements.clone(), *ranged))
        }
        Step::Read { key, value, ranged } => {
            (!written.contains(&(false, *key))).then(|| ((false, *key), value.iter().copied().collect(), *ranged))
        }
    })
}

fn writes(txn: &Txn) -> impl DoubleEndedIterator<Item = (Key, u64)> {
    txn.steps.iter().filter_map(|step| match step {
        Step::Append { key, element } => Some(((true, *key), *element)),
        Step::Write { key, value } => Some(((false, *key), *value)),
        Step::ReadList { .. } | Step::Read { .. } => None,
    })
}

impl<'a> Graph<'a> {
    fn new(history: &'a [Txn]) -> Result<Self, Anomaly> {
        let mut writer = BTreeMap::new();
        for (at, txn) in history.iter().enumerate() {
            let mut later = BTreeSet::new();
            for (key, value) in writes(txn).rev() {
                if writer.insert((key, value), (at, later.insert(key))).is_some() {
                    return anomaly(Kind::Garbage, format!("{value} is written to {key:?} twice: no history to check"));
                }
            }
        }
        let mut is_in: Vec<bool> = history.iter().map(|txn| txn.outcome == Outcome::Committed).collect();
        for txn in history {
            for (key, values, _) in outer_reads(txn) {
                for value in values {
                    if let Some((at, _)) = writer.get(&(key, value)) {
                        // A transaction that has not ended sees its own writes, but those are no outer reads.
                        is_in[*at] |= history[*at].outcome == Outcome::Unknown;
                    }
                }
            }
        }
        Ok(Self { history, writer, is_in, edges: vec![BTreeMap::new(); history.len()] })
    }

    /// Returns the transactions that count as committed, with their indices.
    fn txns(&self) -> impl Iterator<Item = (usize, &'a Txn)> + use<'a> {
        let is_in = self.is_in.clone();
        self.history.iter().enumerate().filter(move |(at, _)| is_in[*at])
    }

    /// Checks everything that single reads can show without a cycle. The reads of aborted transactions are checked too.
    fn check_reads(&self) -> Result<(), Anomaly> {
        for (at, txn) in self.history.iter().enumerate() {
            check_inside(at, txn)?;
            for (key, values, _) in outer_reads(txn) {
                let unique: BTreeSet<u64> = values.iter().copied().collect();
                if unique.len() < values.len() {
                    return anomaly(Kind::Garbage, format!("{at} reads an element of {key:?} twice: {values:?}"));
                }
                for (place, value) in values.iter().enumerate() {
                    let Some((writer, is_last)) = self.writer.get(&(key, *value)).copied() else {
                        return anomaly(
                            Kind::Garbage,
                            format!("{at} reads {value} in {key:?}, which no transaction wrote"),
                        );
                    };
                    if self.history[writer].outcome == Outcome::Aborted {
                        return anomaly(Kind::G1a, format!("{at} reads {value} in {key:?} of {writer}, aborted"));
                    }
                    if place + 1 == values.len() && !is_last {
                        return anomaly(
                            Kind::G1b,
                            format!("{at} reads {key:?} up to {value} in the middle of {writer}"),
                        );
                    }
                }
            }
        }
        Ok(())
    }

    fn add_list_edges(&mut self) -> Result<(), Anomaly> {
        let mut longest: BTreeMap<Key, (usize, Vec<u64>)> = BTreeMap::new();
        for (at, txn) in self.history.iter().enumerate() {
            for (key, elements, _) in outer_reads(txn).filter(|(key, ..)| key.0) {
                let (other, known) = longest.entry(key).or_insert((at, Vec::new()));
                let shared = known.len().min(elements.len());
                if known[..shared] != elements[..shared] {
                    let why = format!("{at} reads {key:?} as {elements:?}, {other} as {known:?}");
                    return anomaly(Kind::Order, why);
                }
                if elements.len() > known.len() {
                    (*other, *known) = (at, elements);
                }
            }
        }
        // For each list the transactions with an append to it that no transaction read. Such an append comes after every one that was read.
        let mut unread: BTreeMap<Key, Vec<usize>> = BTreeMap::new();
        for (at, txn) in self.txns() {
            for (key, element) in writes(txn).filter(|(key, _)| key.0) {
                let (_, known) = longest.entry(key).or_default();
                if !known.contains(&element) {
                    unread.entry(key).or_default().push(at);
                }
            }
        }
        for (key, (_, known)) in &longest {
            for pair in known.windows(2) {
                self.add(self.writer[&(*key, pair[0])].0, self.writer[&(*key, pair[1])].0, Edge::Ww);
            }
            if let Some(last) = known.last() {
                for later in unread.get(key).into_iter().flatten() {
                    self.add(self.writer[&(*key, *last)].0, *later, Edge::Ww);
                }
            }
        }
        let mut appends: BTreeMap<Key, Vec<(usize, u64)>> = BTreeMap::new();
        for (at, txn) in self.txns() {
            writes(txn).filter(|(key, _)| key.0).for_each(|(key, e)| appends.entry(key).or_default().push((at, e)));
        }
        for (at, txn) in self.txns() {
            for (key, elements, ranged) in outer_reads(txn).filter(|(key, ..)| key.0) {
                if let Some(last) = elements.last() {
                    self.add(self.writer[&(key, *last)].0, at, Edge::Wr);
                }
                let rw = if ranged { Edge::RwRange } else { Edge::Rw };
                match longest[&key].1.get(elements.len()) {
                    Some(next) => self.add(at, self.writer[&(key, *next)].0, rw),
                    None => unread.get(&key).into_iter().flatten().for_each(|later| self.add(at, *later, rw)),
                }
                let shown: BTreeSet<u64> = elements.iter().copied().collect();
                for (writer, element) in appends.get(&key).into_iter().flatten() {
                    let ended = self.history[*writer].ended.filter(|ended| *ended < txn.begun);
                    if ended.is_some() && !shown.contains(element) {
                        let why = format!("{writer} had appended {element} to {key:?}, and {at} reads {elements:?}");
                        return anomaly(Kind::Lost, why);
                    }
                }
            }
        }
        Ok(())
    }

    fn add_register_edges(&mut self) {
        // For each version the transactions that wrote a later one, which is known of those that had read it. All values come after the
        // absence of a value.
        let mut next: BTreeMap<(Key, Option<u64>), BTreeSet<usize>> = BTreeMap::new();
        for (at, txn) in self.txns() {
            let last: BTreeMap<Key, u64> = writes(txn).filter(|(key, _)| !key.0).collect();
            for key in last.keys() {
                next.entry((*key, None)).or_default().insert(at);
            }
            for (key, values, _) in outer_reads(txn).filter(|(key, ..)| last.contains_key(key)) {
                next.entry((key, values.first().copied())).or_default().insert(at);
            }
        }
        for (at, txn) in self.txns() {
            for (key, values, ranged) in outer_reads(txn).filter(|(key, ..)| !key.0) {
                let version = values.first().copied();
                let writer = version.map(|value| self.writer[&(key, value)].0);
                if let Some(writer) = writer {
                    self.add(writer, at, Edge::Wr);
                }
                for later in next.get(&(key, version)).into_iter().flatten() {
                    self.add(at, *later, if ranged { Edge::RwRange } else { Edge::Rw });
                    if let Some(writer) = writer {
                        self.add(writer, *later, Edge::Ww);
                    }
                }
            }
        }
    }

    /// Adds an edge from each transaction to those that began after its end, except where another transaction lies
    /// between.
    fn add_time_edges(&mut self) {
        let mut events: Vec<(u64, bool, usize)> = Vec::new();
        for (at, txn) in self.txns() {
            events.push((txn.begun, true, at));
            events.extend(txn.ended.filter(|_| txn.outcome == Outcome::Committed).map(|ended| (ended, false, at)));
        }
        events.sort_unstable();
        let mut ended: BTreeSet<usize> = BTreeSet::new();
        for (_, begins, at) in events {
            if begins {
                ended.iter().for_each(|before| self.add(*before, at, Edge::Rt));
            } else {
                let begun = self.history[at].begun;
                ended.retain(|before| self.history[*before].ended.is_none_or(|ended| ended >= begun));
                ended.insert(at);
            }
        }
    }

    fn add(&mut self, from: usize, to: usize, edge: Edge) {
        if from != to && self.is_in[from] && self.is_in[to] {
            let known = self.edges[from].entry(to).or_insert(edge);
            *known = (*known).min(edge);
        }
    }

    /// Looks for a cycle among few kinds of edges first and then among more, so that an anomaly gets the name of the plainest kind.
    fn refuse_cycles(&self, with_time: bool) -> Result<(), Anomaly> {
        let pick = |plain, timed| if with_time { timed } else { plain };
        let base = |edge: Edge| edge == Edge::Ww || edge == Edge::Rt;
        let reads = |edge: Edge| edge <= Edge::Rt;
        if let Some(path) = self.any_cycle(base) {
            return anomaly(pick(Kind::G0, Kind::G0Realtime), self.tell(&path));
        }
        if let Some(path) = self.any_cycle(reads) {
            return anomaly(pick(Kind::G1c, Kind::G1cRealtime), self.tell(&path));
        }
        let Some(_) = self.any_cycle(|_| true) else { return Ok(()) };
        for component in self.components(|_| true) {
            for from in &component {
                for (to, _) in self.edges[*from].iter().filter(|(_, edge)| **edge >= Edge::Rw) {
                    if let Some(mut path) = self.path(*to, *from, reads) {
                        path.insert(0, *from);
                        return anomaly(pick(Kind::GSingle, Kind::GSingleRealtime), self.tell(&path));
                    }
                }
            }
        }
        match self.any_cycle(|edge| edge != Edge::RwRange) {
            Some(path) => anomaly(pick(Kind::G2Item, Kind::G2Realtime), self.tell(&path)),
            None => {
                let path = self.any_cycle(|_| true).unwrap_or_default();
                anomaly(pick(Kind::G2, Kind::G2Realtime), self.tell(&path))
            }
        }
    }

    /// Returns some cycle, as a path that ends where it begins.
    fn any_cycle(&self, keep: impl Fn(Edge) -> bool + Copy) -> Option<Vec<usize>> {
        let component = self.components(keep).into_iter().next()?;
        let from = component[0];
        let next = self.edges[from].iter().filter(|(_, edge)| keep(**edge)).map(|(to, _)| *to);
        let mut path = next.filter_map(|to| self.path(to, from, keep)).min_by_key(Vec::len)?;
        path.insert(0, from);
        Some(path)
    }

    /// Returns a shortest path over the edges for which `keep` holds.
    fn path(&self, from: usize, to: usize, keep: impl Fn(Edge) -> bool) -> Option<Vec<usize>> {
        let mut came_from = BTreeMap::from([(from, from)]);
        let mut queue = std::collections::VecDeque::from([from]);
        while let Some(at) = queue.pop_front() {
            if at == to {
                let mut path = vec![at];
                while path[path.len() - 1] != from {
                    path.push(came_from[&path[path.len() - 1]]);
                }
                path.reverse();
                return Some(path);
            }
            for (next, _) in self.edges[at].iter().filter(|(_, edge)| keep(**edge)) {
                came_from.entry(*next).or_insert_with(|| {
                    queue.push_back(*next);
                    at
                });
            }
        }
        None
    }

    /// Returns the strongly connected components with more than one transaction, by Tarjan's algorithm without
    /// recursion.
    fn components(&self, keep: impl Fn(Edge) -> bool) -> Vec<Vec<usize>> {
        let next: Vec<Vec<usize>> = self
            .edges
            .iter()
            .map(|edges| edges.iter().filter(|(_, edge)| keep(**edge)).map(|(to, _)| *to).collect())
            .collect();
        let (mut index, mut low) = (vec![usize::MAX; next.len()], vec![usize::MAX; next.len()]);
        let (mut on_stack, mut stack, mut count) = (vec![false; next.len()], Vec::new(), 0);
        let mut components = Vec::new();
        for root in 0..next.len() {
            let mut calls = if index[root] == usize::MAX { vec![(root, 0)] } else { Vec::new() };
            while let Some((at, child)) = calls.pop() {
                if child == 0 {
                    (index[at], low[at], on_stack[at]) = (count, count, true);
                    count += 1;
                    stack.push(at);
                } else {
                    low[at] = low[at].min(low[next[at][child - 1]]);
                }
                let mut child = child;
                while let Some(to) = next[at].get(child).copied() {
                    if index[to] == usize::MAX {
                        break;
                    }
                    if on_stack[to] {
                        low[at] = low[at].min(index[to]);
                    }
                    child += 1;
                }
                if let Some(to) = next[at].get(child).copied() {
                    calls.extend([(at, child + 1), (to, 0)]);
                } else if low[at] == index[at] {
                    let place = stack.iter().rposition(|member| *member == at).unwrap_or(0);
                    let component = stack.split_off(place);
                    component.iter().for_each(|member| on_stack[*member] = false);
                    if component.len() > 1 {
                        components.push(component);
                    }
                }
            }
        }
        components
    }

    fn tell(&self, path: &[usize]) -> String {
        let mut text = String::new();
        for pair in path.windows(2) {
            text += &format!("\n  {} {:?} -{:?}->", pair[0], self.history[pair[0]], self.edges[pair[0]][&pair[1]]);
        }
        text + &format!(" {}", path.last().copied().unwrap_or_default())
    }
}

/// Checks that a transaction sees its own writes, and reads each key consistently.
fn check_inside(at: usize, txn: &Txn) -> Result<(), Anomaly> {
    let mut known: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    // Appended before the list was read: they must be its end.
    let mut tails: BTreeMap<Key, Vec<u64>> = BTreeMap::new();
    for step in &txn.steps {
        let (key, seen) = match step {
            Step::Append { key, element } => {
                let key = (true, *key);
                known.entry(key).and_modify(|list| list.push(*element));
                tails.entry(key).or_default().push(*element);
                continue;
            }
            Step::Write { key, value } => {
                known.insert((false, *key), vec![*value]);
                continue;
            }
            Step::ReadList { key, elements, .. } => ((true, *key), elements.clone()),
            Step::Read { key, value, .. } => ((false, *key), value.iter().copied().collect()),
        };
        let fits = match known.get(&key) {
            Some(expected) => *expected == seen,
            None => tails.get(&key).is_none_or(|tail| seen.ends_with(tail)),
        };
        if !fits {
            let why = format!("{at} sees {seen:?} in {key:?} after {:?}; {txn:?}", known.get(&key));
            return anomaly(Kind::Internal, why);
        }
        known.insert(key, seen);
    }
    Ok(())
}

mod tests;

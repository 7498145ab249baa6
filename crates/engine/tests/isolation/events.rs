//! A history as it is recorded: one line an event, in one order for all threads and tasks. The number of a line is its time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::{Mutex, PoisonError};

use crate::graph::{Outcome, Step, Txn};

/// Marks the beginning of an event in a line. Other text may precede it, such as output of the test harness.
const MARK: &str = "event ";

/// The destination of events.
pub(crate) enum Recorder {
    Memory(Mutex<Vec<String>>),
    /// Standard output, for a process that will be killed.
    Stdout,
}

impl Recorder {
    /// Records that a transaction is about to begin.
    pub(crate) fn begin(&self, id: u64) {
        self.record(&format!("begin {id}"));
    }

    /// Records that the commit of a transaction is about to be attempted.
    pub(crate) fn attempt(&self, id: u64, steps: &[Step]) {
        self.record(&format!("try {id}{}", words(steps)));
    }

    pub(crate) fn committed(&self, id: u64, steps: &[Step]) {
        self.record(&format!("committed {id}{}", words(steps)));
    }

    pub(crate) fn aborted(&self, id: u64, steps: &[Step]) {
        self.record(&format!("aborted {id}{}", words(steps)));
    }

    fn record(&self, event: &str) {
        let line = format!("{MARK}{event}\n");
        match self {
            Self::Memory(lines) => lines.lock().unwrap_or_else(PoisonError::into_inner).push(line),
            Self::Stdout => std::io::stdout().lock().write_all(line.as_bytes()).unwrap(),
        }
    }

    /// Returns all events recorded so far.
    pub(crate) fn take(&self) -> Vec<String> {
        match self {
            Self::Memory(lines) => std::mem::take(&mut lines.lock().unwrap_or_else(PoisonError::into_inner)),
            Self::Stdout => Vec::new(),
        }
    }
}

fn words(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        let list = |values: &[u64]| values.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
        match step {
            Step::Append { key, element } => write!(text, " a:{key}:{element}"),
            Step::Write { key, value } => write!(text, " w:{key}:{value}"),
            Step::ReadList { key, elements, ranged } => write!(text, " l:{key}:{ranged}:{}", list(elements)),
            Step::Read { key, value, ranged } => write!(text, " r:{key}:{ranged}:{}", list(value.as_slice())),
        }
        .unwrap();
    }
    text
}

fn step_of(word: &str) -> Step {
    let parts: Vec<&str> = word.split(':').collect();
    let numbers = |text: &str| -> Vec<u64> {
        text.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().unwrap()).collect()
    };
    match parts[..] {
        ["a", key, element] => Step::Append { key: key.parse().unwrap(), element: element.parse().unwrap() },
        ["w", key, value] => Step::Write { key: key.parse().unwrap(), value: value.parse().unwrap() },
        ["l", key, ranged, elements] => {
            let (key, ranged) = (key.parse().unwrap(), ranged.parse().unwrap());
            Step::ReadList { key, elements: numbers(elements), ranged }
        }
        ["r", key, ranged, value] => {
            let (key, ranged) = (key.parse().unwrap(), ranged.parse().unwrap());
            Step::Read { key, value: numbers(value).first().copied(), ranged }
        }
        _ => panic!("not a step: {word}"),
    }
}

/// Builds the transactions from recorded lines. A line without a line break was cut short and is ignored.
pub(crate) fn history_of(lines: &[String]) -> Vec<Txn> {
    let mut txns: BTreeMap<u64, Txn> = BTreeMap::new();
    let mut order = Vec::new();
    for (time, line) in lines.iter().enumerate() {
        let Some((_, event)) = line.strip_suffix('\n').and_then(|line| line.split_once(MARK)) else { continue };
        let mut fields = event.split(' ');
        let (Some(kind), Some(id)) = (fields.next(), fields.next()) else { panic!("not an event: {line}") };
        let (id, steps): (u64, Vec<Step>) = (id.parse().unwrap(), fields.map(step_of).collect());
        if kind == "begin" {
            order.push(id);
            let outcome = Outcome::Unknown;
            txns.insert(id, Txn { begun: time as u64, ended: None, outcome, steps });
            continue;
        }
        let txn = txns.get_mut(&id).unwrap_or_else(|| panic!("transaction {id} did not begin"));
        txn.steps = steps;
        if kind != "try" {
            txn.ended = Some(time as u64);
            txn.outcome = if kind == "committed" { Outcome::Committed } else { Outcome::Aborted };
        }
    }
    order.iter().filter_map(|id| txns.remove(id)).collect()
}

#[test]
fn a_history_is_read_as_it_was_recorded() {
    let recorder = Recorder::Memory(Mutex::default());
    let steps = [
        Step::ReadList { key: 1, elements: vec![], ranged: true },
        Step::Append { key: 1, element: 70 },
        Step::ReadList { key: 1, elements: vec![70, 3], ranged: false },
        Step::Read { key: 2, value: None, ranged: false },
        Step::Write { key: 2, value: 5 },
        Step::Read { key: 2, value: Some(5), ranged: true },
    ];
    recorder.begin(7);
    recorder.begin(8);
    recorder.attempt(8, &steps);
    recorder.begin(9);
    recorder.attempt(7, &steps);
    recorder.committed(7, &steps);
    recorder.aborted(9, &[]);
    let mut lines = recorder.take();
    lines.push("event committed 8 a:1".into());
    let txn = |begun, ended, outcome, steps: &[Step]| Txn { begun, ended, outcome, steps: steps.to_vec() };
    let expected = [
        txn(0, Some(5), Outcome::Committed, &steps),
        txn(1, None, Outcome::Unknown, &steps),
        txn(3, Some(6), Outcome::Aborted, &[]),
    ];
    assert_eq!(history_of(&lines), expected);
}

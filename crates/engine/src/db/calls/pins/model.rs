//! Checks the rules in `pins` exhaustively in a model: a few operations, fewer frames than they want, every
//! interleaving, and pages evicted at the worst moments. Every operation must end, in whatever order the steps occur.
//!
//! A state holds everything that decides which steps can follow. So a path that comes back to a state is an operation
//! that never ends, and a state without a next step in which an operation is left is a deadlock.

use std::collections::HashMap;

/// Rounds before an operation takes the reserve.
const IDLE_ROUNDS: u8 = 2;

/// A step of an operation's program.
#[derive(Clone, Debug)]
enum Need {
    /// These pages must all be in memory at once.
    Pages(&'static [u8]),
    /// The commit section, held until the operation ends.
    Turn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// The rules that `pins` implements.
    Budget,
    /// After some attempts, an operation pins pages without permits, and keeps them all until it ends.
    KeepEverything,
    /// As `Budget`, but pins are kept while an operation waits for the commit turn.
    WaitWithPins,
}

struct Setting {
    rules: Rules,
    frames: usize,
    shared: usize,
    reserve: usize,
    programs: Vec<Vec<Need>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Attempt,
    WantsShared(u8),
    WantsReserve(u8),
    WantsFrame(u8),
    WantsTurn,
    Done,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Operation {
    phase: Phase,
    step: usize,
    /// Pinned pages, oldest first, and whether the permit of each is from the reserve.
    tickets: Vec<(u8, bool)>,
    has_reserve: bool,
    has_turn: bool,
    progressed: bool,
    idle: u8,
    asked: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    operations: Vec<Operation>,
    resident: u32,
}

impl Setting {
    fn first(&self) -> State {
        let operation = Operation {
            phase: Phase::Attempt,
            step: 0,
            tickets: Vec::new(),
            has_reserve: false,
            has_turn: false,
            progressed: false,
            idle: 0,
            asked: 0,
        };
        State { operations: vec![operation; self.programs.len()], resident: 0 }
    }

    /// Returns the permits in use: shared ones, and the reserve's.
    fn in_use(&self, state: &State) -> (usize, usize) {
        let (mut shared, mut reserve) = (0, 0);
        for operation in &state.operations {
            let waiting = usize::from(matches!(operation.phase, Phase::WantsFrame(_)));
            let of_reserve = operation.tickets.iter().filter(|(_, of_reserve)| *of_reserve).count();
            shared += operation.tickets.len() - of_reserve + if operation.has_reserve { 0 } else { waiting };
            reserve += of_reserve + if operation.has_reserve { waiting } else { 0 };
        }
        (shared, reserve)
    }

    /// Returns every state that one step leads to.
    fn next(&self, state: &State) -> Vec<State> {
        let mut next = Vec::new();
        for page in unpinned(state) {
            // Reads without a waiter, and other operations, take frames at any time.
            let mut state = state.clone();
            state.resident &= !(1 << page);
            next.push(state);
        }
        for at in 0..state.operations.len() {
            self.step(state, at, &mut next);
        }
        next
    }

    fn step(&self, state: &State, at: usize, next: &mut Vec<State>) {
        let mut state = state.clone();
        let (shared, reserve) = self.in_use(&state);
        let reserve_is_owned = state.operations.iter().any(|operation| operation.has_reserve);
        let turn_is_taken = state.operations.iter().any(|operation| operation.has_turn);
        let resident = state.resident;
        let operation = &mut state.operations[at];
        match operation.phase {
            Phase::Done => return,
            Phase::Attempt => match self.programs[at].get(operation.step) {
                None => {
                    *operation =
                        Operation { phase: Phase::Done, step: operation.step, ..self.first().operations[0].clone() };
                }
                Some(Need::Turn) => {
                    if self.rules != Rules::WaitWithPins {
                        operation.tickets.clear();
                        operation.has_reserve = false;
                    }
                    operation.phase = Phase::WantsTurn;
                }
                Some(Need::Pages(pages)) => match pages.iter().find(|page| resident & 1 << **page == 0) {
                    None => operation.step += 1,
                    Some(page) => self.admit(operation, *page, reserve),
                },
            },
            Phase::WantsTurn if !turn_is_taken => {
                (operation.has_turn, operation.phase) = (true, Phase::Attempt);
                operation.step += 1;
            }
            Phase::WantsShared(page) if shared < self.shared => operation.phase = Phase::WantsFrame(page),
            Phase::WantsReserve(page) if !reserve_is_owned => {
                (operation.has_reserve, operation.progressed) = (true, false);
                operation.phase = Phase::WantsFrame(page);
            }
            Phase::WantsFrame(page) => {
                let is_there = resident & 1 << page != 0;
                operation.tickets.push((page, operation.has_reserve));
                operation.phase = Phase::Attempt;
                if !is_there && resident.count_ones() as usize >= self.frames {
                    for page_out in unpinned(&state) {
                        let mut state = state.clone();
                        state.resident = state.resident & !(1 << page_out) | 1 << page;
                        next.push(state);
                    }
                    return;
                }
                state.resident |= 1 << page;
            }
            Phase::WantsTurn | Phase::WantsShared(_) | Phase::WantsReserve(_) => return,
        }
        next.push(state);
    }

    /// A model of `PinBudget::admit`, for one page.
    fn admit(&self, operation: &mut Operation, page: u8, reserve_in_use: usize) {
        if self.rules == Rules::KeepEverything {
            operation.idle = (operation.idle + 1).min(IDLE_ROUNDS + 1);
            operation.phase = match (operation.has_reserve, operation.idle > IDLE_ROUNDS) {
                (true, _) => Phase::WantsFrame(page),
                (false, late) => {
                    operation.tickets.clear();
                    if late { Phase::WantsReserve(page) } else { Phase::WantsShared(page) }
                }
            };
            return;
        }
        if operation.asked & 1 << page == 0 {
            operation.asked |= 1 << page;
            operation.idle = 0;
            operation.progressed |= operation.has_reserve;
        } else {
            operation.idle += 1;
        }
        if operation.has_reserve && reserve_in_use == self.reserve {
            if operation.progressed {
                operation.has_reserve = false;
                operation.tickets.clear();
                operation.phase = Phase::WantsShared(page);
                return;
            }
            operation.tickets.remove(0);
        }
        operation.phase = match (operation.has_reserve, operation.idle > IDLE_ROUNDS) {
            (true, _) => Phase::WantsFrame(page),
            (false, late) => {
                operation.tickets.clear();
                if late { Phase::WantsReserve(page) } else { Phase::WantsShared(page) }
            }
        };
    }

    /// Visits every state that can be reached, and returns their number.
    ///
    /// # Errors
    /// A description of a deadlock (a state without a next step although an operation has not ended) or of a cycle (a
    /// state that leads back to itself).
    fn explore(&self) -> Result<usize, String> {
        // Whether a state is still on the path that is being followed.
        let mut seen: HashMap<State, bool> = HashMap::new();
        let first = self.first();
        let mut path = vec![(first.clone(), self.next(&first))];
        seen.insert(first, true);
        while let Some((state, left)) = path.last_mut() {
            let Some(next) = left.pop() else {
                seen.insert(state.clone(), false);
                path.pop();
                continue;
            };
            match seen.get(&next) {
                Some(true) => return Err(format!("goes on for ever: {next:?}")),
                Some(false) => continue,
                None => {}
            }
            let after = self.next(&next);
            let is_done = next.operations.iter().all(|operation| operation.phase == Phase::Done);
            if after.is_empty() && !is_done {
                return Err(format!("deadlock: {next:?}"));
            }
            seen.insert(next.clone(), true);
            path.push((next, after));
        }
        Ok(seen.len())
    }
}

fn unpinned(state: &State) -> Vec<u8> {
    let pinned = |page: u8| state.operations.iter().any(|operation| operation.tickets.iter().any(|at| at.0 == page));
    (0..32).filter(|page| state.resident & 1 << page != 0 && !pinned(*page)).collect()
}

/// Two lookups that each need a path of pages at once, and a lookup of many keys that resumes where it was.
fn lookups(rules: Rules) -> Setting {
    let single = |path| vec![Need::Pages(path)];
    let many = [&[3_u8][..], &[4], &[5], &[6]].map(Need::Pages).to_vec();
    let programs = vec![single(&[0, 1]), single(&[0, 2]), many];
    Setting { rules, frames: 4, shared: 1, reserve: 2, programs }
}

/// Two lookups of many keys, which together need more pages than there are frames.
fn many_keys(rules: Rules) -> Setting {
    let many = |pages: [&'static [u8]; 6]| pages.map(Need::Pages).to_vec();
    let programs = vec![many([&[0], &[1], &[2], &[3], &[4], &[5]]), many([&[6], &[7], &[8], &[9], &[10], &[11]])];
    Setting { rules, frames: 3, shared: 1, reserve: 1, programs }
}

/// Two commits that load pages and then take the commit section, and one that loads pages while it holds the commit
/// section.
fn commits(rules: Rules) -> Setting {
    let small = |page| vec![Need::Pages(page), Need::Turn];
    let programs = vec![small(&[0]), small(&[1]), vec![Need::Turn, Need::Pages(&[2, 3])]];
    Setting { rules, frames: 5, shared: 2, reserve: 2, programs }
}

#[test]
fn every_operation_ends_in_every_interleaving() {
    for setting in [lookups(Rules::Budget), many_keys(Rules::Budget), commits(Rules::Budget)] {
        let states = setting.explore().unwrap_or_else(|found| panic!("{found}"));
        println!("{states} states");
        assert!(states > 1000, "{states} states are not all there are");
    }
}

#[test]
fn operations_that_keep_all_their_pages_stop_each_other() {
    let found = many_keys(Rules::KeepEverything).explore().unwrap_err();
    assert!(found.starts_with("deadlock"), "{found}");
}

#[test]
fn operations_that_wait_for_the_commit_turn_with_pins_stop_each_other() {
    let found = commits(Rules::WaitWithPins).explore().unwrap_err();
    assert!(found.starts_with("deadlock"), "{found}");
}

//! Names of a simulated directory, and which changes of them a power cut undoes.
//!
//! The model: changes that share a name, directly or through other changes, form a chain (create `new`, rename `new` to
//! `db`, remove `db`). A cut keeps of each chain some first part, chosen for each chain apart; a rename is one step.
//! So a later change can survive an earlier one of other names, yet no state appears that no order of events explains.
//!
//! Why this one: the journals of ext4 and xfs keep a first part of *all* changes, which is one of the outcomes here.
//! ext4's fast commits and btrfs's log tree write the changes of one file apart from others, which gives the rest. Any
//! other subset (a rename without the creation before it) happens on no journaling file system.

use std::collections::BTreeMap;

/// The number of a file, which stays when its name changes.
pub(super) type FileId = u64;

#[derive(Clone, Debug)]
pub(super) enum Change {
    Create { name: String, file: FileId },
    Rename { from: String, to: String },
    Remove { name: String },
}

impl Change {
    fn names(&self) -> [&str; 2] {
        match self {
            Self::Create { name, .. } | Self::Remove { name } => [name, name],
            Self::Rename { from, to } => [from, to],
        }
    }

    fn apply(&self, names: &mut BTreeMap<String, FileId>) {
        match self {
            Self::Create { name, file } => {
                names.insert(name.clone(), *file);
            }
            Self::Rename { from, to } => {
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
            Self::Remove { name } => {
                names.remove(name);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    /// Set when a sync that covered the change has failed: no later sync makes it durable.
    abandoned: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    now: BTreeMap<String, FileId>,
    stable: BTreeMap<String, FileId>,
    pending: Vec<Pending>,
}

impl Names {
    /// Creates a directory with these durable names and no pending change.
    pub(super) fn settled(names: BTreeMap<String, FileId>) -> Self {
        Self { stable: names.clone(), now: names, pending: Vec::new() }
    }

    pub(super) fn get(&self, name: &str) -> Option<FileId> {
        self.now.get(name).copied()
    }

    pub(super) fn list(&self) -> impl Iterator<Item = (&String, &FileId)> {
        self.now.iter()
    }

    /// Returns whether the file can still appear under some name, now or after a cut.
    pub(super) fn may_hold(&self, file: FileId) -> bool {
        let created =
            |pending: &Pending| matches!(pending.change, Change::Create { file: created, .. } if created == file);
        self.now.values().chain(self.stable.values()).any(|held| *held == file) || self.pending.iter().any(created)
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.pending.push(Pending { change, abandoned: false });
    }

    /// Makes every change durable, except chains that an earlier failed sync has left in doubt.
    pub(super) fn sync(&mut self) {
        let chains = chains(self.pending.iter().map(|pending| &pending.change));
        let mut doubtful = vec![false; self.pending.len()];
        for (pending, chain) in self.pending.iter().zip(&chains) {
            doubtful[*chain] |= pending.abandoned;
        }
        let mut left = Vec::new();
        for (pending, chain) in std::mem::take(&mut self.pending).into_iter().zip(chains) {
            if doubtful[chain] {
                left.push(pending);
            } else {
                pending.change.apply(&mut self.stable);
            }
        }
        self.pending = left;
    }

    /// Marks the changes covered by a failed sync: they stay in doubt.
    pub(super) fn abandon(&mut self) {
        for pending in &mut self.pending {
            pending.abandoned = true;
        }
    }

    /// Returns the names that a power cut would leave now; `begun` is a change under way.
    pub(super) fn survive(&self, begun: Option<&Change>, rng: &mut fastrand::Rng) -> BTreeMap<String, FileId> {
        let changes: Vec<&Change> = self.pending.iter().map(|pending| &pending.change).chain(begun).collect();
        let chains = chains(changes.iter().copied());
        let mut length = vec![0_usize; changes.len()];
        for chain in &chains {
            length[*chain] += 1;
        }
        let mut kept: Vec<usize> = match rng.u8(0..4) {
            0 => vec![0; changes.len()],
            1 => length,
            _ => length.iter().map(|length| rng.usize(0..=*length)).collect(),
        };
        let mut names = self.stable.clone();
        for (change, chain) in changes.iter().zip(chains) {
            if kept[chain] > 0 {
                kept[chain] -= 1;
                change.apply(&mut names);
            }
        }
        names
    }
}

/// Returns for each change the number of its chain, which is the index of one change in the chain.
fn chains<'a>(changes: impl Iterator<Item = &'a Change>) -> Vec<usize> {
    let mut chain_of_name: BTreeMap<&str, usize> = BTreeMap::new();
    let mut chains: Vec<usize> = Vec::new();
    for (index, change) in changes.enumerate() {
        let mut own = index;
        for name in change.names() {
            if let Some(known) = chain_of_name.get(name).copied() {
                let (old, new) = (own.max(known), own.min(known));
                chains.iter_mut().chain(chain_of_name.values_mut()).for_each(|chain| {
                    if *chain == old {
                        *chain = new;
                    }
                });
                own = new;
            }
            chain_of_name.insert(name, own);
        }
        chains.push(own);
    }
    chains
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn create(name: &str, file: FileId) -> Change {
        Change::Create { name: name.into(), file }
    }

    fn rename(from: &str, to: &str) -> Change {
        Change::Rename { from: from.into(), to: to.into() }
    }

    /// Every outcome of a cut over many seeds, as text.
    fn outcomes(names: &Names) -> BTreeSet<String> {
        let text = |seed| format!("{:?}", names.survive(None, &mut fastrand::Rng::with_seed(seed)));
        (0..400).map(text).collect()
    }

    #[test]
    fn chains_join_changes_that_share_a_name_even_late() {
        let changes =
            [create("a", 1), create("b", 2), create("c", 3), rename("a", "b"), Change::Remove { name: "b".into() }];
        assert_eq!(chains(changes.iter()), [0, 0, 2, 0, 0]);
    }

    #[test]
    fn a_cut_keeps_a_first_part_of_each_chain_and_nothing_else() {
        let mut names = Names::settled([("db".to_owned(), 1)].into());
        names.change(create("new", 2));
        names.change(rename("new", "db"));
        names.change(create("other", 3));
        let expected = [
            r#"{"db": 1}"#,
            r#"{"db": 1, "other": 3}"#,
            r#"{"db": 1, "new": 2}"#,
            r#"{"db": 1, "new": 2, "other": 3}"#,
            r#"{"db": 2}"#,
            r#"{"db": 2, "other": 3}"#,
        ];
        assert_eq!(outcomes(&names), expected.map(str::to_owned).into());
        names.sync();
        assert_eq!(outcomes(&names), [r#"{"db": 2, "other": 3}"#.to_owned()].into());
    }

    #[test]
    fn after_a_failed_sync_a_later_one_settles_only_chains_without_doubt() {
        let mut names = Names::default();
        names.change(create("a", 1));
        names.abandon();
        names.change(create("b", 2));
        names.change(rename("a", "c"));
        names.sync();
        let expected = [r#"{"b": 2}"#, r#"{"a": 1, "b": 2}"#, r#"{"b": 2, "c": 1}"#];
        assert_eq!(outcomes(&names), expected.map(str::to_owned).into());
    }
}

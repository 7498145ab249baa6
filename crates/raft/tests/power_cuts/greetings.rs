//! Nodes that greet each other know when one of them has lost entries, and take no whole node for such a node.

use std::collections::BTreeMap;

use nofault::Db;
use nofault_raft::{Error, Greeting, GroupId, Peers};
use nofault_sim::SimWorld;
use openraft::storage::RaftStateMachine;
use openraft::{BasicNode, Entry, EntryPayload, Membership, RaftMetrics, RaftSnapshotBuilder, Vote};

use crate::app::{Request, Types};
use crate::{Log, State, block_on, calm_home, log_id, open, settings};

/// The node that takes greetings, and the one that greets.
const OWN: u64 = 1;
const OTHER: u64 = 2;

/// A node, opened.
struct Node {
    folder: tempfile::TempDir,
    world: SimWorld,
    db: Db,
    log: Log,
    state: State,
}

impl Node {
    async fn new(seed: u64) -> Self {
        let (folder, world, db) = calm_home(seed);
        let (log, state) = open(&db, folder.path()).await.unwrap();
        Self { folder, world, db, log, state }
    }

    async fn with_members(seed: u64, members: &[u64]) -> Self {
        let mut node = Self::new(seed).await;
        node.state.apply([members_at(1, members)]).await.unwrap();
        node.again().await
    }

    /// Opens the node again, on this world.
    async fn opened(self, world: SimWorld) -> Self {
        let Self { folder, db, log, state, .. } = self;
        drop((log, state));
        db.close().await.unwrap();
        let db = Db::open_in(&world.directory(), &settings()).unwrap();
        let (log, state) = open(&db, folder.path()).await.unwrap();
        Self { folder, world, db, log, state }
    }

    async fn again(self) -> Self {
        let world = self.world.clone();
        self.opened(world).await
    }

    fn peers(&self) -> Peers<Types> {
        self.log.peers(OWN)
    }

    /// Returns the node's greeting as the other one.
    async fn greeting(&self) -> Greeting<u64> {
        self.log.peers(OTHER).greeting(None).await.unwrap()
    }

    async fn receive(&self, other: &Self) -> nofault_raft::Result<()> {
        self.peers().receive(&other.greeting().await, None).await
    }
}

fn members_at(index: u64, members: &[u64]) -> Entry<Types> {
    let membership = Membership::new(vec![members.iter().copied().collect()], ());
    Entry { log_id: log_id(1, index), payload: EntryPayload::Membership(membership) }
}

fn set_back(outcome: nofault_raft::Result<()>) -> String {
    match outcome {
        Err(Error::SetBack(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_member_whose_folder_is_an_older_copy_or_emptied_is_refused() {
    block_on(async {
        let own = Node::with_members(30, &[OWN, OTHER]).await;
        let other = Node::with_members(31, &[OWN, OTHER]).await;
        own.receive(&other).await.unwrap();
        let copy = other.world.restart(1);
        let other = other.again().await;
        for _ in 0..2 {
            own.receive(&other).await.unwrap();
        }
        let emptied = Node::new(32).await;
        // The notes stay.
        let own = own.again().await;
        let why = set_back(own.receive(&emptied).await);
        assert!(
            why.contains("node 2 has lost") && why.contains("emptied") && why.contains("remove it from the members"),
            "{why}"
        );
        own.receive(&other).await.unwrap();
        // The copy counts its openings as the node did, and they are others. To start it again does not help.
        let mut other = other.opened(copy).await;
        for number in 3..7 {
            let why = set_back(own.receive(&other).await);
            let shown = format!("older copy: this is its opening {number}, and another opening 3 was seen");
            assert!(why.contains(&shown), "{why}");
            other = other.again().await;
        }
    });
}

#[test]
fn a_member_that_was_opened_often_without_the_other_is_believed() {
    block_on(async {
        let own = Node::with_members(46, &[OWN, OTHER]).await;
        let mut other = Node::with_members(47, &[OWN, OTHER]).await;
        own.receive(&other).await.unwrap();
        for _ in 0..300 {
            other = other.again().await;
        }
        own.receive(&other).await.unwrap();
    });
}

#[test]
fn a_node_that_is_no_member_is_refused_for_nothing_that_it_has_lost() {
    block_on(async {
        for members in [&[OWN][..], &[OTHER, 3], &[]] {
            let own = Node::with_members(33, members).await;
            own.receive(&Node::new(34).await).await.unwrap();
            own.receive(&Node::new(35).await).await.unwrap();
        }
    });
}

#[test]
fn a_leader_refuses_a_member_whose_log_ends_before_what_it_has_acknowledged() {
    block_on(async {
        let own = Node::with_members(36, &[OWN, OTHER]).await;
        let mut other = Node::with_members(37, &[OWN, OTHER]).await;
        let entries = (0..4).map(|index| Entry { log_id: log_id(1, index), payload: EntryPayload::Blank });
        other.log.append_entries(entries.collect()).await.unwrap().await.unwrap();
        let mut metrics = RaftMetrics::<u64, BasicNode>::new_initial(OWN);
        metrics.vote = Vote::new_committed(1, OWN);
        let acknowledged = |index| Some(BTreeMap::from([(OTHER, Some(log_id(1, index)))]));
        let other = other.again().await;
        let greeting = other.greeting().await;
        metrics.replication = acknowledged(4);
        let why = set_back(own.peers().receive(&greeting, Some(&metrics)).await);
        assert!(why.contains("its log ends with T1-N1-3, and it has acknowledged T1-N1-4"), "{why}");
        metrics.replication = acknowledged(3);
        own.peers().receive(&greeting, Some(&metrics)).await.unwrap();
        // From then on it has more than at its opening.
        metrics.replication = acknowledged(9);
        own.peers().receive(&greeting, Some(&metrics)).await.unwrap();
        // Another leader may have removed entries of this one's.
        let mut other = other.again().await;
        openraft::storage::RaftLogStorage::save_vote(&mut other.log, &Vote::new(2, 3)).await.unwrap();
        let other = other.again().await;
        own.peers().receive(&other.greeting().await, Some(&metrics)).await.unwrap();
    });
}

#[test]
fn a_member_that_left_and_was_added_again_with_an_emptied_folder_is_taken() {
    block_on(async {
        let (left, added) = (members_at(2, &[OWN]), members_at(3, &[OWN, OTHER]));
        // One node gets the entries, the other one a snapshot of the state after them.
        for gets_entries in [true, false] {
            let mut own = Node::with_members(38, &[OWN, OTHER]).await;
            let before = Node::new(39).await;
            own.receive(&before).await.unwrap();
            let mut after = Node::new(40).await;
            set_back(own.receive(&after).await);
            if gets_entries {
                own.state.apply([left.clone(), added.clone()]).await.unwrap();
            } else {
                let mut leader = Node::with_members(41, &[OWN, OTHER]).await;
                leader.state.apply([left.clone(), added.clone()]).await.unwrap();
                let snapshot = leader.state.get_snapshot_builder().await.build_snapshot().await.unwrap();
                own.state.install_snapshot(&snapshot.meta, snapshot.snapshot).await.unwrap();
            }
            own.receive(&after).await.unwrap();
            set_back(own.receive(&before).await);

            // A node that has not heard of the removal yet does not judge one that knows of later members.
            let behind = Node::with_members(42, &[OWN, OTHER]).await;
            behind.receive(&before).await.unwrap();
            after.state.apply([added.clone()]).await.unwrap();
            let after = after.again().await;
            behind.receive(&after).await.unwrap();
            // Nor does it note it: the members that it knows count.
            behind.receive(&before).await.unwrap();
        }
    });
}

#[test]
fn a_node_of_another_group_is_refused() {
    block_on(async {
        let mut own = Node::with_members(43, &[OWN, OTHER]).await;
        let mut other = Node::with_members(44, &[OWN, OTHER]).await;
        for node in [&mut own, &mut other] {
            let request = Request::Name { group: GroupId::random() };
            node.state.apply([Entry { log_id: log_id(1, 2), payload: EntryPayload::Normal(request) }]).await.unwrap();
        }
        let refused = own.receive(&other).await;
        assert!(matches!(refused, Err(Error::Foreign(_))), "{refused:?}");
        // A node without group yet joins one.
        own.receive(&Node::new(45).await).await.unwrap();
    });
}

//! The end of a node's core, the task of openraft that does its work: how a program learns of it, and other needs of a program from the start of
//! a core to its end.
//!
//! openraft stops the core at the first error of its storage, for instance on a full disk, and at a panic. The handles of the node stay, and its
//! metrics stay as they were last, after a panic even that the node leads. So a program awaits [`ended`], and then ends, or drops
//! everything of the node and opens the group again.

use std::time::Duration;

use openraft::error::{Fatal, RaftError};
use openraft::{Raft, RaftTypeConfig};

/// Returns why the core of a node has ended, if it has: `Panicked` also when its runtime has ended. A program's answer about a node, such as its
/// leader, is about a node with a running core.
pub fn end_of<C: RaftTypeConfig>(raft: &Raft<C>) -> Option<Fatal<C::NodeId>> {
    let metrics = raft.metrics();
    // In this order: a core that does not panic notes its end before its metrics have no sender.
    let is_gone = metrics.has_changed().is_err();
    let noted = metrics.borrow().running_state.clone().err();
    noted.or(is_gone.then_some(Fatal::Panicked))
}

/// Waits until the core of a node has ended, and returns why, as [`end_of`] does.
pub async fn ended<C: RaftTypeConfig>(raft: &Raft<C>) -> Fatal<C::NodeId> {
    let mut metrics = raft.metrics();
    loop {
        metrics.mark_unchanged();
        if let Some(why) = end_of(raft) {
            return why;
        }
        // An error is an end as well.
        let _ = metrics.changed().await;
    }
}

/// Awaits a call of openraft as long as the core of the node runs. Whether a request that gets no answer was carried out is not known.
///
/// A call is sent to the core over a channel of tokio. A call that is sent at the moment at which the core ends may neither reach it nor be
/// dropped while there are senders, and each handle of the node is a sender: the caller would wait without end.
///
/// # Errors
/// The error of the call; [`RaftError::Fatal`] with the reason when the core has ended.
pub async fn while_running<C: RaftTypeConfig, T, E>(
    raft: &Raft<C>,
    call: impl Future<Output = Result<T, RaftError<C::NodeId, E>>>,
) -> Result<T, RaftError<C::NodeId, E>> {
    tokio::select! {
        biased;
        answer = call => answer,
        why = ended(raft) => Err(RaftError::Fatal(why)),
    }
}

/// Lets a node started with `enable_elect: false` campaign, once it hears of a leader, or has waited for one as long as a
/// follower waits: twice `election_timeout_max`. A node that is the only voter, or of no group yet, does not wait.
///
/// openraft lets a follower campaign when it has heard nothing for the leader's lease and one election timeout. A node that starts gets the timeout
/// alone, since no vote of an earlier opening counts as committed, and a busy leader may take longer to reach it. It takes a new term then. Others
/// refuse their votes while they hear their leader, but the leader, when it sends to the node, hears of the later term and steps down: a
/// follower that starts again and again stops the cluster again and again.
pub async fn elect_later<C: RaftTypeConfig>(raft: &Raft<C>) {
    let wait = Duration::from_millis(2 * raft.config().election_timeout_max);
    let mut metrics = raft.metrics();
    let may_campaign = async {
        // The metrics do not say so before the core has begun.
        if !raft.is_initialized().await.unwrap_or(false) {
            return;
        }
        // The log store reports the vote of an earlier life as not committed: a committed one is of a leader that has been heard.
        let heard = metrics.wait_for(|metrics| {
            let voters = metrics.membership_config.membership().voter_ids();
            metrics.vote.is_committed() || voters.eq([metrics.id.clone()]) || metrics.running_state.is_err()
        });
        drop(heard.await);
    };
    drop(tokio::time::timeout(wait, may_campaign).await);
    raft.runtime_config().elect(true);
}

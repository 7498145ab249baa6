//! Calls of openraft that end when the node stops.
//!
//! A call is sent to openraft's task over a channel of tokio. A call that is sent at the moment at which the task ends may neither reach it
//! nor be dropped while there are senders, and each handle of the node is a sender: the caller would wait for good.

use openraft::Raft;
use openraft::error::{Fatal, RaftError};

use crate::app::Types;

/// Awaits a call of openraft as long as the node runs. Whether a request that gets no answer was carried out is not known.
pub(crate) async fn while_running<T, E>(
    raft: &Raft<Types>,
    call: impl Future<Output = Result<T, RaftError<u64, E>>>,
) -> Result<T, RaftError<u64, E>> {
    let mut metrics = raft.metrics();
    let stopped = async {
        let stopped = metrics.wait_for(|metrics| metrics.running_state.is_err()).await;
        stopped.ok().and_then(|metrics| metrics.running_state.clone().err()).unwrap_or(Fatal::Stopped)
    };
    tokio::select! {
        biased;
        answer = call => answer,
        why = stopped => Err(RaftError::Fatal(why)),
    }
}

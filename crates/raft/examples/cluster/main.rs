//! A key-value service of several processes that agree: openraft over nofault.
//!
//! Each process is a node. In three terminals:
//!
//! ```sh
//! alias node='cargo run -p nofault-raft --example cluster'
//! node 1 n1 127.0.0.1:8001 127.0.0.1:9001 2=127.0.0.1:9002 3=127.0.0.1:9003
//! node 2 n2 127.0.0.1:8002 127.0.0.1:9002 1=127.0.0.1:9001 3=127.0.0.1:9003
//! node 3 n3 127.0.0.1:8003 127.0.0.1:9003 1=127.0.0.1:9001 2=127.0.0.1:9002
//! ```
//!
//! and in a fourth:
//!
//! ```sh
//! curl -X POST localhost:8001/initialize            # once, on one node
//! curl localhost:8001/status                        # who leads
//! curl -X PUT -d 12 localhost:8001/keys/apples      # on the leader; others answer 421 and its id
//! curl localhost:8001/keys/apples                   # linearizable
//! ```
//!
//! Members come and go, by requests to the leader:
//!
//! ```sh
//! node 4 n4 127.0.0.1:8004 127.0.0.1:9004 1=127.0.0.1:9001 2=127.0.0.1:9002 3=127.0.0.1:9003   # another terminal
//! curl -X PUT -d 127.0.0.1:9004 localhost:8001/members/4   # a learner
//! curl -X PUT -d '1 2 4' localhost:8001/voters             # 4 is a voter now, and 3 has left
//! curl -X DELETE localhost:8001/members/4                  # gone
//! curl localhost:8001/members
//! ```
//!
//! A node whose core ends, as on a full disk, says so and starts it again; until then `/status` answers 503 with the reason. A node that comes back
//! with an older or emptied folder is refused by the others, and ends with the reason.
//!
//! Kill one with `kill -9`, start it again, and it catches up. `tests/processes` does so, cuts the network between the nodes,
//! and checks the histories of the clients.

mod app;
mod network;
mod node;
mod service;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let Some(options) = service::Options::parse(std::env::args().skip(1)) else {
        eprintln!("usage: cluster ID FOLDER HTTP_ADDRESS NODE_ADDRESS [ID=NODE_ADDRESS]...");
        return ExitCode::FAILURE;
    };
    match service::run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

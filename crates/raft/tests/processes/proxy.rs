//! The network between the processes, which the test owns: one listener for each ordered pair of nodes passes bytes on, until
//! the link is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// All links. While a link is cut, its connections are closed, and new ones are closed at once.
pub(crate) struct Links {
    /// The addresses at which a node (the first number) reaches another (the second).
    addresses: BTreeMap<(u64, u64), SocketAddr>,
    cut: Arc<Mutex<BTreeSet<(u64, u64)>>>,
    changed: watch::Sender<()>,
}

impl Links {
    /// Opens the links between these nodes, whose own addresses are given.
    pub(crate) async fn open(nodes: &BTreeMap<u64, SocketAddr>) -> io::Result<Self> {
        let (changed, watch) = watch::channel(());
        let cut = Arc::<Mutex<BTreeSet<(u64, u64)>>>::default();
        let mut addresses = BTreeMap::new();
        for from in nodes.keys() {
            for (to, address) in nodes.iter().filter(|(to, _)| *to != from) {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                addresses.insert((*from, *to), listener.local_addr()?);
                tokio::spawn(pass_on(listener, *address, (*from, *to), cut.clone(), watch.clone()));
            }
        }
        Ok(Self { addresses, cut, changed })
    }

    /// The addresses at which a node reaches the others.
    pub(crate) fn peers_of(&self, node: u64) -> BTreeMap<u64, SocketAddr> {
        let own = self.addresses.iter().filter(|((from, _), _)| *from == node);
        own.map(|((_, to), address)| (*to, *address)).collect()
    }

    /// Cuts the links, both ways, between `side` and all others, or none for an empty side.
    pub(crate) fn split(&self, side: &[u64]) {
        let is_cut = |(from, to): &(u64, u64)| side.contains(from) != side.contains(to);
        let cut = self.addresses.keys().copied().filter(is_cut).collect();
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = cut;
        self.changed.send_replace(());
    }
}

async fn pass_on(
    listener: TcpListener,
    to: SocketAddr,
    link: (u64, u64),
    cut: Arc<Mutex<BTreeSet<(u64, u64)>>>,
    watch: watch::Receiver<()>,
) {
    while let Ok((mut near, _)) = listener.accept().await {
        let (cut, mut watch) = (cut.clone(), watch.clone());
        tokio::spawn(async move {
            let is_cut = || cut.lock().unwrap_or_else(PoisonError::into_inner).contains(&link);
            let passed = async {
                let mut far = TcpStream::connect(to).await?;
                near.set_nodelay(true)?;
                far.set_nodelay(true)?;
                tokio::io::copy_bidirectional(&mut near, &mut far).await
            };
            let until_cut = async { while !is_cut() && watch.changed().await.is_ok() {} };
            tokio::select! {
                biased;
                () = until_cut => {}
                _ = passed => {}
            }
        });
    }
}

//! The content of a store in memory: its objects, and the newest state.

use std::sync::Arc;

use futures_util::StreamExt as _;
use nofault::CommitSeq;
use nofault_ship::{Point, Ship, ShipOptions, restore_into};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

use crate::common::{Source, empty};

/// The names of the objects below `shop` that begin with `kind`.
pub(crate) async fn names(store: &dyn ObjectStore, kind: &str) -> Vec<String> {
    let of_kind = format!("shop/{kind}");
    let all = store.list(Some(&Path::from("shop"))).map(|found| found.unwrap().location.to_string());
    let mut names: Vec<String> = all.filter(|name| std::future::ready(name.starts_with(&of_kind))).collect().await;
    names.sort();
    names
}

/// Ships some commits, a piece each. Returns the newest commit in the store.
pub(crate) async fn ship_some(
    source: &mut Source,
    store: &Arc<InMemory>,
    options: ShipOptions,
    commits: usize,
) -> CommitSeq {
    let ship = Ship::start(&source.db, store.clone(), options).await.unwrap();
    let mut shipped = ship.durable().await.unwrap();
    for _ in 0..commits {
        source.commit().await;
        shipped = ship.durable().await.unwrap();
    }
    source.note().await;
    ship.close().await.unwrap();
    shipped
}

/// Restores and checks the newest commit.
pub(crate) async fn latest(source: &Source, store: &Arc<InMemory>) -> CommitSeq {
    let db = empty();
    let restored = restore_into(store.clone(), "shop", Point::Latest, &db).await.unwrap();
    source.check(&db, restored.commit, "the latest").await;
    restored.commit
}

pub(crate) async fn remove(store: &InMemory, names: &[String]) {
    for name in names {
        store.delete(&Path::from(&**name)).await.unwrap();
    }
}

pub(crate) async fn bytes(store: &InMemory, name: &str) -> Vec<u8> {
    store.get(&Path::from(name)).await.unwrap().bytes().await.unwrap().to_vec()
}

//! Shipping to S3: the same story with two servers of independent origin, s3s-fs in this process and moto in one of Python.
//! Without Python the second part says so and is left out.

#![expect(clippy::unwrap_used, reason = "a test stops at an unexpected error")]

#[expect(dead_code, reason = "the other test program uses more of it")]
#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Faults, FaultyStore, Source, content, empty, options};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use nofault_ship::{ErrorKind, Point, Ship, ShipOptions, history, restore_into, verify};
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::{ObjectStore, ObjectStoreExt as _, PutMode, UpdateVersion};

/// The version of moto that is installed where there is none.
const MOTO: &str = "moto[server]==5.2.5";
const BUCKET: &str = "backups";

fn s3(address: SocketAddr) -> Arc<AmazonS3> {
    let builder = AmazonS3Builder::new()
        .with_endpoint(format!("http://{address}"))
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_bucket_name(BUCKET)
        .with_access_key_id("test")
        .with_secret_access_key("test");
    Arc::new(builder.build().unwrap())
}

/// Starts s3s-fs over a folder, for as long as this test's runtime lives.
async fn start_s3s(folder: &std::path::Path) -> SocketAddr {
    std::fs::create_dir(folder.join(BUCKET)).unwrap();
    let mut service = s3s::service::S3ServiceBuilder::new(s3s_fs::FileSystem::new(folder).unwrap());
    service.set_auth(s3s::auth::SimpleAuth::from_single("test", "test"));
    let service = service.build();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let server = Builder::new(TokioExecutor::new());
        while let Ok((socket, _)) = listener.accept().await {
            let connection = server.serve_connection(TokioIo::new(socket), service.clone()).into_owned();
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    address
}

/// A moto server process, which ends with this.
struct Moto {
    process: Child,
    address: SocketAddr,
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a Python that has moto: the system's, or one in a folder for tests, into which it is installed once.
fn python_with_moto() -> Result<PathBuf, String> {
    let has_moto = |python: &std::path::Path| {
        let import = Command::new(python).args(["-c", "import moto.server"]).stderr(Stdio::null()).status();
        import.is_ok_and(|status| status.success())
    };
    if has_moto("python3".as_ref()) {
        return Ok("python3".into());
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("moto");
    let python = folder.join("bin/python3");
    if !has_moto(&python) {
        let install = |program: &std::path::Path, arguments: &[&std::ffi::OsStr]| {
            let done =
                Command::new(program).args(arguments).output().map_err(|error| format!("{program:?}: {error}"))?;
            if done.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&done.stderr).into_owned()) }
        };
        install("python3".as_ref(), &["-m".as_ref(), "venv".as_ref(), folder.as_os_str()])?;
        install(&python, &["-m".as_ref(), "pip".as_ref(), "install".as_ref(), "-q".as_ref(), MOTO.as_ref()])?;
    }
    Ok(python)
}

fn start_moto() -> Result<Moto, String> {
    let python = python_with_moto()?;
    // Free now, and most likely a moment later.
    let address = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_err(|error| error.to_string())?;
    let process = Command::new(python)
        .args(["-m", "moto.server", "-H", "127.0.0.1", "-p", &address.port().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let moto = Moto { process, address };
    let end = Instant::now() + Duration::from_secs(60);
    while create_bucket(address).is_err() {
        if Instant::now() > end {
            return Err("moto does not answer".into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(moto)
}

fn create_bucket(address: SocketAddr) -> std::io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    let request =
        format!("PUT /{BUCKET} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.contains(" 200 ") { Ok(()) } else { Err(std::io::Error::other(answer)) }
}

/// The promise on which the manifest relies: a put under a condition is refused when the condition does not hold.
async fn conditions_are_kept(store: &AmazonS3) {
    let path = "probe".into();
    let put = |text: &'static str, mode: PutMode| store.put_opts(&path, text.into(), mode.into());
    let first = put("1", PutMode::Create).await.unwrap();
    let refused = put("2", PutMode::Create).await.unwrap_err();
    assert!(matches!(refused, object_store::Error::AlreadyExists { .. }), "{refused}");
    let version = UpdateVersion { e_tag: first.e_tag, version: first.version };
    put("3", PutMode::Update(version.clone())).await.unwrap();
    let refused = put("4", PutMode::Update(version)).await.unwrap_err();
    assert!(matches!(refused, object_store::Error::Precondition { .. }), "{refused}");
    assert_eq!(store.get(&path).await.unwrap().bytes().await.unwrap(), "3");
}

async fn restored(source: &Source, store: &Arc<AmazonS3>, name: &str, point: Point) -> nofault::CommitSeq {
    let db = empty();
    let restored = restore_into(store.clone(), name, point, &db).await.unwrap();
    source.check(&db, restored.commit, name).await;
    restored.commit
}

async fn tell_the_story(store: Arc<AmazonS3>) {
    conditions_are_kept(&store).await;
    // Many small pieces, which are put together and removed.
    let often = ShipOptions { object_bytes: 400, grace: Duration::ZERO, name: "often".into(), ..options() };
    let mut source = Source::new(21).await;
    let ship = Ship::start(&source.db, store.clone(), often.clone()).await.unwrap();
    let mut middle = nofault::CommitSeq(0);
    for round in 0..40 {
        source.commit().await;
        let promised = ship.durable().await.unwrap();
        assert!(promised >= source.newest());
        if round == 20 {
            middle = source.newest();
        }
    }
    assert!(restored(&source, &store, "often", Point::Latest).await >= source.newest());
    assert_eq!(restored(&source, &store, "often", Point::Commit(middle)).await, middle);

    // Another shipper takes over.
    let newer = Ship::start(&source.db, store.clone(), often).await.unwrap();
    source.commit().await;
    assert_eq!(ship.durable().await.unwrap_err().kind(), ErrorKind::Fenced);
    newer.close().await.unwrap();
    assert!(restored(&source, &store, "often", Point::Latest).await >= source.newest());
    let found = verify(store.clone(), "often").await.unwrap();
    assert!(found.is_clean() && found.objects < 40, "{found:?}");
    assert_eq!(history(store.clone(), "often").await.unwrap().len(), 1);

    // Each request fails at first, with and without effect.
    for (name, faults) in [("before", Faults::Before(2)), ("after", Faults::After(1)), ("twice", Faults::After(2))] {
        let mut source = Source::new(22).await;
        let faulty = FaultyStore::new(store.clone(), faults);
        let ship = Ship::start(&source.db, faulty, ShipOptions { name: name.into(), ..options() }).await.unwrap();
        for _ in 0..20 {
            source.commit().await;
            ship.durable().await.unwrap();
        }
        ship.close().await.unwrap();
        assert!(restored(&source, &store, name, Point::Latest).await >= source.newest());
        assert!(verify(store.clone(), name).await.unwrap().is_clean(), "{name}");
    }

    // A base of several parts.
    let source = Source::new(23).await;
    let table = source.db.create_table("large").await.unwrap();
    let value = |key: u32| fastrand::Rng::with_seed(key.into()).u128(..).to_le_bytes().repeat(64);
    table.bulk_load((0..24_000_u32).map(move |key| (key.to_be_bytes(), value(key)))).await.unwrap();
    let ship = Ship::start(&source.db, store.clone(), ShipOptions { name: "large".into(), ..options() }).await.unwrap();
    ship.close().await.unwrap();
    let db = empty();
    restore_into(store.clone(), "large", Point::Latest, &db).await.unwrap();
    assert!(content(&db).await == content(&source.db).await);
    let found = verify(store, "large").await.unwrap();
    assert!(found.is_clean() && found.bases == 1, "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_shipped_to_s3s_and_restored() {
    let folder = tempfile::tempdir().unwrap();
    let address = start_s3s(folder.path()).await;
    tell_the_story(s3(address)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_is_shipped_to_moto_and_restored() {
    match tokio::task::spawn_blocking(start_moto).await.unwrap() {
        Ok(moto) => tell_the_story(s3(moto.address)).await,
        Err(why) => println!("LEFT OUT: moto, a server in Python, does not run here: {why}"),
    }
}

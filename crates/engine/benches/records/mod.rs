//! Three kinds of records, for the benchmarks of compression.

use fastrand::Rng;

/// A record of a package index: names and lists that repeat, and a hash.
pub(crate) fn json(rng: &mut Rng, number: u64) -> String {
    let names = ["http", "json", "log", "async", "core", "macros", "derive", "parse", "time", "rand", "sync", "io"];
    let name = format!("{}-{}", names[rng.usize(..names.len())], names[rng.usize(..names.len())]);
    let dependencies: Vec<String> = (0..rng.usize(1..6))
        .map(|_| {
            let name = names[rng.usize(..names.len())];
            format!(
                r#"{{"name":"{name}","req":"^{}.{}","features":[],"optional":false,"default_features":true,"target":null,"kind":"normal"}}"#,
                rng.u8(..3),
                rng.u8(..20)
            )
        })
        .collect();
    format!(
        r#"{{"name":"{name}","vers":"0.{}.{}","deps":[{}],"cksum":"{:016x}{:016x}","features":{{"default":["std"]}},"yanked":false,"id":{number}}}"#,
        rng.u8(..30),
        rng.u8(..9),
        dependencies.join(","),
        rng.u64(..),
        rng.u64(..)
    )
}

/// An event of an API: identifiers, addresses and prices that do not repeat, in fields that do.
pub(crate) fn event(rng: &mut Rng, number: u64) -> String {
    let kinds = ["order.created", "order.paid", "cart.updated", "session.started"];
    format!(
        r#"{{"id":"{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}","type":"{}","at":{},"user":{},"ip":"{}.{}.{}.{}","amount":{}.{:02},"currency":"EUR","session":"{:016x}","agent":"Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101 Firefox/{}.0"}}"#,
        rng.u32(..),
        rng.u16(..),
        rng.u16(..4096),
        rng.u16(0x8000..0xC000),
        rng.u64(..1 << 48),
        kinds[rng.usize(..kinds.len())],
        1_700_000_000_000 + number * 37,
        rng.u32(..5_000_000),
        rng.u8(1..),
        rng.u8(..),
        rng.u8(..),
        rng.u8(1..),
        rng.u16(..900),
        rng.u8(..100),
        rng.u64(..),
        rng.u8(90..130)
    )
}

/// A line of a log of a service.
pub(crate) fn log_line(rng: &mut Rng, number: u64) -> String {
    let texts = [
        "Received block blk_{} of size 67108864 from /10.251.{}",
        "PacketResponder 1 for block blk_{} terminating at 10.251.{}",
        "Verification succeeded for blk_{} on node 10.251.{}",
        "connection from 10.0.0.1 refused: too many open requests for user {} in shard {}",
    ];
    let text = texts[rng.usize(..texts.len())].replacen("{}", &rng.u64(..1 << 62).to_string(), 1);
    let text = text.replacen("{}", &format!("{}.{}", rng.u8(..), rng.u8(..)), 1);
    let seconds = number / 40;
    format!(
        "2026-11-{:02} {:02}:{:02}:{:02},{:03} {} {} dfs.DataNode: {text}",
        1 + seconds / 86_400 % 28,
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
        rng.u16(..1000),
        rng.u16(..3000),
        ["INFO", "INFO", "INFO", "WARN"][rng.usize(..4)]
    )
}

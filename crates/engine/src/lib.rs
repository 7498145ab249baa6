//! The nofault engine: an embedded, transactional key-value store on its own buffer pool.
//!
//! Nothing can be stored yet. This crate holds the place so that the layers below it (`nofault-io`) and beside it
//! (`nofault-lab`) are built against the workspace they will live in.

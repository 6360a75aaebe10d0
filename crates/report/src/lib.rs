//! What Dimmer reports: documents with their keys (JSON), and their texts, pages, CSV and traces.
//!
//! Converts the plain results of the crates that measure, simulate and observe; it measures and
//! decides nothing. It returns strings or bytes: it opens no file and prints nothing. The types
//! with `serde` are here, so a change in another crate does not silently change a document;
//! `docs/*-json.md` describes their keys, and a test compares.
#![forbid(unsafe_code)]

pub mod bench;
pub mod compare;
pub mod doctor;
mod estimate;
pub mod fit;
mod machine;
pub mod machines;
pub mod merge;
pub mod model;
pub mod number;
pub mod observe;
mod page;
pub mod phase_graph;
pub mod phases;
mod plot;
pub mod predict_lock;
pub mod probe;
pub mod profile;
pub mod ps;
pub mod pstate;
pub mod replay;
pub mod restore;
pub mod run;
pub mod scan;
mod screen;
mod shell;
pub mod sim;
pub mod specialise;
pub mod stat;
pub mod study;
pub mod table;
mod textfile;
pub mod timeline;
pub mod validate;

pub use machine::MachineDescription;
pub use page::PageError;
pub use screen::{Screen, lines};

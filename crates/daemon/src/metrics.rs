//! Metrics for Prometheus: over HTTP ([`http`]), as text ([`text`]). They come from the state,
//! which is requested as any watcher requests it.

pub mod http;
pub mod text;

use std::io;
use std::path::PathBuf;

use dimmer_watch::watch::Watch;
use http::{Limits, Listener};

/// Answers scrapers until the process ends; `socket` is the server's.
///
/// # Errors
/// If the system cannot start a thread.
pub fn serve(listener: Listener, socket: PathBuf) -> io::Result<()> {
    http::serve(listener, Limits::USUAL, move || {
        let state = Watch::new(Some(&socket)).and_then(|watch| watch.state());
        state.map_err(|error| format!("{error}\n"))
    })
}

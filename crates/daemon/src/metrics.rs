//! Metrics for Prometheus: over HTTP ([`http`]), as text ([`text`]). They come from the state,
//! which is requested as any watcher requests it, summed up by program ([`measured`]).

pub mod http;
pub mod measured;
pub mod text;

use std::io;
use std::path::PathBuf;

use dimmer_watch::watch::Watch;
use http::{Limits, Listener};
use measured::Measured;

/// Answers scrapers until the process ends; `socket` is the server's.
/// `is_per_client`: whether there are metrics of each client and of its regions.
///
/// # Errors
/// If the system cannot start a thread.
pub fn serve(listener: Listener, socket: PathBuf, is_per_client: bool) -> io::Result<()> {
    http::serve(listener, Limits::USUAL, move || {
        let state = Watch::new(Some(&socket)).and_then(|watch| watch.state());
        let measured = state.map(|state| Measured::new(state, is_per_client));
        measured.map_err(|error| format!("{error}\n"))
    })
}

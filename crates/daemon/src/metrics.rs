//! What goes on, for Prometheus: over HTTP ([`http`]), as text ([`text`]). The state is asked for
//! as by anybody who watches.

pub mod http;
pub mod text;

use std::io;
use std::path::PathBuf;

use crate::watch::Watch;
use http::{Limits, Listener};

/// Answers from now on, until the process ends; `socket` is the server's.
///
/// # Errors
/// If the system has no thread for it.
pub fn serve(listener: Listener, socket: PathBuf) -> io::Result<()> {
    http::serve(listener, Limits::USUAL, move || {
        let state = Watch::new(Some(&socket)).and_then(|watch| watch.state());
        state.map_err(|error| format!("{error}\n"))
    })
}

//! Metrics for Prometheus: over HTTP ([`http`]), as text ([`text`]). They come from the state,
//! which is requested as any watcher requests it, summed up by program ([`measured`]).

pub mod http;
pub mod measured;
pub mod text;

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;

use anyhow::Context as _;
use dimmer_protocol::Hello;
use dimmer_watch::state::State;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::server::Connector;
use http::{Limits, Listener};
use measured::Measured;

/// Answers scrapers until the process ends; `server` has the state.
/// `is_per_client`: whether there are metrics of each client and of its regions.
///
/// # Errors
/// If the system cannot start a thread.
pub fn serve(listener: Listener, server: Connector, is_per_client: bool) -> io::Result<()> {
    http::serve(listener, Limits::USUAL, move || {
        let measured = state(&server).map(|state| Measured::new(state, is_per_client));
        measured.map_err(|error| format!("{error:#}\n"))
    })
}

/// Requests the state of everything from the server.
fn state(server: &Connector) -> anyhow::Result<State> {
    /// How long the server may take to answer. Another watcher of its user may not read its answer
    /// for five seconds, and this one waits for that.
    const PATIENCE: Timespec = Timespec { tv_sec: 8, tv_nsec: 0 };
    let client = server.connect().context("cannot connect to the server")?;
    client.send(&Hello::Watch.to_bytes()).context("cannot ask the server")?;
    let answer = rustix::event::poll(
        &mut [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)],
        Some(&PATIENCE),
    );
    answer.context("cannot wait for the server")?;
    let pipe = client.text().context("the server")?.context("the server does not answer")?;
    // The server closes the pipe of an answer that takes too long.
    let text = io::read_to_string(File::from(pipe)).context("cannot read the server's answer")?;
    serde_json::from_str(&text).context("the server's answer is incomplete")
}

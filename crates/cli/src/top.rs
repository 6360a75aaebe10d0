//! `dimmer top`: shows what the policy server does, as a live screen, as a table, or as JSON.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cpufreq;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;
use dimmer_top::view::{News, View, Wish};
use dimmer_top::{live, plain, rows};
use dimmer_watch::state::State;
use dimmer_watch::watch::{Watch, WatchError};

use crate::args;
use crate::output;

/// Longest delay before a key or a new state is handled.
const TICK: Duration = Duration::from_millis(100);

pub(crate) fn run(root: &Root, arguments: &args::Top) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let watch = Watch::new(arguments.socket.socket.as_deref())?;
    let state = watch.state()?;
    let interval = arguments.interval;
    if let Some(json) = json {
        let is_all = json.is_standard();
        json.write_json(&state)?;
        if is_all {
            return Ok(output::end(&interrupt));
        }
    }
    let is_screen = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if arguments.once || !is_screen {
        return once(root, &watch, &state, interval, &interrupt);
    }
    let socket = watch.path().display().to_string();
    let mut view = View::new(socket, interval.as_secs_f64(), state);
    let (told, news) = mpsc::channel();
    let (keep, ended) = mpsc::channel();
    let (root, named) = (root.clone(), arguments.socket.socket.clone());
    let looks = std::thread::spawn(move || look(&root, watch, named, interval, &told, &ended));
    let shown = live::show(&mut view, &news, TICK, || interrupt.is_set());
    drop((keep, news));
    // The thread may be waiting for a server that does not answer; nothing else needs to wait for
    // it.
    drop(looks);
    Ok(match shown.context("cannot use the terminal")? {
        Wish::Interrupt => ExitCode::from(130),
        _ => interrupt.exit_status().map_or(ExitCode::SUCCESS, ExitCode::from),
    })
}

/// Takes two states, and shows the interval between them.
fn once(
    root: &Root,
    watch: &Watch,
    before: &State,
    interval: Duration,
    interrupt: &Interrupt,
) -> anyhow::Result<ExitCode> {
    let mut left = interval;
    while !left.is_zero() && !interrupt.is_set() {
        let nap = left.min(TICK);
        std::thread::sleep(nap);
        left -= nap;
    }
    let state = watch.state()?;
    let rows = rows::rows(&state, Some(before));
    let (socket, clocks) = (watch.path().display().to_string(), cpufreq::clocks(root));
    output::print(&plain::render(&state, Some(before), &socket, &clocks, &rows, output::screen()))?;
    Ok(output::end(interrupt))
}

/// Sends the state once every interval, also across restarts of the server, until the receiver is
/// gone.
fn look(
    root: &Root,
    watch: Watch,
    named: Option<PathBuf>,
    interval: Duration,
    told: &Sender<News>,
    ended: &Receiver<()>,
) {
    let mut watch = Some(watch);
    while ended.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
        let connected = watch.take().map_or_else(|| Watch::new(named.as_deref()), Ok);
        let look = connected.and_then(|connected| {
            let state = connected.state()?;
            watch = Some(connected);
            Ok(state)
        });
        let news = match look {
            Ok(state) => News::State(Box::new(state), cpufreq::clocks(root)),
            Err(error @ WatchError::NoServer(_)) => News::Gone(error.to_string()),
            Err(error) => News::Gone(format!("{:#}", anyhow::Error::from(error))),
        };
        if told.send(news).is_err() {
            return;
        }
    }
}

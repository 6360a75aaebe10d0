//! `dimmer daemon record`: records what the daemon sees and decides, while it does so.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_watch::record::Recorded;
use dimmer_watch::watch::{Watch, WatchError};
use indicatif::HumanBytes;

use crate::args;
use crate::output::{self, Output};
use crate::progress;
use dimmer_report::number::counted;

/// Longest wait for new lines before the loop checks whether to end.
const LOOK: Duration = Duration::from_millis(100);

pub(crate) fn run(arguments: &args::Record) -> anyhow::Result<ExitCode> {
    let mut output = Output::open(&arguments.file)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let watch = Watch::new(arguments.socket.socket.as_deref())?;
    let until = arguments.duration.duration.map(|duration| Instant::now() + duration);
    watch.record()?;
    output.empty()?;
    let spinner = progress::spinner("{spinner} {elapsed}  {msg}; Ctrl-C ends it");
    progress::show(&spinner);
    let mut written = Recorded::default();
    let ended = loop {
        if interrupt.is_set() || until.is_some_and(|until| Instant::now() >= until) {
            break None;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match watch.lines(left.unwrap_or(LOOK).min(LOOK)) {
            Ok(Some(text)) => {
                written.add(&text).context("the policy server is another version of Dimmer")?;
                output.add(&text)?;
            }
            Ok(None) => {}
            Err(error @ (WatchError::Silent { .. } | WatchError::System { .. })) => {
                break Some(error);
            }
            Err(error) => return Err(error.into()),
        }
        spinner.set_message(told(&written));
        spinner.tick();
    };
    spinner.finish_and_clear();
    let Some(is_fresh) = written.is_fresh else {
        return match ended {
            Some(error) => {
                let only = "nothing was recorded, as only root and the server's own user may";
                Err(anyhow::Error::from(error).context(only))
            }
            None => Ok(output::end(&interrupt)),
        };
    };
    if ended.is_some() {
        let is_there = Watch::new(Some(watch.path())).is_ok_and(|watch| watch.state().is_ok());
        eprintln!("{}", told_end(is_there));
    }
    eprintln!("{}. {}", told(&written), told_begin(is_fresh));
    Ok(output::end(&interrupt))
}

fn told(recorded: &Recorded) -> String {
    format!("{}, {}", counted(recorded.steps, "step"), HumanBytes(recorded.bytes))
}

/// The reason why the server ended the recording, as far as it follows from whether the server is
/// still there.
fn told_end(is_there: bool) -> &'static str {
    if is_there {
        "The server has ended the recording: its settings were reloaded, or it was not written fast enough."
    } else {
        "The server has ended."
    }
}

/// What a replay of the recording can show.
fn told_begin(is_fresh: bool) -> &'static str {
    if is_fresh {
        "The policy began with it, so a replay must decide the same."
    } else {
        "The policy had begun before, so a replay may decide otherwise: it knows nothing of what was before."
    }
}

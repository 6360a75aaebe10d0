//! `dimmer daemon record`: records what the daemon sees and decides, while it does so.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use dimmer_daemon::record::Line;
use dimmer_daemon::watch::{Watch, WatchError};
use dimmer_host::interrupt::Interrupt;
use indicatif::{HumanBytes, ProgressBar, ProgressFinish, ProgressStyle};

use crate::args;
use crate::output::{self, Output};
use dimmer_report::number::counted;

/// Longest wait for new lines before the loop checks whether to end.
const LOOK: Duration = Duration::from_millis(100);

/// What has been written.
#[derive(Debug, Default)]
struct Written {
    steps: usize,
    bytes: u64,
    /// Whether the policy started with this recording; `None` before the first line.
    is_fresh: Option<bool>,
}

pub(crate) fn run(arguments: &args::Record) -> anyhow::Result<ExitCode> {
    let mut output = Output::open(&arguments.file)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let watch = Watch::new(arguments.socket.socket.as_deref())?;
    let until = arguments.duration.duration.map(|duration| Instant::now() + duration);
    watch.record()?;
    output.empty()?;
    let spinner = spinner();
    let mut written = Written::default();
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
        spinner.set_message(written.told());
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
    eprintln!("{}. {}", written.told(), told_begin(is_fresh));
    Ok(output::end(&interrupt))
}

impl Written {
    /// Counts whole lines.
    fn add(&mut self, text: &str) -> serde_json::Result<()> {
        if self.is_fresh.is_none() {
            let first: Line = serde_json::from_str(text.lines().next().unwrap_or_default())?;
            self.is_fresh = Some(matches!(first, Line::Begin(begin) if begin.is_fresh));
        }
        self.steps += text.lines().filter(|line| Line::is_step(line)).count();
        self.bytes += text.len() as u64;
        Ok(())
    }

    fn told(&self) -> String {
        format!("{}, {}", counted(self.steps, "step"), HumanBytes(self.bytes))
    }
}

/// The reason why the server ended the recording, as far as it follows from whether the server is
/// still there.
fn told_end(is_there: bool) -> &'static str {
    if is_there {
        "The server has ended the recording: its settings were read anew, or it was not written fast enough."
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

/// A spinner on standard error if that is a terminal; it leaves nothing on the screen.
fn spinner() -> ProgressBar {
    let spinner = ProgressBar::new_spinner().with_finish(ProgressFinish::AndClear);
    spinner.set_draw_target(output::progress_target());
    if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed}  {msg}; Ctrl-C ends it") {
        spinner.set_style(style);
    }
    spinner
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_the_begin_are_told() {
        let begin = |is_fresh: bool| {
            format!(
                r#"{{"begin":{{"schema":"dimmer/record/1","settings":{{}},"now_ns":0,"is_fresh":{is_fresh},"cores":[2,1],"clocks":[],"prices":null}}}}"#
            )
        };
        let step = r#"{"step":{"now_ns":1,"seen":[],"metrics":[],"changes":[],"cores":0}}"#;
        for is_fresh in [true, false] {
            let mut written = Written::default();
            written.add(&(begin(is_fresh) + "\n")).unwrap();
            written.add(&format!("{step}\n{step}\n")).unwrap();
            assert_eq!((written.steps, written.is_fresh), (2, Some(is_fresh)));
        }
        assert!(Written::default().add("nonsense\n").is_err());
    }
}

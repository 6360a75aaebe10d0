//! Programs whose calls are observed: by hooks, from their start, or counted from outside.

mod plans;
mod uprobes;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use dimmer_host::relay::Relay;
use dimmer_host::usage;
use dimmer_observe::{Observed, Observer};
use dimmer_processor::class::InstructionClass;

use crate::follow::follow;
use crate::named::{self, Wanted};
use crate::program::{self, Program};
use crate::{LaunchError, cache, preload};

pub use uprobes::{attach, start as start_counted};

/// What to observe of a program that is started.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// Classes whose functions are hooked, if none are named.
    pub classes: &'a [InstructionClass],
    /// Functions to hook instead.
    pub functions: &'a [Wanted],
    /// After this time the program is ended.
    pub after: Option<Duration>,
}

impl Options<'_> {
    /// The deadline, if the preparations end now.
    fn deadline(&self) -> Option<Instant> {
        self.after.map(|after| Instant::now() + after)
    }
}

/// What was observed.
#[derive(Debug)]
pub struct Seen {
    /// The program and its arguments, or the process.
    pub command: Vec<String>,
    /// The exit status, if the program was started here.
    pub status: Option<ExitStatus>,
    /// CPU time of the program and its children.
    pub on_cpu: Duration,
    /// What its hooks or counters have counted.
    pub observed: Observed,
    /// Where plans for its files are that contain the number of functions of the classes.
    pub plans: Option<PathBuf>,
}

/// Starts a program with hooks in it, and follows it to its end.
///
/// # Errors
/// [`LaunchError`]: there is no such program, it takes no hooks, or it has no such functions.
pub fn start(options: &Options<'_>) -> Result<Seen, LaunchError> {
    let Options { command: words, classes, functions, .. } = *options;
    let program = Program::find(words)?;
    program.check_preload()?;
    let mut observer = Observer::new();
    let mut command = Command::new(&program.file);
    command.args(&words[1..]);
    // Named functions have their own plans. For files that are loaded later there is no class to
    // make a plan for.
    let named = (!functions.is_empty()).then(|| named::plans(&program, functions)).transpose()?;
    let plans = if named.is_none() { cache::plans(classes) } else { None };
    if let Ok(observer) = &observer {
        let environment = match &named {
            Some(plans) => observer.environment(&[], Some(plans.directory.path())),
            None => observer.environment(classes, plans.as_deref()),
        };
        if named.is_none() {
            plans::prepare(&program, classes, &environment);
        }
        command.envs(environment);
        preload::preload(&mut command)?;
    }
    let begun = Instant::now();
    let before = usage::time_of_ended_children();
    let relay = Relay::begin().map_err(LaunchError::Signals)?;
    let mut child = program.spawn(&mut command, &relay)?;
    let look = || observer.iter_mut().for_each(Observer::look);
    let status = follow(&mut child, options.deadline(), &relay, look)?;
    drop(relay);
    let on_cpu = usage::time_of_ended_children().saturating_sub(before);
    let observed = match observer {
        Ok(observer) => observer.finish(),
        Err(why) => {
            Observed::nothing(begun.elapsed(), format!("The program ran unobserved: {why}."))
        }
    };
    Ok(Seen { command: program::shown(words), status: Some(status), on_cpu, observed, plans })
}

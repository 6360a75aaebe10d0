//! `dimmer run`: runs an unmodified program so that its wide SIMD code costs less.

mod account;
mod chosen;
mod dedicate;
mod exclusion;
mod forms;
mod leaves;
mod mechanism;
mod moving;
mod narrow;
mod outermost;
mod served;

use std::process::{Command, ExitCode};

use account::Account;
use forms::Spent;
pub(crate) use moving::cores;

use anyhow::Context;
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;

use crate::args::Run;
use crate::output::{self, Output};
use crate::{bad_input, launch};

pub(crate) fn run(root: &Root, arguments: &Run, to: Option<Output>) -> anyhow::Result<ExitCode> {
    mechanism::check(arguments)?;
    let is_served = arguments.auto.is_some();
    let how = How {
        migrates: arguments.migrate.is_some() || is_served,
        delegates: arguments.delegate.is_some() || is_served,
        is_served,
    };
    let moves = how.migrates || how.delegates;
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let program = launch::Program::find(&arguments.command)?;
    program.takes_library().map_err(bad_input)?;
    let mut command = Command::new(&program.file);
    command.args(&arguments.command[1..]);
    // First: gives back cores that a killed run has left dedicated.
    let journal = arguments.dedicate.then(|| dedicate::open_journal(root)).transpose()?;
    let mut moving = moves
        .then(|| moving::Moving::prepare(root, arguments, how, &program, &mut command))
        .transpose()?
        .flatten();
    if arguments.narrow || moving.as_ref().is_some_and(moving::Moving::is_narrow) {
        narrow::prepare(arguments, &program, &mut command)?;
    }
    let relay = Relay::begin().context("cannot prepare for signals")?;
    let cpus = moving.as_ref().and_then(moving::Moving::cpus);
    let dedication = cpus
        .zip(journal)
        .map(|(cpus, journal)| dedicate::Dedication::begin(journal, cpus, &mut command))
        .transpose()?;
    let before = Spent::read();
    let mut child = program.spawn(&mut command, &relay)?;
    let look = || {
        moving.iter_mut().for_each(moving::Moving::look);
        Ok(())
    };
    let status = launch::follow(&mut child, None, &relay, look)?;
    let given_back = dedication.map_or(Ok(()), dedicate::Dedication::end);
    drop(relay);
    let spent = Spent::read().since(before);
    let account = moving.map(|moving| moving.finish(status, spent)).transpose()?;
    if let Some(account) = &account {
        output::report(to, &account.text())?;
    }
    if let Some(json) = json {
        let account = account.unwrap_or_else(|| Account::nothing(how.name()));
        json.write(&(serde_json::to_string_pretty(&account)? + "\n"))?;
    }
    given_back?;
    Ok(launch::exit_code(status))
}

/// How calls are moved to other cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct How {
    /// Calls migrate with their thread.
    migrates: bool,
    /// Calls of leaf functions are delegated to a worker.
    delegates: bool,
    /// Whether a policy server, if there is one, makes the final decision.
    is_served: bool,
}

impl How {
    const DELEGATE: Self = Self { migrates: false, delegates: true, is_served: false };
    const MIGRATE: Self = Self { migrates: true, delegates: false, is_served: false };

    /// The name in messages.
    const fn name(self) -> &'static str {
        match (self.delegates, self.migrates) {
            (true, true) => "Delegate, migrate",
            (true, false) => "Delegate",
            _ => "Migrate",
        }
    }
}

/// Makes the loader load Dimmer's library into the program.
fn preload(command: &mut Command) -> anyhow::Result<()> {
    let library = launch::library()?;
    command.env(launch::PRELOAD, launch::preload(&library, std::env::var_os(launch::PRELOAD)));
    Ok(())
}

//! `dimmer run`: runs a program that nobody changed, so that its wide-vector code costs less.

mod account;
mod borrow;
mod chosen;
mod dedicate;
mod exclusion;
mod forms;
mod leaves;
mod narrow;
mod outermost;
mod served;

use std::process::{Command, ExitCode};

use account::Account;
pub(crate) use borrow::cores;
use forms::Spent;

use anyhow::Context;
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;

use crate::args::{Mechanism, Run};
use crate::output::{self, Output};
use crate::{bad_input, launch};

pub(crate) fn run(root: &Root, arguments: &Run) -> anyhow::Result<ExitCode> {
    let has = |mechanism| arguments.mechanism.contains(&mechanism);
    let is_set = [
        !arguments.hook.is_empty(),
        arguments.cores.is_some(),
        arguments.dedicate,
        arguments.model.is_some(),
        arguments.json.is_some(),
    ];
    let is_served = has(Mechanism::Auto);
    let how = How {
        borrows: has(Mechanism::Borrow) || is_served,
        offloads: has(Mechanism::Offload) || is_served,
        is_served,
    };
    let moves = how.borrows || how.offloads;
    if is_set.contains(&true) && !moves {
        return Err(bad_input(
            "--hook, --cores, --dedicate, --model and --json are for --mechanism borrow, offload and auto",
        ));
    }
    let json = arguments.json.as_deref().map(Output::open).transpose()?;
    let program = launch::Program::find(&arguments.command)?;
    program.takes_library().map_err(bad_input)?;
    let mut command = Command::new(&program.file);
    command.args(&arguments.command[1..]);
    // First: cores that a killed run has left dedicated are nobody's.
    let journal = arguments.dedicate.then(|| dedicate::open_journal(root)).transpose()?;
    let mut borrowing = moves
        .then(|| borrow::Borrowing::prepare(root, arguments, how, &program, &mut command))
        .transpose()?
        .flatten();
    if has(Mechanism::Narrow) || borrowing.as_ref().is_some_and(borrow::Borrowing::is_narrow) {
        narrow::prepare(arguments, &program, &mut command)?;
    }
    let relay = Relay::begin().context("cannot prepare for signals")?;
    let cpus = borrowing.as_ref().and_then(borrow::Borrowing::cpus);
    let dedication = cpus
        .zip(journal)
        .map(|(cpus, journal)| dedicate::Dedication::begin(journal, cpus, &mut command))
        .transpose()?;
    let before = Spent::read();
    let mut child = program.spawn(&mut command, &relay)?;
    let look = || {
        borrowing.iter_mut().for_each(borrow::Borrowing::look);
        Ok(())
    };
    let status = launch::follow(&mut child, None, &relay, look)?;
    let given_back = dedication.map_or(Ok(()), dedicate::Dedication::end);
    drop(relay);
    let spent = Spent::read().since(before);
    let account = borrowing.map(|borrowing| borrowing.finish(status, spent)).transpose()?;
    if let Some(account) = &account {
        eprint!("{}", output::printable(&account.text()));
    }
    if let Some(json) = json {
        let account = account.unwrap_or_else(|| Account::nothing(how.name()));
        json.write(&(serde_json::to_string_pretty(&account)? + "\n"))?;
    }
    given_back?;
    Ok(launch::exit_code(status))
}

/// How calls get to other cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct How {
    /// With their thread.
    borrows: bool,
    /// Those of leaf functions by themselves.
    offloads: bool,
    /// Whether a policy server has the last word, if there is one.
    is_served: bool,
}

impl How {
    const OFFLOAD: Self = Self { borrows: false, offloads: true, is_served: false };
    const BORROW: Self = Self { borrows: true, offloads: false, is_served: false };

    /// As messages call it.
    const fn name(self) -> &'static str {
        match (self.offloads, self.borrows) {
            (true, true) => "Offload, borrow",
            (true, false) => "Offload",
            _ => "Borrow",
        }
    }
}

/// Has the loader put Dimmer's library into the program.
fn preload(command: &mut Command) -> anyhow::Result<()> {
    let library = launch::library()?;
    command.env(launch::PRELOAD, launch::preload(&library, std::env::var_os(launch::PRELOAD)));
    Ok(())
}

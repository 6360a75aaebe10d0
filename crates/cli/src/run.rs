//! `dimmer run`: runs a program that nobody changed, so that its wide-vector code costs less.

mod borrow;
mod narrow;
mod outermost;

use std::process::{Command, ExitCode};

use anyhow::Context;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::root::Root;

use crate::args::{Mechanism, Run};
use crate::{bad_input, launch};

pub(crate) fn run(root: &Root, arguments: &Run) -> anyhow::Result<ExitCode> {
    let has = |mechanism| arguments.mechanism.contains(&mechanism);
    let is_set = [!arguments.hook.is_empty(), arguments.cores.is_some(), arguments.model.is_some()];
    if is_set.contains(&true) && !has(Mechanism::Borrow) {
        return Err(bad_input("--hook, --cores and --model are for --mechanism borrow"));
    }
    let program = launch::Program::find(&arguments.command)?;
    program.takes_library().map_err(bad_input)?;
    let mut command = Command::new(&program.file);
    command.args(&arguments.command[1..]);
    if has(Mechanism::Narrow) {
        narrow::prepare(arguments, &program, &mut command)?;
    }
    let borrows = has(Mechanism::Borrow);
    let mut borrowing = borrows
        .then(|| borrow::Borrowing::prepare(root, arguments, &program, &mut command))
        .transpose()?
        .flatten();
    let interrupt = Interrupt::install().context("cannot prepare for interruption")?;
    let mut child = program.spawn(&mut command)?;
    let look = || borrowing.as_mut().map_or(Ok(()), borrow::Borrowing::look);
    let status = launch::follow(&mut child, None, &interrupt, look)?;
    if let Some(borrowing) = borrowing {
        eprint!("{}", borrowing.finish()?);
    }
    Ok(launch::exit_code(status))
}

/// Has the loader put Dimmer's library into the program.
fn preload(command: &mut Command) -> anyhow::Result<()> {
    let library = launch::library()?;
    command.env(launch::PRELOAD, launch::preload(&library, std::env::var_os(launch::PRELOAD)));
    Ok(())
}

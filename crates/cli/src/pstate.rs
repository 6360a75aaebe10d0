//! `dimmer pstate`: shows P-states, and sets them until a signal or for good.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::journal::Journal;
use dimmer_host::pstate::{self, Plan, Pstates, Wanted};
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_host::{program, topology, tune};

use crate::args::{Pstate, PstateSet, PstateTune};
use crate::output::Output;
use crate::{bad_input, exit, output, restore};

/// How soon a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);

const NOT_SET_BACK: &str = "cannot set P-states back";

pub(crate) fn run(root: &Root, arguments: &Pstate, to: Option<Output>) -> anyhow::Result<ExitCode> {
    match arguments {
        Pstate::Show(json) => {
            let json = json.open()?;
            let pstates = read(root)?;
            let text = dimmer_report::pstate::text(&pstates, output::screen());
            output::show(json, &dimmer_report::pstate::document(&pstates), &text)?;
            Ok(ExitCode::SUCCESS)
        }
        Pstate::Set(arguments) => set(root, arguments),
        Pstate::Tune(arguments) => tune(root, arguments, to),
    }
}

fn read(root: &Root) -> anyhow::Result<Pstates> {
    let cpuid = Cpuid::of(root).context("cannot tell what processor this is")?;
    Ok(Pstates::read(root, &cpuid)?)
}

fn set(root: &Root, arguments: &PstateSet) -> anyhow::Result<ExitCode> {
    let (mut journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", dimmer_report::restore::text(&leftovers));
    let pstates = read(root)?;
    let topology = topology::read(root).context("cannot tell which CPUs there are")?;
    let wanted = Wanted {
        definitions: arguments.define.clone(),
        requests: arguments.request.clone(),
        fast: arguments.fast.clone().map(|cpus| cpus.0),
        slow: arguments.slow.clone().map(|cpus| cpus.0),
        turbo_off: arguments.turbo_off,
    };
    let plan = Plan::new(&pstates, &topology, &wanted).map_err(bad_input)?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    if let Err(error) = pstate::set(&mut journal, &pstates, &plan) {
        return restore::after(Err(error.into()), journal, NOT_SET_BACK);
    }
    if arguments.keep
        && let Some(status) = interrupt.exit_status()
    {
        return set_back(journal, ExitCode::from(status));
    }
    eprint!("{}", dimmer_report::pstate::begin(&pstates.part, &plan, arguments.keep));
    if arguments.keep {
        journal.keep().context("cannot keep the P-states, which are undone")?;
        return Ok(ExitCode::SUCCESS);
    }
    last(|| interrupt.is_set());
    set_back(journal, ExitCode::SUCCESS)
}

/// Undoes what was set; the command then ends with `status`.
fn set_back(journal: Journal, status: ExitCode) -> anyhow::Result<ExitCode> {
    restore::after(Ok(()), journal, NOT_SET_BACK)?;
    eprintln!("P-states are set back.");
    Ok(status)
}

fn last(is_over: impl Fn() -> bool) {
    while !is_over() {
        std::thread::sleep(LOOK);
    }
}

fn tune(root: &Root, arguments: &PstateTune, to: Option<Output>) -> anyhow::Result<ExitCode> {
    let program =
        arguments.command.first().map(|name| program::find(name, env::var_os("PATH").as_deref()));
    let program = program.transpose()?;
    if arguments.list {
        output::print(&dimmer_report::pstate::tuning(&tune::Plan::new(root)))?;
        return Ok(ExitCode::SUCCESS);
    }
    // No signal ends this process from here until all is undone.
    let relay = Relay::begin().context("cannot handle signals")?;
    let (mut journal, leftovers) = Journal::open(root).context("cannot open the journal")?;
    eprint!("{}", dimmer_report::restore::text(&leftovers));
    let ended = tuned(&mut journal, &arguments.command, program, &relay, to);
    restore::after(ended, journal, "cannot undo the set-up")
}

/// Sets the machine up, and runs the program or waits for a signal.
fn tuned(
    journal: &mut Journal,
    command: &[OsString],
    program: Option<PathBuf>,
    relay: &Relay,
    to: Option<Output>,
) -> anyhow::Result<ExitCode> {
    let plan = tune::Plan::new(journal.root());
    let tuned = plan.apply(journal)?;
    let text = dimmer_report::pstate::tuning(&plan);
    // Without a program, standard output is this command's, or already the file of `--output`.
    if program.is_some() {
        output::report(to, &text)?
    } else {
        output::print(&text)?
    }
    tuned.refused.iter().for_each(|why| eprintln!("warning: {why}"));
    Ok(match program {
        None => {
            eprintln!("This lasts until a signal ends it (Ctrl-C).");
            last(|| relay.exit_status().is_some());
            ExitCode::SUCCESS
        }
        Some(file) => {
            let mut run = Command::new(&file);
            run.args(&command[1..]);
            let ended = relay.run(&run, &command[0]).with_context(|| file.display().to_string())?;
            // A signal that came during the set-up has reached no program.
            ended.map_or_else(ExitCode::from, exit::of_program)
        }
    })
}

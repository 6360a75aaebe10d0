//! `dimmer pstate`: shows P-states, and sets them until a signal or for good.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::journal::Journal;
use dimmer_host::pstate::{self, Plan, Pstates, Wanted};
use dimmer_host::root::Root;
use dimmer_host::topology;

use crate::args::{Pstate, PstateSet};
use crate::{bad_input, output};

/// How soon a signal is noticed.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) fn run(root: &Root, arguments: &Pstate) -> anyhow::Result<ExitCode> {
    match arguments {
        Pstate::Show(json) => {
            let json = json.open()?;
            let pstates = read(root)?;
            let text = dimmer_report::pstate::text(&pstates, output::screen());
            output::show(json, &dimmer_report::pstate::document(&pstates), &text)?;
            Ok(ExitCode::SUCCESS)
        }
        Pstate::Set(arguments) => set(root, arguments),
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
    pstate::set(&mut journal, &pstates, &plan)?;
    eprint!("{}", dimmer_report::pstate::begin(&pstates.part, &plan, arguments.keep));
    if arguments.keep && !interrupt.is_set() {
        journal.keep().context("cannot keep the P-states, which are undone")?;
        return Ok(ExitCode::SUCCESS);
    }
    while !interrupt.is_set() {
        std::thread::sleep(LOOK);
    }
    let undone = journal.undo().context("cannot set P-states back")?;
    let text = dimmer_report::restore::text(&undone);
    anyhow::ensure!(undone.is_complete(), "{}", text.trim_end());
    if !undone.left.is_empty() {
        eprint!("{text}");
    }
    eprintln!("P-states are set back.");
    Ok(ExitCode::SUCCESS)
}

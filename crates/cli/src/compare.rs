//! `dimmer sim compare`: compares ways to run one workload, by what governs license levels
//! ([`governors`]) or by what moves marked regions ([`loops`]).

use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_processor::model::Model;
use dimmer_report::compare::{Governors, Loops};
use dimmer_report::{MachineDescription, PageError};
use dimmer_sim::scenario::Scenario;
use dimmer_sim::{Course, Governor, Moving, SimError};
use dimmer_study::repeat;
use serde::Serialize;

use crate::output::{self, Output};
use crate::{args, probe, progress, sim};

pub(crate) fn run(arguments: &args::Compare) -> anyhow::Result<ExitCode> {
    let outputs = Outputs {
        begin: SystemTime::now(),
        json: arguments.json.open()?,
        page: arguments.page.open()?,
    };
    let (scenario, model) = sim::read(&arguments.scenario, arguments.model.name())?;
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let wrong = |error| sim::wrong(&arguments.scenario, error);
    if arguments.loops.is_empty() {
        let document = governors(arguments, &scenario, &model, &interrupt).map_err(wrong)?;
        let page = |machine: &_| document.page(machine);
        outputs.show(&document, &document.text(output::screen()), page, &interrupt)
    } else {
        let document = loops(arguments, &scenario, &model, &interrupt).map_err(wrong)?;
        let page = |machine: &_| document.page(machine);
        outputs.show(&document, &document.text(output::screen()), page, &interrupt)
    }
}

/// Compares governors of license levels.
fn governors(
    arguments: &args::Compare,
    scenario: &Scenario,
    model: &Model,
    interrupt: &Interrupt,
) -> Result<Governors, SimError> {
    let chosen: Vec<Governor> = arguments.governors.iter().copied().map(sim::governor).collect();
    let is_chosen = |governor: &Governor| {
        *governor == Governor::Hardware || chosen.is_empty() || chosen.contains(governor)
    };
    let governors: Vec<Governor> = Governor::ALL.into_iter().filter(is_chosen).collect();
    let stops = || interrupt.is_set();
    let bar = progress::bar(arguments.repeat);
    let results =
        repeat(&governors, (arguments.repeat, &stops, &|| bar.inc(1)), |governor, seed| {
            let (outcome, ()) = scenario.run(model, *governor, seed, (), &|_| stops())?;
            Ok((!outcome.is_partial).then_some(outcome))
        })?;
    bar.finish_and_clear();
    Ok(Governors::new(scenario, model, arguments.repeat, &governors, &results))
}

/// Compares what moves marked regions, and whether they move.
fn loops(
    arguments: &args::Compare,
    scenario: &Scenario,
    model: &Model,
    interrupt: &Interrupt,
) -> Result<Loops, SimError> {
    let is_chosen = |moving: &Moving| *moving == Moving::None || arguments.loops.contains(moving);
    let loops: Vec<Moving> = Moving::all().into_iter().filter(is_chosen).collect();
    let moves = scenario.settings(model, Governor::Hardware, Moving::Always, 1)?.region_moves;
    let hand_over_ns = moves.map_or(0.0, |moves| 2.0 * moves.hand_over_ns);
    let stops = || interrupt.is_set();
    let bar = progress::bar(arguments.repeat);
    let results = repeat(&loops, (arguments.repeat, &stops, &|| bar.inc(1)), |moving, seed| {
        let settings = scenario.settings(model, Governor::Hardware, *moving, seed)?;
        let (outcome, course) =
            scenario.run_on(model, settings, Course::default(), &|_| stops())?;
        Ok((!outcome.is_partial).then_some((outcome, course)))
    })?;
    bar.finish_and_clear();
    Ok(Loops::new(scenario, model, (arguments.repeat, hand_over_ns), &loops, &results))
}

/// Where results go, and when the command started.
struct Outputs {
    begin: SystemTime,
    json: Option<Output>,
    page: Option<Output>,
}

impl Outputs {
    /// Writes a comparison to the requested outputs.
    fn show(
        self,
        document: &impl Serialize,
        text: &str,
        page: impl FnOnce(&MachineDescription) -> Result<String, PageError>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<ExitCode> {
        if let Some(output) = self.page {
            let machine = Machine::read(&Root::live(), &Cpuid::instruction());
            output.write(&page(&probe::description(&machine, self.begin))?)?;
        }
        output::show(self.json, document, text)?;
        Ok(output::end(interrupt))
    }
}

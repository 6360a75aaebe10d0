//! Scenarios: a workload described in a file.
//!
//! `docs/scenario.md` is the format. Reading checks everything that can be checked without a
//! processor model.

mod assumed;
mod document;
mod effort;
mod gather;
mod include;
mod modes;
mod oracle;
mod outcome;
mod phases;
mod steps;
mod variants;

#[cfg(test)]
mod extremes;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dimmer_policy::license::hardware::Rules;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;

pub use self::assumed::assumed;
use self::document::Place;
use self::include::Files;
pub use self::modes::ChoosesMode;
pub use self::outcome::{Latencies, Outcome, PhaseOutcome, ThreadOutcome};
use self::phases::Phases;
use self::steps::Steps;

use crate::machine::pstate;
use crate::{
    Arrivals, Costs, Ended, Governor, Guided, Machine, Moment, Moving, Observer, RegionMoves,
    Scheduling, Script, Settings, SimError, Specialise, Specialising, Step,
};

/// A workload: threads, and the code that they run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The name of the workload.
    pub name: String,
    /// The source that it recreates.
    pub source: String,
    /// The name of the model that it is meant for.
    pub model: String,
    model_place: Place,
    cores: u32,
    threads_per_core: u32,
    smt_share: f64,
    idle_states: bool,
    scheduler: Scheduling,
    /// The P-state that all cores request at the start.
    pstate: Option<String>,
    /// Names of the P-states that threads request; the steps hold indices into this list.
    pstates: Vec<String>,
    /// Regions whose data are known, by number, and their data (KiB).
    region_kib: Vec<(usize, u64)>,
    /// The latest end, if the scenario does not end by itself.
    end: Option<Moment>,
    /// The cost of handing a region over and back (ns), if not taken from the model.
    hand_over_ns: Option<f64>,
    /// Cores that run wide code, if cores are specialised.
    wide_cores: Option<u32>,
    /// The P-state that each core requests at the start, if not all of them `pstate`.
    core_pstates: Vec<String>,
    /// Cores that wait by MWAIT.
    mwait_cores: Vec<usize>,
    /// How threads migrate at marks, and the names of these by number.
    phases: Option<Phases>,
    marks: Vec<String>,
    threads: Vec<Thread>,
    /// The number of steps that all threads usually take, at a clock of 100 GHz.
    usual_steps: f64,
}

#[derive(Clone, Debug)]
struct Thread {
    name: String,
    /// The number and the name of its program.
    program: (u64, String),
    cpu: Option<usize>,
    cached_kib: u64,
    /// When it starts (ps).
    begin: Moment,
    times: u64,
    requests: Option<Arrivals>,
    /// The same for all threads of one `[[thread]]`.
    steps: Arc<Steps>,
}

/// A file that is not a valid scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct ScenarioError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl Scenario {
    /// The error that its model cannot be used, for this reason.
    #[must_use]
    pub fn refuse_model(&self, why: impl std::fmt::Display) -> ScenarioError {
        self.model_place.refuse(format_args!("`model`: {why}"))
    }

    /// Reads a scenario of one file; `path` is for messages.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place and the accepted values; `include` is.
    pub fn parse(path: &Path, text: &str) -> Result<Self, ScenarioError> {
        Self::parse_with(path, text, &|_| Err("no other file is read here".to_owned()))
    }

    /// Reads a scenario, and the files that it includes. `read` returns the text of a file, whose
    /// path is that of the including file's directory with the written name, or why there is none.
    ///
    /// # Errors
    /// The first thing that is wrong, with its file, its place there and the accepted values.
    pub fn parse_with(
        path: &Path,
        text: &str,
        read: &dyn Fn(&Path) -> Result<String, String>,
    ) -> Result<Self, ScenarioError> {
        Files::new(read).part(path, text)?.scenario(path)
    }

    /// A machine with the scenario's threads, and its latest end.
    ///
    /// # Errors
    /// If the model lacks a value that the scenario needs.
    pub fn machine<O: Observer>(
        &self,
        model: &Model,
        governor: Governor,
        seed: u64,
        observer: O,
    ) -> Result<(Machine<O>, Moment), SimError> {
        let settings = self.settings(model, governor, Moving::None, seed)?;
        self.machine_of(model, settings, observer)
    }

    /// The settings of the machine that the scenario needs.
    ///
    /// # Errors
    /// If neither the scenario nor the model gives a value that the mechanism needs.
    pub fn settings(
        &self,
        model: &Model,
        governor: Governor,
        mechanism: Moving,
        seed: u64,
    ) -> Result<Settings, SimError> {
        let specialise = match mechanism {
            Moving::Specialise(of) => Some(self.specialise(of, model)?),
            Moving::CoreScheduling => {
                self.needs_muqss()?;
                None
            }
            _ => None,
        };
        Ok(Settings {
            cores: self.cores,
            threads_per_core: self.threads_per_core,
            smt_share: self.smt_share,
            idle_states: self.idle_states,
            scheduler: self.scheduler,
            governor,
            costs: Costs::default(),
            pstate: self.pstate.clone(),
            core_pstates: self.core_pstates.clone(),
            mwait_cores: self.mwait_cores.clone(),
            region_moves: RegionMoves::new(mechanism, model, self.cores, self.hand_over_ns)?,
            specialise,
            core_scheduling: mechanism == Moving::CoreScheduling,
            phases: match mechanism {
                Moving::Phases(guided) => Some(self.phases_of(guided, model)?),
                _ => None,
            },
            changes_mode: false,
            seed,
        })
    }

    fn specialise(&self, of: Specialising, model: &Model) -> Result<Specialise, SimError> {
        self.needs_muqss()?;
        let needed = "`wide_cores`, how many of its cores run wide code,";
        let wide_cores = self.wide_cores.ok_or(SimError::NotSpecialised { needed })?;
        Ok(Specialise::new(of, wide_cores, model))
    }

    fn phases_of(&self, guided: Guided, model: &Model) -> Result<crate::Phases, SimError> {
        let phases = self.phases.as_ref().ok_or(SimError::NoPhases)?;
        phases.of_machine(guided, &self.marks, model)
    }

    fn needs_muqss(&self) -> Result<(), SimError> {
        let needed = "`scheduler = \"muqss\"`, which knows classes of threads,";
        let has_classes = self.scheduler == Scheduling::MuQss;
        if has_classes { Ok(()) } else { Err(SimError::NotSpecialised { needed }) }
    }

    /// A machine with these settings and the scenario's threads, and its latest end.
    ///
    /// # Errors
    /// If the model lacks a value that the scenario needs.
    pub fn machine_of<O: Observer>(
        &self,
        model: &Model,
        settings: Settings,
        observer: O,
    ) -> Result<(Machine<O>, Moment), SimError> {
        let (governor, changes) = (settings.governor, settings.changes_mode);
        let mut machine = Machine::new(model, settings, observer)?;
        let rules = Rules::new(model)?;
        let pstates = self.pstates.iter().map(|name| pstate(model, name));
        let pstates: Vec<usize> = pstates.collect::<Result<_, _>>()?;
        let of_model = |step: &Step| match step {
            Step::Run(segment) => (*step, rules.level_of(&segment.demand())),
            Step::Ask(name) => {
                let place = pstates.get(*name).copied().unwrap_or(*name);
                (Step::Ask(place), LicenseLevel::new(0))
            }
            Step::AskBy { core, by, wish: name } => {
                let wish = pstates.get(*name).copied().unwrap_or(*name);
                (Step::AskBy { core: *core, by: *by, wish }, LicenseLevel::new(0))
            }
            step => (*step, LicenseLevel::new(0)),
        };
        self.region_kib.iter().for_each(|(site, kib)| machine.touches(*site, *kib));
        let mut last: Option<(&Arc<Steps>, Script)> = None;
        for thread in &self.threads {
            let Thread { steps, .. } = thread;
            let script = match last {
                Some((of, script)) if Arc::ptr_eq(of, steps) => script,
                _ => {
                    let operations = steps.operations.iter();
                    let operations = operations.map(|operation| operation.with(of_model)).collect();
                    Script::of(operations, Arc::clone(&steps.distributions), thread.times)
                }
            };
            last = Some((steps, script.clone()));
            let governor = if changes { Governor::User } else { governor };
            let script = script.under(governor).arriving(thread.begin);
            let script = match thread.requests {
                Some(requests) => script.serving(requests),
                None => script,
            };
            let spawned = machine.spawn(&thread.name, Box::new(script), thread.cpu);
            machine.starts(spawned, thread.begin);
            machine.caches(spawned, thread.cached_kib);
            machine.belongs(spawned, thread.program.0);
        }
        Ok((machine, self.end.unwrap_or(Moment::MAX)))
    }

    /// Runs the scenario to its end, or until `stops` returns true ([`Machine::run_unless`]).
    ///
    /// # Errors
    /// As [`Scenario::machine`] and [`Machine::run`].
    pub fn run<O: Observer>(
        &self,
        model: &Model,
        governor: Governor,
        seed: u64,
        observer: O,
        stops: &dyn Fn(Moment) -> bool,
    ) -> Result<(Outcome, O), SimError> {
        let settings = self.settings(model, governor, Moving::None, seed)?;
        self.run_on(model, settings, observer, stops)
    }

    /// Like [`Scenario::run`], on a machine with these settings. The oracle tries several ways, in
    /// runs that `observer` does not see, and takes the time of all of them.
    ///
    /// # Errors
    /// As [`Scenario::machine_of`] and [`Machine::run`].
    pub fn run_on<O: Observer>(
        &self,
        model: &Model,
        settings: Settings,
        observer: O,
        stops: &dyn Fn(Moment) -> bool,
    ) -> Result<(Outcome, O), SimError> {
        if settings.governor == Governor::Oracle {
            return self.run_oracle(model, &settings, observer, stops);
        }
        self.run_one(model, settings, observer, stops)
    }

    /// One run. Under [`Governor::Oracle`], levels are set by the break-even.
    fn run_one<O: Observer>(
        &self,
        model: &Model,
        settings: Settings,
        observer: O,
        stops: &dyn Fn(Moment) -> bool,
    ) -> Result<(Outcome, O), SimError> {
        let (mut machine, end) = self.machine_of(model, settings, observer)?;
        let ended = machine.run_unless(end, stops)?;
        if ended == Ended::Done && end == Moment::MAX {
            machine.all_have_ended()?;
        }
        let is_partial = ended == Ended::Stopped;
        let outcome = Outcome::new(&self.threads, &machine, is_partial);
        Ok((outcome, machine.into_observer()))
    }

    /// The same scenario, ending at this moment at the latest.
    #[must_use]
    pub fn until(self, end: Moment) -> Self {
        Self { end: Some(end), ..self }
    }

    /// The number of steps that all threads usually take until the end, at a clock of 100 GHz
    /// (`docs/scenario.md`): at a real one, some thirty times less.
    #[must_use]
    pub fn usual_steps(&self) -> f64 {
        self.usual_steps
    }

    /// The latest end, if the scenario does not end by itself.
    #[must_use]
    pub fn end(&self) -> Option<Moment> {
        self.end
    }
}

//! `--phases`: threads migrate at marks, which are entries of functions, by a profile (paper 004)
//! or by what they learn.
//!
//! Dimmer's library in the program passes the marks. From outside, the program's threads are kept
//! off the slow CPUs but for those that have migrated, and what happened is read from ledgers.

use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_observe::{Observed, Observer, ThreadSeen};
use dimmer_processor::units::{CpuId, whole};

use super::moving::{self, Takes};
use super::{Definition, End, How, Mechanism, Prepared, Setup, specialise};
use crate::account::{Migrating, MigratingThread, Summary};
use crate::marks::Marks;
use crate::named::Plans;
use crate::note::{Note, Notes};
use crate::phases::{self, Guide};
use crate::used_cores::UsedCores;
use crate::{LaunchError, cores, marks, slow_cpus};

/// Threads migrate at marks.
pub(super) const DEFINITION: Definition = Definition {
    name: "phases",
    summary: "threads migrate to slow cores and back where a profile of functions says so, or where they learn that it costs little",
    moves: Some(How { follows_phases: true, ..How::NONE }),
    prepare,
};

/// Interval at which the program's threads are kept off the slow CPUs.
const STEP: Duration = Duration::from_millis(100);

/// A program whose threads migrate.
#[derive(Debug)]
struct Following {
    observer: Observer,
    used_cores: UsedCores,
    plans: Plans,
    /// The part of its speed that code must keep on a slow CPU, if threads learn.
    keeps: Option<f64>,
    looked: Option<Instant>,
}

fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    let Some(guide) = &setup.request.phases else { return Ok(None) };
    let allowed = affinity::allowed().map_err(LaunchError::Affinity)?;
    let slow = match &setup.request.cpus {
        Some(asked) => cores(setup.root, Some(asked))?,
        None => cores(setup.root, Some(&slow_cpus::find(setup.root, &allowed)?))?,
    };
    if allowed.iter().all(|cpu| slow.contains(cpu)) {
        return Err(LaunchError::NoFastCpu { slow, allowed });
    }
    let plans = match guide {
        Guide::Profile(phases) => {
            let names = phases.names();
            let wrong = |(at, why): (usize, LaunchError)| phases.wrong(&names[at], why);
            marks::plans(setup.program, &names).map_err(wrong)?
        }
        Guide::Learning(_) => match Marks::Chosen.plans(setup.program) {
            Err(LaunchError::NoCandidate { .. }) => {
                let why = "no function can be a mark: they have no name, cannot be hooked, or are in a file with an allocator of its own".to_owned();
                (setup.notes)(Note::NoCallMoves { how: setup.how, why });
                return Ok(None);
            }
            plans => plans?,
        },
    };
    let Some(takes) = Takes::measure(setup, &slow)? else { return Ok(None) };
    let observer = match Observer::new() {
        Ok(observer) => observer,
        Err(why) => {
            (setup.notes)(Note::NoCallMoves { how: setup.how, why: why.to_string() });
            return Ok(None);
        }
    };
    moving::set_environment(setup, &observer, &plans, &slow)?;
    set_environment(setup, &plans, guide, takes.migrated_ns)?;
    (setup.notes)(note(guide, &plans, &slow, takes.migrated_ns));
    let used_cores = UsedCores::new(setup.root, &slow, observer.directory());
    let keeps = match guide {
        Guide::Profile(_) => None,
        Guide::Learning(keeps) => Some(keeps.value()),
    };
    Ok(Some(Box::new(Following { observer, used_cores, plans, keeps, looked: None })))
}

fn note(guide: &Guide, plans: &Plans, slow: &[CpuId], takes_ns: f64) -> Note {
    let cpus = slow.to_vec();
    match guide {
        Guide::Profile(phases) => Note::FollowsPhases {
            marks: phases.names().len(),
            slow: phases.slow(),
            threshold: phases.threshold(),
            cpus,
            takes_ns,
        },
        Guide::Learning(keeps) => Note::LearnsPhases {
            functions: plans.functions.len(),
            keeps: keeps.value(),
            cpus,
            takes_ns,
        },
    }
}

/// Sets the variables by which Dimmer's library in the program finds what threads migrate by.
fn set_environment(
    setup: &mut Setup<'_>,
    plans: &Plans,
    guide: &Guide,
    there_and_back_ns: f64,
) -> Result<(), LaunchError> {
    let one_way = whole(there_and_back_ns / 2.0);
    let phases = match guide {
        Guide::Profile(phases) => {
            let profile = plans.directory.path().join(dimmer_hook::PROFILE_FILE);
            std::fs::write(profile, &phases.text).map_err(LaunchError::Plan)?;
            marks::set_environment(setup.command, plans);
            format!("{} {one_way}", phases.threshold())
        }
        Guide::Learning(keeps) => {
            marks::set_choosing(setup.command, plans);
            format!("{} {} {one_way}", dimmer_hook::LEARN, keeps.value())
        }
    };
    setup.command.env(dimmer_hook::PHASES, phases);
    Ok(())
}

impl Mechanism for Following {
    fn cpus(&self) -> Option<&[CpuId]> {
        Some(self.used_cores.cpus())
    }

    fn look(&mut self, _: &mut Notes<'_>) {
        self.observer.look();
        if self.looked.is_some_and(|looked| looked.elapsed() < STEP) {
            return;
        }
        let mut is_there = false;
        for (process, ledger) in self.observer.processes() {
            self.used_cores.know(process, ledger);
            is_there = true;
        }
        // The program's threads leave these CPUs before any migrates there.
        self.observer.use_cores(self.used_cores.step(None, is_there));
        self.looked = is_there.then(Instant::now);
    }

    fn finish(mut self: Box<Self>, _: &End, _: &mut Notes<'_>) -> Summary {
        self.used_cores.end();
        let cpus = self.used_cores.cpus().to_vec();
        let observed = self.observer.finish();
        let mut marks = specialise::functions(&self.plans, &observed);
        let mut problems = specialise::problems(&observed);
        let (learned, unread) = phases::learned(self.plans.directory.path());
        problems.extend(unread);
        if self.keeps.is_some() {
            // The user has named none of them.
            marks.retain(|(_, calls)| *calls > 0);
        }
        Summary::Phases(Migrating {
            cpus,
            threads: threads(&observed),
            threads_summed: observed.threads_summed,
            marks,
            learned,
            keeps: self.keeps,
            problems,
        })
    }
}

fn threads(observed: &Observed) -> Vec<MigratingThread> {
    let thread = |seen: &ThreadSeen| MigratingThread {
        thread: seen.thread,
        marks: seen.functions.values().map(|tally| tally.calls).fold(0, u64::saturating_add),
        left: seen.phases.to_wide.into(),
        came_home: seen.phases.back.into(),
    };
    observed.threads.iter().map(thread).collect()
}

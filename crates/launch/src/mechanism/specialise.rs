//! `--specialise`: threads go to wide CPUs when they begin wide code, and come back when their
//! phase is over (paper 003).
//!
//! Dimmer's library in the program moves them (`wide` in `runtime`). From outside, it is decided
//! which CPUs are wide (`wide_cores`), the program's other threads are kept off these, and what
//! happened is read from ledgers.

use std::time::{Duration, Instant};

use dimmer_hook::PhaseCounts;
use dimmer_host::affinity;
use dimmer_host::root::format_cpu_list;
use dimmer_observe::{FunctionPlace, Observed, Observer, Tally, ThreadSeen};
use dimmer_policy::specialise::Stays;
use dimmer_processor::units::{CpuId, Nanos, whole};

use super::{Definition, End, How, Mechanism, Prepared, Setup};
use crate::account::{Specialised, SpecialisedThread, Summary};
use crate::chosen;
use crate::named::Plans;
use crate::note::{Note, Notes};
use crate::used_cores::UsedCores;
use crate::wide_cores::WideCores;
use crate::{LaunchError, cores, preload, wide_trips};

/// Threads become wide.
pub(super) const DEFINITION: Definition = Definition {
    name: "specialise",
    summary: "threads go to wide cores when they begin such code, and stay until it is over",
    moves: Some(How { specialises: true, ..How::NONE }),
    prepare,
};

/// Interval at which it is decided which CPUs are wide, and the other threads are kept off these,
/// or let back.
const STEP: Duration = Duration::from_millis(100);

/// A program whose threads become wide.
#[derive(Debug)]
struct Specialising {
    observer: Observer,
    wide: WideCores,
    used_cores: UsedCores,
    plans: Plans,
    round_trip_ns: f64,
    looked: Instant,
    /// The phases at the last look.
    before: PhaseCounts,
}

fn prepare(setup: &mut Setup<'_>) -> Result<Prepared, LaunchError> {
    let own = cores(setup.root, setup.request.cpus.as_deref())?;
    let all = affinity::allowed().map_err(LaunchError::Affinity)?;
    let without = |cpus: &[CpuId]| -> Vec<CpuId> {
        all.iter().filter(|cpu| !cpus.contains(cpu)).copied().collect()
    };
    if without(&own).is_empty() {
        return Err(LaunchError::NoNarrowCpu { wide: own, allowed: all });
    }
    let Some(chosen) = chosen::choose(setup)? else { return Ok(None) };
    let mut wide = WideCores::begin(setup, own, all.clone(), &chosen.plans.functions);
    let trips = wide_trips::round_trips(wide.may(), &without(wide.may()));
    let trips = trips.map_err(LaunchError::Affinity)?;
    let round_trip_ns = trips.estimate().ok_or(LaunchError::NoTrip)?.median;
    let mut observer = match Observer::new() {
        Ok(observer) => observer,
        Err(why) => {
            (setup.notes)(Note::NoCallMoves { how: setup.how, why: why.to_string() });
            return Ok(None);
        }
    };
    let plans = chosen.plans;
    let command = &mut setup.command;
    command.envs(observer.environment(&[], Some(plans.directory.path())));
    command.env(dimmer_hook::MOVE, "none");
    observer.widen(wide.set());
    let (sets, all, takes) = (wide.to_text(), format_cpu_list(&all), whole(round_trip_ns));
    command.env(dimmer_runtime::wide::SPECIALISE, format!("{sets} {all} {takes}"));
    command.env_remove(dimmer_runtime::CORES).env_remove(dimmer_runtime::ENTRANCE);
    preload::preload(command)?;
    let functions = plans.functions.len();
    let cpus = wide.may().to_vec();
    (setup.notes)(Note::Specialises { functions, cpus, takes_ns: round_trip_ns });
    wide.note(setup.notes);
    Ok(Some(Box::new(Specialising {
        used_cores: UsedCores::new(setup.root, wide.may(), observer.directory()),
        wide,
        observer,
        plans,
        round_trip_ns,
        looked: Instant::now(),
        before: PhaseCounts::default(),
    })))
}

impl Mechanism for Specialising {
    fn cpus(&self) -> Option<&[CpuId]> {
        Some(self.wide.may())
    }

    fn look(&mut self, notes: &mut Notes<'_>) {
        self.observer.look();
        if self.looked.elapsed() < STEP {
            return;
        }
        self.looked = Instant::now();
        for (process, ledger) in self.observer.processes() {
            self.used_cores.know(process, ledger);
        }
        let now = self.observer.phases();
        let is_wanted = now != self.before;
        let wide = Duration::from_nanos(now.wide_ns.saturating_sub(self.before.wide_ns));
        self.before = now;
        self.follow(wide, notes);
        // Threads that come back keep off the CPUs from then on.
        self.observer.use_cores(self.used_cores.step(self.wide.given(), is_wanted));
    }

    fn finish(mut self: Box<Self>, _: &End, _: &mut Notes<'_>) -> Summary {
        self.used_cores.end();
        let (cpus, times) = self.wide.end();
        let observed = self.observer.finish();
        Summary::Threads(Specialised {
            cpus,
            times,
            round_trip_ns: Some(self.round_trip_ns),
            threads: observed.threads.iter().map(thread).collect(),
            threads_summed: observed.threads_summed,
            functions: functions(&self.plans, &observed),
            problems: problems(&observed),
        })
    }
}

impl Specialising {
    /// Follows the policy server. `wide`: how long threads were on wide CPUs since the last time.
    fn follow(&mut self, wide: Duration, notes: &mut Notes<'_>) {
        let calls = self.observer.so_far();
        for (index, planned) in self.plans.functions.iter().enumerate() {
            let mut all = Tally::default();
            planned.places().iter().filter_map(|place| calls.get(place)).for_each(|one| {
                all.merge(one);
            });
            self.wide.tell(index, &all);
        }
        self.wide.step(wide, notes);
        self.used_cores.change(self.wide.cpus());
        self.observer.widen(self.wide.set());
    }
}

/// The functions of plans, each with the number of its calls.
pub(super) fn functions(plans: &Plans, observed: &Observed) -> Vec<(String, u64)> {
    let calls = observed.functions();
    let of = |place: &FunctionPlace| calls.get(place).map_or(0, |tally| tally.calls);
    let all = plans.functions.iter().map(|planned| {
        let sum = planned.places().iter().map(of).fold(0, u64::saturating_add);
        (planned.title.clone(), sum)
    });
    all.collect()
}

/// What was not hooked or not seen, and why.
pub(super) fn problems(observed: &Observed) -> Vec<String> {
    let files = observed.files.iter().filter(|(_, problem)| !problem.is_empty());
    let files = files.map(|(file, problem)| format!("{}: {problem}", file.display()));
    let threads = (observed.threads_left_out > 0).then(|| {
        "Some threads were not seen: there were too many, or they could not be counted.".to_owned()
    });
    files.chain(observed.unreadable.iter().cloned()).chain(threads).collect()
}

fn thread(seen: &ThreadSeen) -> SpecialisedThread {
    let PhaseCounts { to_wide, back, stays, wide_ns } = seen.phases;
    let calls = seen.functions.values().map(|tally| tally.calls);
    SpecialisedThread {
        process: seen.process,
        thread: seen.thread,
        calls: calls.fold(0, u64::saturating_add),
        to_wide: to_wide.into(),
        back: back.into(),
        wide: Nanos::from_ns(wide_ns),
        stays: Stays::ALL.into_iter().filter(|why| stays & why.bit() != 0).collect(),
    }
}

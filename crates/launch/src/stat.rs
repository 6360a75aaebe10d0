//! `dimmer stat`: counts of license levels, throttling and packed arithmetic of a program, of
//! processes or of all CPUs; without a PMU, the clock by timing.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use dimmer_host::events;
use dimmer_host::held::Held;
use dimmer_host::idle;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::perf::Countable;
use dimmer_host::process::{self, Thread};
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_host::tally::{Count, Scope, Tally};
use dimmer_host::unavailable::Unavailable;
use dimmer_probe::clock::Clock;

use crate::LaunchError;
use crate::follow::{end_of, follow, wait_for};
use crate::program::{self, Program};

/// Interval of the looks at AVX-512 registers.
const LOOK: Duration = Duration::from_millis(100);

/// Looks between two measurements of the clock by timing.
const LOOKS_PER_CLOCK: u32 = 10;

/// What is counted.
#[derive(Clone, Debug)]
pub enum Subject<'a> {
    /// This command, from its start to its end.
    Command(&'a [OsString]),
    /// A running process, and what it starts.
    Process(u32),
    /// Everything on this machine.
    All,
}

/// The clock of the CPUs by timing (GHz), the median over the CPUs of each look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// Before, if there was a before.
    pub before: Option<f64>,
    /// While the program ran, at intervals of a second.
    pub meanwhile: Vec<f64>,
    /// Afterwards.
    pub after: Option<f64>,
}

/// How often threads had values in AVX-512 registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Avx512 {
    /// Looks at threads, ten times a second.
    pub looks: u64,
    /// Those at which the kernel had seen values since the look before.
    pub with_values: u64,
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct Stat {
    /// The command's words, or what else was counted.
    pub command: Vec<String>,
    /// How the command ended; `None` for what runs on.
    pub status: Option<ExitStatus>,
    /// The time it took.
    pub lasted: Duration,
    /// CPU time in it: of a command or a process, its task clock; of all CPUs, the time in which
    /// they were busy. `None` if it is not known.
    pub on_cpu: Option<Duration>,
    /// The counts.
    pub counts: Vec<(Countable, Result<Count, Unavailable>)>,
    /// Whether the kernel's work is in the counts.
    pub has_kernel: bool,
    /// Why license levels are not counted here, if they are not.
    pub no_licenses: Option<String>,
    /// The clock by timing, if there is no PMU; or why that is not known.
    pub clocks: Option<Result<Clocks, String>>,
    /// AVX-512 registers, if the kernel says that.
    pub avx512: Option<Avx512>,
}

/// What is counted on this machine: license levels and packed arithmetic, as far as its processor
/// has events for them, and what shares need. The task clock of whole CPUs runs while they are
/// idle, so it is left out for them.
fn countables(machine: &Machine, subject: &Subject<'_>) -> Vec<Countable> {
    let documented = events::documented(machine.identity.microarchitecture).unwrap_or_default();
    let clock = (!matches!(subject, Subject::All)).then_some(Countable::TaskClock);
    let software = [Countable::ContextSwitches, Countable::Migrations];
    let common = [Countable::Cycles, Countable::Instructions];
    let documented = documented.iter().map(|event| Countable::Event(*event));
    clock.into_iter().chain(software).chain(common).chain(documented).collect()
}

/// Why license levels are not counted on this processor; `None` if it has events for them.
fn no_licenses(machine: &Machine) -> Option<String> {
    let processor = machine.identity.microarchitecture;
    let Some(events) = events::documented(processor) else {
        return Some(format!("Dimmer has no table of the events of this processor ({processor})"));
    };
    let is_license =
        |event: &&events::PmuEvent| matches!(event.counts, events::Counts::LicenseCycles(_));
    match events.iter().find(is_license) {
        Some(_) => None,
        None => Some(format!("the processor ({processor}) has no documented events for them")),
    }
}

/// Counts a subject: a command to its end, for which it gets SIGTERM at `after`; others until
/// `after`, their end, or a signal.
///
/// # Errors
/// [`LaunchError`]: there is no such program or process.
pub fn stat(
    root: &Root,
    subject: &Subject<'_>,
    after: Option<Duration>,
) -> Result<Stat, LaunchError> {
    let machine = Machine::read(&Root::live(), &dimmer_host::cpuid::Cpuid::instruction());
    let countables = countables(&machine, subject);
    let own = std::process::id();
    // The command does not run yet, but what is refused for this process will be for it.
    let (program, scope) = match subject {
        Subject::Command(words) => {
            (Some((Program::find(words)?, *words)), of_threads([(own, own)]))
        }
        Subject::Process(process) => (None, of_threads(process::family(root, *process))),
        Subject::All => (None, Scope::Cpus(machine.allowed.clone())),
    };
    let mut looks = Looks::new(root, &machine, &scope);
    looks.before();
    let busy = || idle::busy(root, &machine.allowed).ok();
    let (begun, busy_before) = (Instant::now(), busy());
    let (command, status, mut tally) = match (subject, program) {
        (Subject::Command(_), None) => return Err(LaunchError::NoCommand),
        (_, Some((program, words))) => {
            let refused = |why| LaunchError::CannotRun { file: program.file.clone(), why };
            let relay = Relay::begin().map_err(LaunchError::Signals)?;
            let held = Held::start(relay.command(&program.command(words), &program.name))
                .map_err(refused)?;
            let process = held.process();
            let tally = Tally::open(root, &Scope::Held(process), &countables);
            looks.family = Some(process);
            relay.started(held.process());
            let mut child = held.let_go().map_err(refused)?;
            let deadline = after.map(|after| Instant::now() + after);
            let look = |_| {
                looks.look();
                LOOK
            };
            let status = follow(&mut child, deadline, &relay, look)?;
            (program::shown(words), Some(status), tally)
        }
        (Subject::Process(process), None) => {
            let threads = process::family(root, *process);
            if threads.is_empty() {
                let why = dimmer_host::libraries::mapped(root, *process).err();
                return Err(why.map_or(LaunchError::NoCommand, |why| LaunchError::NoProcess {
                    process: *process,
                    why,
                }));
            }
            let tally = Tally::open(root, &of_threads(threads), &countables);
            looks.family = Some(*process);
            looks.until(after)?;
            (vec![format!("process {process}")], None, tally)
        }
        (Subject::All, None) => {
            let tally = Tally::open(root, &scope, &countables);
            looks.until(after)?;
            (vec!["all CPUs".to_owned()], None, tally)
        }
    };
    let lasted = begun.elapsed();
    let (counts, busy_after) = (tally.read(), busy());
    looks.after();
    let count = |event| Some(&counts.iter().find(|(counted, _)| *counted == event)?.1);
    let on_cpu = match subject {
        Subject::All => {
            busy_after.zip(busy_before).map(|(after, before)| after.saturating_sub(before))
        }
        _ => count(Countable::TaskClock)
            .and_then(|count| Some(Duration::from_nanos(count.as_ref().ok()?.value))),
    };
    let clocks = clocks(looks.clocks, count(Countable::Cycles));
    Ok(Stat {
        command,
        status,
        lasted,
        on_cpu,
        has_kernel: tally.has_kernel(),
        no_licenses: no_licenses(&machine),
        clocks,
        avx512: looks.avx512,
        counts,
    })
}

/// The clock by timing, where cycles were not counted; `looked` is `None` if it was not measured
/// because they could be.
fn clocks(
    looked: Option<Result<Clocks, String>>,
    cycles: Option<&Result<Count, Unavailable>>,
) -> Option<Result<Clocks, String>> {
    let refused = cycles?.as_ref().err()?;
    let not_measured = || {
        let why = &refused.why;
        Err(format!(
            "it was not measured, as cycles could be counted beforehand, but then not: {why}"
        ))
    };
    Some(looked.unwrap_or_else(not_measured))
}

fn of_threads(threads: impl IntoIterator<Item = Thread>) -> Scope {
    Scope::Threads(threads.into_iter().collect())
}

/// What is looked at besides the counters.
struct Looks<'a> {
    root: &'a Root,
    /// `None` if it is not measured.
    clock: Option<Clock>,
    /// The clock so far, or why it cannot be measured; `None` if cycles are counted.
    clocks: Option<Result<Clocks, String>>,
    /// The process whose threads are looked at, with what it starts.
    family: Option<u32>,
    avx512: Option<Avx512>,
    looks: u32,
}

impl<'a> Looks<'a> {
    /// Measures the clock unless cycles can be counted in `scope`.
    fn new(root: &'a Root, machine: &Machine, scope: &Scope) -> Self {
        let mut cycles = Tally::open(root, scope, &[Countable::Cycles]);
        let has_cycles = cycles.read().iter().all(|(_, count)| count.is_ok());
        let (clock, clocks) = match (!has_cycles).then(|| Clock::new(machine)) {
            None => (None, None),
            Some(Ok(clock)) => (Some(clock), Some(Ok(Clocks::default()))),
            Some(Err(error)) => (None, Some(Err(error.to_string()))),
        };
        Self { root, clock, clocks, family: None, avx512: None, looks: 0 }
    }

    fn ghz(&mut self) -> Option<f64> {
        let mut ghz = self.clock.as_mut()?.look();
        ghz.sort_by(f64::total_cmp);
        ghz.get(ghz.len() / 2).copied()
    }

    fn before(&mut self) {
        let ghz = self.ghz();
        if let Some(Ok(clocks)) = &mut self.clocks {
            clocks.before = ghz;
        }
    }

    fn after(&mut self) {
        let ghz = self.ghz();
        if let Some(Ok(clocks)) = &mut self.clocks {
            clocks.after = ghz;
        }
    }

    fn look(&mut self) {
        self.looks += 1;
        if let Some(family) = self.family {
            for thread in process::family(self.root, family) {
                let Some(ms) = process::avx512_elapsed_ms(self.root, thread) else { continue };
                let avx512 = self.avx512.get_or_insert_default();
                avx512.looks += 1;
                let is_recent = u128::try_from(ms).is_ok_and(|ms| ms <= LOOK.as_millis());
                avx512.with_values += u64::from(is_recent);
            }
        }
        if self.looks.is_multiple_of(LOOKS_PER_CLOCK)
            && let Some(ghz) = self.ghz()
            && let Some(Ok(clocks)) = &mut self.clocks
        {
            clocks.meanwhile.push(ghz);
        }
    }

    /// Looks until this time has passed, the process has ended, or a signal came.
    fn until(&mut self, after: Option<Duration>) -> Result<(), LaunchError> {
        let interrupt = Interrupt::install().map_err(LaunchError::Interrupt)?;
        let deadline = after.map(|after| Instant::now() + after);
        let (root, family) = (self.root, self.family);
        let end = family.and_then(end_of);
        // Kernels before 5.3 have no handle that becomes readable at the end.
        let has_ended =
            || end.is_none() && family.is_some_and(|process| process::has_ended(root, process));
        let left =
            || deadline.map_or(LOOK, |deadline| deadline.saturating_duration_since(Instant::now()));
        while !interrupt.is_set() && !left().is_zero() && !has_ended() {
            if wait_for(end.as_ref(), left().min(LOOK)) {
                break;
            }
            self.look();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_is_known_or_refused_where_cycles_were_not_counted() {
        let counted = Ok(Count { value: 1, counted_permille: 1000 });
        let refused = Err(Unavailable::new("cycles", "not permitted", "ask root"));
        assert_eq!(clocks(None, Some(&counted)), None);
        assert_eq!(clocks(Some(Ok(Clocks::default())), Some(&counted)), None);
        let looked = Clocks { before: Some(3.0), ..Clocks::default() };
        assert_eq!(clocks(Some(Ok(looked.clone())), Some(&refused)), Some(Ok(looked)));
        let unknown = clocks(None, Some(&refused)).unwrap().unwrap_err();
        assert!(unknown.ends_with("not permitted"), "{unknown}");
    }
}

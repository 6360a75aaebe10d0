//! `dimmer stat`: counts of license levels, throttling and packed arithmetic of a program, of
//! processes or of all CPUs; without a PMU, the clock by timing.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use dimmer_host::events;
use dimmer_host::held::Held;
use dimmer_host::interrupt::Interrupt;
use dimmer_host::machine::Machine;
use dimmer_host::perf::Countable;
use dimmer_host::process::{self, Thread};
use dimmer_host::relay::Relay;
use dimmer_host::root::Root;
use dimmer_host::tally::{Count, Scope, Tally};
use dimmer_host::unavailable::Unavailable;
use dimmer_probe::clock::Clock;
use rustix::process::{Pid, test_kill_process};

use crate::LaunchError;
use crate::follow::follow;
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
/// has events for them, and what shares need.
fn countables(machine: &Machine) -> Vec<Countable> {
    let documented = events::documented(machine.identity.microarchitecture).unwrap_or_default();
    let software = [Countable::TaskClock, Countable::ContextSwitches, Countable::Migrations];
    let common = [Countable::Cycles, Countable::Instructions];
    let documented = documented.iter().map(|event| Countable::Event(*event));
    software.into_iter().chain(common).chain(documented).collect()
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
    let countables = countables(&machine);
    let program = match subject {
        Subject::Command(words) => Some((Program::find(words)?, *words)),
        Subject::Process(_) | Subject::All => None,
    };
    let mut looks = Looks::new(root, &machine);
    looks.before();
    let begun = Instant::now();
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
            let look = || {
                looks.look();
                LOOK
            };
            let status = follow(&mut child, deadline, &relay, look)?;
            (program::shown(words), Some(status), tally)
        }
        (Subject::Process(process), None) => {
            let threads: Vec<Thread> = process::family(root, *process).into_iter().collect();
            if threads.is_empty() {
                let why = dimmer_host::libraries::mapped(root, *process).err();
                return Err(why.map_or(LaunchError::NoCommand, |why| LaunchError::NoProcess {
                    process: *process,
                    why,
                }));
            }
            let tally = Tally::open(root, &Scope::Threads(threads), &countables);
            looks.family = Some(*process);
            looks.until(after)?;
            (vec![format!("process {process}")], None, tally)
        }
        (Subject::All, None) => {
            let cpus = machine.allowed.clone();
            let tally = Tally::open(root, &Scope::Cpus(cpus), &countables);
            looks.until(after)?;
            (vec!["all CPUs".to_owned()], None, tally)
        }
    };
    let lasted = begun.elapsed();
    let counts = tally.read();
    looks.after();
    let is_counted =
        |event: &Countable| counts.iter().any(|(counted, count)| counted == event && count.is_ok());
    let clocks = (!is_counted(&Countable::Cycles)).then_some(looks.clocks);
    Ok(Stat {
        command,
        status,
        lasted,
        has_kernel: tally.has_kernel(),
        no_licenses: no_licenses(&machine),
        clocks,
        avx512: looks.avx512,
        counts,
    })
}

/// What is looked at besides the counters.
struct Looks<'a> {
    root: &'a Root,
    /// `None` if the processor counts cycles.
    clock: Option<Clock>,
    clocks: Result<Clocks, String>,
    /// The process whose threads are looked at, with what it starts.
    family: Option<u32>,
    avx512: Option<Avx512>,
    looks: u32,
}

impl<'a> Looks<'a> {
    fn new(root: &'a Root, machine: &Machine) -> Self {
        let mut alone = Tally::open(
            root,
            &Scope::Threads(vec![(std::process::id(), std::process::id())]),
            &[Countable::Cycles],
        );
        let has_cycles = alone.read().iter().all(|(_, count)| count.is_ok());
        let clock = if has_cycles { None } else { Some(Clock::new(machine)) };
        let (clock, clocks) = match clock {
            None => (None, Ok(Clocks::default())),
            Some(Ok(clock)) => (Some(clock), Ok(Clocks::default())),
            Some(Err(error)) => (None, Err(error.to_string())),
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
        if let Ok(clocks) = &mut self.clocks {
            clocks.before = ghz;
        }
    }

    fn after(&mut self) {
        let ghz = self.ghz();
        if let Ok(clocks) = &mut self.clocks {
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
            && let Ok(clocks) = &mut self.clocks
        {
            clocks.meanwhile.push(ghz);
        }
    }

    /// Looks until this time has passed, the process has ended, or a signal came.
    fn until(&mut self, after: Option<Duration>) -> Result<(), LaunchError> {
        let interrupt = Interrupt::install().map_err(LaunchError::Interrupt)?;
        let deadline = after.map(|after| Instant::now() + after);
        let process = self.family.and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let is_over = || {
            let has_ended =
                process.is_some_and(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH));
            has_ended || deadline.is_some_and(|deadline| Instant::now() >= deadline)
        };
        while !interrupt.is_set() && !is_over() {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            std::thread::sleep(left.map_or(LOOK, |left| left.min(LOOK)));
            self.look();
        }
        Ok(())
    }
}

//! Counts events of processes with all that they start, or of all CPUs.
//!
//! Each event is counted by itself: the kernel has no groups that new threads inherit. If there are
//! more events than the processor has counters, it takes turns, and counts are estimated from the
//! time in which an event was counted.

use std::fmt;
use std::io;

use dimmer_processor::units::CpuId;
use perf_event::{Builder, Counter};

use crate::open_files;
use crate::perf::{Countable, refused};
use crate::process::Thread;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// What is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A process that is held before it executes its program, from there on.
    Held(u32),
    /// These threads, from now on.
    Threads(Vec<Thread>),
    /// Everything on these CPUs, from now on.
    Cpus(Vec<CpuId>),
}

/// Counters of some events, running.
pub struct Tally {
    events: Vec<(Countable, Result<Vec<Counter>, Unavailable>)>,
    has_kernel: bool,
}

impl fmt::Debug for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.events.iter().map(|(event, _)| event.name()).collect();
        f.debug_struct("Tally").field("events", &names).finish_non_exhaustive()
    }
}

/// The count of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    /// How often it happened; estimated if it was not counted all the time.
    pub value: u64,
    /// The part of the time in which it was counted (parts per thousand).
    pub counted_permille: u64,
}

impl Tally {
    /// Opens counters, of the kernel's work too where that is permitted, and starts them. Raises
    /// this process's limit of open files if they need more, as far as that is allowed.
    ///
    /// * `root`: read only to explain a refusal.
    #[must_use]
    pub fn open(root: &Root, scope: &Scope, events: &[Countable]) -> Self {
        let each = match scope {
            Scope::Held(_) => 1,
            Scope::Threads(threads) => threads.len(),
            Scope::Cpus(cpus) => cpus.len(),
        };
        open_files::make_room(events.len() * each);
        // One attempt shows whether the kernel's part may be counted.
        let with_kernel = |event: &Countable| counters(event, scope, true);
        let has_kernel = with_kernel(&Countable::TaskClock).is_ok();
        let opened = events.iter().map(|event| {
            let is_of_kernel = matches!(event, Countable::ContextSwitches | Countable::Migrations);
            let counters = counters(event, scope, has_kernel || is_of_kernel);
            (*event, counters.map_err(|error| refused(root, event.name(), &error)))
        });
        Self { events: opened.collect(), has_kernel }
    }

    /// Whether the kernel's work is counted, too.
    #[must_use]
    pub const fn has_kernel(&self) -> bool {
        self.has_kernel
    }

    /// The counts so far. An event without one was refused when it was opened, or never counted.
    pub fn read(&mut self) -> Vec<(Countable, Result<Count, Unavailable>)> {
        let read = |(event, counters): &mut (Countable, Result<Vec<Counter>, Unavailable>)| {
            let count = match counters {
                Ok(counters) => sum(counters).map_err(|error| {
                    Unavailable::new(event.name(), error.to_string(), "count fewer events")
                }),
                Err(why) => Err(why.clone()),
            };
            (*event, count)
        };
        self.events.iter_mut().map(read).collect()
    }
}

/// Counters of one event. Threads that have ended are left out.
fn counters(event: &Countable, scope: &Scope, has_kernel: bool) -> io::Result<Vec<Counter>> {
    let builder = || {
        let mut builder = event.builder();
        if has_kernel {
            builder.include_kernel();
        }
        builder
    };
    let of_thread = |thread: u32, prepare: fn(&mut Builder<'static>)| {
        let thread = i32::try_from(thread).map_err(io::Error::other)?;
        let mut builder = builder();
        builder.observe_pid(thread).inherit(true);
        prepare(&mut builder);
        builder.build()
    };
    let mut counters = Vec::new();
    match scope {
        Scope::Held(process) => counters.push(of_thread(*process, |builder| {
            builder.enable_on_exec(true);
        })?),
        Scope::Threads(threads) => {
            for (_, thread) in threads {
                let counter = of_thread(*thread, |builder| {
                    builder.enabled(true);
                });
                match counter {
                    Ok(counter) => counters.push(counter),
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Scope::Cpus(cpus) => {
            for cpu in cpus {
                let cpu = usize::try_from(cpu.index()).map_err(io::Error::other)?;
                counters.push(builder().any_pid().one_cpu(cpu).enabled(true).build()?);
            }
        }
    }
    Ok(counters)
}

/// The sum over counters, each scaled to all of its time.
fn sum(counters: &mut [Counter]) -> io::Result<Count> {
    let (mut value, mut enabled, mut running) = (0_u64, 0_u128, 0_u128);
    for counter in counters {
        let data = counter.read_full()?;
        let ns = |time: Option<std::time::Duration>| time.map_or(0, |time| time.as_nanos());
        let times = [data.time_enabled(), data.time_running()].map(ns);
        value = value.saturating_add(scaled(data.count(), times));
        enabled += times[0];
        running += times[1];
    }
    if running == 0 && enabled > 0 {
        return Err(io::Error::other("other events have all of the processor's counters"));
    }
    let counted = (running * 1000).checked_div(enabled).unwrap_or(1000);
    Ok(Count { value, counted_permille: u64::try_from(counted).unwrap_or(1000) })
}

/// A count in part of the time, as if it was all of the time.
fn scaled(count: u64, [enabled, running]: [u128; 2]) -> u64 {
    let all = u128::from(count).saturating_mul(enabled).checked_div(running);
    u64::try_from(all.unwrap_or_default()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::held::Held;

    #[test]
    fn counts_are_scaled_to_all_of_the_time() {
        assert_eq!(scaled(100, [10, 10]), 100);
        assert_eq!(scaled(100, [40, 10]), 400);
        assert_eq!(scaled(100, [10, 0]), 0);
        assert_eq!(scaled(u64::MAX, [10, 1]), u64::MAX);
    }

    /// The user time of its children, as a shell's `times` prints it in the second line: `0m0.31s`.
    fn of_children(times: &str) -> Option<f64> {
        let (minutes, seconds) =
            times.lines().nth(1)?.split_whitespace().next()?.split_once('m')?;
        let seconds = seconds.strip_suffix('s')?.replace(',', ".");
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    }

    #[test]
    fn a_program_is_counted_with_its_children() {
        let work = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let script = format!("for n in 1 2 3; do sh -c '{work}'; done; times");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdout(Stdio::piped());
        let held = Held::start(command).unwrap();
        let scope = Scope::Held(held.process());
        let mut tally = Tally::open(&Root::live(), &scope, &[Countable::TaskClock]);
        let ended = held.let_go().unwrap().wait_with_output().unwrap();
        let children = of_children(&String::from_utf8_lossy(&ended.stdout)).unwrap();
        let counts = tally.read();
        let [(Countable::TaskClock, Ok(count))] = &counts[..] else {
            return println!("SKIPPED: {counts:?}");
        };
        // The shell itself takes a small part of it, so its children are in it.
        assert!(count.value as f64 >= children * 0.9e9, "{count:?}, {children} s");
        assert_eq!(count.counted_permille, 1000);
    }

    #[test]
    fn what_cannot_be_counted_has_a_reason() {
        let scope = Scope::Threads(vec![(u32::MAX, u32::MAX)]);
        let mut tally = Tally::open(&Root::live(), &scope, &[Countable::TaskClock]);
        assert!(tally.read()[0].1.is_err());
    }
}

//! Counts performance events of the calling thread, or of a whole process, in user mode, with the kernel's perf.
//!
//! A thin layer over `perf-event2`, which is safe all the way down: it adds Dimmer's events and
//! turns "not here" and "not permitted" into [`Unavailable`]. `perf-event-open-sys2` alone would
//! mean writing its group handling again, with `unsafe`.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use dimmer_processor::units::Nanos;
use perf_event::events::{Hardware, Raw};
use perf_event::{Builder, Counter, Group, GroupData};

use crate::events::PmuEvent;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The kernel's switch for who may count what.
pub const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// Something to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Countable {
    /// Core cycles, at whatever clock the core runs.
    Cycles,
    /// Cycles of the reference clock while the core was not halted.
    ReferenceCycles,
    /// Instructions retired.
    Instructions,
    /// A documented event of this microarchitecture.
    Event(PmuEvent),
}

impl Countable {
    /// The name in results.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::ReferenceCycles => "ref-cycles",
            Self::Instructions => "instructions",
            Self::Event(event) => event.name,
        }
    }

    fn builder(&self) -> Builder<'static> {
        // Builder's defaults are what is wanted: this thread, on whichever core it runs, user
        // mode only, stopped until started.
        match self {
            Self::Cycles => Builder::new(Hardware::CPU_CYCLES),
            Self::ReferenceCycles => Builder::new(Hardware::REF_CPU_CYCLES),
            Self::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            Self::Event(event) => Builder::new(Raw::new(event.config())),
        }
    }
}

/// A group of counters of the thread that opened it, counting all at the same time or not at all.
pub struct Counters {
    group: Group,
    members: Vec<Counter>,
    countables: Vec<Countable>,
    /// Times enabled and running when counting started: the kernel sets counts to zero, not these.
    before: (Nanos, Nanos),
}

/// What a group counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// One value per countable, in the order given to [`Counters::open`].
    pub values: Vec<u64>,
    /// How long the group was switched on since [`Counters::start`].
    pub enabled: Nanos,
    /// How long it had the hardware; less than `enabled` means values are only a part.
    pub running: Nanos,
}

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counters").field("countables", &self.countables).finish_non_exhaustive()
    }
}

impl Counters {
    /// Opens counters for `countables`, stopped and at zero. They are closed on drop.
    ///
    /// * `root`: only read to explain a refusal.
    ///
    /// # Errors
    /// [`Unavailable`]: not supported, not permitted, or more than the processor counts at once.
    pub fn open(root: &Root, countables: &[Countable]) -> Result<Self, Unavailable> {
        let refuse = |what: &str, error: &io::Error| refused(root, what, error);
        let mut group = Group::new().map_err(|error| refuse("performance counters", &error))?;
        let mut members = Vec::with_capacity(countables.len());
        for countable in countables {
            let member = group.add(&countable.builder());
            members.push(member.map_err(|error| refuse(countable.name(), &error))?);
        }
        let before = (Nanos::from_ns(0), Nanos::from_ns(0));
        Ok(Self { group, members, countables: countables.to_vec(), before })
    }

    /// What is counted, in the order of the values.
    #[must_use]
    pub fn countables(&self) -> &[Countable] {
        &self.countables
    }

    /// Sets the counts to zero and starts them. Three system calls, and it allocates.
    ///
    /// # Errors
    /// The kernel refused, which it does not do to a group that is open.
    pub fn start(&mut self) -> io::Result<()> {
        self.group.reset()?;
        self.before = times(&self.group.read()?);
        self.group.enable()
    }

    /// Stops counting. One system call.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn stop(&mut self) -> io::Result<()> {
        self.group.disable()
    }

    /// The counts so far. One system call, and it allocates: not for a timed stretch.
    ///
    /// # Errors
    /// The kernel refused: the group was never scheduled because another one is pinned.
    pub fn read(&mut self) -> io::Result<Counted> {
        let data = self.group.read()?;
        let value = |member| data.get(member).map_or(0, |entry| entry.value());
        let (enabled, running) = times(&data);
        let since =
            |now: Nanos, before: Nanos| Nanos::from_ns(now.ns().saturating_sub(before.ns()));
        Ok(Counted {
            values: self.members.iter().map(value).collect(),
            enabled: since(enabled, self.before.0),
            running: since(running, self.before.1),
        })
    }
}

/// Counters of a whole process and of what it has started: of all their threads, and of those that they start. They count from when they
/// are opened.
///
/// The kernel has no groups that new threads inherit, so each counter is by itself: where there are more than the processor has, counts
/// are estimates from the time in which they had the hardware.
pub struct ProcessCounters {
    /// By countable, then by thread.
    counters: Vec<Vec<Counter>>,
}

impl fmt::Debug for ProcessCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let threads = self.counters.first().map_or(0, Vec::len);
        f.debug_struct("ProcessCounters").field("threads", &threads).finish_non_exhaustive()
    }
}

impl ProcessCounters {
    /// A process that has more threads than this with what it has started, when it is looked at first, is not counted.
    pub const MOST_THREADS: usize = 64;

    /// Opens counters for a process and what it has started as the same user, running. They are closed on drop.
    ///
    /// * `root`: only read to explain a refusal.
    /// * `most_files`: how many they may keep open; each thread takes one for each countable.
    ///
    /// # Errors
    /// [`Unavailable`]: there is no such process, not supported, not permitted, or it has too many threads.
    pub fn open(
        root: &Root,
        process: i32,
        countables: &[Countable],
        most_files: usize,
    ) -> Result<Self, Unavailable> {
        let builders = countables.iter().map(|countable| (countable.name(), countable.builder()));
        Self::open_all(root, process, builders.collect(), most_files)
    }

    fn open_all(
        root: &Root,
        process: i32,
        mut builders: Vec<(&'static str, Builder<'static>)>,
        most_files: usize,
    ) -> Result<Self, Unavailable> {
        let refuse = |why: String, remedy| {
            Unavailable::new("performance counters of a process", why, remedy)
        };
        let threads = threads(process)
            .map_err(|error| refuse(format!("process {process}: {error}"), "start it first"))?;
        if threads.len() > Self::MOST_THREADS {
            let why = format!("process {process} has {} threads or more", threads.len());
            return Err(refuse(why, "connect before they are started"));
        }
        let files = threads.len() * builders.len();
        if files > most_files {
            let why = format!("process {process} takes {files} files, and {most_files} are left");
            return Err(refuse(why, "allow more files"));
        }
        let mut of_all = |(name, builder): &mut (&'static str, Builder<'static>)| {
            let of_thread =
                |thread: &i32| builder.observe_pid(*thread).inherit(true).enabled(true).build();
            let counters: io::Result<Vec<Counter>> = threads.iter().map(of_thread).collect();
            counters.map_err(|error| refused(root, name, &error))
        };
        let counters: Result<_, _> = builders.iter_mut().map(&mut of_all).collect();
        Ok(Self { counters: counters? })
    }

    /// How many files that takes.
    #[must_use]
    pub fn files(&self) -> usize {
        self.counters.iter().map(Vec::len).sum()
    }

    /// The counts so far, one per countable. A system call for each and each thread.
    ///
    /// # Errors
    /// The kernel refused.
    pub fn read(&mut self) -> io::Result<Vec<u64>> {
        let scaled = |counter: &mut Counter| -> io::Result<u64> {
            let data = counter.read_full()?;
            let (enabled, running) = (data.time_enabled(), data.time_running());
            let (Some(enabled), Some(running)) = (enabled, running) else {
                return Ok(data.count());
            };
            let part = running.as_nanos().max(1);
            let all = u128::from(data.count()).saturating_mul(enabled.as_nanos().max(1)) / part;
            Ok(u64::try_from(all).unwrap_or(u64::MAX))
        };
        let of_all = |counters: &mut Vec<Counter>| -> io::Result<u64> {
            let mut all = 0_u64;
            for counter in counters {
                all = all.saturating_add(scaled(counter)?);
            }
            Ok(all)
        };
        self.counters.iter_mut().map(of_all).collect()
    }
}

/// The effective user of a process; root if it has more rights than who started it.
///
/// # Errors
/// If there is no such process.
pub fn owner(process: i32) -> io::Result<u32> {
    Ok(std::fs::metadata(format!("/proc/{process}"))?.uid())
}

/// The threads of a process and of what it has started as the same user; where there are more than [`ProcessCounters::MOST_THREADS`], not
/// all of them.
fn threads(process: i32) -> io::Result<Vec<i32>> {
    let user = owner(process)?;
    std::fs::metadata("/proc/thread-self/children").map_err(|_| {
        io::Error::other("the kernel does not tell what it has started (CONFIG_PROC_CHILDREN)")
    })?;
    let (mut threads, mut processes) = (tasks(process)?, vec![process]);
    while let Some(process) = processes.pop() {
        // Those that have gone meanwhile have no threads and no children.
        for thread in tasks(process).unwrap_or_default() {
            let children =
                std::fs::read_to_string(format!("/proc/{process}/task/{thread}/children"));
            let children = children.unwrap_or_default();
            let children = children.split_whitespace().filter_map(|child| child.parse().ok());
            for child in children.filter(|child| owner(*child).is_ok_and(|owner| owner == user)) {
                threads.extend(tasks(child).unwrap_or_default());
                processes.push(child);
            }
            if threads.len() > ProcessCounters::MOST_THREADS {
                return Ok(threads);
            }
        }
    }
    Ok(threads)
}

/// The threads of a process.
fn tasks(process: i32) -> io::Result<Vec<i32>> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// How long a group was switched on, and how long it had the hardware, since it was opened.
fn times(data: &GroupData) -> (Nanos, Nanos) {
    let span = |time: Option<Duration>| {
        Nanos::from_ns(time.and_then(|time| u64::try_from(time.as_nanos()).ok()).unwrap_or(0))
    };
    (span(data.time_enabled()), span(data.time_running()))
}

fn refused(root: &Root, what: &str, error: &io::Error) -> Unavailable {
    let (why, remedy) = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => (
            format!(
                "perf_event_open: {error}; {PARANOID} is {}",
                root.text(PARANOID).unwrap_or_else(|_| "unreadable".to_owned())
            ),
            "as root: sysctl kernel.perf_event_paranoid=2, or give CAP_PERFMON; in a container, \
             allow perf_event_open",
        ),
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV) => (
            format!("perf_event_open: {error}: this machine does not offer it"),
            "needs bare metal, or a virtual machine with a PMU; Dimmer measures by timing instead",
        ),
        Some(libc::EINVAL | libc::ENOSPC) => (
            format!("perf_event_open: {error}: more events than the processor counts at once"),
            "count fewer events together",
        ),
        _ => (format!("perf_event_open: {error}"), "Dimmer measures by timing instead"),
    };
    Unavailable::new(what, why, remedy)
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use std::process::{Command, Stdio};

    use perf_event::events::Software;

    use super::*;

    /// Waits for a line, then touches memory, in children too.
    const TOUCHES: &str = "read line; for turn in 1 2 3; do (:); done; read line";

    /// Counts the faults of a shell that [`TOUCHES`] memory itself, or in a child that there is already, with an event of the kernel's,
    /// which virtual machines have as well.
    #[track_caller]
    fn check(script: &str, processes: usize) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a shell");
        let faults = || vec![("page-faults", Builder::new(Software::PAGE_FAULTS))];
        let process = i32::try_from(child.id()).unwrap();
        let begin = std::time::Instant::now();
        while threads(process).unwrap().len() < processes {
            assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", threads(process));
            std::thread::sleep(Duration::from_millis(1));
        }
        let open =
            |most_files| ProcessCounters::open_all(&Root::live(), process, faults(), most_files);
        let refused = open(processes - 1).unwrap_err();
        assert!(refused.to_string().contains("are left"), "{refused}");
        let mut counters = match open(processes) {
            Ok(counters) => counters,
            Err(why) => {
                println!("SKIPPED: {why}");
                child.kill().unwrap();
                child.wait().unwrap();
                return;
            }
        };
        let before = counters.read().unwrap()[0];
        let mut to_child = child.stdin.take().unwrap();
        io::Write::write_all(&mut to_child, b"go on\n").unwrap();
        let begin = std::time::Instant::now();
        while counters.read().unwrap()[0] < before + 10 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{before}");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(to_child);
        child.wait().unwrap();
        let gone = open(processes).unwrap_err();
        assert!(gone.to_string().contains("No such"), "{gone}");
    }

    #[test]
    fn a_process_is_counted_with_the_threads_that_it_starts() {
        check(TOUCHES, 1);
    }

    /// As a server does that begins anew and counts for `dimmer run`, whose program is there already.
    #[test]
    fn a_process_is_counted_with_the_children_that_it_has() {
        check(&format!("({TOUCHES}); :"), 2);
    }
}

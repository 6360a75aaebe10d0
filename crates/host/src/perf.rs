//! Counts performance events of the calling thread or of a whole process, in user mode, with the
//! kernel's perf.
//!
//! A thin layer over `perf-event2`, which has a safe interface throughout: it adds Dimmer's events
//! and turns "not here" and "not permitted" into [`Unavailable`]. With `perf-event-open-sys2`
//! alone, its group handling would have to be rewritten, with `unsafe`.

use std::fmt;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use dimmer_processor::units::Nanos;
use perf_event::events::{Hardware, Raw, Software};
use perf_event::{Builder, Counter, Group, GroupData};

use crate::events::PmuEvent;
use crate::open_files;
use crate::root::Root;
use crate::unavailable::Unavailable;

/// The kernel's setting for what unprivileged processes may count.
pub const PARANOID: &str = "/proc/sys/kernel/perf_event_paranoid";

/// An event to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Countable {
    /// Core cycles, at whatever clock the core runs.
    Cycles,
    /// Cycles of the reference clock while the core was not halted.
    ReferenceCycles,
    /// Instructions retired.
    Instructions,
    /// Cycles in which no instruction could be executed for want of data or units, as the kernel
    /// maps that to an event of the processor.
    StalledCycles,
    /// Misses of the last cache, likewise.
    CacheMisses,
    /// A documented event of this microarchitecture.
    Event(PmuEvent),
    /// CPU time (ns); of a whole CPU, all time, also when it is idle. The kernel counts it, and
    /// needs no hardware, as the next two.
    TaskClock,
    /// Context switches.
    ContextSwitches,
    /// Migrations of threads to other CPUs.
    Migrations,
}

impl Countable {
    /// The name in results.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::ReferenceCycles => "ref-cycles",
            Self::Instructions => "instructions",
            Self::StalledCycles => "stalled-cycles-backend",
            Self::CacheMisses => "cache-misses",
            Self::Event(event) => event.name,
            Self::TaskClock => "task-clock",
            Self::ContextSwitches => "context-switches",
            Self::Migrations => "cpu-migrations",
        }
    }

    pub(crate) fn builder(&self) -> Builder<'static> {
        // Builder's defaults are right: this thread, on whichever core it runs, user mode only,
        // stopped until started.
        match self {
            Self::Cycles => Builder::new(Hardware::CPU_CYCLES),
            Self::ReferenceCycles => Builder::new(Hardware::REF_CPU_CYCLES),
            Self::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            Self::StalledCycles => Builder::new(Hardware::STALLED_CYCLES_BACKEND),
            Self::CacheMisses => Builder::new(Hardware::CACHE_MISSES),
            Self::Event(event) => Builder::new(Raw::new(event.config())),
            Self::TaskClock => Builder::new(Software::TASK_CLOCK),
            Self::ContextSwitches => Builder::new(Software::CONTEXT_SWITCHES),
            Self::Migrations => Builder::new(Software::CPU_MIGRATIONS),
        }
    }
}

/// A group of counters of the thread that opened it. All of them count at the same time, or none.
pub struct Counters {
    group: Group,
    members: Vec<Counter>,
    countables: Vec<Countable>,
    /// Times enabled and running at the start: the kernel resets the counts, but not these times.
    before: (Nanos, Nanos),
}

/// The counts of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// One value per countable, in the order given to [`Counters::open`].
    pub values: Vec<u64>,
    /// How long the group was enabled since [`Counters::start`].
    pub enabled: Nanos,
    /// How long the group had the hardware; if less than `enabled`, the values cover only part.
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
    /// * `root`: read only to explain a refusal.
    ///
    /// # Errors
    /// [`Unavailable`]: not supported, not permitted, or more events than the processor counts at
    /// once.
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

    /// The counted events, in the order of the values.
    #[must_use]
    pub fn countables(&self) -> &[Countable] {
        &self.countables
    }

    /// Resets the counts to zero and starts them. Makes three system calls and allocates.
    ///
    /// # Errors
    /// The kernel refused; it does not for an open group.
    pub fn start(&mut self) -> io::Result<()> {
        self.group.reset()?;
        self.before = times(&self.group.read()?);
        self.group.enable()
    }

    /// Stops counting. Makes one system call.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn stop(&mut self) -> io::Result<()> {
        self.group.disable()
    }

    /// The counts so far. Makes one system call and allocates, so do not call it in a timed
    /// section.
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

/// Counters for all threads of a process and of the processes that it started as the same user,
/// including threads started later. Counting starts when a thread's counters are opened, thread by
/// thread ([`Self::open_next`]): each costs system calls, and a caller that serves others meanwhile
/// cannot open them all at once.
///
/// Not counted are a thread that ends before its turn, and what a thread starts before its own
/// turn. Children are an exception: they are looked up at that turn. The kernel has no groups that
/// new threads inherit, so each counter is independent. If there are more counters than the
/// processor has, counts are estimates from the time in which they had the hardware.
pub struct ProcessCounters {
    builders: Vec<(&'static str, Builder<'static>)>,
    user: u32,
    /// The threads found so far, each with its process.
    threads: Vec<(i32, i32)>,
    /// How many of them have had their turn.
    done: usize,
    /// By thread, then by countable.
    counters: Vec<Vec<Counter>>,
}

impl fmt::Debug for ProcessCounters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { threads, done, .. } = self;
        f.debug_struct("ProcessCounters")
            .field("threads", threads)
            .field("done", done)
            .finish_non_exhaustive()
    }
}

impl ProcessCounters {
    /// Maximum number of threads, including those of started processes. A larger process is not
    /// counted.
    pub const MOST_THREADS: usize = 64;

    /// Creates counters for a process, none of them open yet.
    ///
    /// # Errors
    /// [`Unavailable`]: there is no such process, the kernel does not report its children, or it
    /// has too many threads.
    pub fn new(process: i32, countables: &[Countable]) -> Result<Self, Unavailable> {
        let builders = countables.iter().map(|countable| (countable.name(), countable.builder()));
        Self::with_builders(process, builders.collect())
    }

    fn with_builders(
        process: i32,
        builders: Vec<(&'static str, Builder<'static>)>,
    ) -> Result<Self, Unavailable> {
        let gone = |error| uncounted(format!("process {process}: {error}"), "start it first");
        let user = owner(process).map_err(gone)?;
        if !tells_children() {
            let why = "the kernel does not tell what a process has started (CONFIG_PROC_CHILDREN)";
            return Err(uncounted(why.to_owned(), "use a kernel that does"));
        }
        let tasks = tasks(process).map_err(gone)?;
        let (threads, counters) = Default::default();
        let mut new = Self { builders, user, threads, done: 0, counters };
        new.add(process, tasks)?;
        Ok(new)
    }

    /// Opens and starts the next thread's counters. Returns whether there are more threads. The
    /// counters are closed on drop. Costs one system call per event, and a few per child of the
    /// thread.
    ///
    /// * `root`: read only to explain a refusal.
    ///
    /// # Errors
    /// [`Unavailable`]: not supported, not permitted, too many threads, or all threads have ended.
    pub fn open_next(&mut self, root: &Root) -> Result<bool, Unavailable> {
        if let Some((process, thread)) = self.threads.get(self.done).copied() {
            self.done += 1;
            // If the id now belongs to another user's thread, it is not a thread of this process.
            let task = format!("/proc/{process}/task/{thread}");
            if std::fs::metadata(&task).is_ok_and(|task| task.uid() == self.user) {
                let children = std::fs::read_to_string(format!("{task}/children"));
                // There may be many children of other users, which do not count.
                let most = Self::MOST_THREADS + 1;
                for child in children.unwrap_or_default().split_whitespace().take(most) {
                    self.add_child(child)?;
                }
                self.open(root, thread)?;
            }
        }
        let has_more = self.done < self.threads.len();
        if !has_more && self.counters.is_empty() {
            return Err(uncounted("all its threads have ended".to_owned(), "start it again"));
        }
        Ok(has_more)
    }

    /// Adds a child's threads. If a child's parent has ended meanwhile, the child has a new parent,
    /// whose turn may come later.
    fn add_child(&mut self, child: &str) -> Result<(), Unavailable> {
        let Ok(child) = child.parse::<i32>() else { return Ok(()) };
        let is_known = self.threads.iter().any(|(process, _)| *process == child);
        if is_known || owner(child).map_or(true, |owner| owner != self.user) {
            return Ok(());
        }
        // A child that has ended has no threads.
        tasks(child).map_or(Ok(()), |tasks| self.add(child, tasks))
    }

    fn add(&mut self, process: i32, tasks: impl Iterator<Item = i32>) -> Result<(), Unavailable> {
        let room = Self::MOST_THREADS + 1 - self.threads.len();
        self.threads.extend(tasks.take(room).map(|thread| (process, thread)));
        if self.threads.len() > Self::MOST_THREADS {
            let why = format!("it has more than {} threads", Self::MOST_THREADS);
            return Err(uncounted(why, "connect before they are started"));
        }
        Ok(())
    }

    fn open(&mut self, root: &Root, thread: i32) -> Result<(), Unavailable> {
        let mut counters = Vec::with_capacity(self.builders.len());
        for (name, builder) in &mut self.builders {
            match builder.observe_pid(thread).inherit(true).enabled(true).build() {
                Ok(counter) => counters.push(counter),
                // The thread has just ended.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(()),
                Err(error) => return Err(refused(root, name, &error)),
            }
        }
        self.counters.push(counters);
        Ok(())
    }

    /// Number of open files once all counters are open, for the threads known so far.
    #[must_use]
    pub fn files(&self) -> usize {
        self.threads.len() * self.builders.len()
    }

    /// The counts so far, one per event. Makes one system call per event and thread.
    ///
    /// # Errors
    /// The kernel refused, or an event has had no hardware in all the time that the threads ran.
    pub fn read(&mut self) -> io::Result<Vec<u64>> {
        let mut sums = vec![Estimate::default(); self.builders.len()];
        for of_thread in &mut self.counters {
            for (sum, counter) in sums.iter_mut().zip(of_thread) {
                let data = counter.read_full()?;
                let ns = |time: Option<Duration>| time.map_or(1, |time| time.as_nanos());
                let times = [data.time_enabled(), data.time_running()].map(ns);
                sum.add(data.count(), times);
            }
        }
        let named = sums.into_iter().zip(&self.builders);
        named.map(|(sum, (name, _))| sum.total(name)).collect()
    }
}

/// The count of an event in several threads, of which each had the hardware for part of its time.
#[derive(Clone, Debug, Default)]
struct Estimate {
    sum: u64,
    /// How long it was enabled, and how long it had the hardware (ns).
    times: [u128; 2],
}

impl Estimate {
    fn add(&mut self, count: u64, [enabled, running]: [u128; 2]) {
        let all = u128::from(count).saturating_mul(enabled.max(1)) / running.max(1);
        self.sum = self.sum.saturating_add(u64::try_from(all).unwrap_or(u64::MAX));
        self.times = [self.times[0].saturating_add(enabled), self.times[1].saturating_add(running)];
    }

    fn total(&self, name: &str) -> io::Result<u64> {
        if self.times[1] == 0 && self.times[0] > 0 {
            let why = format!("{name}: other events have all of the processor's counters");
            return Err(io::Error::other(why));
        }
        Ok(self.sum)
    }
}

/// Whether the kernel reports a process's children (`CONFIG_PROC_CHILDREN`). Without that no
/// process is counted.
#[must_use]
pub fn tells_children() -> bool {
    std::path::Path::new("/proc/thread-self/children").exists()
}

/// The effective user of a process; root if the process has more rights than the user who started
/// it.
///
/// # Errors
/// There is no such process.
pub fn owner(process: i32) -> io::Result<u32> {
    Ok(std::fs::metadata(format!("/proc/{process}"))?.uid())
}

/// The threads of a process.
fn tasks(process: i32) -> io::Result<impl Iterator<Item = i32>> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok()))
}

fn uncounted(why: String, remedy: &'static str) -> Unavailable {
    Unavailable::new("performance counters of a process", why, remedy)
}

/// How long a group was enabled, and how long it had the hardware, since it was opened.
fn times(data: &GroupData) -> (Nanos, Nanos) {
    let span = |time: Option<Duration>| time.map_or(Nanos::ZERO, Nanos::from);
    (span(data.time_enabled()), span(data.time_running()))
}

/// Why a counter could not be opened.
///
/// * `root`: read only to explain a refusal.
#[must_use]
pub fn refused(root: &Root, what: &str, error: &io::Error) -> Unavailable {
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
        _ if open_files::is_reached(error) => (
            format!(
                "perf_event_open: {error}: an event takes a file for each thread or CPU, and \
                 `ulimit -n` allows no more"
            ),
            open_files::REMEDY,
        ),
        _ => (format!("perf_event_open: {error}"), "Dimmer measures by timing instead"),
    };
    Unavailable::new(what, why, remedy)
}

#[cfg(test)]
#[expect(clippy::print_stdout, reason = "tests say why they are skipped")]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// A script that waits for a line, then touches memory, in children too.
    const TOUCHES: &str = "read line; for turn in 1 2 3; do (:); done; read line";

    /// Counters of a software event, which virtual machines have as well.
    fn faults(process: i32) -> Result<ProcessCounters, Unavailable> {
        let builders = vec![("page-faults", Builder::new(Software::PAGE_FAULTS))];
        ProcessCounters::with_builders(process, builders)
    }

    /// Starts a shell that runs a script. Returns it and the counters of its first thread once it
    /// has `children` children, or `None` if no counter can be opened.
    fn begin(script: &str, children: usize) -> Option<(Child, ProcessCounters)> {
        if !tells_children() {
            println!(
                "SKIPPED: the kernel does not tell what a process has started (CONFIG_PROC_CHILDREN)"
            );
            return None;
        }
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("a shell");
        let process = i32::try_from(child.id()).unwrap();
        let begin = Instant::now();
        loop {
            assert!(begin.elapsed() < Duration::from_secs(20), "no {children} children");
            let mut counters = faults(process).unwrap();
            match counters.open_next(&Root::live()) {
                Ok(_) if counters.threads.len() > children => return Some((child, counters)),
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(why) => {
                    println!("SKIPPED: {why}");
                    child.kill().unwrap();
                    child.wait().unwrap();
                    return None;
                }
            }
        }
    }

    /// Counts the page faults of a shell that [`TOUCHES`] memory itself, or in an existing child.
    #[track_caller]
    fn check(script: &str, children: usize) {
        let Some((mut child, mut counters)) = begin(script, children) else { return };
        for left in (0..children).rev() {
            assert_eq!(counters.open_next(&Root::live()), Ok(left > 0));
        }
        assert_eq!((counters.counters.len(), counters.files()), (children + 1, children + 1));
        let before = counters.read().unwrap()[0];
        let mut to_child = child.stdin.take().unwrap();
        io::Write::write_all(&mut to_child, b"go on\n").unwrap();
        let begin = Instant::now();
        while counters.read().unwrap()[0] < before + 10 {
            assert!(begin.elapsed() < Duration::from_secs(20), "{before}");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(to_child);
        child.wait().unwrap();
        let gone = faults(i32::try_from(child.id()).unwrap()).unwrap_err();
        assert!(gone.to_string().contains("No such"), "{gone}");
    }

    #[test]
    fn counts_are_estimated_from_the_time_with_the_hardware_and_without_any_there_are_none() {
        let mut sum = Estimate::default();
        assert_eq!(sum.total("cycles").unwrap(), 0, "no thread has run");
        sum.add(0, [10, 0]);
        let why = sum.total("cycles").unwrap_err().to_string();
        assert!(why.contains("cycles: other events"), "{why}");
        sum.add(30, [100, 50]);
        assert_eq!(sum.total("cycles").unwrap(), 60);
    }

    #[test]
    fn a_process_is_counted_with_the_threads_that_it_starts() {
        check(TOUCHES, 0);
    }

    /// Like a restarted server that counts for `dimmer run`, whose program is already running.
    #[test]
    fn a_process_is_counted_with_the_children_that_it_has() {
        check(&format!("({TOUCHES}); :"), 1);
    }

    #[test]
    fn threads_that_end_before_their_turn_are_passed_over() {
        let Some((mut child, mut counters)) = begin(&format!("({TOUCHES}); :"), 1) else { return };
        let (process, thread) = counters.threads[1];
        // The shell's child also waits for a line, and gets none.
        drop(child.stdin.take());
        child.wait().unwrap();
        let is_there = || std::fs::metadata(format!("/proc/{process}/task/{thread}")).is_ok();
        while is_there() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(counters.open_next(&Root::live()), Ok(false));
        assert_eq!(counters.counters.len(), 1);
        counters.read().unwrap();
        // With no thread left, there is nothing to count.
        let mut none = ProcessCounters { done: 0, counters: Vec::new(), ..counters };
        assert_eq!(none.open_next(&Root::live()), Ok(true));
        let why = none.open_next(&Root::live()).unwrap_err();
        assert!(why.to_string().contains("have ended"), "{why}");
    }

    #[test]
    fn a_process_with_too_many_threads_is_not_counted() {
        if !tells_children() {
            return println!("SKIPPED: no kernel with CONFIG_PROC_CHILDREN");
        }
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
        let threads: Vec<_> = (0..=ProcessCounters::MOST_THREADS)
            .map(|_| {
                let ended = std::sync::Arc::clone(&ended);
                std::thread::spawn(move || ended.lock().unwrap().recv().unwrap_err())
            })
            .collect();
        let why = faults(i32::try_from(std::process::id()).unwrap()).unwrap_err();
        assert!(why.to_string().contains("more than 64 threads"), "{why}");
        drop(end);
        for thread in threads {
            thread.join().unwrap();
        }
    }
}

//! Schedulers: which thread runs where.
//!
//! The machine knows a scheduler by the trait [`Scheduler`] alone. [`Scheduling`] lists all of
//! them. A new one is a file beside [`fair`] and a line in the table below; the tests of this
//! module then check it against the contract of the trait. The calls are dispatched statically, as
//! each event of the simulator takes some.

mod fair;
mod muqss;

use dimmer_policy::specialise::Class;
use dimmer_processor::units::LicenseLevel;

use crate::{Moment, Picos};

/// Number of a thread of the machine, and of a CPU of it.
pub(crate) type ThreadId = usize;
pub(crate) type CpuIndex = usize;

/// How the CPUs of a machine lie. They are numbered core by core, and cores package by package.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Topology {
    pub(crate) cpus: usize,
    pub(crate) threads_per_core: usize,
    pub(crate) cores_per_package: usize,
}

impl Topology {
    /// The package of a core.
    pub(crate) fn package(&self, core: usize) -> usize {
        core / self.cores_per_package
    }
}

/// Decides which thread runs where.
///
/// The machine says which threads can run and asks for the next one when a CPU has nothing to run.
/// Some CPUs may be *dedicated*: they run only threads that are there for a moved region
/// ([`Self::ready_away`]).
///
/// # Contract
/// * A thread that [`Self::ready`], [`Self::ready_away`] or [`Self::preempted`] takes waits until
///   [`Self::next`] returns it, on some CPU, or [`Self::clear`] does. Each thread is returned once.
/// * Every waiting thread is returned after some turns of others, as long as the CPUs that it may
///   run on ask for the next thread.
/// * A pinned thread runs on its CPU alone, except while that CPU is dedicated.
/// * Equal calls give equal results: no random source, no order of hashes.
pub(crate) trait Scheduler {
    /// A thread can run, on this CPU alone or on any. Returns the CPU where it is to run.
    fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>, now: Moment) -> CpuIndex;

    /// A thread in a moved region can run. Returns the dedicated CPU where it is to run. Called
    /// only for threads that have been ready before, and while a CPU is dedicated.
    fn ready_away(&mut self, thread: ThreadId) -> CpuIndex;

    /// The thread's region is over: the next time that it is ready, it goes on where it was before,
    /// if it can.
    fn comes_home(&mut self, thread: ThreadId, home: CpuIndex);

    /// Whether the thread that runs on this CPU gives way at once to one that has just become ready
    /// there.
    fn preempts(&self, thread: ThreadId, cpu: CpuIndex) -> bool;

    /// The thread has used up its time slice on this CPU or gives way to another one. Returns the
    /// CPU where it waits for its next turn: this one, or one that has less to do.
    fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex;

    /// The thread that runs on this CPU may not go on there: it is of another class now. It waits
    /// where it may.
    fn trapped(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment);

    /// The wide phase of the thread that runs on this CPU is over: it waits where it goes on, which
    /// is returned.
    fn ends_phase(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex;

    /// The CPU has nothing to run. Returns the next thread, and the other CPU that it ran on
    /// before, if there is one.
    fn next(&mut self, cpu: CpuIndex, now: Moment) -> Option<(ThreadId, Option<CpuIndex>)>;

    /// The CPU that takes over a thread whose turn has ended, as it has nothing to run; `None`: no
    /// such CPU may run it. It takes what [`Self::next`] returns.
    fn idle_for(&self, thread: ThreadId) -> Option<CpuIndex>;

    /// Some time has passed: threads that have waited too long where they are not the first to run
    /// wait elsewhere now. Schedulers without classes do nothing.
    fn looks(&mut self, now: Moment);

    /// Adds the time up to now to the thread's run time.
    fn ran(&mut self, thread: ThreadId, span: Picos, now: Moment);

    /// The CPU that the thread is expected on: where it waits for its turn, or where it ran last.
    fn home(&self, thread: ThreadId) -> Option<CpuIndex>;

    /// How long the CPU's thread may go on; `None`: until another thread waits.
    fn slice(&self, cpu: CpuIndex) -> Option<Picos>;

    /// How long a turn usually lasts where others wait, for forecasts.
    fn turn(&self) -> Picos;

    /// From now on, CPUs of a core run wide threads or others, not both at a time. Schedulers
    /// without classes ignore it.
    fn keeps_apart(&mut self);

    /// Whether threads stay near their data from now on, as [`Specialise::stays_near`] says.
    /// Schedulers without classes ignore it.
    ///
    /// [`Specialise::stays_near`]: crate::Specialise::stays_near
    fn stays_near(&mut self, stays: bool);

    /// The highest license level that threads may ask for on each core: 0 for a narrow one.
    /// Schedulers without classes ignore it.
    fn widen(&mut self, levels: &[LicenseLevel]);

    /// The thread, which does not wait, is of another class from now on. Schedulers without classes
    /// ignore it.
    fn classify(&mut self, thread: ThreadId, class: Class);

    /// Reserves the CPU for moved regions, or ends that. The machine clears a CPU that is reserved
    /// ([`Self::clear`]), and the threads that were there are ready again.
    fn dedicate(&mut self, cpu: CpuIndex, is_dedicated: bool);

    /// Removes all waiting threads from a CPU, and returns them.
    fn clear(&mut self, cpu: CpuIndex) -> Vec<ThreadId>;
}

/// Declares all schedulers: the name in settings, the type of the state, and a description.
macro_rules! schedulers {
    ($($(#[$doc:meta])* $name:ident($state:ty), $word:literal;)+) => {
        /// What decides which thread runs where.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Scheduling {
            $($(#[$doc])* $name,)+
        }

        impl Scheduling {
            /// All schedulers.
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// The name in results.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)+
                }
            }

            /// The scheduler with this name; `Err`: the names that there are.
            pub(crate) fn named(name: &str) -> Result<Self, String> {
                let found = Self::ALL.iter().find(|known| known.name() == name);
                let quoted = |known: &Self| format!("\"{}\"", known.name());
                let names: Vec<String> = Self::ALL.iter().map(quoted).collect();
                let expected = || format!("`scheduler` is {name:?}, expected {}", names.join(" or "));
                found.copied().ok_or_else(expected)
            }

            /// The scheduler at its start.
            pub(crate) fn start(self, topology: Topology) -> Started {
                match self {
                    $(Self::$name => Started::$name(<$state>::new(topology)),)+
                }
            }
        }

        /// The state of one of the schedulers.
        #[derive(Clone, Debug)]
        pub(crate) enum Started {
            $($name($state),)+
        }

        impl Scheduler for Started {
            #[inline]
            fn ready(&mut self, thread: ThreadId, pinned: Option<CpuIndex>, now: Moment) -> CpuIndex {
                match self { $(Self::$name(of) => of.ready(thread, pinned, now),)+ }
            }

            #[inline]
            fn ready_away(&mut self, thread: ThreadId) -> CpuIndex {
                match self { $(Self::$name(of) => of.ready_away(thread),)+ }
            }

            #[inline]
            fn comes_home(&mut self, thread: ThreadId, home: CpuIndex) {
                match self { $(Self::$name(of) => of.comes_home(thread, home),)+ }
            }

            #[inline]
            fn preempts(&self, thread: ThreadId, cpu: CpuIndex) -> bool {
                match self { $(Self::$name(of) => of.preempts(thread, cpu),)+ }
            }

            #[inline]
            fn preempted(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
                match self { $(Self::$name(of) => of.preempted(thread, cpu, now),)+ }
            }

            #[inline]
            fn trapped(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) {
                match self { $(Self::$name(of) => of.trapped(thread, cpu, now),)+ }
            }

            #[inline]
            fn ends_phase(&mut self, thread: ThreadId, cpu: CpuIndex, now: Moment) -> CpuIndex {
                match self { $(Self::$name(of) => of.ends_phase(thread, cpu, now),)+ }
            }

            #[inline]
            fn next(&mut self, cpu: CpuIndex, now: Moment) -> Option<(ThreadId, Option<CpuIndex>)> {
                match self { $(Self::$name(of) => of.next(cpu, now),)+ }
            }

            #[inline]
            fn idle_for(&self, thread: ThreadId) -> Option<CpuIndex> {
                match self { $(Self::$name(of) => of.idle_for(thread),)+ }
            }

            #[inline]
            fn looks(&mut self, now: Moment) {
                match self { $(Self::$name(of) => of.looks(now),)+ }
            }

            #[inline]
            fn ran(&mut self, thread: ThreadId, span: Picos, now: Moment) {
                match self { $(Self::$name(of) => of.ran(thread, span, now),)+ }
            }

            #[inline]
            fn home(&self, thread: ThreadId) -> Option<CpuIndex> {
                match self { $(Self::$name(of) => of.home(thread),)+ }
            }

            #[inline]
            fn slice(&self, cpu: CpuIndex) -> Option<Picos> {
                match self { $(Self::$name(of) => of.slice(cpu),)+ }
            }

            #[inline]
            fn turn(&self) -> Picos {
                match self { $(Self::$name(of) => of.turn(),)+ }
            }

            #[inline]
            fn keeps_apart(&mut self) {
                match self { $(Self::$name(of) => of.keeps_apart(),)+ }
            }

            #[inline]
            fn stays_near(&mut self, stays: bool) {
                match self { $(Self::$name(of) => of.stays_near(stays),)+ }
            }

            #[inline]
            fn widen(&mut self, levels: &[LicenseLevel]) {
                match self { $(Self::$name(of) => of.widen(levels),)+ }
            }

            #[inline]
            fn classify(&mut self, thread: ThreadId, class: Class) {
                match self { $(Self::$name(of) => of.classify(thread, class),)+ }
            }

            #[inline]
            fn dedicate(&mut self, cpu: CpuIndex, is_dedicated: bool) {
                match self { $(Self::$name(of) => of.dedicate(cpu, is_dedicated),)+ }
            }

            #[inline]
            fn clear(&mut self, cpu: CpuIndex) -> Vec<ThreadId> {
                match self { $(Self::$name(of) => of.clear(cpu),)+ }
            }
        }
    };
}

schedulers! {
    /// Equal time for every thread, in the manner of Linux's fair scheduler.
    #[default]
    Fair(fair::Fair), "fair";
    /// Earliest deadlines first, in the manner of MuQSS, which papers 001 and 003 ran.
    MuQss(muqss::MuQss), "muqss";
}

#[cfg(test)]
mod tests;

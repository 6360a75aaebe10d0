//! Core specialisation (paper 003): code that asks for a lower clock runs on a few cores, so that
//! everything else keeps its clock.
//!
//! Some cores are *wide*: they have a license level, and code that asks for up to that level may
//! run there. The others are *narrow*: level 0. A thread that asks for a level where its core does
//! not have it is moved to one that does, before it executes anything there; when its phase is
//! over, any core may take it. The paper has one level for wide cores. Where a processor has two,
//! there may be cores for each (its §5).
//!
//! Nothing here knows a scheduler. A scheduler asks [`rank`] in which order a core takes threads,
//! [`to_interrupt`] which core is to look for work when a thread has become wide, and tells each
//! [`Thread`] what happened to it. The simulator and real machines do the same.

mod affinity;
pub mod sets;
mod thread;

use dimmer_processor::units::{CoreId, LicenseLevel, Nanos, NodeId};

pub use self::affinity::{Affinity, Cpus, Domain, Goes, Stays};
pub use self::thread::{Ends, Settings, Thread};

const NARROW: LicenseLevel = LicenseLevel::new(0);

/// What a thread is to the scheduler (§3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Neither it nor the thread that it descends from has asked for a level, or was told its
    /// class: threads of the system.
    Default,
    /// It asks for no level now.
    Normal,
    /// It asks for this level, above 0.
    Wide(LicenseLevel),
}

impl Class {
    /// The level that a core must have for the thread.
    #[must_use]
    pub const fn level(self) -> LicenseLevel {
        match self {
            Self::Default | Self::Normal => NARROW,
            Self::Wide(level) => level,
        }
    }
}

/// The least level, of the cores that the thread may run on, that suffices for its class; `None`:
/// none does (corner case 2 of §3.2). What it asks for is then allowed where it runs, for as long
/// as it runs there.
///
/// * `levels`: the levels of the cores that its affinity allows.
pub fn home(class: Class, levels: impl IntoIterator<Item = LicenseLevel>) -> Option<LicenseLevel> {
    levels.into_iter().filter(|level| *level >= class.level()).min()
}

/// When a core of this level takes the thread, if its affinity allows that: the lowest number
/// first, among equals as the scheduler has it; `None`: never.
///
/// A core looks for threads of the first rank in its own queue, then in those of the other cores of
/// its NUMA node, and only then for the next rank. So a wide core takes what asks for its level,
/// wherever that waits, before what asks for a lower one, and takes what asks for none so as not to
/// be idle. Narrow cores take no wide thread.
///
/// Every thread has rank 0 on the cores of its [`home`] level, and of those of rank 0 each has its
/// turn: so none starves, whatever others do. In the paper, threads that may run on wide cores
/// alone starve behind wide ones (corner case 1), unless they are of the class [`Class::Default`],
/// which it has for that. Here these rank as normal threads do: their affinity decides, not whether
/// the system started them, and what may run anywhere stays out of the way of wide threads.
#[must_use]
pub fn rank(core: LicenseLevel, class: Class, home: Option<LicenseLevel>) -> Option<u32> {
    match home {
        None => Some(0),
        Some(_) if core < class.level() => None,
        Some(home) => Some(core.index().saturating_sub(home.index())),
    }
}

/// How long the data of a thread that waits are expected to stay in the caches of the core where it
/// ran: Linux's default (`sched_migration_cost`, kernel/sched/fair.c).
pub const CACHE_HOT: Nanos = Nanos::from_us(500);

/// Whether another core may take a thread that has waited this long since it ran, if threads are to
/// stay near their data: not in the paper, whose scheduler lets a core without work take what
/// waits.
///
/// A wide thread comes for microseconds. Without this rule, the narrow core that it left has
/// nothing to do meanwhile, and takes the thread that gave way to it, with all its data.
///
/// * `is_behind_wide`: the core where it waits runs a wide thread.
#[must_use]
pub fn may_take(class: Class, waited: Nanos, is_behind_wide: bool) -> bool {
    class.level() > NARROW || !is_behind_wide || waited >= CACHE_HOT
}

/// Where a thread goes on whose phase is over, if threads are to stay near their data: where its
/// own code ran last, if nothing runs there; otherwise at another CPU without work. If there is
/// none, it waits at the first one.
///
/// * `own`: the CPU where it ran last while it was not wide.
/// * `idle`: the CPU without work that a thread with its data there would choose.
#[must_use]
pub fn goes_on<C>(own: C, is_own_idle: bool, idle: Option<C>) -> C {
    if is_own_idle { own } else { idle.unwrap_or(own) }
}

/// The number of ranks that [`rank`] gives for a core of this level.
#[must_use]
pub const fn ranks(core: LicenseLevel) -> u32 {
    core.index() + 1
}

/// A core, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Core {
    /// Its number.
    pub id: CoreId,
    /// The highest level that code may ask for there; 0: a narrow core.
    pub level: LicenseLevel,
    /// Its NUMA node. Threads never leave theirs to become wide (§5).
    pub node: Option<NodeId>,
    /// Of the threads that it runs, the one that asks for the least level: what gives way first.
    /// `None`: it has nothing to run.
    pub runs: Option<LicenseLevel>,
}

/// Which wide core is interrupted when a thread has become wide.
#[derive(Clone, Copy, Debug)]
pub enum Interrupts {
    /// One drawn at random, as in the paper: this number picks it.
    Random(u64),
    /// The one for which this distance from the thread's core is shortest, in the order of cores.
    Nearest(fn(CoreId, CoreId) -> u32),
}

/// The core that is to look for work at once, because a thread has asked for `level` on the core
/// `from`; `None` if each core that could take it runs threads that ask for as much. Then the first
/// one that runs out of these takes it.
///
/// A core without work is preferred to one whose thread must give way, and a core of the level that
/// is asked for to one of a higher level.
pub fn to_interrupt(
    cores: &[Core],
    from: &Core,
    level: LicenseLevel,
    interrupts: Interrupts,
) -> Option<CoreId> {
    let could = |core: &&Core| {
        let gives_way = core.runs.is_none_or(|runs| runs < level);
        core.node == from.node && core.level >= level && gives_way
    };
    let key = |core: &Core| (core.level, core.runs.is_some());
    let best = cores.iter().filter(could).map(key).min()?;
    let mut equal: Vec<CoreId> =
        cores.iter().filter(could).filter(|core| key(core) == best).map(|core| core.id).collect();
    match interrupts {
        Interrupts::Random(number) => {
            let picked = number % u64::try_from(equal.len()).ok()?;
            equal.get(usize::try_from(picked).ok()?).copied()
        }
        Interrupts::Nearest(distance) => {
            equal.sort_by_key(|core| distance(from.id, *core));
            equal.first().copied()
        }
    }
}

#[cfg(test)]
mod tests;

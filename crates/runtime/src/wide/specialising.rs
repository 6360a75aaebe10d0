//! What is decided about threads with wide code, and what that needs.

use dimmer_policy::specialise::{Cpus, Domain, Settings, Stays};
use dimmer_processor::units::{LicenseLevel, Nanos};

/// The level that wide code asks for: hooks know no other.
pub(super) const WIDE: LicenseLevel = LicenseLevel::new(1);

/// What is to be decided, and by whom.
#[derive(Clone, Debug)]
pub struct Specialising {
    /// The CPUs, and the sets of them that may be wide.
    pub domain: Domain,
    /// When phases end.
    pub settings: Settings,
    /// What hooks know.
    pub hooks: Hooks,
}

impl Specialising {
    /// The CPUs that are wide now, with the number of their set; `None` if none are.
    pub(super) fn wide(&self) -> Option<(usize, &Cpus)> {
        let set = (self.hooks.wide_set)()?;
        Some((set, self.domain.sets.get(set)?))
    }

    /// The wide CPUs, if the program's threads are kept off them.
    pub(super) fn kept_off(&self) -> Option<&Cpus> {
        self.wide().map(|(_, cpus)| cpus).filter(|_| (self.hooks.are_kept_off)())
    }
}

/// What hooks know and do.
#[derive(Clone, Copy, Debug)]
pub struct Hooks {
    /// Whether threads may be on wide CPUs now: not once the process is gone that has made them so.
    /// `None`: that process has not looked yet.
    pub holds: fn() -> Option<bool>,
    /// The number of the set that is wide now; `None`: no CPU is.
    pub wide_set: fn() -> Option<usize>,
    /// Whether the program's threads are kept off the wide CPUs.
    pub are_kept_off: fn() -> bool,
    /// Makes every thread call [`begin`](super::begin) at its next call.
    pub look_again: fn(),
    /// The thread's number for the following functions; `None` if nothing can be noted for it.
    pub thread: fn() -> Option<usize>,
    /// The calls that it has made, modulo 2³².
    pub calls: fn(usize) -> u32,
    /// Notes what happened to it.
    pub note: fn(usize, Event),
}

/// What happens to a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It goes to wide CPUs.
    Goes,
    /// It is given its affinity back.
    ComesBack,
    /// It could run on wide CPUs for this long, besides what was noted before.
    WasWide(Nanos),
    /// It stays where it is.
    Stays(Stays),
}

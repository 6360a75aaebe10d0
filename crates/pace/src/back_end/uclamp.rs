//! Requests as clamps of the thread's utilization ([`dimmer_host::uclamp`]), which the governor
//! `schedutil` follows.
//!
//! `schedutil` chooses the fastest clock times utilization by capacity (Linux
//! `Documentation/scheduler/schedutil.rst`), so both clamps are the share of the fastest clock.
//! From Linux 6.8 on (commit 9c0b4bb7f630) the result is that clock; before, the kernel adds a
//! quarter.

use std::cell::Cell;

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpufreq::{self, Policy};
use dimmer_host::root::Root;
use dimmer_host::uclamp::{Clamps, FULL, check};
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};

use super::{BackEnd, Refused, Thread};
use crate::Request;

/// What a thread had before its first request, and what it left last.
#[derive(Clone, Copy, Debug)]
struct Own {
    before: Clamps,
    left: Clamps,
    is_lost: bool,
}

thread_local! {
    static OWN: Cell<Option<Own>> = const { Cell::new(None) };
}

/// Requests by clamps.
#[derive(Debug)]
pub(crate) struct Uclamp {
    root: Root,
    policies: Vec<(Policy, Clocks)>,
}

impl Uclamp {
    /// # Errors
    /// [`Unavailable`]: the machine has none, or it is a made-up one, which has no scheduler.
    pub(crate) fn open(root: &Root) -> Result<Self, Unavailable> {
        check(root)?;
        let missing = |why: &str, remedy: &str| Unavailable::new("uclamp", why, remedy);
        if !root.is_live() {
            return Err(missing("a made-up machine has no scheduler", "use the real one"));
        }
        let policies = cpufreq::policies(root).into_iter();
        let clocks =
            policies.map(|policy| Clocks::of(root, &policy).map(|clocks| (policy, clocks)));
        let policies = clocks.collect::<Option<_>>().ok_or_else(|| {
            let why = "a policy does not report the limits of its clock";
            missing(why, "use another driver for cpufreq")
        })?;
        Ok(Self { root: root.clone(), policies })
    }

    fn policy(&self, cpu: CpuId) -> Option<&(Policy, Clocks)> {
        self.policies.iter().find(|(policy, _)| policy.cpus.contains(&cpu))
    }
}

/// The clamps by which `schedutil` chooses this clock.
fn clamps(clock: KiloHertz, fastest: KiloHertz) -> Clamps {
    let share = clock.khz().saturating_mul(FULL.into()) / fastest.khz().max(1);
    let share = u32::try_from(share).unwrap_or(FULL).min(FULL);
    Clamps { lowest: share, highest: share }
}

/// Gives the thread these clamps, or those before its first request, if they are as its last
/// one left them.
fn set(wanted: Option<Clamps>) -> Result<(), Refused> {
    let lost = |why: String| {
        let remedy = "Dimmer leaves this thread's clamps alone now";
        Refused::Lost(Unavailable::new("uclamp", why, remedy))
    };
    let found = Clamps::own().map_err(|error| lost(format!("sched_getattr: {error}")))?;
    let own = OWN.get().unwrap_or(Own { before: found, left: found, is_lost: false });
    if own.is_lost || found != own.left {
        OWN.set(Some(Own { is_lost: true, ..own }));
        return Err(lost(format!("another program has set {found:?} where {:?} was", own.left)));
    }
    let left = wanted.unwrap_or(own.before);
    left.set().map_err(|error| lost(format!("sched_setattr: {error}")))?;
    OWN.set(Some(Own { left, ..own }));
    Ok(())
}

impl BackEnd for Uclamp {
    fn name(&self) -> &'static str {
        "uclamp"
    }

    fn follows_threads(&self) -> bool {
        true
    }

    fn request(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused> {
        let Some(request) = request else { return set(None) };
        let clocks = self.clocks(thread.cpu);
        let wanted = clocks
            .and_then(|clocks| request.clock(&clocks).map(|clock| clamps(clock, clocks.fastest)));
        set(wanted)?;
        wanted.map(|_| ()).ok_or(Refused::Unknown)
    }

    fn clocks(&self, cpu: CpuId) -> Option<Clocks> {
        self.policy(cpu).map(|(_, clocks)| *clocks)
    }

    fn clock(&self, cpu: CpuId) -> Option<KiloHertz> {
        self.policy(cpu).and_then(|(policy, _)| cpufreq::clock(&self.root, policy))
    }

    fn end(&self) {
        // The kernel forgets the clamps of a thread that ends.
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clamps_are_the_share_of_the_fastest_clock() {
        let of = |mhz| clamps(KiloHertz::from_mhz(mhz), KiloHertz::from_mhz(4000)).highest;
        assert_eq!([of(4000), of(2000), of(800), of(0)], [1024, 512, 204, 0]);
        assert_eq!(of(5000), 1024);
    }

    #[test]
    fn a_made_up_machine_has_no_clamps() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = Uclamp::open(&Root::new(directory.path())).expect_err("no file of the limit");
        assert_eq!(missing.why, "no /proc/sys/kernel/sched_util_clamp_min");
    }
}

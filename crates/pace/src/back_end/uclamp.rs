//! Requests as clamps of the thread's utilization ([`dimmer_host::uclamp`]), which the governor
//! `schedutil` follows.
//!
//! `schedutil` chooses the fastest clock times utilization by capacity (Linux
//! `Documentation/scheduler/schedutil.rst`), so both clamps are the share of the fastest clock.
//! From Linux 6.8 on (commit 9c0b4bb7f630) the result is that clock; before, the kernel adds a
//! quarter.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::cpufreq::{self, Policy};
use dimmer_host::journal::{JournalError, Report};
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
    others: Mutex<Others>,
}

/// Threads that this one makes requests for.
#[derive(Debug, Default)]
struct Others {
    threads: BTreeMap<u32, Own>,
    /// Clamps that were set for them, each with those before. A thread that a thread with such
    /// clamps has created begins with them.
    made: Vec<(Clamps, Clamps)>,
}

impl Others {
    fn set(&mut self, thread: u32, wanted: Option<Clamps>) -> Result<(), Refused> {
        let Ok(found) = Clamps::of(thread) else {
            // It has ended.
            self.threads.remove(&thread);
            return Err(Refused::Unknown);
        };
        let mut kept = self.threads.get(&thread).copied();
        if kept.is_none()
            && let Some((_, before)) = self.made.iter().find(|(made, _)| *made == found)
        {
            kept = Some(Own { before: *before, left: found, is_lost: false });
        }
        if kept.is_none() && wanted.is_none() {
            return Ok(());
        }
        let result = set(thread, &mut kept, wanted);
        match (wanted, kept) {
            (Some(made), Some(own)) => {
                self.threads.insert(thread, own);
                if made != own.before && !self.made.iter().any(|(known, _)| *known == made) {
                    self.made.push((made, own.before));
                }
            }
            _ => {
                self.threads.remove(&thread);
            }
        }
        result
    }
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
        Ok(Self { root: root.clone(), policies, others: Mutex::default() })
    }

    /// The clamps by which this CPU has the clock that is requested, if it has one.
    fn clamps(&self, cpu: CpuId, request: Request) -> Option<Clamps> {
        let clocks = self.clocks(cpu)?;
        Some(clamps(request.clock(&clocks)?, clocks.fastest))
    }

    fn policy(&self, cpu: CpuId) -> Option<&(Policy, Clocks)> {
        self.policies.iter().find(|(policy, _)| policy.cpus.contains(&cpu))
    }
}

/// The clamps by which `schedutil` chooses this clock.
pub(super) fn clamps(clock: KiloHertz, fastest: KiloHertz) -> Clamps {
    let share = clock.khz().saturating_mul(FULL.into()) / fastest.khz().max(1);
    let share = u32::try_from(share).unwrap_or(FULL).min(FULL);
    Clamps { lowest: share, highest: share }
}

/// Gives the thread (0: the calling one) these clamps, or those before its first request, if they
/// are as its last one left them. `kept` is what is kept of the thread.
fn set(thread: u32, kept: &mut Option<Own>, wanted: Option<Clamps>) -> Result<(), Refused> {
    let lost = |why: String| {
        let remedy = "Dimmer leaves this thread's clamps alone now";
        Refused::Lost(Unavailable::new("uclamp", why, remedy))
    };
    let found = Clamps::of(thread).map_err(|error| lost(format!("sched_getattr: {error}")))?;
    let own = kept.unwrap_or(Own { before: found, left: found, is_lost: false });
    if own.is_lost || found != own.left {
        *kept = Some(Own { is_lost: true, ..own });
        return Err(lost(format!("another program has set {found:?} where {:?} was", own.left)));
    }
    let left = wanted.unwrap_or(own.before);
    left.set_for(thread).map_err(|error| lost(format!("sched_setattr: {error}")))?;
    *kept = Some(Own { left, ..own });
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
        let wanted = request.and_then(|request| self.clamps(thread.cpu, request));
        let mut kept = OWN.get();
        let result = set(0, &mut kept, wanted);
        OWN.set(kept);
        result?;
        if request.is_some() && wanted.is_none() { Err(Refused::Unknown) } else { Ok(()) }
    }

    fn request_for(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused> {
        let wanted = request.and_then(|request| self.clamps(thread.cpu, request));
        let mut others = self.others.lock().unwrap_or_else(PoisonError::into_inner);
        let result = others.set(thread.id, wanted);
        match (request, wanted) {
            // It may have ended, and its clamps with it.
            (None, _) => Ok(()),
            (Some(_), None) => result.and(Err(Refused::Unknown)),
            _ => result,
        }
    }

    fn clocks(&self, cpu: CpuId) -> Option<Clocks> {
        self.policy(cpu).map(|(_, clocks)| *clocks)
    }

    fn clock(&self, cpu: CpuId) -> Option<KiloHertz> {
        self.policy(cpu).and_then(|(policy, _)| cpufreq::clock(&self.root, policy))
    }

    fn end(&self) -> Result<Report, JournalError> {
        // The kernel forgets the clamps of a thread that ends.
        Ok(Report::default())
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

//! How long it takes to wake a thread that sleeps on another CPU: for as long, one spins before it
//! sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_processor::units::{CpuId, Nanos};

use crate::signals;
use crate::spawn::spawn;
use crate::wait::{Patience, Word};
use crate::worker::stand;

/// An upper limit, from how long processors take to leave their deepest sleep: a longer time is not
/// that of waking alone, but of waiting for a CPU that another process's worker keeps busy.
const LONGEST: Duration = Duration::from_micros(200);

/// For how long the sleeper has nothing to do before each try.
const IDLE: Duration = Duration::from_micros(50);

const TRIES: u32 = 15;

/// Time to wake a thread that sleeps on the first of these CPUs, from a thread that is on none of
/// them, and to get its answer: the median of several tries, measured once. (On one CPU it would
/// be the time of a change of threads: in a virtual machine a tenth of what waking another CPU
/// takes.) [`LONGEST`] if threads cannot be there. Takes a millisecond or two. `entrance` lets a
/// thread into the CPUs' cpuset.
pub(crate) fn wake_up(root: &Root, cpus: &[CpuId], entrance: Option<&str>) -> Duration {
    // In nanoseconds; 0 is not measured yet. No lock: a process that was forked could wait for it
    // for ever.
    static MEASURED: AtomicU64 = AtomicU64::new(0);
    let measured = MEASURED.load(Ordering::Relaxed);
    if measured > 0 {
        return Duration::from_nanos(measured);
    }
    let Some(took) = measure(root, cpus, entrance) else { return LONGEST };
    let took = took.min(LONGEST);
    MEASURED.store(Nanos::from(took).ns(), Ordering::Relaxed);
    took
}

/// Time to wake a thread that sleeps on another CPU of the caller's, and to get its answer: the
/// median of several tries; at most 200 us. `None` if the caller may use only one CPU, or the
/// system makes no threads. Takes a millisecond or two, with two threads of its own.
#[must_use]
pub fn time_to_wake() -> Option<Duration> {
    let last = *affinity::allowed().ok()?.last()?;
    Some(measure(&Root::live(), &[last], None)?.min(LONGEST))
}

/// What the two threads share.
#[derive(Debug, Default)]
struct Tries {
    there: Word,
    back: Word,
    /// One of them is not where it should be.
    is_elsewhere: AtomicBool,
    took: Mutex<Vec<Duration>>,
}

/// `None` if the threads cannot be started, or not be where they have to be.
fn measure(root: &Root, cpus: &[CpuId], entrance: Option<&str>) -> Option<Duration> {
    let cpu = *cpus.first()?;
    let mut others = affinity::allowed().ok()?;
    others.retain(|other| !cpus.contains(other));
    let tries = Arc::new(Tries::default());
    let (sleeping, waking) = (Arc::clone(&tries), Arc::clone(&tries));
    let (root, entrance) = (root.clone(), entrance.map(str::to_owned));
    // Threads inherit the mask: signals are for the program's own threads.
    let mask = signals::exchange();
    let sleeper = spawn(move || sleeping.sleep(&root, cpu, entrance.as_deref()));
    let waker = sleeper.is_ok().then(|| spawn(move || waking.wake(&others)));
    signals::set(&mask);
    match waker {
        Some(Ok(waker)) => waker.join(),
        // No value that the sleeper waits for: it ends.
        _ => tries.there.post(TRIES),
    }
    sleeper.ok()?.join();
    if tries.is_elsewhere.load(Ordering::Relaxed) {
        return None;
    }
    let mut took = tries.took.lock().unwrap_or_else(PoisonError::into_inner);
    took.sort_unstable();
    took.get(took.len() / 2).copied()
}

impl Tries {
    fn sleep(&self, root: &Root, cpu: CpuId, entrance: Option<&str>) {
        let pinned = stand(root, cpu, entrance);
        self.is_elsewhere.fetch_or(pinned.is_err(), Ordering::Relaxed);
        for turn in 0..TRIES {
            while self.there.wait_while(turn, Patience(Duration::ZERO)).is_none() {}
            self.back.post(turn + 1);
        }
    }

    /// From one of `others`.
    fn wake(&self, others: &[CpuId]) {
        let is_elsewhere = affinity::allow(others).is_err();
        self.is_elsewhere.fetch_or(is_elsewhere, Ordering::Relaxed);
        let try_once = |turn| {
            let begun = Instant::now();
            while begun.elapsed() < IDLE {
                std::hint::spin_loop();
            }
            let posted = Instant::now();
            self.there.post(turn + 1);
            while self.back.wait_while(turn, Patience(LONGEST)).is_none() {}
            posted.elapsed()
        };
        let took = (0..TRIES).map(try_once).collect();
        *self.took.lock().unwrap_or_else(PoisonError::into_inner) = took;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waking_takes_time_where_there_is_another_cpu() {
        let all = affinity::allowed().unwrap();
        let root = Root::live();
        match &all[..] {
            [_] => assert_eq!(measure(&root, &all, None), None, "no other CPU"),
            [.., last] => assert!(measure(&root, &[*last], None).unwrap() > Duration::ZERO),
            [] => unreachable!(),
        }
        assert_eq!(measure(&root, &[], None), None);
        assert_eq!(measure(&root, &[CpuId::new(1023)], None), None, "there is no such CPU");
        let took = time_to_wake();
        assert_eq!(took.is_some(), all.len() > 1);
        assert!(took.is_none_or(|took| Duration::ZERO < took && took <= LONGEST));
        assert_eq!(affinity::allowed().unwrap(), all);
    }
}

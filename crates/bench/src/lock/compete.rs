//! Threads that compete for a lock, for a short time.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_processor::units::CpuId;

use super::load::{Timed, compute};
use super::undisturbed::{self, least_disturbed, rest, waited};
use super::{Measure, Own, Place, Turn, Work, join};

/// How long threads compete in a turn: shorter than the kernel lets a thread run that has slept.
const TURN: Duration = Duration::from_millis(2);

/// Several threads.
pub(super) struct Compete<'a> {
    pub(super) place: Place<'a>,
    pub(super) threads: u32,
    pub(super) timed: Timed,
}

impl Measure for Compete<'_> {
    type Result = Result<Turn, AffinityError>;
    fn measure(self, section: impl Fn(Work) -> u64 + Sync) -> Self::Result {
        let turn = || self.turn(&section);
        least_disturbed(self.place, self.threads, turn)
    }
}

impl Compete<'_> {
    fn turn(
        &self,
        section: &(impl Fn(Work) -> u64 + Sync),
    ) -> Result<undisturbed::Measurement<Turn>, AffinityError> {
        let Self { place, threads, timed: Timed { hold, gap } } = *self;
        let (is_over, started) = (AtomicBool::new(false), AtomicU32::new(0));
        let have_cpus = threads as usize <= place.cpus.len();
        let ready = Barrier::new(threads as usize + 1);
        let compete = |cpu: CpuId| {
            let pinned = affinity::pin(place.root, cpu);
            ready.wait();
            let before = waited();
            rest();
            // No thread competes with one that still rests.
            started.fetch_add(1, Ordering::Relaxed);
            while started.load(Ordering::Relaxed) < threads {
                if have_cpus { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
            let begin = Instant::now();
            let sections = run_until(&is_over, || {
                section(Work::Add(hold));
                if gap > 0 {
                    compute(gap);
                }
            });
            let own = Own { sections, lasted: begin.elapsed() };
            pinned.map(|_pinned| (own, waited().saturating_sub(before)))
        };
        std::thread::scope(|scope| {
            let cpus = place.cpus.iter().cycle().take(threads as usize);
            let handles: Vec<_> = cpus.map(|cpu| scope.spawn(|| compete(*cpu))).collect();
            ready.wait();
            rest();
            std::thread::sleep(TURN);
            is_over.store(true, Ordering::Relaxed);
            let all = handles.into_iter().map(join).collect::<Result<Vec<_>, _>>()?;
            let own: Vec<Own> = all.iter().map(|(own, _)| *own).collect();
            let waited = all.iter().map(|(_, waited)| *waited).sum();
            Ok(undisturbed::Measurement { value: Turn::new(&own), lasted: TURN, waited })
        })
    }
}

/// Runs sections until the turn is over. Returns how many: at least one, also if the thread gets no
/// time before, since no rate may be divided by zero.
fn run_until(is_over: &AtomicBool, section: impl Fn()) -> u32 {
    let mut sections = 0;
    loop {
        section();
        sections += 1;
        if is_over.load(Ordering::Relaxed) {
            return sections;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_comes_too_late_runs_one_section() {
        assert_eq!(run_until(&AtomicBool::new(true), || ()), 1);
    }
}

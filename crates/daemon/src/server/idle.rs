//! Idle time of the machine, as the kernel counts it; the reports of clients do not matter.

use std::time::{Duration, Instant};

use dimmer_host::idle;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

/// How often it is read: a window of the trials. Reading takes some microseconds per hardware
/// thread.
const PERIOD: Duration = Duration::from_secs(1);

/// The last reading.
#[derive(Debug, Default)]
pub(super) struct Idle {
    last: Option<(Instant, Vec<(CpuId, u64)>)>,
    /// The idle share of each hardware thread in the last period.
    left: Option<Vec<(CpuId, f64)>>,
}

impl Idle {
    /// Idle time of the last period, in hardware threads, on those of `all` that are not in
    /// `taken`; `None` before the first period has ended, or if the counts cannot be read.
    pub(super) fn measure(
        &mut self,
        root: &Root,
        now: Instant,
        all: &[CpuId],
        taken: &[CpuId],
    ) -> Option<f64> {
        let is_early = |at: Instant| now.saturating_duration_since(at) < PERIOD;
        if !self.last.as_ref().is_some_and(|(at, _)| is_early(*at)) {
            self.read(root, now);
        }
        let counts = |cpu: &CpuId| all.contains(cpu) && !taken.contains(cpu);
        let left = self.left.as_ref()?.iter().filter(|(cpu, _)| counts(cpu));
        Some(left.map(|(_, left)| left).sum())
    }

    fn read(&mut self, root: &Root, now: Instant) {
        let ticks = idle::ticks(root).ok();
        let last = self.last.take();
        self.left = last.zip(ticks.as_ref()).map(|((at, before), ticks)| {
            let span = now.saturating_duration_since(at).as_secs_f64();
            let left = |(cpu, ticks): &(CpuId, u64)| {
                let before = before.iter().find(|(other, _)| other == cpu);
                // A hardware thread that has just appeared counts as busy.
                let idle = before.map_or(0, |(_, before)| ticks.saturating_sub(*before));
                (*cpu, idle as f64 / idle::TICKS_PER_S / span)
            };
            ticks.iter().map(left).collect()
        });
        self.last = ticks.map(|ticks| (now, ticks));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_is_left_is_that_of_threads_that_are_not_taken() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir(directory.path().join("proc")).unwrap();
        let write = |idle: [u64; 3]| {
            let [zero, one, two] = idle;
            let text = format!(
                "cpu  9 9 9 9 9\ncpu0 5 5 5 {zero} 10 3\ncpu1 1 1 1 {one} 0 0\ncpu2 1 1 1 {two} 0 0\nintr 7\n"
            );
            std::fs::write(directory.path().join("proc/stat"), text).unwrap();
        };
        let root = Root::new(directory.path());
        let all = [0, 1, 2].map(CpuId::new);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let mut idle = Idle::default();
        write([100, 100, 100]);
        assert_eq!(idle.measure(&root, at(0), &all, &all[2..]), None);
        write([250, 200, 900]);
        // Not before a period is over, and without the one that is taken.
        assert_eq!(idle.measure(&root, at(0), &all, &all[2..]), None);
        assert_eq!(idle.measure(&root, at(2), &all, &all[2..]), Some(1.25));
        assert_eq!(idle.measure(&root, at(2), &all, &all[2..]), Some(1.25));
        // Only the threads taken at this call are left out; threads outside of `all` are ignored.
        assert_eq!(idle.measure(&root, at(2), &all, &[]), Some(5.25));
        assert_eq!(idle.measure(&root, at(2), &all[..1], &[]), Some(0.75));
        std::fs::remove_file(directory.path().join("proc/stat")).unwrap();
        assert_eq!(idle.measure(&root, at(6), &all, &[]), None);
    }
}

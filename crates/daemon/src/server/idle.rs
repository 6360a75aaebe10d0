//! The time that the machine has left, by the kernel's own account: what clients tell of it is not
//! asked.

use std::time::{Duration, Instant};

use dimmer_host::idle;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

/// How often it is read: a window of the trials. Reading takes some microseconds a hardware thread.
const PERIOD: Duration = Duration::from_secs(1);

/// What was read last.
#[derive(Debug, Default)]
pub(super) struct Idle {
    last: Option<(Instant, u64)>,
    /// Which hardware threads it was of.
    of: Vec<CpuId>,
    /// Hardware threads' worth.
    left: Option<f64>,
}

impl Idle {
    /// Hardware threads' worth of time that was left in the last period, on those that are not taken;
    /// `None` where that cannot be told yet.
    pub(super) fn measure(
        &mut self,
        root: &Root,
        now: Instant,
        all: &[CpuId],
        taken: &[CpuId],
    ) -> Option<f64> {
        let is_early = |at: Instant| now.saturating_duration_since(at) < PERIOD;
        if self.last.is_some_and(|(at, _)| is_early(at)) {
            return self.left;
        }
        let of: Vec<CpuId> = all.iter().copied().filter(|cpu| !taken.contains(cpu)).collect();
        let ticks = idle::ticks(root, &of).ok().flatten();
        let last = self.last.take().filter(|_| self.of == of);
        self.last = ticks.map(|ticks| (now, ticks));
        self.of = of;
        self.left = last.zip(ticks).map(|((at, before), ticks)| {
            let span = now.saturating_duration_since(at).as_secs_f64();
            ticks.saturating_sub(before) as f64 / idle::TICKS_PER_S / span
        });
        self.left
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
        // Not before a period is over, and not of the one that is taken.
        assert_eq!(idle.measure(&root, at(0), &all, &all[2..]), None);
        assert_eq!(idle.measure(&root, at(2), &all, &all[2..]), Some(1.25));
        assert_eq!(idle.measure(&root, at(2), &all, &all[2..]), Some(1.25));
        // Of others than before nothing can be told yet; nor where nothing can be read.
        assert_eq!(idle.measure(&root, at(3), &all, &[]), None);
        write([350, 300, 1000]);
        assert_eq!(idle.measure(&root, at(4), &all, &[]), Some(3.0));
        std::fs::remove_file(directory.path().join("proc/stat")).unwrap();
        assert_eq!(idle.measure(&root, at(6), &all, &[]), None);
    }
}

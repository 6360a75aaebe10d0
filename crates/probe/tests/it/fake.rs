//! A made-up processor with known constants, as a target of programs.
//!
//! It executes windows in its own time: scalar work at the clock that its governor grants, and
//! bursts throttled while a license is pending. It also has what makes real machines hard to
//! measure: coarse time stamps, a little jitter, interrupts (flagged) and stolen time (not
//! flagged).

use std::time::Duration;

use dimmer_probe::kernel::Kernel;
use dimmer_probe::program::{Stamp, Trace, Work};
use dimmer_probe::target::{Job, Target, TargetError};
use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::{CpuId, KiloHertz, TscFrequency};

/// The constants that a probe should find. Times in ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Governor {
    /// The least demanding class that requests a license.
    pub(crate) from: InstructionClass,
    /// Number of instructions of that class that cause the request.
    pub(crate) instructions: u32,
    /// Slow-down of kernel code while the license is pending; 1 is none.
    pub(crate) throttle: f64,
    /// Time for which it is pending.
    pub(crate) pending: f64,
    /// The stall when it is granted.
    pub(crate) grant_stall: f64,
    /// Clock with the license, over nominal.
    pub(crate) ratio: f64,
    /// Time for which it is held after the last instruction.
    pub(crate) hold: f64,
    /// The stall when it is released.
    pub(crate) release_stall: f64,
    /// Bursts at gaps below this keep the license; 0 means no memory.
    pub(crate) memory: f64,
    /// Time for which they must have recurred before.
    pub(crate) learns: f64,
    /// How long bursts that recur slow the code between them.
    pub(crate) between_long: Option<BetweenLong>,
}

/// A lower clock between long bursts that recur.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BetweenLong {
    /// Number of instructions of the least demanding class in such a burst.
    pub(crate) instructions: u32,
    /// They recur at gaps below this (ns).
    pub(crate) gap: f64,
    /// That clock, over nominal.
    pub(crate) ratio: f64,
}

/// A license's state.
#[derive(Clone, Copy, Debug, PartialEq)]
enum License {
    None,
    /// Time of the grant.
    Pending(f64),
    /// Time of the release.
    Held(f64),
}

/// The made-up processor.
pub(crate) struct Fake {
    pub(crate) governor: Option<Governor>,
    /// Step of the time-stamp counter [ns].
    pub(crate) step: f64,
    /// Mean time between interrupts, and between stolen stretches [ns]; infinite means none.
    pub(crate) disturbances: f64,
    /// The class of code with an interrupt in each of its bursts, as if they took longer than a
    /// tick.
    pub(crate) interrupted: Option<InstructionClass>,
    /// Core cycles of a multiplication; 3.5 makes the instrument refuse.
    pub(crate) multiplication: f64,
    /// Share of the time in which a license lowers the clock and stalls the core. In the rest it
    /// does neither, as if the clock were low enough already.
    pub(crate) present: f64,
    /// Whether the clock wanders, like that of a core whose neighbours have other work.
    pub(crate) wanders: bool,
    /// The clock over nominal once a program has run for 10 ms, whatever it executes: like that of
    /// a core whose package comes to its limit of power.
    pub(crate) tired: f64,
    /// Time without a burst after which a burst's code and data are cold, whatever it executes, and
    /// the cost of that [ns].
    pub(crate) cold: Option<(f64, f64)>,
    cpus: Vec<CpuId>,
    random: u64,
    now: f64,
    /// Start of the running program.
    begun: f64,
    license: License,
    seen: u32,
    last_wide: f64,
    last_burst: f64,
    /// Start of the present recurrence of bursts.
    recurring_since: f64,
    /// Time for which the license is currently held after the last instruction.
    keep: f64,
    /// End of the last long burst.
    last_long: f64,
    /// Until when the clock is lower after it.
    slow_until: f64,
}

const GHZ: f64 = 4.0;

/// Number of instructions that are executed in one go where nothing changes from one to the next.
const TOGETHER: u32 = 100;

impl Fake {
    pub(crate) fn new(governor: Option<Governor>) -> Self {
        Self {
            governor,
            step: 0.4,
            disturbances: 2e6,
            interrupted: None,
            multiplication: 3.0,
            present: 1.0,
            wanders: false,
            tired: 1.0,
            cold: None,
            cpus: vec![CpuId::new(0)],
            random: 0x1234_5678_9abc_def1,
            now: 1000.0,
            begun: 0.0,
            license: License::None,
            seen: 0,
            last_wide: -1e12,
            last_burst: -1e12,
            recurring_since: -1e12,
            keep: 0.0,
            last_long: -1e12,
            slow_until: -1e12,
        }
    }

    /// The same processor on another day.
    pub(crate) fn seeded(mut self, seed: u64) -> Self {
        // The generator accepts any number except zero.
        self.random ^= seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.now += 1e6 * self.uniform();
        self
    }

    fn uniform(&mut self) -> f64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// A number from 0 to 1 that stays the same for `period` nanoseconds.
    fn mood(&self, period: f64) -> f64 {
        // The golden-ratio sequence: evenly spread, far from periodic.
        ((self.now / period).floor() * 0.618_033_988_749_895).fract()
    }

    /// The governor in its current state.
    fn governor(&self) -> Option<Governor> {
        let governor = self.governor?;
        let idle = Governor { ratio: 1.0, grant_stall: 0.0, release_stall: 0.0, ..governor };
        Some(if self.mood(23e6) < self.present { governor } else { idle })
    }

    /// The current clock over nominal: one of three levels, 100 MHz apart.
    fn clock(&self) -> f64 {
        let tired = if self.now - self.begun > 10e6 { self.tired } else { 1.0 };
        let wanders = if self.wanders { (self.mood(11e6) * 3.0).floor() } else { 0.0 };
        tired * (1.0 - 0.025 * wanders)
    }

    /// Advances the license to `now`, and adds the time of stalls to `now`.
    fn settle_license(&mut self) {
        let Some(governor) = self.governor() else { return };
        match self.license {
            License::Pending(until) if self.now >= until => {
                self.now += governor.grant_stall;
                self.license = License::Held(self.last_wide + self.keep);
                self.settle_license();
            }
            License::Held(until) if self.now >= until => {
                self.now += governor.release_stall;
                self.license = License::None;
            }
            _ => {}
        }
    }

    /// Scalar work of `ns` at the nominal clock.
    fn scalar(&mut self, mut ns: f64) {
        while ns > 1e-9 {
            self.settle_license();
            let ratio = match (self.license, self.governor()) {
                (License::Held(_), Some(governor)) => governor.ratio,
                _ => 1.0,
            };
            let change = match self.license {
                License::None => f64::INFINITY,
                License::Pending(until) | License::Held(until) => until - self.now,
            };
            let long = self.governor.and_then(|governor| governor.between_long);
            let slow = long.filter(|_| self.now < self.slow_until);
            let change = slow.map_or(change, |_| change.min(self.slow_until - self.now));
            let ratio = slow.map_or(ratio, |long| ratio.min(long.ratio)) * self.clock();
            let taken = (ns / ratio).min(change.max(1e-6));
            self.now += taken;
            ns -= taken * ratio;
        }
        self.settle_license();
    }

    fn burst(&mut self, kernel: &Kernel, count: u32) {
        let per_cycle = if kernel.class == InstructionClass::Scalar { 4.0 } else { 2.0 };
        let began = self.now;
        let Some(governor) = self.governor().filter(|g| kernel.class >= g.from) else {
            self.scalar(f64::from(count) / per_cycle / GHZ);
            return;
        };
        if self.now - self.last_wide > 2.0 * governor.hold.max(governor.memory) {
            self.seen = 0;
        }
        if self.now - self.last_wide >= governor.memory {
            self.recurring_since = self.now;
        }
        let recurring = self.now - self.recurring_since > governor.learns;
        self.keep = if recurring { governor.memory.max(governor.hold) } else { governor.hold };
        let mut left = count;
        while left > 0 {
            self.settle_license();
            // A license that is held changes nothing from one instruction to the next.
            let is_held = matches!(self.license, License::Held(_));
            let step = if is_held { left.min(TOGETHER) } else { 1 };
            left -= step;
            self.seen = self.seen.saturating_add(step);
            if self.license == License::None && self.seen >= governor.instructions {
                self.license = License::Pending(self.now + governor.pending);
            }
            let slow = match self.license {
                License::None => 1.0,
                License::Pending(_) => governor.throttle,
                License::Held(_) => 1.0 / governor.ratio,
            };
            self.now += f64::from(step) * slow / per_cycle / GHZ / self.clock();
            self.last_wide = self.now;
            if let License::Held(_) = self.license {
                self.license = License::Held(self.now + self.keep);
            }
        }
        if let Some(long) = governor.between_long.filter(|long| count >= long.instructions) {
            let recurs = began - self.last_long < long.gap;
            self.slow_until = if recurs { self.now + long.gap } else { self.now };
            self.last_long = self.now;
        }
    }

    fn execute(&mut self, work: &Work) {
        match work {
            Work::Clock { links } => self.scalar(f64::from(*links) * self.multiplication / GHZ),
            Work::Unit { links } => self.scalar(f64::from(*links) / GHZ),
            Work::Issue { instructions } => self.scalar(f64::from(*instructions) / 4.0 / GHZ),
            Work::Burst { kernel, instructions, .. } => {
                if let Some((after, cost)) = self.cold
                    && self.now - self.last_burst > after
                {
                    self.scalar(cost);
                }
                self.burst(kernel, *instructions);
                self.last_burst = self.now;
            }
            Work::TouchUpper { .. } => self.scalar(1.0),
        }
    }
}

impl Target for Fake {
    /// Counts threefold: the modes have samples enough by then, and the tests are quicker.
    fn now(&self) -> Duration {
        Duration::from_secs_f64(3.0 * self.now / 1e9)
    }

    fn tsc(&self) -> TscFrequency {
        TscFrequency::new(KiloHertz::from_mhz(2500)).unwrap()
    }

    fn cpus(&self) -> &[CpuId] {
        &self.cpus
    }

    fn siblings(&self, _: CpuId) -> Vec<CpuId> {
        Vec::new()
    }

    fn lacks(&self, kernel: &Kernel) -> Option<String> {
        (kernel.class == InstructionClass::Tile)
            .then(|| "the made-up processor has none".to_owned())
    }

    fn run(&mut self, jobs: &[Job<'_>]) -> Result<Vec<Trace>, TargetError> {
        assert_eq!(jobs.len(), 1, "the made-up processor has one CPU");
        let mut stamps = Vec::new();
        self.begun = self.now;
        let mut interrupted = false;
        let stamp = |now: f64, step: f64, interrupted: bool| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
            let ticks = ((now / step).floor() * step * 2.5).round() as u64;
            Stamp::from_bits(ticks | if interrupted { Stamp::INTERRUPTED } else { 0 })
        };
        for group in jobs[0].program.groups() {
            for _ in 0..group.times {
                for work in &group.works {
                    stamps.push(stamp(self.now, self.step, interrupted));
                    interrupted = false;
                    let begin = self.now;
                    let overhead = 8.0 + self.uniform() * 2.0;
                    self.scalar(overhead);
                    self.execute(work);
                    let share = (self.now - begin) / self.disturbances;
                    let is_hit = matches!(work, Work::Burst { kernel, .. }
                        if self.interrupted == Some(kernel.class));
                    if self.uniform() < share || is_hit {
                        self.now += 2000.0 + 3000.0 * self.uniform();
                        interrupted = true;
                    }
                    if self.uniform() < share {
                        self.now += 1000.0 + 20_000.0 * self.uniform();
                    }
                }
            }
        }
        stamps.push(stamp(self.now, self.step, interrupted));
        Ok(vec![Trace { stamps, page_faults: 0, preemptions: 0, counts: None }])
    }
}

/// Like the Xeon 6: microseconds of throttling and hold, a stall at the end, and a memory.
pub(crate) const XEON_6: Governor = Governor {
    from: InstructionClass::Heavy512,
    instructions: 30,
    throttle: 4.0,
    pending: 600.0,
    grant_stall: 0.0,
    ratio: 0.94,
    hold: 2500.0,
    release_stall: 1400.0,
    memory: 240_000.0,
    learns: 5e6,
    between_long: None,
};

/// Like Skylake: tens of microseconds until the clock is lowered, two thirds of a millisecond of
/// hold.
pub(crate) const SKYLAKE: Governor = Governor {
    from: InstructionClass::Light512,
    instructions: 1,
    throttle: 4.0,
    pending: 14_600.0,
    grant_stall: 10_000.0,
    ratio: 3.4 / 4.3,
    hold: 670_000.0,
    release_stall: 10_000.0,
    memory: 0.0,
    learns: 0.0,
    between_long: None,
};

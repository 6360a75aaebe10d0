//! AVXFREQ (paper 000 §4.1.2): the license governor of Intel's processors, simplified and
//! implemented again in the kernel, where it can be improved.
//!
//! A performance counter counts vector operations. While the core is at L0, the counter interrupts
//! at the first one, and the core goes to L1. From then on a timer reads the counter. If operations
//! are dense enough, the core goes to L2. If there have been none for long enough, the core goes
//! back to L0 and the counter is armed again. From L1 only time leads back to L0, and a core at L2
//! does not go down to L1.

use dimmer_processor::units::{LicenseLevel, Nanos, Time};

/// The constants of the governor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// The time from one look at the counter to the next.
    pub period: Nanos,
    /// Number of looks in a row without an operation after which the core goes back, when
    /// [`Self::rest`] has passed, too.
    pub empty_periods: u32,
    /// How long the core still waits after these looks.
    pub rest: Nanos,
    /// Mean number of operations per cycle since the last look from which on the core goes to L2.
    pub dense_per_cycle: f64,
    /// The processor's highest level; the core goes no higher. If it is L0, there are no licenses
    /// and nothing is counted.
    pub highest: LicenseLevel,
}

impl Default for Parameters {
    /// The paper's constants: two thirds of a millisecond in all, for which the processor was
    /// measured to hold a level.
    fn default() -> Self {
        Self {
            period: Nanos::from_us(100),
            empty_periods: 6,
            rest: Nanos::from_us(66),
            dense_per_cycle: 1.0,
            highest: L2,
        }
    }
}

/// The counts since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Vector operations; a fused multiplication and addition counts as two
    /// (`FP_ARITH_INST_RETIRED`).
    pub operations: u64,
    /// Cycles of the core.
    pub cycles: u64,
}

/// The governor of one core.
#[derive(Clone, Debug, PartialEq)]
pub struct AvxFreq {
    parameters: Parameters,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// At L0, with the counter armed.
    Armed,
    /// At a higher level. The next look at the counter is at `due`.
    Raised { level: LicenseLevel, due: Time, empty_periods: u32 },
}

const L0: LicenseLevel = LicenseLevel::new(0);
const L1: LicenseLevel = LicenseLevel::new(1);
const L2: LicenseLevel = LicenseLevel::new(2);

impl AvxFreq {
    /// Starts at L0, with nothing counted.
    #[must_use]
    pub fn new(parameters: Parameters) -> Self {
        Self { parameters, state: State::Armed }
    }

    /// The level that the core should have.
    #[must_use]
    pub fn level(&self) -> LicenseLevel {
        match self.state {
            State::Armed => L0,
            State::Raised { level, .. } => level,
        }
    }

    /// Whether the counter should interrupt at its next operation.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.state == State::Armed && self.parameters.highest > L0
    }

    /// When to call [`Self::look`]; `None` while the counter is armed.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Time> {
        match self.state {
            State::Armed => None,
            State::Raised { due, .. } => Some(due),
        }
    }

    /// Called when the counter has interrupted. The caller restarts the counter at zero. An
    /// interrupt that was on its way when the counter was no longer armed changes nothing.
    pub fn interrupt(&mut self, now: Time) {
        if self.is_armed() {
            let due = now + self.parameters.period;
            self.state =
                State::Raised { level: L1.min(self.parameters.highest), due, empty_periods: 0 };
        }
    }

    /// Called at [`Self::next_wakeup`], with what was counted since the last look, or since the
    /// interrupt. The caller restarts the counter at zero. A call before that time, or while the
    /// counter is armed, changes nothing.
    pub fn look(&mut self, now: Time, counted: Counted) {
        let State::Raised { level, due, empty_periods } = self.state else { return };
        if now < due {
            return;
        }
        let Parameters { period, rest, dense_per_cycle, highest, .. } = self.parameters;
        let most = self.parameters.empty_periods;
        let again = now + period;
        self.state = if counted.operations > 0 {
            let is_dense = counted.operations as f64 >= dense_per_cycle * counted.cycles as f64;
            let level = if is_dense { L2.min(highest) } else { level };
            State::Raised { level, due: again, empty_periods: 0 }
        } else if empty_periods >= most {
            // The rest has passed.
            State::Armed
        } else {
            let empty_periods = empty_periods + 1;
            let due = if empty_periods == most { now + rest } else { again };
            State::Raised { level, due, empty_periods }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DENSE: Counted = Counted { operations: 1_000_000, cycles: 340_000 };
    const SPARSE: Counted = Counted { operations: 1, cycles: 340_000 };
    const NOTHING: Counted = Counted { operations: 0, cycles: 340_000 };

    /// Calls the governor at its wake-ups, until `until`. Returns the changes, as (time, level).
    fn trace(
        governor: &mut AvxFreq,
        until: u64,
        counted: impl Fn(u64) -> Counted,
    ) -> Vec<(u64, u32)> {
        let mut changes = Vec::new();
        while let Some(now) = governor.next_wakeup().filter(|now| now.ns() <= until) {
            let before = governor.level();
            governor.look(now, counted(now.ns()));
            if governor.level() != before {
                changes.push((now.ns(), governor.level().index()));
            }
        }
        changes
    }

    /// Figure 4.1: AVX code for a while, scalar code after it.
    #[test]
    fn levels_go_up_in_turn_and_down_at_once() {
        let mut governor = AvxFreq::new(Parameters::default());
        assert!(governor.is_armed() && governor.next_wakeup().is_none());
        governor.interrupt(Time::from_ns(1_000));
        assert_eq!((governor.level(), governor.is_armed()), (L1, false));
        // The vector code ends at 350 us: the look at 401 us has seen some of it.
        let changes =
            trace(&mut governor, 10_000_000, |now| if now <= 401_000 { DENSE } else { NOTHING });
        // Six periods of 100 us and 66 us after that look.
        assert_eq!(changes, [(101_000, 2), (401_000 + 666_000, 0)]);
        assert!(governor.is_armed());
    }

    #[test]
    fn sparse_code_stays_at_the_first_level() {
        let mut governor = AvxFreq::new(Parameters::default());
        governor.interrupt(Time::START);
        assert_eq!(trace(&mut governor, 5_000_000, |_| SPARSE), []);
        assert_eq!(governor.level(), L1);
    }

    #[test]
    fn an_operation_in_the_rest_begins_the_wait_anew() {
        let mut governor = AvxFreq::new(Parameters::default());
        governor.interrupt(Time::START);
        // Nothing for six periods, one operation in the 66 us after them, then nothing.
        let changes =
            trace(&mut governor, 5_000_000, |now| if now == 666_000 { SPARSE } else { NOTHING });
        assert_eq!(changes, [(666_000 + 666_000, 0)]);
    }

    #[test]
    fn calls_at_the_wrong_time_change_nothing() {
        let mut governor = AvxFreq::new(Parameters::default());
        governor.look(Time::from_ns(5), DENSE);
        assert!(governor.is_armed());
        governor.interrupt(Time::from_ns(10));
        let raised = governor.clone();
        governor.look(Time::from_ns(99_999), DENSE);
        governor.interrupt(Time::from_ns(50_000));
        assert_eq!(governor, raised);
    }

    #[test]
    fn no_level_is_asked_for_that_the_processor_lacks() {
        let of = |highest| AvxFreq::new(Parameters { highest, ..Parameters::default() });
        let mut two = of(L1);
        two.interrupt(Time::START);
        assert_eq!(trace(&mut two, 1_000_000, |_| DENSE), []);
        assert_eq!(two.level(), L1);
        let mut none = of(L0);
        assert!(!none.is_armed());
        none.interrupt(Time::START);
        assert_eq!((none.level(), none.next_wakeup()), (L0, None));
    }

    /// For all counts: the core has a level while operations are counted, there is always a next
    /// time while the level is raised, and the core is back at L0 within the bound after the last
    /// operation.
    #[test]
    fn whatever_is_counted_the_level_holds_and_is_given_back_in_time() {
        let parameters = Parameters::default();
        let bound = 6 * parameters.period + parameters.rest;
        let mut random = 88_172_645_463_325_252_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        for _ in 0..200 {
            let mut governor = AvxFreq::new(parameters);
            governor.interrupt(Time::START);
            let mut last = Time::START;
            let ends = Time::from_ns(next() % 3_000_000);
            while let Some(due) = governor.next_wakeup() {
                // Timers come late.
                let now = due + Nanos::from_ns(next() % 5_000);
                let operations = if now < ends { next() % 3 * (next() % 400_000) } else { 0 };
                governor.look(now, Counted { operations, cycles: 340_000 });
                assert!(operations == 0 || governor.level() > LicenseLevel::new(0));
                assert!(governor.is_armed() == governor.next_wakeup().is_none());
                if operations > 0 {
                    last = now;
                }
                assert!(now <= last + bound + Nanos::from_us(8 * 5), "{now:?} {last:?}");
            }
            assert!(governor.is_armed());
        }
    }
}

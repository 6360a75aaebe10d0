//! How many CPUs a program keeps busy while all calls run in place, and what that rules out.

use std::collections::BTreeMap;

use dimmer_processor::units::{Nanos, Time};

use super::{Busy, Cpus, most_work};

/// The least time between two readings: the kernel counts CPU time in hundredths of a second.
const LEAST: Nanos = Nanos::from_ms(200);

/// What is this old counts for some third. A guess: a program that first loads data and then serves
/// is to be seen to do so.
const REMEMBERED: Nanos = Nanos::from_ms(5000);

/// For how long it rules anything out. While calls move, nothing is measured, and the program may
/// change.
const HOLDS: Nanos = Nanos::from_ms(10_000);

/// Why moving a program's calls is not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuledOut {
    /// There is no call to move.
    NoCalls,
    /// The program's use of CPUs was not measured yet.
    Unmeasured,
    /// The program cannot gain, as it keeps its CPUs too busy.
    Busy,
}

impl RuledOut {
    /// The name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoCalls => "no calls",
            Self::Unmeasured => "unmeasured",
            Self::Busy => "busy",
        }
    }
}

/// A program's use of CPUs, and what that allows.
#[derive(Clone, Debug, PartialEq)]
pub struct Headroom {
    /// `None` if they say nothing.
    cpus: Option<Cpus>,
    /// By how much faster the code around each function runs at most without its calls, by the
    /// function's number.
    faster: Vec<f64>,
    last: Option<Reading>,
    /// Up to when it was measured.
    measured: Option<Time>,
    /// Time in which it was measured, on the clock and on CPUs, and in calls of each function, by
    /// its number (ns). Former times count less.
    passed: f64,
    on_cpu: f64,
    in_calls: Vec<f64>,
}

/// What a program has used up to now.
#[derive(Clone, Debug, PartialEq)]
struct Reading {
    at: Time,
    /// CPU time of each process.
    on_cpu: BTreeMap<u32, Nanos>,
    /// Time in calls of each function, by its number (ns).
    in_calls_ns: Vec<f64>,
}

impl Headroom {
    /// Nothing is known of the program yet.
    ///
    /// * `cpus`: `None` if they cannot be counted alike. Then nothing is ruled out.
    /// * `faster`: by how much faster the code around each function runs at most without its calls,
    ///   by the function's number ([`super::most_faster`]).
    #[must_use]
    pub fn new(cpus: Option<Cpus>, faster: impl Fn(Cpus) -> Vec<f64>) -> Self {
        let faster = cpus.map(faster).unwrap_or_default();
        let (passed, on_cpu, in_calls) = (0.0, 0.0, vec![0.0; faster.len()]);
        Self { cpus, faster, last: None, measured: None, passed, on_cpu, in_calls }
    }

    /// A call has moved: what was used since the last reading is not known.
    pub fn forget_last(&mut self) {
        self.last = None;
    }

    /// Takes in what the program has used up to now, at this time. All calls run in place.
    ///
    /// * `on_cpu`: CPU time of each process.
    /// * `in_calls_ns`: time in calls of each function up to now, by its number (ns), by the clock
    ///   on the wall: too much rather than too little.
    pub fn read(
        &mut self,
        at: Time,
        on_cpu: impl FnOnce() -> BTreeMap<u32, Nanos>,
        in_calls_ns: impl FnOnce() -> Vec<f64>,
    ) {
        if self.last.as_ref().is_some_and(|last| at - last.at < LEAST) {
            return;
        }
        let now = Reading { at, on_cpu: on_cpu(), in_calls_ns: in_calls_ns() };
        if let Some(last) = self.last.replace(now) {
            self.add(&last);
        }
    }

    /// Adds what was used from this reading to the last one.
    fn add(&mut self, from: &Reading) {
        let Some(now) = &self.last else { return };
        let passed = (now.at - from.at).as_f64();
        let keeps = (-passed / REMEMBERED.as_f64()).exp();
        let of = |(process, then): (&u32, &Nanos)| {
            now.on_cpu.get(process).map(|now| (now.as_f64() - then.as_f64()).max(0.0))
        };
        // Processes that are not known may have done anything.
        let Some(on_cpu) = from.on_cpu.iter().filter_map(of).reduce(|sum, one| sum + one) else {
            return;
        };
        self.measured = Some(now.at);
        self.passed = keeps * self.passed + passed;
        self.on_cpu = keeps * self.on_cpu + on_cpu;
        let spent = now.in_calls_ns.iter().zip(&from.in_calls_ns);
        for (sum, (now, from)) in self.in_calls.iter_mut().zip(spent) {
            *sum = keeps * *sum + (now - from).max(0.0);
        }
    }

    /// Why the program cannot do more work while the calls of these functions move, if so.
    ///
    /// * `functions`: by their numbers.
    pub fn rules_out(&self, now: Time, functions: impl Iterator<Item = usize>) -> Option<RuledOut> {
        let mut functions = functions.peekable();
        if functions.peek().is_none() {
            return Some(RuledOut::NoCalls);
        }
        let cpus = self.cpus?;
        let Some(measured) = self.measured else { return Some(RuledOut::Unmeasured) };
        if now - measured > HOLDS {
            return None;
        }
        let (mut in_calls, mut faster) = (0.0, 1.0_f64);
        for number in functions {
            in_calls += self.in_calls[number];
            faster = faster.max(self.faster[number]);
        }
        let busy = Busy { cpus: self.on_cpu / self.passed, in_calls: in_calls / self.passed };
        (most_work(busy, cpus, faster) <= 1.0).then_some(RuledOut::Busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Cpus = Cpus { all: 2, dedicated: 1, cores: [2, 1] };

    /// A program on two CPUs with two functions, what it has used so far (s), and when.
    struct Program {
        headroom: Headroom,
        now: Time,
        on_cpu: f64,
        in_calls: [f64; 2],
    }

    impl Program {
        fn new(cpus: Option<Cpus>, faster: [f64; 2]) -> Self {
            let headroom = Headroom::new(cpus, |_| faster.to_vec());
            let mut program = Self { headroom, now: Time::START, on_cpu: 0.0, in_calls: [0.0; 2] };
            program.read([7]);
            program
        }

        /// After a second, of which it was on CPUs, and in calls of each function, for so long.
        fn after(on_cpu: f64, in_calls: [f64; 2], faster: [f64; 2]) -> Self {
            let mut program = Self::new(Some(TWO), faster);
            program.run(1.0, on_cpu, in_calls);
            program
        }

        fn run(&mut self, seconds: f64, on_cpu: f64, in_calls: [f64; 2]) {
            self.now += Nanos::rounded(1e9 * seconds);
            self.on_cpu += on_cpu;
            self.in_calls.iter_mut().zip(in_calls).for_each(|(all, new)| *all += new);
            self.read([7]);
        }

        fn read<const N: usize>(&mut self, processes: [u32; N]) {
            let on_cpu = Nanos::rounded(1e9 * self.on_cpu);
            let on_cpu = || processes.map(|process| (process, on_cpu)).into();
            let in_calls_ns = || self.in_calls.map(|seconds| 1e9 * seconds).to_vec();
            self.headroom.read(self.now, on_cpu, in_calls_ns);
        }

        fn rules_out(&self, functions: &[usize]) -> Option<RuledOut> {
            self.headroom.rules_out(self.now, functions.iter().copied())
        }

        /// Whether it may gain by moving calls of either function, and of both.
        fn all(&self) -> [bool; 3] {
            [&[0][..], &[1], &[0, 1]].map(|functions| {
                let ruled_out = self.rules_out(functions);
                assert!(matches!(ruled_out, None | Some(RuledOut::Busy)), "{ruled_out:?}");
                ruled_out.is_none()
            })
        }
    }

    #[test]
    fn what_keeps_all_cpus_busy_gains_only_by_moving_much_or_by_a_faster_clock() {
        let all = |on_cpu, in_calls, faster| Program::after(on_cpu, in_calls, faster).all();
        assert_eq!(all(1.6, [0.3, 0.1], [1.1; 2]), [false, false, false]);
        assert_eq!(all(1.6, [0.9, 0.1], [1.1; 2]), [true, false, true]);
        assert_eq!(all(1.6, [0.3, 0.4], [1.1; 2]), [false, false, true]);
        assert_eq!(all(1.6, [0.3, 0.1], [1.1, 1.7]), [false, true, true]);
        assert_eq!(all(0.8, [0.0, 0.0], [1.1; 2]), [true; 3]);
        let idle = Program::after(0.8, [0.0, 0.0], [1.1; 2]);
        assert_eq!(idle.rules_out(&[]), Some(RuledOut::NoCalls));
    }

    #[test]
    fn nothing_is_ruled_out_where_cpus_say_nothing_and_all_until_it_is_measured() {
        assert_eq!(Program::new(None, [1.0; 2]).rules_out(&[0, 1]), None);
        let mut program = Program::new(Some(TWO), [1.0; 2]);
        assert_eq!(program.rules_out(&[0, 1]), Some(RuledOut::Unmeasured));
        // Too soon, of another process, and after calls have moved.
        program.run(0.1, 0.2, [0.0; 2]);
        assert_eq!(program.rules_out(&[0, 1]), Some(RuledOut::Unmeasured));
        program.now += LEAST;
        program.read([8]);
        assert_eq!(program.rules_out(&[0, 1]), Some(RuledOut::Unmeasured));
        program.headroom.forget_last();
        program.run(1.0, 2.0, [0.0; 2]);
        assert_eq!(program.rules_out(&[0, 1]), Some(RuledOut::Unmeasured));
        program.run(1.0, 2.0, [0.0; 2]);
        assert_eq!(program.rules_out(&[0, 1]), Some(RuledOut::Busy));
    }

    #[test]
    fn a_program_that_comes_to_serve_is_seen_to_do_so() {
        let mut program = Program::after(2.0, [0.0; 2], [1.2; 2]);
        assert_eq!(program.all(), [false; 3]);
        program.run(10.0, 5.0, [0.0; 2]);
        assert_eq!(program.all(), [true; 3]);
        // Or is tried on if nothing can be measured.
        program.run(10.0, 20.0, [0.0; 2]);
        assert_eq!(program.all(), [false; 3]);
        program.headroom.forget_last();
        program.now += HOLDS + LEAST;
        assert_eq!(program.all(), [true; 3]);
    }
}

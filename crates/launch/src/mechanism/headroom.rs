//! Whether a program may gain by moving calls, by how many CPUs it keeps busy while all calls run
//! in place ([`dimmer_policy::headroom`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dimmer_policy::headroom::{self, Busy, Cpus};

use crate::trials::RuledOut;

/// The least time between two readings: the kernel counts CPU time in hundredths of a second.
const LEAST: Duration = Duration::from_millis(200);

/// What is older than this counts for less than a third. A guess: programs that begin to serve stop
/// loading data, and trials are some seconds apart.
const REMEMBERED: Duration = Duration::from_secs(5);

/// A program's use of CPUs, and what that allows.
#[derive(Debug)]
pub(super) struct Headroom {
    /// `None` if they say nothing.
    cpus: Option<Cpus>,
    /// By how much faster the code around each function runs at most without its calls, by the
    /// function's number.
    faster: Vec<f64>,
    last: Option<Reading>,
    /// Time in which it was measured, on the clock and on CPUs, and in calls of each function, by
    /// its number (s). Former times count less.
    passed: f64,
    on_cpu: f64,
    in_calls: Vec<f64>,
}

/// What a program has used up to now.
#[derive(Debug)]
struct Reading {
    at: Instant,
    /// CPU time of each process.
    on_cpu: BTreeMap<u32, Duration>,
    /// Time in calls of each function, by its number (ns).
    in_calls_ns: Vec<f64>,
}

impl Headroom {
    /// Nothing is known of the program yet.
    pub(super) fn new(cpus: Option<Cpus>, faster: impl Fn(Cpus) -> Vec<f64>) -> Self {
        let faster = cpus.map(faster).unwrap_or_default();
        let (passed, on_cpu, in_calls) = (0.0, 0.0, vec![0.0; faster.len()]);
        Self { cpus, faster, last: None, passed, on_cpu, in_calls }
    }

    /// A call has moved: what was used since the last reading is not known.
    pub(super) fn forget_last(&mut self) {
        self.last = None;
    }

    /// Takes in what the program has used up to now. All calls run in place.
    ///
    /// * `on_cpu`: CPU time of each process.
    /// * `in_calls_ns`: time in calls of each function up to now, by its number (ns).
    pub(super) fn read(
        &mut self,
        on_cpu: impl FnOnce() -> BTreeMap<u32, Duration>,
        in_calls_ns: Vec<f64>,
    ) {
        let at = Instant::now();
        if self.last.as_ref().is_some_and(|last| at - last.at < LEAST) {
            return;
        }
        let now = Reading { at, on_cpu: on_cpu(), in_calls_ns };
        if let Some(last) = self.last.replace(now) {
            self.add(&last);
        }
    }

    /// Adds what was used from this reading to the last one.
    fn add(&mut self, from: &Reading) {
        let Some(now) = &self.last else { return };
        let passed = now.at - from.at;
        let keeps = (-passed.div_duration_f64(REMEMBERED)).exp();
        let of = |(process, then): (&u32, &Duration)| {
            now.on_cpu.get(process).map(|now| now.saturating_sub(*then))
        };
        let on_cpu: Duration = from.on_cpu.iter().filter_map(of).sum();
        self.passed = keeps * self.passed + passed.as_secs_f64();
        self.on_cpu = keeps * self.on_cpu + on_cpu.as_secs_f64();
        let spent = now.in_calls_ns.iter().zip(&from.in_calls_ns);
        for (sum, (now, from)) in self.in_calls.iter_mut().zip(spent) {
            *sum = keeps * *sum + (now - from).max(0.0) / 1e9;
        }
    }

    /// Why the program cannot do more work while the calls of these functions move, if so.
    ///
    /// * `functions`: by their numbers.
    pub(super) fn rules_out(&self, functions: impl Iterator<Item = usize>) -> Option<RuledOut> {
        let mut functions = functions.peekable();
        if functions.peek().is_none() {
            return Some(RuledOut::NoCalls);
        }
        let cpus = self.cpus?;
        if self.passed <= 0.0 {
            return Some(RuledOut::Unmeasured);
        }
        let (mut in_calls, mut faster) = (0.0, 1.0_f64);
        for number in functions {
            in_calls += self.in_calls[number];
            faster = faster.max(self.faster[number]);
        }
        let busy = Busy { cpus: self.on_cpu / self.passed, in_calls: in_calls / self.passed };
        (headroom::most_work(busy, cpus, faster) <= 1.0).then_some(RuledOut::Busy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a program on two CPUs with two functions, after a second: the process was on CPUs for
    /// this long, and in calls of each function for this long (s).
    fn after(on_cpu: f64, in_calls: [f64; 2], faster: [f64; 2]) -> Headroom {
        let cpus = Cpus { all: 2, dedicated: 1 };
        let mut headroom = Headroom::new(Some(cpus), |_| faster.to_vec());
        headroom.run(1.0, on_cpu, in_calls);
        headroom
    }

    impl Headroom {
        fn run(&mut self, seconds: f64, on_cpu: f64, in_calls: [f64; 2]) {
            let at = |at, on_cpu: f64, in_calls: Vec<f64>| Reading {
                at,
                on_cpu: BTreeMap::from([(7, Duration::from_secs_f64(on_cpu))]),
                in_calls_ns: in_calls,
            };
            let now = Instant::now();
            let from = at(now, 0.0, vec![0.0; 2]);
            let in_calls = in_calls.map(|seconds| 1e9 * seconds).to_vec();
            self.last = Some(at(now + Duration::from_secs_f64(seconds), on_cpu, in_calls));
            self.add(&from);
        }

        /// Whether it may gain by moving calls of either function, and of both.
        fn all(&self) -> [bool; 3] {
            [vec![0], vec![1], vec![0, 1]].map(|functions| {
                let ruled_out = self.rules_out(functions.into_iter());
                assert!(matches!(ruled_out, None | Some(RuledOut::Busy)), "{ruled_out:?}");
                ruled_out.is_none()
            })
        }
    }

    #[test]
    fn what_keeps_all_cpus_busy_gains_only_by_moving_much_or_by_a_faster_clock() {
        assert_eq!(after(1.6, [0.3, 0.1], [1.1; 2]).all(), [false, false, false]);
        assert_eq!(after(1.6, [0.9, 0.1], [1.1; 2]).all(), [true, false, true]);
        assert_eq!(after(1.6, [0.3, 0.4], [1.1; 2]).all(), [false, false, true]);
        assert_eq!(after(1.6, [0.3, 0.1], [1.1, 1.7]).all(), [false, true, true]);
        assert_eq!(after(0.8, [0.0, 0.0], [1.1; 2]).all(), [true; 3]);
        let of_none = after(0.8, [0.0, 0.0], [1.1; 2]).rules_out([].into_iter());
        assert_eq!(of_none, Some(RuledOut::NoCalls));
    }

    #[test]
    fn nothing_is_ruled_out_where_cpus_say_nothing_and_all_until_it_is_measured() {
        let ruled_out = |cpus| Headroom::new(cpus, |_| vec![1.0; 2]).rules_out([0, 1].into_iter());
        assert_eq!(ruled_out(None), None);
        assert_eq!(ruled_out(Some(Cpus { all: 2, dedicated: 1 })), Some(RuledOut::Unmeasured));
    }

    #[test]
    fn a_program_that_comes_to_serve_is_seen_to_do_so() {
        let mut headroom = after(2.0, [0.0; 2], [1.2; 2]);
        assert_eq!(headroom.all(), [false; 3]);
        headroom.run(10.0, 5.0, [0.0; 2]);
        assert_eq!(headroom.all(), [true; 3]);
    }
}

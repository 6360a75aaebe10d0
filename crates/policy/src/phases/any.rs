//! Made-up flows and graphs for property tests.

use dimmer_processor::units::Nanos;

use super::*;

/// A small generator (Marsaglia, "Xorshift RNGs", 2003).
pub(super) struct Any(u64);

impl Any {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        (self.number() >> 11) % end
    }

    /// From 0 on, below 1.
    pub(super) fn share(&mut self) -> f64 {
        (self.number() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Small numbers as often as large ones.
    fn any_size(&mut self) -> u64 {
        let bits = self.below(64);
        self.number() >> bits
    }

    fn maybe(&mut self, number: u64) -> Option<u64> {
        (self.below(16) > 0).then_some(number)
    }

    pub(super) fn marks(&self) -> Vec<Mark> {
        let names = ["do_command [sql/sql_parse.cc:943]", "execute [insert]", "swp_init", "f(a) b"];
        names.map(|name| Mark::new(name).unwrap()).to_vec()
    }

    fn counters(&mut self) -> Counters {
        let mut count = || {
            let number = self.any_size();
            self.maybe(number)
        };
        Counters {
            time: count().map(Nanos::from_ns),
            instructions: count(),
            cycles: count(),
            l2_latency: count(),
            l3_misses: count(),
        }
    }

    /// A thread with a clock and counters that show anything.
    pub(super) fn flow(&mut self) -> Flow {
        let mut flow = Flow::new(self.counters());
        for _ in 0..self.below(40) {
            let mark = MarkId::new(u32::try_from(self.below(5)).unwrap());
            let reading = self.counters();
            flow.pass(mark, reading);
            if self.below(8) == 0 {
                flow.interrupt();
            }
        }
        flow
    }

    /// A graph of all marks with counts that a program could have.
    pub(super) fn graph(&mut self) -> Graph {
        let marks = self.marks();
        let mut graph = Graph::default();
        for start in &marks {
            for end in &marks {
                let calls = 1 + self.below(100_000);
                let instructions = self.below(1_000_000_000);
                let spent = Counters {
                    time: Some(Nanos::from_ns(calls * self.below(100_000))),
                    instructions: Some(instructions),
                    cycles: Some(instructions * self.below(100) / 10),
                    l2_latency: Some(instructions * self.below(100) / 50),
                    l3_misses: Some(instructions * self.below(100) / 1000),
                };
                if self.below(3) > 0 {
                    graph.add(start, end, &Counts { calls, spent });
                }
            }
        }
        graph
    }
}

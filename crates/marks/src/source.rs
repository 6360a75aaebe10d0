//! What is read at a mark: a clock, and the counters that the machine has.

use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_host::user_counters::UserCounters;
use dimmer_policy::phases::Counters;
use dimmer_processor::units::{Nanos, nearest};

/// A clock and counters of one thread.
pub(crate) trait Source {
    /// What they show now.
    fn read(&self) -> Counters;
}

/// The machine: the time-stamp counter, and the performance counters of the thread that opened
/// them, as far as there are some.
#[derive(Debug)]
pub(crate) struct Machine {
    since_ticks: u64,
    /// Nanoseconds per tick, times 2^32.
    ns_per_tick: u64,
    counters: Option<UserCounters>,
}

impl Machine {
    /// The calling thread's. Also returns why there are no counters, if there are none.
    pub(crate) fn open() -> (Self, Option<Unavailable>) {
        let (counters, why) = match UserCounters::open(&Root::live()) {
            Ok(counters) => (Some(counters), None),
            Err(why) => (None, Some(why)),
        };
        let ns_per_tick = nearest(2.0_f64.powi(32) / dimmer_protocol::ticks_per_ns());
        (Self { since_ticks: dimmer_protocol::ticks(), ns_per_tick, counters }, why)
    }
}

impl Source for Machine {
    #[inline]
    fn read(&self) -> Counters {
        let ticks = dimmer_protocol::ticks().wrapping_sub(self.since_ticks);
        let ns = (u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32;
        let time = Some(Nanos::from_ns(u64::try_from(ns).unwrap_or(u64::MAX)));
        let Some(counters) = &self.counters else {
            return Counters { time, ..Counters::default() };
        };
        let [instructions, cycles, l2_latency, l3_misses] = counters.read();
        Counters { time, instructions, cycles, l2_latency, l3_misses }
    }
}

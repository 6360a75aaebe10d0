//! Turns timed calls and counters into sums for each function.

use std::collections::BTreeMap;

use dimmer_hook::{Overhead, TimedCall};

use crate::times::Times;

/// Calls of one function, with their times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tally {
    /// Calls, timed or not.
    pub calls: u64,
    /// Durations of the timed calls. A call that continued in another function by a jump belongs to
    /// that function.
    pub lasted: Times,
    /// Times from the end of a call to the start of the thread's next call of any hooked function,
    /// where both were timed. The gap after a call that continued in another function by a jump
    /// belongs to that function.
    pub gap_after: Times,
    /// Durations of calls that were moved to another core, with the way there and back.
    pub moved: Times,
}

impl Tally {
    /// Adds another tally of the same function.
    pub fn merge(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.lasted.merge(&other.lasted);
        self.gap_after.merge(&other.gap_after);
        self.moved.merge(&other.moved);
    }

    /// Durations of calls, and of the gaps after them, as pairs of length (ns) and number.
    pub fn stretches(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        self.lasted.iter().chain(self.gap_after.iter())
    }
}

/// Calls of a thread, by the number of the function.
#[derive(Clone, Debug, Default)]
pub(crate) struct ThreadTally {
    /// Each function that it called.
    pub(crate) functions: BTreeMap<usize, Tally>,
    /// Calls of all of them.
    calls: u64,
    /// Clock samples before and after calls.
    pub(crate) clocks: Clocks,
    /// The last timed call.
    last: Option<Last>,
    /// Times of each function that do not stand for calls yet.
    pending: BTreeMap<usize, Pending>,
}

/// Durations of a chain of multiplications (ns): the longer, the lower the clock. A sample of at
/// most `MOST_CLOCKS` durations each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// Right after calls.
    pub after: Vec<f64>,
    /// Right before calls, with the gap since the thread's previous call (ns).
    pub before: Vec<(f64, f64)>,
}

impl Clocks {
    /// Adds another thread's samples.
    pub fn merge(&mut self, other: &Self) {
        self.after.extend(&other.after);
        self.before.extend(&other.before);
    }

    /// Whether it holds as many samples as are kept of one thread.
    pub(crate) fn are_many(&self) -> bool {
        self.after.len() >= MOST_CLOCKS
    }
}

/// The part of a timed call that the next one needs.
#[derive(Clone, Copy, Debug)]
struct Last {
    site: usize,
    ended_in: usize,
    /// Time at which it ended, including the chain after it (ticks).
    end: u64,
}

/// Maximum number of chains kept of a thread.
const MOST_CLOCKS: usize = 10_000;

/// Times that do not stand for calls yet (ns).
#[derive(Clone, Debug, Default)]
struct Pending {
    lasted: Vec<f64>,
    /// Durations of interrupted calls.
    lasted_interrupted: Vec<f64>,
    gaps_after: Vec<f64>,
    /// Number of calls that ended in another function, and number of those that a gap follows.
    ended_elsewhere: usize,
    gaps_elsewhere: usize,
    /// Number of calls for which all durations so far stand, and the same for gaps. Both include
    /// calls that ended elsewhere.
    lasted_told: f64,
    gaps_told: f64,
}

impl ThreadTally {
    /// Adds a timed call, less what timing adds to it; `ns_per_tick` is the time-stamp counter's.
    pub(crate) fn add(&mut self, call: TimedCall, overhead: Overhead, ns_per_tick: f64) {
        let ns = |ticks: u64, added: u64| ticks.saturating_sub(added) as f64 * ns_per_tick;
        if call.moved {
            let moved = &mut self.functions.entry(call.site).or_default().moved;
            moved.add(ns(call.end - call.begin, 0), 1.0);
            // The next call does not follow the call before this one.
            self.last = None;
            return;
        }
        let begin = call.begin.saturating_sub(u64::from(call.chain_before));
        let chain = |ticks: u32| f64::from(ticks) * ns_per_tick;
        if call.follows
            && let Some(last) = self.last
            && let Some(gap) = begin.checked_sub(last.end)
        {
            let gap = ns(gap, overhead.between);
            self.pending.entry(last.ended_in).or_default().gaps_after.push(gap);
            if last.ended_in != last.site {
                self.pending.entry(last.site).or_default().gaps_elsewhere += 1;
            }
            if call.chain_before != 0 && self.clocks.before.len() < MOST_CLOCKS {
                self.clocks.before.push((gap, chain(call.chain_before)));
            }
        }
        if call.chain_after != 0 && self.clocks.after.len() < MOST_CLOCKS {
            self.clocks.after.push(chain(call.chain_after));
        }
        let lasted = ns(call.end - call.begin, overhead.inside);
        if call.ended_in != call.site {
            self.pending.entry(call.site).or_default().ended_elsewhere += 1;
        }
        let pending = self.pending.entry(call.ended_in).or_default();
        let which =
            if call.interrupted { &mut pending.lasted_interrupted } else { &mut pending.lasted };
        which.push(lasted);
        let end = call.end.saturating_add(u64::from(call.chain_after));
        self.last = Some(Last { site: call.site, ended_in: call.ended_in, end });
    }

    /// Adds calls of a function.
    pub(crate) fn count(&mut self, site: usize, calls: u64) {
        let tally = self.functions.entry(site).or_default();
        tally.calls = tally.calls.saturating_add(calls);
        self.calls = self.calls.saturating_add(calls);
    }

    /// Lets the pending times stand for the calls that were counted since times last stood for
    /// calls. The share of timed calls changes, so times differ in weight.
    pub(crate) fn settle(&mut self) {
        for (site, pending) in &mut self.pending {
            if let Some(tally) = self.functions.get_mut(site).filter(|tally| tally.calls > 0) {
                pending.settle(tally);
            }
        }
    }

    /// Calls of all functions.
    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }
}

impl Pending {
    fn settle(&mut self, tally: &mut Tally) {
        // If few calls are interrupted, their time is due to something else, and they are dropped.
        // If many are, interruptions belong to their duration.
        let few = self.lasted_interrupted.len() * 10 < self.lasted.len();
        if few {
            self.lasted_interrupted.clear();
        } else {
            self.lasted.append(&mut self.lasted_interrupted);
        }
        let calls = tally.calls as f64;
        let stand_for =
            |times: &mut Vec<f64>, elsewhere: &mut usize, told: &mut f64, sum: &mut Times| {
                let all = times.len() + std::mem::take(elsewhere);
                if all > 0 {
                    let each = (calls - *told).max(0.0) / all as f64;
                    *told = told.max(calls);
                    times.drain(..).for_each(|ns| sum.add(ns, each));
                }
            };
        let Self { lasted, ended_elsewhere, lasted_told, .. } = self;
        stand_for(lasted, ended_elsewhere, lasted_told, &mut tally.lasted);
        let Self { gaps_after, gaps_elsewhere, gaps_told, .. } = self;
        stand_for(gaps_after, gaps_elsewhere, gaps_told, &mut tally.gap_after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_OVERHEAD: Overhead = Overhead { inside: 0, between: 0, counting_1000: 0 };

    fn call(site: usize, begin: u64, end: u64, follows: bool) -> TimedCall {
        TimedCall {
            site,
            ended_in: site,
            begin,
            end,
            follows,
            interrupted: false,
            moved: false,
            chain_after: 0,
            chain_before: 0,
        }
    }

    #[test]
    fn a_gap_belongs_to_the_call_before_it() {
        let mut thread = ThreadTally::default();
        thread.add(call(3, 100, 200, false), NO_OVERHEAD, 0.5);
        thread.add(call(4, 1200, 1300, true), NO_OVERHEAD, 0.5);
        thread.count(3, 1);
        thread.count(4, 1);
        thread.settle();
        assert_eq!(thread.functions[&3].gap_after.mean(), Some(500.0));
        assert_eq!(thread.functions[&3].lasted.mean(), Some(50.0));
        assert_eq!(thread.functions[&4].gap_after.measured(), 0);
    }

    #[test]
    fn a_gap_belongs_to_the_function_that_a_call_ended_in() {
        let mut thread = ThreadTally::default();
        thread.add(TimedCall { ended_in: 5, ..call(3, 100, 200, false) }, NO_OVERHEAD, 1.0);
        thread.add(call(3, 1200, 1300, true), NO_OVERHEAD, 1.0);
        thread.add(call(4, 1400, 1500, true), NO_OVERHEAD, 1.0);
        thread.count(3, 2);
        thread.count(5, 1);
        thread.settle();
        assert_eq!(thread.functions[&5].gap_after.sum(), 1000.0);
        assert_eq!(thread.functions[&3].gap_after.sum(), 100.0);
        assert_eq!(thread.functions[&3].lasted.sum(), 100.0);
        assert_eq!(thread.functions[&5].lasted.sum(), 100.0);
    }

    #[test]
    fn interrupted_calls_count_only_where_most_are() {
        let lasted = |interrupted: usize| {
            let mut thread = ThreadTally::default();
            for index in 0..20 {
                let one = TimedCall {
                    interrupted: index < interrupted,
                    ..call(3, 0, if index < interrupted { 1000 } else { 10 }, false)
                };
                thread.add(one, NO_OVERHEAD, 1.0);
            }
            thread.count(3, 20);
            thread.settle();
            thread.functions[&3].lasted.mean().unwrap()
        };
        assert!((lasted(1) - 10.0).abs() < 1e-9);
        assert!((lasted(10) - 505.0).abs() < 1e-9);
    }

    #[test]
    fn chains_tell_the_clock_and_are_no_part_of_gaps() {
        let mut thread = ThreadTally::default();
        thread.add(TimedCall { chain_after: 300, ..call(3, 100, 200, false) }, NO_OVERHEAD, 1.0);
        thread.add(TimedCall { chain_before: 280, ..call(3, 1200, 1300, true) }, NO_OVERHEAD, 1.0);
        thread.count(3, 2);
        thread.settle();
        assert_eq!(thread.functions[&3].gap_after.mean(), Some(420.0));
        let clocks = Clocks { after: vec![300.0], before: vec![(420.0, 280.0)] };
        assert_eq!(thread.clocks, clocks);
    }

    #[test]
    fn overhead_is_taken_off_but_nothing_becomes_negative() {
        let mut thread = ThreadTally::default();
        let overhead = Overhead { inside: 40, between: 1200, counting_1000: 0 };
        thread.add(call(3, 100, 200, false), overhead, 1.0);
        thread.add(call(3, 1200, 1300, true), overhead, 1.0);
        thread.count(3, 2);
        thread.settle();
        assert_eq!(thread.functions[&3].lasted.mean(), Some(60.0));
        assert_eq!(thread.functions[&3].gap_after.mean(), Some(0.0));
    }

    #[test]
    fn calls_that_do_not_follow_each_other_have_no_gap() {
        let mut thread = ThreadTally::default();
        thread.add(call(3, 100, 200, false), NO_OVERHEAD, 1.0);
        thread.add(call(3, 1200, 1300, false), NO_OVERHEAD, 1.0);
        thread.count(3, 2);
        thread.settle();
        assert_eq!(thread.functions[&3].gap_after.measured(), 0);
    }

    #[test]
    fn times_stand_for_the_calls_around_them() {
        let mut thread = ThreadTally::default();
        thread.add(call(3, 0, 10, false), NO_OVERHEAD, 1.0);
        thread.count(3, 1000);
        thread.settle();
        // None of these is timed; the next timed calls stand for them.
        thread.count(3, 500);
        thread.settle();
        thread.add(call(3, 0, 100, false), NO_OVERHEAD, 1.0);
        thread.add(call(3, 0, 100, false), NO_OVERHEAD, 1.0);
        thread.count(3, 500);
        thread.settle();
        let lasted = &thread.functions[&3].lasted;
        assert_eq!((lasted.measured(), lasted.sum()), (3, 1000.0 * 10.0 + 1000.0 * 100.0));
    }
}

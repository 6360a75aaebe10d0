//! Traces: the calls of a thread in their order, and the time between two calls, divided into code
//! that ran and waiting.
//!
//! The hooks time every call of a traced thread, as far as its ring of records lasts from one look
//! to the next. The kernel reports how long the thread was on no CPU ([`waits`] finds the gaps in
//! which it was).

mod events;
mod waits;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use dimmer_hook::{Overhead, TimedCall};
use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::seen::FunctionPlace;

/// Interval at which [`crate::Observer::look`] must be called while it traces. A ring of records
/// lasts for 220,000 calls a second then; of threads that call more often, stretches are seen.
pub(crate) const TRACE_INTERVAL: Duration = Duration::from_millis(2);

/// Calls and samples that are kept of a run, 32 bytes each. Later ones are not traced.
pub(crate) const MOST_TRACED: usize = 1 << 21;

/// Calls that may be under way, or not yet in the ring, when a thread is looked at.
const UNDER_WAY: u64 = 64;

/// The trace of a thread.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThreadTrace {
    /// Number of its process.
    pub process: u32,
    /// Number of the thread.
    pub thread: u32,
    /// Its name, as the kernel has it; empty if it ended before it could be read.
    pub name: String,
    /// CPUs that it was allowed to use; empty if that could not be read.
    pub cpus: Vec<CpuId>,
    /// The functions that it called.
    pub functions: Vec<FunctionPlace>,
    /// Pairs of functions, by their index there: a call of the second was made within one of the
    /// first. Such calls are not among the events.
    pub within: BTreeSet<(usize, usize)>,
    /// What it did, in order.
    pub events: Vec<Event>,
    /// When its calls were, in order. Calls within others are left out.
    pub timed: Vec<TimedSpan>,
    /// Time from the first look at it to the last one.
    pub lasted: Duration,
    /// The part of [`Self::lasted`] in which it waited.
    pub waited: Duration,
    /// The part of [`Self::lasted`] in which it could have run, but other threads had its CPU.
    pub queued: Duration,
}

/// What a thread did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// What it did here was not seen.
    Unseen,
    /// Code between two calls, and waiting.
    Gap {
        /// Time in which code ran (ns).
        code_ns: f64,
        /// Time in which the thread waited (ns).
        wait_ns: f64,
    },
    /// A call.
    Call {
        /// Index of the function in [`ThreadTrace::functions`].
        function: usize,
        /// Duration (ns).
        lasted_ns: f64,
        /// Number of calls for which it stands: above 1 where not all were timed.
        stands_for: f64,
    },
    /// A function whose calls start requests was entered.
    Request,
}

/// When a call was.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedSpan {
    /// Index of the function in [`ThreadTrace::functions`].
    pub function: usize,
    /// Its start, since the observer's (ns).
    pub begin_ns: f64,
    /// Its end, since the observer's start (ns).
    pub end_ns: f64,
    /// Whether it was moved to another core.
    pub is_moved: bool,
}

/// A timed call, as it was read from the ring.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    /// The number of the function.
    site: u32,
    /// Start and end of the call (ticks).
    begin: u64,
    end: u64,
    /// Duration of the chains of multiplications before and after it (ticks).
    chain_before: u32,
    chain_after: u32,
    stands_for: f32,
    /// Whether the thread made no call between the record before and this one.
    follows: bool,
    is_moved: bool,
    is_request: bool,
}

/// What the kernel has counted of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    /// When it was read (ticks).
    ticks: u64,
    /// Time on CPUs (ns). Of a thread that runs, the kernel may have counted it up to some
    /// milliseconds ago.
    ran_ns: u64,
    /// Time in which it waited for a CPU (ns).
    queued_ns: u64,
    /// How often it got a CPU.
    turns: u64,
}

/// Records a thread.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    calls: Vec<Recorded>,
    samples: Vec<Sample>,
    name: String,
    cpus: Vec<CpuId>,
    /// The first of `calls` that was read at the last look.
    fresh: usize,
}

impl Recorder {
    /// Adds a timed call.
    pub(crate) fn add(&mut self, call: TimedCall, is_request: bool, room: &mut usize) {
        let site = if is_request { call.site } else { call.ended_in };
        let Ok(site) = u32::try_from(site) else { return };
        if *room == 0 {
            return;
        }
        *room -= 1;
        self.calls.push(Recorded {
            site,
            begin: call.begin,
            end: call.end,
            chain_before: call.chain_before,
            chain_after: call.chain_after,
            stands_for: 1.0,
            follows: call.follows,
            is_moved: call.moved,
            is_request,
        });
    }

    /// Ends a look at the thread, which has made `counted` calls since the last one. Reads what the
    /// kernel has counted.
    pub(crate) fn look(&mut self, (process, thread): (u32, u32), counted: u64, room: &mut usize) {
        let fresh = self.calls.get_mut(self.fresh..).unwrap_or_default();
        if counted > fresh.len() as u64 + UNDER_WAY {
            #[expect(clippy::cast_possible_truncation, reason = "three digits are enough")]
            let stands_for = (counted as f64 / fresh.len() as f64) as f32;
            fresh.iter_mut().for_each(|call| call.stands_for = stands_for);
        }
        self.fresh = self.calls.len();
        if *room == 0 {
            return;
        }
        let root = Root::live();
        let of_thread = format!("/proc/{process}/task/{thread}");
        if self.samples.is_empty() {
            let name = root.text(&format!("{of_thread}/comm")).unwrap_or_default();
            self.name = name.trim().chars().filter(|one| !one.is_control()).collect();
            self.cpus = affinity::allowed_to(thread).unwrap_or_default();
        }
        let before = dimmer_hook::ticks();
        let Ok(text) = root.text(&format!("{of_thread}/schedstat")) else { return };
        let after = dimmer_hook::ticks();
        if let Some(sample) = Sample::parse(&text, before + (after - before) / 2) {
            *room -= 1;
            self.samples.push(sample);
        }
    }

    /// What the thread did; `place` is the function of a site, and `begun` the observer's start
    /// (ticks).
    pub(crate) fn finish(
        self,
        (process, thread): (u32, u32),
        place: impl Fn(usize) -> Option<FunctionPlace>,
        overhead: Overhead,
        (begun, ns_per_tick): (u64, f64),
    ) -> ThreadTrace {
        let ns = |ticks: u64| ticks as f64 * ns_per_tick;
        let mut functions: Vec<FunctionPlace> = Vec::new();
        let mut known: BTreeMap<u32, Option<usize>> = BTreeMap::new();
        let mut function = |site: u32| {
            *known.entry(site).or_insert_with(|| {
                let place = place(site as usize)?;
                let found = functions.iter().position(|one| *one == place);
                Some(found.unwrap_or_else(|| {
                    functions.push(place);
                    functions.len() - 1
                }))
            })
        };
        let mut within = BTreeSet::new();
        let ordered = events::ordered(&self.calls, &mut within);
        let (mut events, spans) = events::of(&ordered, &mut function, overhead, ns_per_tick);
        let timed = ordered.iter().filter(|call| !call.is_request).filter_map(|call| {
            let at = |ticks: u64| ns(ticks.saturating_sub(begun));
            Some(TimedSpan {
                function: function(call.site)?,
                begin_ns: at(call.begin),
                end_ns: at(call.end),
                is_moved: call.is_moved,
            })
        });
        let timed = timed.collect();
        let within = within.into_iter();
        let within = within.filter_map(|(outer, inner)| Some((function(outer)?, function(inner)?)));
        let within = within.collect();
        let off = waits::off_cpu(&self.samples, ns_per_tick);
        waits::divide(&mut events, &spans, &off);
        let (first, last) = (self.samples.first().copied(), self.samples.last().copied());
        let (first, last) = (first.unwrap_or_default(), last.unwrap_or_default());
        let nanos = |ns: f64| Duration::try_from_secs_f64(ns * 1e-9).unwrap_or_default();
        let queued: f64 = off.iter().map(|off| off.queued_ns).sum();
        let waited: f64 = off.iter().map(|off| off.waited_ns).sum();
        ThreadTrace {
            process,
            thread,
            name: self.name,
            cpus: self.cpus,
            functions,
            within,
            events,
            timed,
            lasted: nanos(ns(last.ticks.saturating_sub(first.ticks))),
            waited: nanos(waited),
            queued: nanos(queued),
        }
    }
}

impl Sample {
    /// Parses `/proc/PID/task/TID/schedstat`.
    fn parse(text: &str, ticks: u64) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let mut number = || numbers.next().flatten();
        Some(Self { ticks, ran_ns: number()?, queued_ns: number()?, turns: number()? })
    }
}

impl ThreadTrace {
    /// The number of calls in it.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.events.iter().filter(|event| matches!(event, Event::Call { .. })).count()
    }

    /// Maps each entry of a function to the function's start.
    pub(crate) fn gather(&mut self, begin: &impl Fn(&Path, u64) -> u64) {
        for place in &mut self.functions {
            place.address = begin(&place.file, place.address);
        }
    }
}

#[cfg(test)]
mod tests;

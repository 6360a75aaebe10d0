//! A pinned thread that executes programs, and its orders.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use dimmer_host::affinity;
use dimmer_host::perf::{Countable, Counters};
use dimmer_host::root::Root;
use dimmer_host::usage::ThreadUsage;
use dimmer_processor::units::CpuId;

use super::code::CodeArea;
use crate::arch::drive::{RawGroup, RawStep, dimmer_probe_drive};
use crate::arch::operands::OperandPage;
use crate::program::{Counts, Program, Stamp, Trace};
use crate::target::TargetError;

/// A prepared program: the routines' addresses, and room for the stamps.
#[derive(Debug)]
pub(super) struct Order {
    /// The memory into which `groups` point; never touched after `groups` is made.
    _steps: Vec<RawStep>,
    groups: Vec<RawGroup>,
    windows: usize,
    trace: Trace,
    /// Number of threads that have not yet arrived; the programs start when it is 0.
    start: Arc<AtomicUsize>,
}

// SAFETY: the raw pointers point into `_steps`, whose heap block stays in place when the order
// moves, and at routines in a `CodeArea` that `Silicon::run` keeps until all traces are back.
unsafe impl Send for Order {}

impl Order {
    /// Looks up the routines, and writes the stamps' buffer once, so that it is in memory.
    pub(super) fn prepare(
        program: &Program,
        code: &mut CodeArea,
        mut trace: Trace,
        start: Arc<AtomicUsize>,
    ) -> Result<Self, TargetError> {
        let mut steps = Vec::new();
        let mut spans = Vec::new();
        for group in program.groups() {
            let first = steps.len();
            for work in &group.works {
                let (routine, iterations) = code.routine(work)?;
                steps.push(RawStep { routine, iterations });
            }
            spans.push((first..steps.len(), group.times));
        }
        let groups = spans.into_iter().map(|(span, times)| {
            let range = steps[span].as_ptr_range();
            RawGroup { first: range.start, end: range.end, times: times as u64 }
        });
        let groups = groups.collect();
        trace.stamps.clear();
        trace.stamps.resize(program.windows() + 1, Stamp::default());
        Ok(Self { _steps: steps, groups, windows: program.windows(), trace, start })
    }

    /// Executes the program on this thread.
    fn execute(mut self, operands: &OperandPage, counters: Option<&mut Counters>) -> Trace {
        let counters = counters.and_then(|counters| counters.start().is_ok().then_some(counters));
        let before = ThreadUsage::read();
        // Ordering: AcqRel makes the last arriving thread see the preparations of all others; the
        // loop's Acquire pairs with the other threads' decrements.
        self.start.fetch_sub(1, Ordering::AcqRel);
        while self.start.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
        let groups = self.groups.as_ptr_range();
        let stamps = self.trace.stamps.as_mut_ptr();
        // SAFETY: the contract at the head of `drive.rs` is kept:
        // - `self` owns `groups` and the steps they point at, and no group is empty;
        // - routines lie in a live code area, and `CodeArea` assembled them to the same contract;
        // - `stamps` has room for `windows + 1` entries, as `prepare` made it.
        let end =
            unsafe { dimmer_probe_drive(groups.start, groups.end, stamps, operands.as_ptr()) };
        self.trace.counts = counters.and_then(counts);
        let after = ThreadUsage::read();
        debug_assert_eq!(end, stamps.wrapping_add(self.windows + 1));
        self.trace.page_faults = (after.minor_faults + after.major_faults)
            .saturating_sub(before.minor_faults + before.major_faults);
        self.trace.preemptions =
            after.involuntary_switches.saturating_sub(before.involuntary_switches);
        self.trace
    }
}

/// Reads the counters; `None` if they did not have the hardware all the time.
fn counts(counters: &mut Counters) -> Option<Counts> {
    counters.stop().ok()?;
    let counted = counters.read().ok()?;
    let complete = counted.running == counted.enabled;
    let names = counters.countables().iter().map(Countable::name);
    let events = names.zip(counted.values).collect();
    complete.then_some(Counts { ns: counted.enabled.ns() as f64, events })
}

/// Opens counters of the calling thread: for all of `events`, or for the first, or none.
fn open(events: &[Countable]) -> Option<Counters> {
    let tries = [events, &events[..events.len().min(1)]];
    let mut tries = tries.into_iter().filter(|events| !events.is_empty());
    tries.find_map(|events| Counters::open(&Root::live(), events).ok())
}

/// A pinned thread.
#[derive(Debug)]
pub(super) struct Worker {
    cpu: CpuId,
    orders: Option<Sender<Order>>,
    traces: Receiver<Trace>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts the thread and waits until it is pinned.
    pub(super) fn start(cpu: CpuId, events: &[Countable]) -> Result<Self, TargetError> {
        let events = events.to_vec();
        let (orders, inbox) = channel::<Order>();
        let (outbox, traces) = channel();
        let (ready, pinned) = channel();
        let body = move || {
            // Keeps the thread pinned until it ends.
            let _pinned = match affinity::pin(&Root::live(), cpu) {
                Ok(pinned) => pinned,
                Err(error) => {
                    // The receiver waits for exactly this message.
                    let _ = ready.send(Err(error));
                    return;
                }
            };
            if ready.send(Ok(())).is_err() {
                return;
            }
            let operands = OperandPage::new();
            let mut counters = open(&events);
            for order in inbox {
                if outbox.send(order.execute(&operands, counters.as_mut())).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("probe-{cpu}")).spawn(body);
        let thread =
            thread.map_err(|source| TargetError::Memory { what: "a measuring thread", source })?;
        let pinned = pinned.recv().map_err(|_| TargetError::ThreadGone { cpu })?;
        pinned.map_err(|error| TargetError::Cpu { cpu, why: error.to_string() })?;
        Ok(Self { cpu, orders: Some(orders), traces, thread: Some(thread) })
    }

    /// Sends the thread a program.
    pub(super) fn send(&self, order: Order) -> Result<(), TargetError> {
        let gone = TargetError::ThreadGone { cpu: self.cpu };
        self.orders.as_ref().and_then(|orders| orders.send(order).ok()).ok_or(gone)
    }

    /// Waits for the trace of the program.
    pub(super) fn receive(&self) -> Result<Trace, TargetError> {
        self.traces.recv().map_err(|_| TargetError::ThreadGone { cpu: self.cpu })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has already printed its message, and there is nothing left to
            // free.
            let _ = thread.join();
        }
    }
}

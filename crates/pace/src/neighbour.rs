//! An agent that makes the requests of other threads, so that they do not wait for the machine.
//!
//! Paper 002, section 4.3, strategy `dlgt`: the thread on the neighbour core makes the request. On
//! today's machines any other core can, so the process has one agent, wherever the kernel puts it.

use std::cell::OnceCell;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, Thread};

use dimmer_processor::units::CpuId;

use crate::Request;
use crate::back_end;
use crate::thread::{outside, request_for, request_for_within};
use crate::{follower, helper};

/// Looks for requests before the agent sleeps. A guess: some ten microseconds.
const LOOKS: u32 = 400;

/// What a thread wants from the agent.
#[derive(Debug)]
pub(crate) struct Slot {
    thread: u32,
    /// The CPU in the upper half, and the request's number; 0 if there is none. A newer one
    /// replaces one that the agent has not made yet.
    wanted: AtomicU64,
    /// Taken for as long as the agent makes a request.
    work: Mutex<Work>,
}

#[derive(Debug, Default)]
struct Work {
    has_request: bool,
    has_ended: bool,
}

impl Slot {
    /// Makes the request that the thread wants. Returns whether there was one.
    fn serve(&self) -> bool {
        if self.wanted.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: what was taken back before is not made after.
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        let number = u8::try_from(wanted & 0xFF).unwrap_or(0);
        let cpu = CpuId::new(u32::try_from(wanted >> 32).unwrap_or(0));
        if let (Some(request), false) = (Request::of_number(number), work.has_ended) {
            work.has_request = true;
            request_for(self.thread, cpu, Some(request));
            follower::attend();
        }
        true
    }

    /// Takes back what the agent has not made yet, and ends what it has made. Called within
    /// [`outside`], so that a signal handler that requests something does not wait for it.
    fn settle(&self, has_ended: bool) {
        self.wanted.store(0, Ordering::Relaxed);
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanted.store(0, Ordering::Relaxed);
        work.has_ended |= has_ended;
        if std::mem::take(&mut work.has_request) {
            request_for_within(self.thread, CpuId::new(0), None);
        }
    }
}

/// The agent of the process.
struct Agent {
    process: u32,
    thread: Thread,
    slots: Arc<Slots>,
}

#[derive(Default)]
struct Slots {
    all: Mutex<Vec<Arc<Slot>>>,
    have_changed: AtomicBool,
}

impl Slots {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Slot>>)) {
        change(&mut self.all.lock().unwrap_or_else(PoisonError::into_inner));
        self.have_changed.store(true, Ordering::Release);
    }

    fn serve(&self) -> ! {
        let (mut own, mut looks) = (Vec::new(), 0);
        loop {
            if self.have_changed.swap(false, Ordering::Acquire) {
                own.clone_from(&*self.all.lock().unwrap_or_else(PoisonError::into_inner));
            }
            let served = own.iter().filter(|slot| slot.serve()).count();
            looks = if served > 0 { 0 } else { looks + 1 };
            if looks < LOOKS {
                spin_loop();
            } else {
                thread::park();
                looks = 0;
            }
        }
    }
}

/// The agent; `None` if there is no other CPU for it, or the system makes no thread.
fn agent() -> Option<&'static Agent> {
    static AGENT: OnceLock<Option<Agent>> = OnceLock::new();
    let agent = AGENT.get_or_init(|| {
        let slots = Arc::new(Slots::default());
        let own = Arc::clone(&slots);
        let thread = helper::start("dimmer-agent", move || own.serve())?;
        Some(Agent { process: std::process::id(), thread, slots })
    });
    // A child of fork has no copy of the thread.
    agent.as_ref().filter(|agent| agent.process == std::process::id())
}

thread_local! {
    static SLOT: OnceCell<Own> = const { OnceCell::new() };
}

/// A thread's slot. The request in it ends with the thread.
struct Own(Arc<Slot>);

impl Drop for Own {
    fn drop(&mut self) {
        let Some(agent) = agent() else { return };
        let _ = outside(|| self.0.settle(true));
        agent.slots.change(|all| all.retain(|slot| !Arc::ptr_eq(slot, &self.0)));
        agent.thread.unpark();
    }
}

/// Has the agent make this the request of the thread. Returns false if there is none.
pub(crate) fn hand_over(thread: back_end::Thread, request: Request) -> bool {
    let Some(agent) = agent() else { return false };
    let wanted = u64::from(thread.cpu.index()) << 32 | u64::from(request.number());
    let hand = |own: &OnceCell<Own>| {
        let Own(slot) = own.get_or_init(|| {
            let work = Mutex::default();
            let slot = Arc::new(Slot { thread: thread.id, wanted: AtomicU64::new(0), work });
            agent.slots.change(|all| all.push(Arc::clone(&slot)));
            Own(slot)
        });
        if slot.thread != thread.id {
            // Another thread of the kernel carries this one (`dimmer-runtime`).
            return false;
        }
        slot.wanted.store(wanted, Ordering::Release);
        agent.thread.unpark();
        true
    };
    SLOT.try_with(hand).unwrap_or(false)
}

/// Ends what the agent has requested for the calling thread, which then makes its own requests.
pub(crate) fn settle() {
    let _ = SLOT.try_with(|own| {
        if let Some(Own(slot)) = own.get()
            && agent().is_some()
        {
            slot.settle(false);
        }
    });
}

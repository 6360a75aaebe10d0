//! A thread changes a word for which a thread on another CPU waits, which answers with the time at
//! which it saw the change.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use dimmer_host::affinity::{self, AffinityError};
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;
use rustix::thread::futex;

use super::phase::Phase;
use super::way::Way;
use crate::arch::ticks_now;

/// How long the other thread is waited for. Where CPUs are shared it may have to wait for its CPU.
const LONGEST: Duration = Duration::from_millis(100);

/// Turns of a waiting loop between two looks at the time.
const PATIENCE: u32 = 1024;

/// One exchange, in ticks of the time-stamp counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    /// The word is changed.
    pub(super) sent: u64,
    /// The wake-up has returned; `None` without one.
    pub(super) returned: Option<u64>,
    /// The other thread sees the change, by the counter of its own CPU.
    pub(super) seen: u64,
    /// The answer is here.
    pub(super) back: u64,
}

/// A cache line of its own, with the neighbouring line that processors fetch along with it.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// What the two threads share.
#[derive(Debug, Default)]
struct Shared {
    /// The number of the exchange: the waiting thread waits while it is the number before.
    word: Line<AtomicU32>,
    /// The number for which the other thread waits.
    ready: Line<AtomicU32>,
    /// When it saw the last change; counters only grow, so each answer differs.
    answer: Line<AtomicU64>,
    is_over: Line<AtomicBool>,
}

/// How exchanges are made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The CPU of the thread that changes the word: the calling one.
    pub(super) from: CpuId,
    /// The CPU of the thread that waits.
    pub(super) to: CpuId,
    pub(super) way: Way,
    /// How long it has waited at least when the word changes.
    pub(super) asleep: Duration,
    /// Number of exchanges.
    pub(super) count: usize,
}

/// Makes exchanges. Fewer than asked for if the other thread did not answer in time.
///
/// # Errors
/// [`AffinityError`]: a thread cannot be pinned.
pub(super) fn exchanges(
    root: &Root,
    terms: Terms,
    phase: &mut Phase,
) -> Result<Vec<Exchange>, AffinityError> {
    let shared = Shared::default();
    std::thread::scope(|scope| {
        // Spawned before the calling thread is pinned: threads inherit the affinity.
        let waiter = scope.spawn(|| {
            let _pinned = affinity::pin(root, terms.to)?;
            shared.answer(terms.way);
            Ok(())
        });
        let made = affinity::pin(root, terms.from).map(|_pinned| shared.ask(terms, phase));
        shared.end();
        match waiter.join() {
            Ok(answered) => answered.and(made),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

impl Shared {
    /// Answers every change of the word.
    fn answer(&self, way: Way) {
        let (mut before, word) = (0, &self.word.0);
        loop {
            // Ordering: pairs with the Acquire in `ask`; nothing but the number is passed on.
            self.ready.0.store(before + 1, Ordering::Release);
            let now = loop {
                // Ordering: pairs with the Release in `ask`.
                let now = word.load(Ordering::Acquire);
                if now != before {
                    break now;
                }
                if self.is_over.0.load(Ordering::Relaxed) {
                    return;
                }
                way.wait(word, before);
            };
            // Ordering: pairs with the Acquire in `ask`.
            self.answer.0.store(ticks_now(), Ordering::Release);
            before = now;
        }
    }

    /// Changes the word, and waits for each answer.
    fn ask(&self, terms: Terms, phase: &mut Phase) -> Vec<Exchange> {
        let mut made = Vec::with_capacity(terms.count);
        let mut last = 0;
        for number in (1..).take(terms.count) {
            // Ordering: pairs with the Release in `answer`.
            if !waited(|| self.ready.0.load(Ordering::Acquire) == number) {
                break;
            }
            phase.execute(terms.asleep);
            let sent = ticks_now();
            // Ordering: pairs with the Acquire in `answer`.
            self.word.0.store(number, Ordering::Release);
            let mut returned = None;
            if terms.way == Way::Futex {
                // It is asleep, or sees the change before it sleeps.
                let _ = futex::wake(&self.word.0, futex::Flags::PRIVATE, 1);
                returned = Some(ticks_now());
            }
            let mut seen = last;
            let is_seen = waited(|| {
                // Ordering: pairs with the Release in `answer`.
                seen = self.answer.0.load(Ordering::Acquire);
                seen != last
            });
            let back = ticks_now();
            if !is_seen {
                break;
            }
            last = seen;
            made.push(Exchange { sent, returned, seen, back });
        }
        made
    }

    /// Ends the other thread, whatever it waits for.
    fn end(&self) {
        self.is_over.0.store(true, Ordering::Relaxed);
        self.word.0.fetch_add(1, Ordering::Relaxed);
        let _ = futex::wake(&self.word.0, futex::Flags::PRIVATE, 1);
    }
}

/// Spins until it is so. Returns whether that took less than [`LONGEST`], by a clock that is not
/// read before the first [`PATIENCE`] turns: a reading takes as long as what is waited for.
fn waited(mut is_so: impl FnMut() -> bool) -> bool {
    let mut begin = None;
    loop {
        if (0..PATIENCE).any(|_| is_so()) {
            return true;
        }
        if begin.get_or_insert_with(Instant::now).elapsed() >= LONGEST {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_answer_is_not_waited_for() {
        let cpu = CpuId::new(0);
        let terms = Terms { from: cpu, to: cpu, way: Way::Spin, asleep: Duration::ZERO, count: 10 };
        assert_eq!(Shared::default().ask(terms, &mut Phase::new(1)), []);
    }

    #[test]
    fn an_answering_thread_ends_when_it_is_over() {
        for way in [Way::Spin, Way::Futex] {
            let shared = Shared::default();
            std::thread::scope(|scope| {
                let waiter = scope.spawn(|| shared.answer(way));
                let cpu = CpuId::new(0);
                let terms = Terms { from: cpu, to: cpu, way, asleep: Duration::ZERO, count: 3 };
                let made = shared.ask(terms, &mut Phase::new(1));
                let mut is_woken = made.iter().map(|one| one.returned.is_some());
                assert!(is_woken.all(|is_woken| is_woken == (way == Way::Futex)));
                shared.end();
                assert!(waiter.join().is_ok());
            });
        }
    }
}

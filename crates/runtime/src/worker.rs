//! The thread that is pinned to a dedicated core and runs the work in its lanes.

use std::ffi::CString;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;

use dimmer_host::affinity::{self, AffinityError, Pinned};
use dimmer_host::cpusets;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

use crate::arch;
use crate::can_migrate::check;
use crate::carry::carry;
use crate::from_above::FromAbove;
use crate::lane::{DELEGATE_LEAF, MIGRATE, is_asked};
use crate::shared::Shared;
use crate::slot::{self, Place};
use crate::spawn::{Spawned, spawn};
use crate::start_error::StartError;
use crate::wait::{Patience, Stretch};
use crate::{confined, first_thread, fork, signals};

/// What a worker does that has been idle for a while.
pub(crate) static WHEN_IDLE: FromAbove<1> = FromAbove::new();

/// Prefix of the names of workers' threads; the number of their CPU follows.
pub const WORKERS: &str = "dimmer-";

/// Number of polls of all lanes between two readings of the clock.
const TURNS: u32 = 64;

/// A worker that runs.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    thread: Option<Spawned>,
}

impl Worker {
    /// Starts a worker on a CPU, and returns when it runs there. If the CPU belongs to a cpuset,
    /// `entrance` lets the worker in.
    ///
    /// # Errors
    /// If it cannot be pinned there.
    pub(crate) fn start(
        root: &Root,
        cpu: CpuId,
        entrance: Option<&str>,
        patience: Patience,
    ) -> Result<Self, StartError> {
        let shared = Arc::new(Shared::new(cpu, fork::forks()));
        let (tell, told) = mpsc::channel();
        let mine = Arc::clone(&shared);
        let (root, entrance) = (root.clone(), entrance.map(str::to_owned));
        // Threads inherit the mask: signals are for the program's own threads.
        let mask = signals::exchange();
        let name = CString::new(format!("{WORKERS}{cpu}")).unwrap_or_default();
        let spawned = spawn(move || {
            // If this fails, the thread has the program's name.
            let _ = rustix::thread::set_name(&name);
            let pinned = stand(&root, cpu, entrance.as_deref());
            mine.begin();
            // For children that its work forks.
            signals::remember(mask);
            let (pinned, outcome) = match pinned {
                Ok(pinned) => (Some(pinned), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let is_pinned = outcome.is_ok();
            let _ = tell.send(outcome);
            if is_pinned && mine.work(patience) == Ended::WithProgram {
                first_thread::end_with_program(&mask);
            }
            if confined::is_confined() {
                // A filter of the program's may forbid to change affinities.
                std::mem::forget(pinned);
            }
        });
        signals::set(&mask);
        let thread = spawned.map_err(AffinityError::System)?;
        let has_ended = |_| {
            let ended = std::io::Error::other("the worker did not start");
            Err(AffinityError::System(ended).into())
        };
        match told.recv().unwrap_or_else(has_ended) {
            Ok(()) => Ok(Self { shared, thread: Some(thread) }),
            Err(error) => {
                thread.join();
                Err(error)
            }
        }
    }
}

/// Pins the calling thread to a CPU. The affinity that it has inherited may lack that CPU: `dimmer
/// run` may have kept the thread that has started it off that.
pub(crate) fn stand(root: &Root, cpu: CpuId, entrance: Option<&str>) -> Result<Pinned, StartError> {
    if let Some(entrance) = entrance {
        cpusets::enter(root, entrance)?;
    }
    // If this fails, the next step says why.
    let _ = affinity::allow(&[cpu]);
    Ok(affinity::pin(root, cpu)?)
}

/// Why a worker has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// [`Shared::retire`].
    Retired,
    /// No thread of the program is left.
    WithProgram,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.retire();
        let Some(thread) = self.thread.take() else { return };
        if fork::forks() != self.shared.own.forks {
            // In a child that thread never existed: its handle may refer to another thread by now.
            std::mem::forget(thread);
        } else if self.shared.is_alive() {
            thread.join();
        }
    }
}

impl Shared {
    /// Stores what other threads need about the worker's thread. Runs on that thread.
    fn begin(&self) {
        slot::set_place(Place::Worker);
        // The C library unblocks its cancellation signal in new threads.
        signals::block_as_migrated();
        if check().is_ok() {
            // SAFETY: the check has found that reading it is allowed.
            let own = unsafe { arch::thread_pointer() };
            self.own.thread_pointer.set(own);
            self.own.in_force.set(own);
        }
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        // Ordering: pairs with the load in `Own::thread`.
        self.own.thread.store(u32::try_from(thread).unwrap_or(0), Ordering::Release);
    }

    /// Has the worker end after the work in progress, the last that it gets. Does not wait for it.
    pub(crate) fn retire(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        // Ordering: SeqCst with the doorbell that follows: the worker that goes to sleep sees one
        // or the other.
        self.must_end.store(true, Ordering::SeqCst);
        self.doorbell.wake();
    }

    /// Runs the work in the lanes until the worker must end.
    fn work(&self, patience: Patience) -> Ended {
        let place = 0_u8;
        let stretch = Stretch::default();
        self.own.stack.set((&raw const place).addr());
        loop {
            // Here, and not in each poll: even reading it there made a hand-off a quarter longer.
            if self.is_held_up.load(Ordering::Relaxed) {
                self.is_held_up.store(false, Ordering::Relaxed);
            }
            let mut begin = None;
            let mut turns = TURNS;
            let is_idle = loop {
                if (0..turns).any(|_| self.look()) {
                    break false;
                }
                self.own.settle();
                let since: &mut std::time::Instant =
                    begin.get_or_insert_with(std::time::Instant::now);
                if since.elapsed() >= stretch.of(patience) {
                    break true;
                }
                turns = if self.monitor_wait() { 1 } else { TURNS };
            };
            // Ordering: pairs with the store in `retire`, as for `has_work` below.
            if self.must_end.load(Ordering::SeqCst) {
                // Work that no thread waits for, since its owner has leaked it (`forget`).
                self.look();
                self.own.settle();
                return Ended::Retired;
            }
            if is_idle {
                // Ordering: SeqCst, after the doorbell says that this worker sleeps: see the store
                // in `retire`.
                let has_work = || self.must_end.load(Ordering::SeqCst) || self.look();
                let is_over = || {
                    WHEN_IDLE.call();
                    first_thread::is_program_over()
                };
                if !self.doorbell.sleep(has_work, is_over) {
                    return Ended::WithProgram;
                }
                if let Some(since) = begin {
                    stretch.has_slept(patience, since.elapsed());
                }
            }
        }
    }

    /// Waits for a change of the only lane, see
    /// [`Word::monitor_wait`](crate::wait::Word::monitor_wait). A processor cannot watch several
    /// lanes.
    fn monitor_wait(&self) -> bool {
        let is_idle = |word| !is_asked(word);
        self.used.load(Ordering::Relaxed) == 1 && self.lanes[0].word.monitor_wait(is_idle)
    }

    /// Polls each lane once, and runs the work there. Returns whether there was any.
    #[inline]
    fn look(&self) -> bool {
        let mut has_found = false;
        for (slot, lane) in self.lanes[..self.used.load(Ordering::Relaxed)].iter().enumerate() {
            let asked = lane.word.value();
            if !is_asked(asked) {
                continue;
            }
            has_found = true;
            if !self.claim(slot, lane, asked) {
                continue;
            }
            self.own.block_faults(asked == DELEGATE_LEAF);
            if asked != MIGRATE {
                self.own.settle();
                // SAFETY: the word requests a call, and this is the lane's worker.
                unsafe { lane.answer_call() };
                if fork::forks() != self.own.forks {
                    end_child();
                }
            } else {
                // SAFETY: the word requests a migration, and this is the lane's worker.
                unsafe { carry(self, lane) };
            }
            self.rest();
        }
        if !has_found {
            std::hint::spin_loop();
        }
        has_found
    }
}

/// Ends a process that was forked by a closure on a worker, when the closure returns: its caller
/// exists only in the parent.
fn end_child() {
    let _ = writeln!(
        std::io::stderr(),
        "dimmer: a closure that was delegated has forked; its child ends where the closure does"
    );
    // SAFETY: ends the process without the exit handlers of its parent.
    unsafe { libc::_exit(1) };
}

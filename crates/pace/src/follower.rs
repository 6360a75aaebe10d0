//! A thread that looks where the registered threads are, and moves the requests of those that have
//! moved: where requests are for cores, the kernel does not take them along.
//!
//! It starts with the first such request, and sleeps while no registered thread has one. A process
//! that may run on one CPU only has none.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use dimmer_host::{affinity, signals};
use dimmer_processor::units::CpuId;

use crate::back_end::{self, Refused};
use crate::{helper, machine, registry};

/// The time between two looks: for so long, a request may stay with the core that its thread has
/// left. A guess: of the order in which the kernel balances the load between cores.
const INTERVAL: Duration = Duration::from_millis(10);

/// How much longer than a look the time to the next one is at least: looks at many threads take one
/// percent of a CPU at most.
const REST: u32 = 99;

/// Whether the follower sleeps until it is woken.
static IS_ASLEEP: AtomicBool = AtomicBool::new(false);

static MOVES: AtomicU64 = AtomicU64::new(0);

/// How many requests of this process were moved: by this number, a thread sees that its own may
/// have been.
pub(crate) fn moves() -> u64 {
    // Relaxed: a thread that misses a move asks its core with its next request.
    MOVES.load(Ordering::Relaxed)
}

/// A thread of this process has made a request for a core: from now on it follows the thread.
pub(crate) fn attend() {
    static FOLLOWER: OnceLock<Option<Thread>> = OnceLock::new();
    let begin = || {
        helper::begin("dimmer-follower", |has_others| {
            if has_others {
                work()
            }
        })
    };
    let follower = FOLLOWER.get_or_init(begin);
    // Relaxed: `work` says that it sleeps before it looks, and the locks of the registry and the
    // back end order that look and this request. So either it sees the request, or this the word.
    let is_asleep = IS_ASLEEP.load(Ordering::Relaxed) && IS_ASLEEP.swap(false, Ordering::Relaxed);
    follower.iter().filter(|_| is_asleep).for_each(Thread::unpark);
}

/// Looks until the process ends.
fn work() {
    loop {
        let begin = Instant::now();
        if !look() {
            IS_ASLEEP.store(true, Ordering::Relaxed);
            // Again, for a request that was made before that.
            if look() {
                IS_ASLEEP.store(false, Ordering::Relaxed);
            }
        }
        let rest = INTERVAL.max(begin.elapsed() * REST);
        while IS_ASLEEP.load(Ordering::Relaxed) {
            thread::park();
        }
        // Also once it is woken: short requests may wake it all the time.
        thread::sleep(rest);
    }
}

/// Moves the requests of threads that have moved. Returns whether a registered thread has one.
fn look() -> bool {
    let Ok(back_end) = machine::get() else { return false };
    let mut has_request = false;
    for number in registry::numbers() {
        let on = |cpu| back_end::Thread { id: number, cpu };
        let anywhere = on(CpuId::new(0));
        if !signals::is_own_thread(number) {
            // It has ended without its destructors.
            registry::forget(number);
            note(back_end.request_for(anywhere, None));
            continue;
        }
        if back_end.is_for(anywhere).is_none() {
            continue;
        }
        has_request = true;
        // Without a number of a file, /proc cannot be read; the next look may.
        let Some(thread) = registry::cpu(number).map(on) else { continue };
        let Some(is_there) = back_end.is_for(thread) else { continue };
        // Of a thread that sleeps, the kernel names the CPU that executed it last. It executes it
        // elsewhere once it wakes if it must.
        let may_be_there =
            || affinity::allowed_to(thread.id).is_ok_and(|all| all.contains(&thread.cpu));
        if !is_there && may_be_there() {
            follow(thread);
        }
    }
    has_request
}

/// The request of this thread, if it has one, is for this CPU from now on.
pub(crate) fn follow(thread: back_end::Thread) {
    let Ok(back_end) = machine::get() else { return };
    note(back_end.follow(thread));
    MOVES.fetch_add(1, Ordering::Relaxed);
}

fn note(result: Result<(), Refused>) {
    if let Err(Refused::Lost(trouble)) = result {
        machine::report(trouble);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use dimmer_host::root::Root;

    use super::*;
    use crate::{Decision, Request, prepare_under, request_for};

    /// As one that ends by the system call alone: it runs no destructors.
    #[test]
    fn the_request_of_a_thread_that_has_vanished_ends() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let folder = root.path("/sys/devices/system/cpu/cpufreq/policy0");
        fs::create_dir_all(&folder).unwrap();
        for (name, content) in [
            ("affected_cpus", "0"),
            ("cpuinfo_max_freq", "4000000"),
            ("cpuinfo_min_freq", "800000"),
            ("scaling_governor", "schedutil"),
            ("scaling_max_freq", "3600000"),
            ("scaling_min_freq", "1000000"),
        ] {
            fs::write(folder.join(name), content).unwrap();
        }
        prepare_under(&root).unwrap();
        let slowest = || fs::read_to_string(folder.join("scaling_min_freq")).unwrap();
        let gone = thread::spawn(registry::number).join().unwrap();
        registry::enter(gone);
        let asked = request_for(gone, CpuId::new(0), Some(Request::SLOW));
        assert_eq!((asked, slowest().trim()), (Decision::Requested, "800000"));
        look();
        assert_eq!(slowest().trim(), "1000000");
        assert!(!registry::numbers().contains(&gone));
    }
}

//! A barrier of `dimmer-locks` for C, with a strategy.

use std::ffi::{CStr, c_char, c_int, c_uint};

use dimmer_locks::{Barrier as Plain, Decorated, Paced, Strategy, Within};

use crate::made::{Content, Made, Wanted, wanted};

/// A barrier with a strategy for the clocks of its threads (docs/locks.md). What it contains is not
/// for use.
///
/// dimmer_barrier_init() makes it; it must not be copied or moved then. Any thread may use it, but
/// not in a signal handler.
#[derive(Debug)]
#[repr(C)]
pub struct Barrier {
    /// Not for use.
    pub own: [u64; 16],
}

/// What lies in a [`Barrier`].
struct Own {
    /// Whether threads spin for some microseconds and sleep then.
    is_auto: bool,
    barrier: Decorated<Plain, Paced>,
    /// Threads that wait, or still use the barrier after the end of their round.
    within: Within,
}

impl Content for Own {
    const MARK: u32 = 0x6469_6d62;
}

/// The names of the strategies: those that do not need an owner.
const NAMES: &CStr = c"auto, spin, mwait, futex, one, wait";

/// Whether the strategy is for barriers.
const fn is_for_barriers(strategy: Strategy) -> bool {
    matches!(
        strategy,
        Strategy::Spin | Strategy::Mwait | Strategy::Futex | Strategy::One(_) | Strategy::Wait
    )
}

/// Makes a barrier for `count` threads, for any number of rounds.
///
/// * `strategy`: `spin`, `mwait`, `futex`, `one` or `wait` as for dimmer_mutex_init(); with `auto`
///   and NULL, threads spin for some microseconds and sleep then. `ownr`, `dlgt` and `mgrt` are for
///   the owner of a lock, which a barrier does not have.
///
/// Returns 0; EINVAL if `barrier` is NULL, if `count` is 0, or if there is no such strategy for
/// barriers (dimmer_barrier_strategies()). Then the barrier was not made.
///
/// # Safety
/// `barrier` is NULL or refers to memory of a `dimmer_barrier` that holds none. `strategy` is NULL
/// or ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_barrier_init(
    barrier: *mut Barrier,
    strategy: *const c_char,
    count: c_uint,
) -> c_int {
    // SAFETY: the caller guarantees a text.
    let wanted = unsafe { wanted(strategy) };
    let make = || {
        let strategy = match wanted? {
            Wanted::Auto => Strategy::Spin,
            Wanted::Fixed(strategy) => Some(strategy).filter(|own| is_for_barriers(*own))?,
        };
        let barrier = Decorated::around(Plain::new(count), strategy, Paced);
        let is_auto = wanted == Some(Wanted::Auto);
        (count > 0).then_some(Own { is_auto, barrier, within: Within::new() })
    };
    // SAFETY: the caller guarantees the memory.
    unsafe { Made::put(barrier, make) }
}

/// Ends a barrier. Its memory may hold another one then. Threads whose round has ended may still be
/// in dimmer_barrier_wait(): as pthread_barrier_destroy(), this waits for them.
///
/// Returns 0; EBUSY if threads wait, and the barrier stays; EINVAL if there is none.
///
/// # Safety
/// `barrier` is NULL or refers to a `dimmer_barrier`. No thread is in a call with it, except for
/// those that wait, and those whose round has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_barrier_destroy(barrier: *mut Barrier) -> c_int {
    // SAFETY: the caller guarantees it.
    unsafe {
        Made::<Own>::end(barrier, |own| {
            let has_arrived = own.barrier.raw().has_arrived();
            if !has_arrived {
                own.within.until_left();
            }
            has_arrived
        })
    }
}

/// Executes what the strategy has for a thread that starts, as dimmer_mutex_start().
///
/// Returns 0; EINVAL if there is no barrier.
///
/// # Safety
/// `barrier` is NULL or refers to a `dimmer_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_barrier_start(barrier: *mut Barrier) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(barrier) }) else { return libc::EINVAL };
    own.barrier.start();
    0
}

/// Waits until `count` threads have called this, as the strategy does.
///
/// Returns -1 to the last of them (as pthread_barrier_wait(), PTHREAD_BARRIER_SERIAL_THREAD) and 0
/// to the others; EINVAL if there is no barrier.
///
/// # Safety
/// `barrier` is NULL or refers to a `dimmer_barrier`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dimmer_barrier_wait(barrier: *mut Barrier) -> c_int {
    // SAFETY: the caller guarantees it.
    let Some(own) = (unsafe { Made::<Own>::get(barrier) }) else { return libc::EINVAL };
    own.within.enter();
    let is_last = if own.is_auto { own.barrier.raw().wait() } else { own.barrier.wait_for_all() };
    own.within.leave();
    if is_last { libc::PTHREAD_BARRIER_SERIAL_THREAD } else { 0 }
}

/// The names that dimmer_barrier_init() accepts, for messages: `auto, spin, ...`.
#[unsafe(no_mangle)]
pub extern "C" fn dimmer_barrier_strategies() -> *const c_char {
    NAMES.as_ptr()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_strategies_for_barriers_are_named() {
        let named = Strategy::ALL.into_iter().filter(|own| is_for_barriers(*own));
        let names: Vec<&str> = ["auto"].into_iter().chain(named.map(Strategy::name)).collect();
        assert_eq!(NAMES.to_str(), Ok(names.join(", ").as_str()));
    }

    #[test]
    fn a_barrier_that_a_thread_waits_for_stays() {
        let mut memory = Barrier { own: [0; 16] };
        let barrier = &raw mut memory;
        // SAFETY: the memory is this test's, here and below.
        assert_eq!(unsafe { dimmer_barrier_init(barrier, std::ptr::null(), 2) }, 0);
        // SAFETY: it was made.
        let own = unsafe { Made::<Own>::get(barrier) }.unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| own.barrier.raw().wait());
            while !own.barrier.raw().has_arrived() {
                std::thread::yield_now();
            }
            // SAFETY: the other thread waits.
            assert_eq!(unsafe { dimmer_barrier_destroy(barrier) }, libc::EBUSY);
            // SAFETY: it was made.
            assert_eq!(unsafe { dimmer_barrier_wait(barrier) }, -1);
        });
        // SAFETY: no thread is in a call with it.
        assert_eq!(unsafe { dimmer_barrier_destroy(barrier) }, 0);
    }

    #[test]
    fn the_end_of_a_barrier_waits_for_threads_that_still_use_it() {
        let mut memory = Barrier { own: [0; 16] };
        let barrier = &raw mut memory;
        // SAFETY: the memory is this test's, here and below.
        assert_eq!(unsafe { dimmer_barrier_init(barrier, std::ptr::null(), 1) }, 0);
        // SAFETY: it was made.
        let own = unsafe { Made::<Own>::get(barrier) }.unwrap();
        let has_left = AtomicBool::new(false);
        own.within.enter();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                has_left.store(true, Ordering::Relaxed);
                own.within.leave();
            });
            // SAFETY: no thread waits.
            assert_eq!(unsafe { dimmer_barrier_destroy(barrier) }, 0);
            assert!(has_left.load(Ordering::Relaxed));
        });
    }
}

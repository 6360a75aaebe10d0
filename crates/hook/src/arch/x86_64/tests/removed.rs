//! Hooks that are taken out while calls go on.

use std::sync::atomic::AtomicU64;

use super::*;

/// The numbers of the other functions.
const SAME: usize = 2;
const CALL: usize = 3;
const LEAF: usize = 4;

/// The address of each function, by its number.
macro_rules! addresses {
    ($module:ident) => {
        [
            $module::sum as *const (),
            $module::jump as *const (),
            $module::same as *const (),
            $module::call as *const (),
            $module::leaf as *const (),
        ]
    };
}

/// Whether the function has its own first instruction.
fn is_plain(function: *const ()) -> bool {
    // SAFETY: code of this file, which starts with an instruction of this length.
    unsafe { std::slice::from_raw_parts(function.cast::<u8>(), HEAD.len()) == HEAD }
}

#[test]
fn a_function_without_its_hook_is_what_it_was() {
    if !can_move() {
        return;
    }
    let hooked = taken_out::hook(Some(How::Moved));
    let at = addresses!(taken_out);
    let ledger = Ledger::open(hooked.hooks.ledger().path()).unwrap();
    (0..at.len()).for_each(|site| ledger.decide(site, false));
    let call = || {
        // SAFETY: the function needs nothing.
        assert_eq!(unsafe { taken_out::sum(1, 10, 0, 0, 0, 0, 1000) }, 1021);
        // SAFETY: the function needs nothing.
        assert_eq!(unsafe { taken_out::leaf(1, 0, 0, 0, 0, 20) }.1, 41);
        leaves_all_registers(taken_out::same);
    };
    (0..100).for_each(|_| call());
    assert_eq!(hooked.counted(), [100, 0, 100, 0, 100]);
    assert!(!at.iter().any(|at| is_plain(*at)));
    // One whose calls migrate, one whose calls are delegated, and one that is not called.
    [SUM, LEAF, JUMP].into_iter().for_each(|site| ledger.take_out(site));
    (0..100).for_each(|_| call());
    assert_eq!(hooked.counted(), [101, 0, 200, 0, 100], "the first call takes out all");
    assert_eq!(at.map(is_plain), [true, true, false, false, true]);
    ledger.take_out(SAME);
    leaves_all_registers(taken_out::same);
    leaves_all_registers(taken_out::same);
    assert_eq!((hooked.counted()[SAME], is_plain(at[SAME])), (201, true));
    assert!(!is_plain(at[CALL]));
}

/// Calls by the handler below.
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn handle(_: libc::c_int) {
    // SAFETY: the function needs nothing.
    let sum = unsafe { shared::sum(1, 1, 0, 0, 0, 0, 1) };
    HANDLED.fetch_add(sum, Ordering::Relaxed);
}

#[test]
fn hooks_are_taken_out_under_calls_of_other_threads_and_of_signal_handlers() {
    const THREADS: usize = 4;
    if !can_move() {
        return;
    }
    let hooked = shared::hook(Some(How::Moved));
    let at = addresses!(shared);
    let ledger = Ledger::open(hooked.hooks.ledger().path()).unwrap();
    (0..at.len()).for_each(|site| ledger.decide(site, false));
    // SAFETY: zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    let before = std::ptr::null_mut();
    // SAFETY: the handler calls a function without effects, and adds to a number.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &raw const action, before) }, 0);
    extern "C" fn seven() -> u64 {
        7
    }
    let rounds = [const { AtomicU64::new(0) }; THREADS];
    let threads = [const { AtomicU32::new(u32::MAX) }; THREADS];
    let is_over = AtomicU32::new(0);
    let call = |rounds: &AtomicU64| {
        while is_over.load(Ordering::Relaxed) == 0 {
            let turn = rounds.fetch_add(1, Ordering::Relaxed);
            // SAFETY: the function needs nothing.
            assert_eq!(unsafe { shared::sum(turn, 10, 0, 0, 0, 0, 1000) }, turn + 1020);
            // SAFETY: the function needs nothing.
            assert_eq!(unsafe { shared::jump(turn, 1, 0, 0, 0, 0, 5) }, turn + 8);
            // SAFETY: the function needs nothing.
            assert_eq!(unsafe { shared::call(seven) }, 7);
            // SAFETY: the function needs nothing.
            assert_eq!(unsafe { shared::leaf(turn, 0, 0, 0, 0, 20) }.1, turn + 40);
            leaves_all_registers(shared::same);
        }
    };
    std::thread::scope(|scope| {
        for (rounds, thread) in rounds.iter().zip(&threads) {
            slots::expect_thread();
            scope.spawn(|| {
                thread.store(
                    rustix::thread::gettid().as_raw_pid().cast_unsigned(),
                    Ordering::Relaxed,
                );
                call(rounds);
            });
        }
        let goes_on = || {
            let before = rounds.each_ref().map(|one| one.load(Ordering::Relaxed));
            while rounds
                .iter()
                .zip(before)
                .any(|(one, before)| one.load(Ordering::Relaxed) < before + 1000)
            {
                for thread in &threads {
                    let thread = thread.load(Ordering::Relaxed).cast_signed();
                    let process = std::process::id().cast_signed();
                    // SAFETY: a thread that has not ended, or -1 for none yet.
                    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR2) };
                }
                std::thread::yield_now();
            }
        };
        for site in [LEAF, SUM, CALL, JUMP, SAME] {
            goes_on();
            assert!(!is_plain(at[site]));
            ledger.take_out(site);
            goes_on();
            assert!(is_plain(at[site]), "{site}");
        }
        is_over.store(1, Ordering::Relaxed);
    });
    assert!(HANDLED.load(Ordering::Relaxed) > 0);
}

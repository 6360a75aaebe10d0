//! Calls of hooked functions of the tests' own: counted, timed, migrated and delegated. Each
//! returns what it would without hooks, and leaves the registers as it would.

use std::arch::global_asm;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dimmer_scan::Leaf;
use tempfile::TempDir;

use crate::arch::rows::{Row, TABLE};
use crate::arch::thread_block::{counters, is_migrated, time_next};
use crate::ledger::{Ledger, OwnLedger};
use crate::plan::PlannedEntry;
use crate::process::{NEVER_TIMES, ONLY_COUNTS};
use crate::{
    Hooks, LeafCall, LeafEnd, Mover, SIGNALS_ARE_RIGHT, TimedCall, Watcher, allow_migration,
    cut_migration_short, gate, inhibit_migration, slots,
};

/// The first instruction of each function below.
const HEAD: [u8; 5] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

// Pages of their own, which are not executable while entries are patched. One set for each test,
// since functions stay hooked.
macro_rules! functions {
    ($module:ident) => {
        mod $module {
            use super::*;

            global_asm!(
                concat!(
                    ".section .text.dimmer_hook_tests_",
                    stringify!($module),
                    ",\"ax\",@progbits"
                ),
                ".p2align 12",
                // The first argument, twice the second, and the seventh, which is on the stack.
                concat!(".hidden dimmer_hook_test_sum_", stringify!($module)),
                concat!(".globl dimmer_hook_test_sum_", stringify!($module)),
                concat!("dimmer_hook_test_sum_", stringify!($module), ":"),
                ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "lea rax, [rdi + 2 * rsi]",
                "add rax, [rsp + 8]",
                "ret",
                ".p2align 6",
                // Goes on in the first function by a jump, with one more.
                concat!(".hidden dimmer_hook_test_jump_", stringify!($module)),
                concat!(".globl dimmer_hook_test_jump_", stringify!($module)),
                concat!("dimmer_hook_test_jump_", stringify!($module), ":"),
                ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "lea rdi, [rdi + 1]",
                concat!("jmp dimmer_hook_test_sum_", stringify!($module)),
                ".p2align 6",
                // Changes nothing.
                concat!(".hidden dimmer_hook_test_same_", stringify!($module)),
                concat!(".globl dimmer_hook_test_same_", stringify!($module)),
                concat!("dimmer_hook_test_same_", stringify!($module), ":"),
                ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "ret",
                ".p2align 6",
                // Calls the function that is its argument.
                concat!(".hidden dimmer_hook_test_call_", stringify!($module)),
                concat!(".globl dimmer_hook_test_call_", stringify!($module)),
                concat!("dimmer_hook_test_call_", stringify!($module), ":"),
                ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "push rbx",
                "call rdi",
                "pop rbx",
                "ret",
                ".p2align 6",
                // A leaf function: the thread pointer, and the sum of two registers.
                concat!(".hidden dimmer_hook_test_leaf_", stringify!($module)),
                concat!(".globl dimmer_hook_test_leaf_", stringify!($module)),
                concat!("dimmer_hook_test_leaf_", stringify!($module), ":"),
                ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
                "mov rax, fs:[0]",
                "lea rdx, [rdi + 2 * r9]",
                "ret",
                ".p2align 12",
                ".text",
            );

            unsafe extern "C" {
                #[link_name = concat!("dimmer_hook_test_sum_", stringify!($module))]
                pub(super) fn sum(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64, last: u64)
                -> u64;
                #[link_name = concat!("dimmer_hook_test_jump_", stringify!($module))]
                pub(super) fn jump(
                    a: u64,
                    b: u64,
                    c: u64,
                    d: u64,
                    e: u64,
                    f: u64,
                    last: u64,
                ) -> u64;
                #[link_name = concat!("dimmer_hook_test_same_", stringify!($module))]
                pub(super) fn same();
                #[link_name = concat!("dimmer_hook_test_call_", stringify!($module))]
                pub(super) fn call(function: extern "C" fn() -> u64) -> u64;
                #[link_name = concat!("dimmer_hook_test_leaf_", stringify!($module))]
                pub(super) fn leaf(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> Two;
            }

            /// Hooks the functions, in the order above.
            pub(super) fn hook(how: Option<How>) -> Hooked {
                let base = sum as *const () as u64;
                let at =
                    [sum as *const (), jump as *const (), same as *const (), call as *const ()];
                let mut entries: Vec<PlannedEntry> =
                    at.iter().map(|at| PlannedEntry::new(*at as u64 - base, 5)).collect();
                let leaf = Leaf {
                    reads_general: 1 << RDI | 1 << R9,
                    reads_vectors: 0,
                    returns_general: 1 << RAX | 1 << RDX,
                    returns_vectors: None,
                };
                let at = super::$module::leaf as *const () as u64 - base;
                entries.push(PlannedEntry { leaf: Some(leaf), ..PlannedEntry::new(at, 5) });
                Hooked::new(base, &entries, how)
            }
        }
    };
}

functions!(timed);
functions!(jumped);
functions!(migrated);
functions!(delegated);
functions!(gated);
functions!(marked);
functions!(watched);

/// The processor's numbers of registers.
const RAX: u16 = 0;
const RDX: u16 = 2;
const RDI: u16 = 7;
const R9: u16 = 9;

/// The numbers of the functions among those that are hooked.
const SUM: usize = 0;
const JUMP: usize = 1;

/// What comes back in rax and rdx.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Two(u64, u64);

/// What becomes of calls of hooked functions.
enum How {
    /// All are moved.
    Moved,
    /// They stop at gates.
    Gated,
    /// They pass a mark, the number of the function.
    Marked,
    /// They are watched, by the number of the function.
    Watched,
}

/// Hooked functions, and the ledger that counts their calls.
struct Hooked {
    hooks: Hooks,
    _directory: TempDir,
    _one_at_a_time: MutexGuard<'static, ()>,
}

/// Whether calls can move on this processor; prints the reason if not.
#[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
pub(crate) fn can_move() -> bool {
    let form = super::registers::Form::find();
    if let Err(why) = &form {
        println!("SKIPPED: {why}");
    }
    form.is_ok()
}

/// Tests that hook functions run one at a time: threads claim slots of the last ledger, and all
/// share the table of return addresses.
pub(crate) fn one_at_a_time() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hooked {
    fn new(base: u64, entries: &[PlannedEntry], how: Option<How>) -> Self {
        let _one_at_a_time = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        let ledger = OwnLedger::create(directory.path()).unwrap();
        let mut hooks = Hooks::new(ledger, BTreeSet::new(), None);
        match &how {
            Some(How::Moved) => hooks.move_by(COUNTING, true).unwrap(),
            Some(How::Gated) => hooks.stop_at_gates(COUNTING).unwrap(),
            Some(How::Marked) => hooks.pass_marks(pass).unwrap(),
            Some(How::Watched) => hooks.watch(WATCHER).unwrap(),
            None => {}
        }
        let object = hooks.ledger().add_objects(&[(base, Path::new("tests"))]).unwrap().start;
        let is_mark = matches!(how, Some(How::Marked | How::Watched));
        let number = |at: usize| u32::try_from(at).ok().filter(|_| is_mark);
        let entries = entries.iter().enumerate();
        let entries: Vec<(PlannedEntry, &[u8])> = entries
            .map(|(at, entry)| (PlannedEntry { mark: number(at), ..*entry }, &HEAD[..]))
            .collect();
        // SAFETY: the functions are on pages of their own, start with an instruction of five bytes,
        // and no other thread calls them.
        assert_eq!(unsafe { hooks.patch(object, base, &entries, &BTreeSet::new()) }.unwrap(), 0);
        Self { hooks, _directory: directory, _one_at_a_time }
    }

    /// Runs `look` on the calling thread's part of the ledger.
    fn seen<T>(&self, look: impl FnOnce(&crate::Thread<'_>) -> T) -> T {
        let ledger = Ledger::open(self.hooks.ledger().path()).unwrap();
        let number = slots::number_of(counters()).unwrap();
        look(&ledger.thread(number).unwrap())
    }

    /// The calls that were timed since the last time.
    fn timed(&self) -> Vec<TimedCall> {
        let mut timed = Vec::new();
        self.seen(|thread| thread.drain(|call| timed.push(call)));
        timed
    }

    /// The number of calls of each function.
    fn counted(&self) -> Vec<u32> {
        let mut look = crate::Look::default();
        self.seen(|thread| thread.look(self.hooks.ledger().site_count(), &mut look));
        look.calls().collect()
    }
}

global_asm!(
    // In: rdi a function, rsi the values of rax, rcx, rdx, rbx, rbp, rsi, rdi and r8 to r15, which
    // it is called with. Out: their values afterwards.
    ".hidden dimmer_hook_test_general",
    ".globl dimmer_hook_test_general",
    "dimmer_hook_test_general:",
    ".irp register, rbx, rbp, r12, r13, r14, r15, rsi, rdi",
    "push \\register",
    ".endr",
    "sub rsp, 8",
    "mov rax, [rsi]",
    "mov rcx, [rsi + 8]",
    "mov rdx, [rsi + 16]",
    "mov rbx, [rsi + 24]",
    "mov rbp, [rsi + 32]",
    "mov rdi, [rsi + 48]",
    ".irp number, 8, 9, 10, 11, 12, 13, 14, 15",
    "mov r\\number, [rsi + 8 * (\\number - 1)]",
    ".endr",
    "mov rsi, [rsi + 40]",
    "call [rsp + 8]",
    // The array's address, and the function's rsi in its place.
    "xchg rsi, [rsp + 16]",
    "mov [rsi], rax",
    "mov [rsi + 8], rcx",
    "mov [rsi + 16], rdx",
    "mov [rsi + 24], rbx",
    "mov [rsi + 32], rbp",
    "mov [rsi + 48], rdi",
    ".irp number, 8, 9, 10, 11, 12, 13, 14, 15",
    "mov [rsi + 8 * (\\number - 1)], r\\number",
    ".endr",
    "mov rax, [rsp + 16]",
    "mov [rsi + 40], rax",
    "add rsp, 24",
    ".irp register, r15, r14, r13, r12, rbp, rbx",
    "pop \\register",
    ".endr",
    "ret",
);

unsafe extern "C" {
    fn dimmer_hook_test_general(function: unsafe extern "C" fn(), registers: *mut [u64; 15]);
}

/// Calls a function that changes nothing, and asserts that all general registers are as before.
#[track_caller]
fn leaves_all_registers(function: unsafe extern "C" fn()) {
    let before: [u64; 15] = std::array::from_fn(|at| 0x0101_0101_0101_0101 * (at as u64 + 1));
    let mut after = before;
    // SAFETY: the function changes nothing, and the array has the length.
    unsafe { dimmer_hook_test_general(function, &raw mut after) };
    assert_eq!(after, before);
}

#[test]
fn counted_and_timed_calls_return_what_they_would() {
    let hooked = timed::hook(None);
    for turn in 0..200 {
        // SAFETY: the function needs nothing.
        assert_eq!(unsafe { timed::sum(turn, 10, 0, 0, 0, 0, 1000) }, turn + 1020);
        leaves_all_registers(timed::same);
    }
    let timed = hooked.timed();
    // All calls are timed at first, but those that are looked at.
    assert!(timed.len() > 100, "{}", timed.len());
    assert!(timed.iter().all(|call| call.begin < call.end && call.ended_in == call.site));
    assert!(!timed.iter().any(|call| call.moved));
    let mut ordered = timed.clone();
    ordered.sort_by_key(|call| call.begin);
    assert_eq!(timed, ordered);
    hooked.seen(|thread| thread.set_period(1 << 20));
    time_next();
    for _ in 0..5000 {
        leaves_all_registers(timed::same);
    }
    assert!(hooked.timed().len() < 5, "with a long period, calls are only counted");
    assert_eq!(hooked.counted()[..3], [200, 0, 5200]);
}

#[test]
fn a_call_that_goes_on_by_a_jump_ends_there() {
    let hooked = jumped::hook(None);
    for turn in 0..50 {
        time_next();
        // SAFETY: the function needs nothing.
        assert_eq!(unsafe { jumped::jump(turn, 1, 0, 0, 0, 0, 5) }, turn + 8);
    }
    let timed = hooked.timed();
    let gone_on = timed.iter().filter(|call| (call.site, call.ended_in) == (JUMP, SUM));
    assert!(gone_on.count() > 20, "{timed:?}");
    assert_eq!(hooked.counted()[..2], [50, 50]);
}

/// Marks in the order in which they were passed, in decimal digits.
static PASSED: AtomicU32 = AtomicU32::new(0);

extern "C" fn pass(mark: u32) -> u64 {
    let digits = PASSED.load(Ordering::Relaxed);
    PASSED.store(digits * 10 + mark + 1, Ordering::Relaxed);
    // Not a mark: in the middle of one.
    // SAFETY: the function needs nothing.
    unsafe { marked::same() };
    SIGNALS_ARE_RIGHT
}

#[test]
fn each_call_passes_its_mark_counted_timed_or_reached_by_a_jump() {
    if !can_move() {
        return;
    }
    let hooked = marked::hook(Some(How::Marked));
    let passed = || PASSED.swap(0, Ordering::Relaxed);
    for period in [1, 1 << 20] {
        for turn in 0..50 {
            // SAFETY: the function needs nothing.
            assert_eq!(unsafe { marked::sum(turn, 10, 0, 0, 0, 0, 1000) }, turn + 1020);
            assert_eq!(passed(), 1);
            // SAFETY: the function needs nothing.
            assert_eq!(unsafe { marked::jump(turn, 1, 0, 0, 0, 0, 5) }, turn + 8);
            assert_eq!(passed(), 21);
            leaves_all_registers(marked::same);
            assert_eq!(passed(), 3);
        }
        hooked.seen(|thread| thread.set_period(period));
    }
    inhibit_migration();
    leaves_all_registers(marked::same);
    allow_migration();
    assert_eq!(passed(), 0);
    crate::marks::switch_off(&[2]);
    let counted = hooked.counted()[2];
    leaves_all_registers(marked::same);
    assert_eq!((passed(), hooked.counted()[2]), (0, counted + 1));
    // SAFETY: the function needs nothing.
    assert_eq!(unsafe { marked::sum(1, 10, 0, 0, 0, 0, 1000) }, 1021);
    assert_eq!(passed(), 1);
}

/// What a watched call did, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// The number of the function, and how the end is seen.
    Called(u32, u32),
    Returned,
    Left,
}

/// The events so far, each with the place on the stack.
static EVENTS: Mutex<Vec<(Event, usize)>> = Mutex::new(Vec::new());

fn add(event: Event, stack: usize) {
    EVENTS.lock().unwrap().push((event, stack));
}

/// Wants to see the end of all calls but those of `same`.
const WATCHER: Watcher = {
    extern "C" fn called(number: u32, stack: usize, end: u32) -> u32 {
        add(Event::Called(number, end), stack);
        // Not reported: in the middle of one.
        // SAFETY: the function needs nothing.
        unsafe { watched::same() };
        u32::from(number != 2)
    }
    extern "C" fn returned(stack: usize) {
        add(Event::Returned, stack);
    }
    extern "C" fn left(stack: usize) {
        add(Event::Left, stack);
    }
    Watcher { called, returned, left }
};

#[test]
fn watched_calls_are_reported_with_their_ends_if_these_are_wanted() {
    use Event::{Called, Returned};
    if !can_move() {
        return;
    }
    let hooked = watched::hook(Some(How::Watched));
    ONLY_COUNTS.store(NEVER_TIMES, Ordering::Relaxed);
    let events = || std::mem::take(&mut *EVENTS.lock().unwrap());
    let kinds = || events().into_iter().map(|(event, _)| event).collect::<Vec<_>>();
    for turn in 0..50 {
        // SAFETY: the function needs nothing.
        assert_eq!(unsafe { watched::sum(turn, 10, 0, 0, 0, 0, 1000) }, turn + 1020);
        assert_eq!(kinds(), [Called(0, 1), Returned]);
        // The function that goes on by a jump ends with the other one, at the same place.
        // SAFETY: the function needs nothing.
        assert_eq!(unsafe { watched::jump(turn, 1, 0, 0, 0, 0, 5) }, turn + 8);
        let seen = events();
        assert!(seen.iter().all(|(_, stack)| *stack == seen[0].1), "{seen:?}");
        let seen: Vec<Event> = seen.into_iter().map(|(event, _)| event).collect();
        assert_eq!(seen, [Called(1, 1), Called(0, 2), Returned]);
        leaves_all_registers(watched::same);
        assert_eq!(kinds(), [Called(2, 1)]);
    }
    // A call within a call is further down the stack.
    extern "C" fn inner() -> u64 {
        // SAFETY: the function needs nothing.
        unsafe { watched::sum(1, 2, 0, 0, 0, 0, 3) }
    }
    // SAFETY: the function needs nothing.
    assert_eq!(unsafe { watched::call(inner) }, 8);
    let seen = events();
    assert_eq!(
        seen.iter().map(|(event, _)| *event).collect::<Vec<_>>(),
        [Called(3, 1), Called(0, 1), Returned, Returned]
    );
    assert!(seen[0].1 > seen[1].1 && seen[0].1 == seen[3].1 && seen[1].1 == seen[2].1);
    inhibit_migration();
    leaves_all_registers(watched::same);
    allow_migration();
    assert_eq!(kinds(), []);
    // Without a free row, no end is seen.
    let free: Vec<&Row> =
        TABLE.iter().filter(|row| row.stack.load(Ordering::Relaxed) == 0).collect();
    free.iter().for_each(|row| row.stack.store(1, Ordering::Relaxed));
    // SAFETY: the function needs nothing.
    assert_eq!(unsafe { watched::sum(1, 10, 0, 0, 0, 0, 1000) }, 1021);
    assert_eq!(kinds(), [Called(0, 0)]);
    free.iter().for_each(|row| row.stack.store(0, Ordering::Relaxed));
    ONLY_COUNTS.store(0, Ordering::Relaxed);
    drop(hooked);
}

static BEGUN: AtomicU32 = AtomicU32::new(0);
static ENDED: AtomicU32 = AtomicU32::new(0);
static CUT: AtomicU32 = AtomicU32::new(0);
static END_OF_CUT: AtomicU32 = AtomicU32::new(0);

/// Counts what it is called for; the thread stays on its kernel thread.
pub(crate) const COUNTING: Mover = {
    extern "C" fn begin(_: u32) -> u32 {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        1
    }
    extern "C" fn end() -> u64 {
        ENDED.fetch_add(1, Ordering::Relaxed);
        SIGNALS_ARE_RIGHT
    }
    extern "C" fn cut() {
        CUT.fetch_add(1, Ordering::Relaxed);
    }
    extern "C" fn end_of_cut() -> u64 {
        END_OF_CUT.fetch_add(1, Ordering::Relaxed);
        SIGNALS_ARE_RIGHT
    }
    extern "C" fn unwind() {}
    fn delegate(call: LeafCall<'_>) -> Option<LeafEnd> {
        std::thread::scope(|scope| scope.spawn(|| call.make()).join().ok())
    }
    Mover {
        begin_migration: begin,
        end_migration: end,
        cut_migration_short: cut,
        end_cut_migration: end_of_cut,
        delegate,
        unwind_delegated: unwind,
    }
};

fn steps() -> [u32; 4] {
    [&BEGUN, &ENDED, &CUT, &END_OF_CUT].map(|count| count.swap(0, Ordering::Relaxed))
}

#[test]
fn migrated_calls_begin_and_end_a_migration_each() {
    if !can_move() {
        return;
    }
    extern "C" fn away() -> u64 {
        is_migrated().into()
    }
    extern "C" fn away_then_cut() -> u64 {
        let was_away = is_migrated();
        cut_migration_short();
        u64::from(was_away) * 2 + u64::from(is_migrated())
    }
    let hooked = migrated::hook(Some(How::Moved));
    // The first call gives the thread its counters, at home.
    // SAFETY: the function needs nothing.
    unsafe { migrated::same() };
    steps();
    // SAFETY: the function needs nothing.
    assert_eq!(unsafe { migrated::sum(1, 2, 0, 0, 0, 0, 4) }, 9);
    leaves_all_registers(migrated::same);
    // SAFETY: the function calls what it gets.
    assert_eq!(unsafe { migrated::call(away) }, 1);
    assert_eq!((steps(), is_migrated()), ([3, 3, 0, 0], false));
    // SAFETY: the function calls what it gets.
    assert_eq!(unsafe { migrated::call(away_then_cut) }, 2);
    assert_eq!(steps(), [1, 0, 1, 1]);
    // While it is inhibited, and inside another call that has migrated, calls stay.
    inhibit_migration();
    // SAFETY: the function calls what it gets.
    assert_eq!(unsafe { migrated::call(away) }, 0);
    allow_migration();
    assert_eq!(steps(), [0; 4]);
    extern "C" fn inner() -> u64 {
        // SAFETY: the function needs nothing.
        unsafe { migrated::sum(1, 1, 0, 0, 0, 0, 1) }
    }
    // SAFETY: the function calls what it gets.
    assert_eq!(unsafe { migrated::call(inner) }, 4);
    assert_eq!(steps(), [1, 1, 0, 0]);
    assert_eq!(hooked.seen(|thread| thread.moved()), 5);
    let moved = hooked.timed().iter().filter(|call| call.moved).count();
    assert_eq!(moved, 5, "each leaves a record");
}

#[test]
fn a_thread_stops_once_a_round_and_the_end_of_that_call_is_told() {
    if !can_move() {
        return;
    }
    let hooked = gated::hook(Some(How::Gated));
    // SAFETY: the function needs nothing.
    let call = || unsafe { gated::sum(1, 2, 0, 0, 0, 0, 4) };
    // The first call gives the thread its counters.
    call();
    steps();
    leaves_all_registers(gated::same);
    assert_eq!((call(), steps()), (9, [2, 2, 0, 0]));
    gate::let_pass(gate::round());
    leaves_all_registers(gated::same);
    assert_eq!((call(), steps()), (9, [0; 4]));
    gate::next_round();
    assert_eq!((call(), steps()), (9, [1, 1, 0, 0]));
    gate::let_pass(gate::round());
    // That of the first function.
    gate::stop_all(0, true);
    // SAFETY: the function needs nothing.
    unsafe { gated::same() };
    assert_eq!((call(), steps()), (9, [1, 1, 0, 0]));
    gate::stop_all(0, false);
    gate::let_pass(0);
    assert_eq!((call(), steps()), (9, [1, 1, 0, 0]));
    assert_eq!(hooked.counted()[..3], [6, 0, 3]);
    gate::let_pass(0);
}

#[test]
fn delegated_calls_run_on_another_thread_with_the_registers_that_they_read() {
    if !can_move() {
        return;
    }
    let hooked = delegated::hook(Some(How::Moved));
    // SAFETY: the function needs nothing.
    let at_home = unsafe { delegated::leaf(1, 0, 0, 0, 0, 3) };
    assert_eq!(at_home.1, 7, "the first call stays, which gives the thread its counters");
    // SAFETY: the function needs nothing.
    let away = unsafe { delegated::leaf(10, 0, 0, 0, 0, 4) };
    assert_eq!(away.1, 18);
    assert_ne!(away.0, at_home.0, "another thread has another thread pointer");
    assert_eq!(hooked.seen(|thread| thread.moved()), 1);
    inhibit_migration();
    // SAFETY: the function needs nothing.
    let inhibited = unsafe { delegated::leaf(10, 0, 0, 0, 0, 4) };
    allow_migration();
    assert_eq!(inhibited, Two(at_home.0, 18));
}

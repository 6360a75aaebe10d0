//! The table of return addresses. It has one row for each call whose return address was taken off
//! the stack, by [`super::swap`] or [`super::migrate`].
//!
//! Each row has a *return stub* of its own, which calls the function and to which the function
//! returns. So the address on the stack identifies the row, and no search is needed. This holds
//! wherever the stack lies by then (coroutines that take turns on one stack are copied out of it
//! and back, as greenlets are), and on any thread. Unwinders find the return address by a handful
//! of additions.
//!
//! A row becomes free when its call returns, or after an exception or the end of a thread has
//! passed the call, which the unwinder reports ([`personality`]). A call that is left in another
//! way (`longjmp`, a coroutine that is never resumed) keeps its row, because it may still return.
//! If no row is free, calls are only counted.

use std::arch::global_asm;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::frame;
use super::thread_block::exchange_left;
use crate::mover::cut_migration_short;
use crate::sections;

/// The number of rows, and of return stubs.
pub(crate) const ROWS: usize = 4096;

/// The number of rows that a search for a free one visits.
pub(crate) const WINDOW: usize = 16;

/// Bytes of a return stub. The stubs of a page have their rows in a table, in the same order. In
/// place of the page's first stub there is the distance to that table, so the first row of that
/// table is unused.
const STUB_BYTES: usize = 16;

/// The same, as a power of two.
pub(crate) const STUB_SHIFT: u32 = STUB_BYTES.trailing_zeros();

/// Return stubs of a page, including the missing first one.
const STUBS_OF_A_PAGE: usize = 4096 / STUB_BYTES;

/// Offset in a return stub to which its call returns.
const RETURNS_AT: usize = 4;

/// A row. Assembly reads and writes it.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Row {
    /// The stack pointer before the call; 0 if the row is free.
    pub(crate) stack: AtomicU64,
    /// The return address.
    pub(crate) returns_to: AtomicU64,
    /// The site's number.
    pub(crate) site: AtomicU32,
    /// Twice the number of interruptions at the call's start, plus one if the call follows a timed
    /// one.
    pub(crate) interrupts: AtomicU32,
    /// The time stamp of the call's start.
    pub(crate) begin: AtomicU64,
    /// Duration of the chain before the call; 0 if there was none.
    pub(crate) clock: AtomicU32,
    /// The number of the site in which the call went on, plus one; 0 if it did not.
    pub(crate) goes_on: AtomicU32,
    /// 1 if the call was moved, [`WATCHED`] if its end is for the [`crate::Watcher`].
    pub(crate) is_migrated: AtomicU32,
}

const ROW_BYTES: usize = size_of::<Row>();
/// The same, as a power of two.
pub(crate) const ROW_SHIFT: u32 = ROW_BYTES.trailing_zeros();
pub(crate) const STACK: usize = offset_of!(Row, stack);
pub(crate) const RETURNS_TO: usize = offset_of!(Row, returns_to);
pub(crate) const SITE: usize = offset_of!(Row, site);
pub(crate) const INTERRUPTS: usize = offset_of!(Row, interrupts);
pub(crate) const BEGIN: usize = offset_of!(Row, begin);
pub(crate) const CLOCK: usize = offset_of!(Row, clock);
pub(crate) const GOES_ON: usize = offset_of!(Row, goes_on);
pub(crate) const IS_MIGRATED: usize = offset_of!(Row, is_migrated);

/// Value of `is_migrated`: the call is a section's, or begins one.
pub(crate) const WATCHED: u32 = 2;

/// Bytes of all return stubs.
pub(crate) const STUBS_BYTES: usize = ROWS * STUB_BYTES;

// The unwinding record has these numbers in its expressions.
const _: () = assert!(ROW_BYTES == 64 && STUB_BYTES == 16 && STUBS_OF_A_PAGE == 256);
const _: () = assert!(STACK == 0 && RETURNS_TO == 8);

pub(crate) static TABLE: [Row; ROWS] = [const {
    Row {
        stack: AtomicU64::new(0),
        returns_to: AtomicU64::new(0),
        site: AtomicU32::new(0),
        interrupts: AtomicU32::new(0),
        begin: AtomicU64::new(0),
        clock: AtomicU32::new(0),
        goes_on: AtomicU32::new(0),
        is_migrated: AtomicU32::new(0),
    }
}; ROWS];

global_asm!(
    ".text",
    ".p2align 12",
    ".hidden dimmer_hook_stubs",
    ".globl dimmer_hook_stubs",
    ".type dimmer_hook_stubs,@function",
    "dimmer_hook_stubs:",
    ".cfi_startproc",
    // libgcc distinguishes frames by their stack address and by whether they are signal frames.
    // This frame has the stack address of its caller, so it is marked as a signal frame. Unwinders
    // subtract nothing from the address in such a frame, so the expression gives one less than the
    // true address.
    ".cfi_signal_frame",
    // Relative to itself, in 32 bits.
    ".cfi_personality 0x1b, {personality}",
    // The stack pointer before the call. It is 8 higher than the current one once the row's number
    // has been pushed: breg7 0, breg16 0, lit15, and, lit9, ge, lit3, shl, plus.
    ".cfi_escape 0x0f, 0x0b, 0x77, 0x00, 0x80, 0x00, 0x3f, 0x1a, 0x39, 0x2a, 0x33, 0x24, 0x22",
    // The return address: register 16 is the value of an expression of 24 bytes. breg16 0, dup,
    // const2u 0xff0, and, lit2, shl: the offset in the page's part of the table.
    ".cfi_escape 0x16, 0x10, 0x18, 0x80, 0x00, 0x12, 0x0a, 0xf0, 0x0f, 0x1a, 0x32, 0x24",
    // swap, const2s -4096, and, dup, deref_size 4, plus, plus: the row, which lies behind the code.
    ".cfi_escape 0x16, 0x0b, 0x00, 0xf0, 0x1a, 0x12, 0x94, 0x04, 0x22, 0x22",
    // plus_uconst 8, deref, lit1, minus.
    ".cfi_escape 0x23, 0x08, 0x06, 0x31, 0x1c",
    ".set dimmer_hook_row, 0",
    ".rept {pages}",
    ".long {table} + dimmer_hook_row * {row_bytes} - .",
    ".zero {stub_bytes} - 4, 0xcc",
    ".rept {stubs_of_a_page} - 1",
    ".set dimmer_hook_row, dimmer_hook_row + 1",
    // In: rsp = C, and below it [`frame::Kept`] with the function. All registers have the values
    // that the function is to find.
    "call qword ptr [rsp - {kept_bytes} + {body_at}]",
    // push, with 32 bits.
    ".byte 0x68",
    ".long dimmer_hook_row",
    "jmp dimmer_hook_return",
    ".p2align 4, 0xcc",
    ".endr",
    ".set dimmer_hook_row, dimmer_hook_row + 1",
    ".endr",
    ".cfi_endproc",
    ".size dimmer_hook_stubs, . - dimmer_hook_stubs",
    table = sym TABLE,
    kept_bytes = const frame::KEPT_BYTES,
    body_at = const frame::BODY,
    personality = sym personality,
    pages = const ROWS / STUBS_OF_A_PAGE,
    row_bytes = const ROW_BYTES,
    stub_bytes = const STUB_BYTES,
    stubs_of_a_page = const STUBS_OF_A_PAGE,
);

unsafe extern "C" {
    /// Not a function to call.
    fn dimmer_hook_stubs();
}

/// Claims a row. In: `rsi`, the stack pointer before the call; `r8`,
/// [`super::thread_block::thread_offset`]. Out: `rdx`, a row that was free. Goes to `$none` if
/// there is none. Changes `rax`, `rcx` and `rdi`. Uses the operands `rows`, `table`, `row_shift`,
/// `stack`, `window`, `row` and `left`.
macro_rules! claim {
    ($none:literal) => {
        concat!(
            // Frees the row of a call that an exception has left, once the unwinder has passed it:
            // before, it runs further down the stack.
            "cmp qword ptr fs:[r8 + {left}], 0\n",
            "je 91f\n",
            "xor edi, edi\n",
            "xchg fs:[r8 + {left}], rdi\n",
            "test rdi, rdi\n",
            "jz 91f\n",
            "cmp [rdi + {stack}], rsi\n",
            "ja 90f\n",
            "mov qword ptr [rdi + {stack}], 0\n",
            "jmp 91f\n",
            "90:\n",
            "mov fs:[r8 + {left}], rdi\n",
            // Starts where the thread's last search ended.
            "91:\n",
            "mov edi, fs:[r8 + {row}]\n",
            "mov ecx, {window}\n",
            "92:\n",
            "and edi, {rows} - 1\n",
            "mov eax, edi\n",
            "shl eax, {row_shift}\n",
            "lea rdx, [rip + {table}]\n",
            "add rdx, rax\n",
            "xor eax, eax\n",
            "cmp [rdx + {stack}], rax\n",
            "jne 93f\n",
            "lock cmpxchg [rdx + {stack}], rsi\n",
            "je 94f\n",
            "93:\n",
            "inc edi\n",
            "dec ecx\n",
            "jnz 92b\n",
            "mov fs:[r8 + {row}], edi\n",
            "jmp ",
            $none,
            "\n",
            "94:\n",
            "mov fs:[r8 + {row}], edi\n",
        )
    };
}

/// In: `rdx`, a row. Out: `rax`, its return stub. Changes `rcx`. Uses the operands `table`,
/// `row_shift` and `stub_shift`.
macro_rules! stub_of {
    () => {
        concat!(
            "lea rax, [rip + {table}]\n",
            "sub rax, rdx\n",
            "neg rax\n",
            "shr rax, {row_shift} - {stub_shift}\n",
            "lea rcx, [rip + dimmer_hook_stubs]\n",
            "add rax, rcx\n",
        )
    };
}

/// In: `rax`, a return address. Goes to `$within` if it lies in a return stub; then `rax` is its
/// offset in the stubs. Changes `rcx`. Uses the operand `stubs_bytes`.
macro_rules! if_stub {
    ($within:literal) => {
        concat!(
            "lea rcx, [rip + dimmer_hook_stubs]\n",
            "sub rax, rcx\n",
            "cmp rax, {stubs_bytes}\n",
            "jb ",
            $within,
            "\n",
        )
    };
}

/// In: the number of a row in a 32-bit register `$number`, which is the lower half of `$row`. Out:
/// `$row`, the row. Changes `rax`. Uses the operands `table` and `row_shift`.
macro_rules! row_of_number {
    ($number:literal, $row:literal) => {
        concat!(
            "shl ",
            $number,
            ", {row_shift}\n",
            "lea rax, [rip + {table}]\n",
            "add ",
            $row,
            ", rax\n",
        )
    };
}

/// Personality routine for this crate's frames: calls `$leaves` with the unwinder's context when
/// the unwinder removes the frame. (The unwinder looks for handlers first, and then leaves frame
/// after frame. Source: Itanium C++ ABI, exception handling, §1.6.)
macro_rules! leaving {
    ($leaves:path) => {
        extern "C" fn personality(
            _version: std::ffi::c_int,
            actions: std::ffi::c_int,
            _class: u64,
            _exception: *mut (),
            context: *const u64,
        ) -> std::ffi::c_int {
            const LEAVES: std::ffi::c_int = 2;
            const CONTINUE: std::ffi::c_int = 8;
            if actions & LEAVES != 0 {
                $leaves(context);
            }
            CONTINUE
        }
    };
}

pub(crate) use {claim, if_stub, leaving, row_of_number, stub_of};

/// Makes the table ready. Must be called before anything is hooked; may be called repeatedly.
pub(crate) fn begin() {
    for row in TABLE.iter().step_by(STUBS_OF_A_PAGE) {
        // Relaxed: there is one thread, or the row has this value already.
        row.stack.store(u64::MAX, Ordering::Relaxed);
    }
}

/// Whether an address lies in the return stubs.
#[must_use]
pub fn is_stub(address: usize) -> bool {
    address.wrapping_sub(dimmer_hook_stubs as *const () as usize) < STUBS_BYTES
}

/// The number of words of an unwinder's context that are looked at: less than any context has.
/// libgcc has the address within the frame at 152 bytes, LLVM's libunwind at 144.
const WORDS: usize = 20;

/// Finds the row of the frame that an unwinder's context describes. Each unwinder has its own
/// layout of contexts, and the code cannot tell which unwinder calls it. But a word that equals the
/// return address of a stub's call is nothing else.
///
/// # Safety
/// There must be [`WORDS`] words.
unsafe fn row_of(context: *const u64) -> Option<&'static Row> {
    let begin = dimmer_hook_stubs as *const () as u64;
    let mut found = None;
    for at in 0..WORDS {
        // SAFETY: the caller guarantees [`WORDS`] words.
        let place = unsafe { context.add(at) };
        // SAFETY: the caller guarantees [`WORDS`] words. Volatile, as other code may write to the
        // rest of it.
        let word = unsafe { place.read_volatile() };
        let distance = usize::try_from(word.wrapping_sub(begin)).unwrap_or(usize::MAX);
        if distance < STUBS_BYTES && distance % STUB_BYTES == RETURNS_AT {
            let number = distance / STUB_BYTES;
            if found.is_some_and(|found| found != number) {
                return None;
            }
            found = Some(number);
        }
    }
    TABLE.get(found?)
}

/// Called when the unwinder is about to leave a frame. Brings the thread home if it migrated for
/// this call. The row is freed later ([`claim`]), after the unwinder has read the return address in
/// it.
fn leave(context: *const u64) {
    if context.is_null() {
        return cut_migration_short();
    }
    // SAFETY: every unwinder's context is longer than [`WORDS`] words.
    let Some(row) = (unsafe { row_of(context) }) else { return cut_migration_short() };
    // Relaxed: this thread has written the value, or has received it with the stack.
    match row.is_migrated.load(Ordering::Relaxed) {
        0 => {}
        WATCHED => sections::leave(row.stack.load(Ordering::Relaxed)),
        _ => cut_migration_short(),
    }
    // The frame noted before was further down the stack, and the unwinder has passed it.
    let before = exchange_left(std::ptr::from_ref(row));
    // SAFETY: null, or a row of `TABLE`.
    if let Some(before) = unsafe { before.as_ref() }
        && !std::ptr::eq(before, row)
    {
        // Ordering: pairs with the exchange in `claim`: the thread that takes the row comes after
        // the unwinder has read it.
        before.stack.store(0, Ordering::Release);
    }
}

leaving!(leave);

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::panic::{catch_unwind, resume_unwind};
    use std::path::Path;

    use super::*;
    use crate::arch::tests::one_at_a_time;
    use crate::arch::thread_block::{counters, time_next};
    use crate::ledger::{Ledger, OwnLedger};
    use crate::plan::PlannedEntry;
    use crate::{Hooks, slots};

    // On a page of its own, which is not executable while the entry is patched.
    global_asm!(
        ".section .text.dimmer_hook_test,\"ax\",@progbits",
        ".p2align 12",
        "dimmer_hook_test_throws:",
        ".cfi_startproc",
        ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
        "push rbx",
        ".cfi_adjust_cfa_offset 8",
        "call {throw}",
        "pop rbx",
        ".cfi_adjust_cfa_offset -8",
        "ret",
        ".cfi_endproc",
        ".p2align 12",
        ".text",
        throw = sym throw,
    );

    unsafe extern "C-unwind" {
        fn dimmer_hook_test_throws(depth: u32);
    }

    /// Ends with an exception that passes `depth` more hooked calls.
    extern "C-unwind" fn throw(depth: u32) {
        assert!(is_stub_above(), "not timed");
        match depth.checked_sub(1) {
            // SAFETY: the function needs nothing.
            Some(depth) => unsafe { dimmer_hook_test_throws(depth) },
            None => resume_unwind(Box::new(())),
        }
    }

    /// Whether one of the calls under way in this process is timed.
    fn is_stub_above() -> bool {
        taken() > 0
    }

    fn taken() -> usize {
        let is_taken = |row: &&Row| !matches!(row.stack.load(Ordering::Relaxed), 0 | u64::MAX);
        TABLE.iter().filter(is_taken).count()
    }

    #[test]
    fn exceptions_free_the_rows_of_the_calls_that_they_leave() {
        let _one_at_a_time = one_at_a_time();
        let directory = tempfile::tempdir().unwrap();
        let ledger = OwnLedger::create(directory.path()).unwrap();
        let hooks = Hooks::new(ledger, BTreeSet::new(), None);
        let base = dimmer_hook_test_throws as *const () as u64;
        let object = hooks.ledger().add_objects(&[(base, Path::new("test"))]).unwrap().start;
        let entry = (PlannedEntry::new(0, 5), &[0x0f, 0x1f, 0x44, 0x00, 0x00][..]);
        // SAFETY: the function is on a page of its own, starts with an instruction of five bytes,
        // and no thread calls it meanwhile.
        unsafe { hooks.patch(object, base, &[entry], &BTreeSet::new()) }.unwrap();
        let timed_throw = |depth| {
            time_next();
            // SAFETY: the function needs nothing.
            assert!(catch_unwind(|| unsafe { dimmer_hook_test_throws(depth) }).is_err());
        };
        timed_throw(0);
        let ledger = Ledger::open(hooks.ledger().path()).unwrap();
        let thread = ledger.thread(slots::number_of(counters()).unwrap()).unwrap();
        for turn in 0..u32::try_from(ROWS).unwrap() {
            timed_throw(turn % 4);
            thread.drain(drop);
            // The next call frees the row of the last one.
            assert!(taken() <= 1, "{turn}: {}", taken());
        }
    }

    #[test]
    fn every_row_has_its_stub() {
        assert_eq!(TABLE.len(), ROWS);
        let begin = dimmer_hook_stubs as *const () as usize;
        assert!(begin.is_multiple_of(4096));
        for number in (0..ROWS).filter(|number| number % STUBS_OF_A_PAGE != 0) {
            let at = begin + number * STUB_BYTES;
            let code = std::ptr::with_exposed_provenance::<[u8; STUB_BYTES]>(at);
            // SAFETY: code of this crate, which can be read.
            let code = unsafe { code.read() };
            // call [rsp - 24]; push
            assert_eq!(code[..RETURNS_AT + 1], [0xff, 0x54, 0x24, 0xe8, 0x68]);
            assert_eq!(code[5..9], u32::try_from(number).unwrap().to_le_bytes());
            assert!(is_stub(at + RETURNS_AT));
            let row = &raw const TABLE[number];
            let page = std::ptr::with_exposed_provenance::<u32>(at & !4095);
            // SAFETY: code of this crate, which can be read.
            let distance = unsafe { page.read() } as usize;
            // The result of the unwinding record's expression.
            assert_eq!((at & !4095) + distance + ((at & 0xff0) << 2), row.addr());
        }
        assert!(!is_stub(begin - 1) && !is_stub(begin + STUBS_BYTES));
    }
}

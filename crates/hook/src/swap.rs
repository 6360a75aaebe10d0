//! The code that a hooked function's calls run through, and the memory that it needs.
//!
//! Most calls are only counted: the stub at the entry ([`crate::entry`]) counts down, counts up,
//! and goes on in the function. When the countdown ends, the stub comes here, and this one call is
//! *timed*: its return address is taken off the stack and kept in a table, the function is called
//! in its place, and when it returns the address is put back and returned to. Calls and returns
//! stay paired, which return prediction and shadow stacks want, and the function finds its stack as
//! ever, arguments included. All registers stay as they were, and at the end the flags too.
//!
//! *The table* ([`crate::rows`]) is one for the process. What the function returns to names its
//! row, so nothing needs to know the thread or the place of the stack: a coroutine may go on in
//! another thread or be copied away and back, and C++ exceptions, Rust panics and backtraces pass
//! through a call that is being timed.
//!
//! *Jumps.* A function may end by jumping into another one, which is hooked as well and asks for
//! more. The first hooked call after the begin of a timed one is therefore *looked at*: if it was
//! come to by such a jump (its return address is that of a timed call), the row gets its number.
//! The next one is looked at then as well.
//!
//! *Only counted* are calls where no row is free, where there is no room for what was measured, and
//! all of them once the process is one in which time stamps may not be read, or return addresses
//! not be taken off the stack ([`crate::only_count`]).
//!
//! *Signals* may come anywhere: nothing is kept in a thread's memory between two instructions that
//! a handler with hooked calls of its own could overwrite. What lies below the stack pointer lies
//! within the 128 bytes that the kernel leaves alone (System V ABI, x86-64 supplement, §3.2.2).

use std::arch::{asm, global_asm};

use crate::ledger::{
    CLAIMED, COUNTERS, DROPPED, GOES_ON_SHIFT, HEAD, LEFT_OUT, PERIOD, PID, RECORD_BYTES, RECORDS,
    RING, SLOT_BYTES, TAIL, TID,
};
use crate::offload::Passed;
use crate::process::{self, LEDGER, ONLY_COUNTS, PROCESS, TID_AT};
use crate::rows;
use crate::slots::{self, POOL};

/// Timed calls under way that are given room in the ring of records in advance.
const UNDER_WAY: usize = 64;

/// Calls until it is looked again whether the ring of records has room.
const LATER: u32 = 1 << 12;

/// Where in a thread's memory is the countdown to the next timed call (32 bits). Zero or less: the
/// next one. Below zero it is while a call is on its way to be timed; a signal handler's calls go
/// the same way then.
pub(crate) const COUNTDOWN: i64 = 0;
/// Where it is told what the call is for that ends the countdown (32 bits): to be timed, or as
/// follows.
const NEXT: i64 = 4;
/// It is the next call of all after a timed one, and timed as well.
const FOLLOWS: u32 = 1;
/// It is the next call of all after the begin of a timed one, and looked at.
const LOOKED_AT: u32 = 2;
/// Where its counters are; null before its first hooked call.
pub(crate) const COUNTED_AT: i64 = 8;
/// Where it is counted how often the thread was interrupted, as far as timed calls have seen (32
/// bits).
const INTERRUPTS: i64 = 16;
/// Where the countdown is kept while a call is looked at (32 bits).
const KEPT: i64 = 20;
/// Where in a thread's memory (the symbol `dimmer_hook_thread`, [`thread_offset`] from its FS base)
/// lies on which of the kernel's threads it is while it runs code of the program's away for a moved
/// call; else 0 (32 bits).
pub const AWAY: i64 = 24;
/// How many reasons there are that the thread moves no calls (32 bits, likewise).
pub(crate) const STAYS: i64 = 28;
/// Where the thread looks for a row first (32 bits).
pub(crate) const ROW: i64 = 32;
/// The row of a call that was left by an exception, which the unwinder may still need; else null.
pub(crate) const LEFT: i64 = 40;

/// A null selector that nobody uses: it is in `es` until the kernel returns from an interrupt,
/// which leaves zero there (Intel SDM, vol. 2, IRET; AMD's processors may not).
const UNDISTURBED: u32 = 3;

/// One in so many timed calls has the clock told after it, and one before it.
const CLOCK_EVERY: usize = 64;

/// Multiplications, each of which waits for the one before it, that tell the clock: three cycles
/// each (`dimmer_probe` measures that). They take 0.3 us.
const CHAIN: usize = 320;

// Countdown and purpose are written as one, so that no signal handler sees half of it.
const _: () = assert!(NEXT == COUNTDOWN + 4);
const _: () = assert!(RECORD_BYTES == 1 << 5);

/// What the stub hands over: where a call came from and where it is to go.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Site {
    /// The number in the ledger.
    pub(crate) number: u32,
    /// Where the displaced instructions of the entry lie.
    pub(crate) body: u64,
    /// Of a leaf function, what travels.
    pub(crate) passed: Passed,
}

global_asm!(
    // The stack pointer moves, and the unwinding record with it.
    ".macro dimmer_push register",
    "push \\register",
    ".cfi_adjust_cfa_offset 8",
    ".endm",
    ".macro dimmer_pop register",
    "pop \\register",
    ".cfi_adjust_cfa_offset -8",
    ".endm",
    // What each thread has.
    ".section .tbss.dimmer_hook_thread,\"awT\",@nobits",
    ".p2align 6",
    ".hidden dimmer_hook_thread",
    ".globl dimmer_hook_thread",
    ".type dimmer_hook_thread,@object",
    ".size dimmer_hook_thread, 64",
    "dimmer_hook_thread:",
    ".zero 64",
    // For threads beyond those that the ledger has room for.
    ".section .bss.dimmer_hook_waste,\"aw\",@nobits",
    ".p2align 6",
    "dimmer_hook_waste:",
    ".zero {slot_bytes}",
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_slow",
    ".globl dimmer_hook_slow",
    ".type dimmer_hook_slow,@function",
    // In: r11 the site. Let C be the stack pointer before the call; the return address is at C-8,
    // and r11 as it was at C-16.
    "dimmer_hook_slow:",
    ".cfi_startproc",
    "lea rsp, [rsp - 24]",
    ".cfi_adjust_cfa_offset 24",
    "dimmer_push rax",
    "dimmer_push rcx",
    "dimmer_push rdx",
    "dimmer_push rbx",
    "dimmer_push rsi",
    "dimmer_push rdi",
    "dimmer_push r8",
    // rsp = C-88. Where to go is kept at C-24.
    "mov rax, [r11 + 8]",
    "mov [rsp + 64], rax",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "mov rbx, fs:[r8 + {counted_at}]",
    "test rbx, rbx",
    "jz 20f",
    "21:",
    "mov eax, [r11]",
    "inc dword ptr [rbx + rax * 4]",
    // Reached by a jump from a function whose call is being timed: its time is that one's.
    "mov rax, [rsp + 80]",
    rows::if_stub!("50f"),
    // Only looked at, unless all calls are timed.
    "cmp dword ptr fs:[r8 + {next}], {looked_at}",
    "jne 22f",
    "mov eax, fs:[r8 + {kept}]",
    "mov fs:[r8 + {countdown}], rax",
    "test eax, eax",
    "jnz 45f",
    "22:",
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 41f",
    "mov rdx, [rbx + {head}]",
    "sub rdx, [rbx + {tail}]",
    "cmp rdx, {ring_room}",
    "ja 40f",
    "lea rsi, [rsp + 88]",
    rows::claim!("40f"),
    "mov rax, [rsp + 80]",
    "mov [rdx + {returns_to}], rax",
    "mov eax, [r11]",
    "mov [rdx + {of_site}], eax",
    // At C-32, where the function is called from.
    rows::stub_of!(),
    "mov [rsp + 56], rax",
    "mov eax, es",
    "cmp eax, {undisturbed}",
    "je 6f",
    "inc dword ptr fs:[r8 + {interrupts}]",
    "mov eax, {undisturbed}",
    "mov es, eax",
    "6:",
    "mov eax, fs:[r8 + {interrupts}]",
    "add eax, eax",
    "or eax, fs:[r8 + {next}]",
    "mov [rdx + {interrupts_then}], eax",
    "mov dword ptr [rdx + {goes_on}], 0",
    "mov dword ptr [rdx + {is_away}], 0",
    "mov rdi, rdx",
    // The clock before the call, now and then.
    "mov dword ptr [rdi + {clock}], 0",
    "mov rax, [rbx + {head}]",
    "and eax, {clock_every} - 1",
    "cmp eax, {clock_every} / 2",
    "jne 8f",
    "lfence",
    "rdtsc",
    "mov esi, eax",
    "mov ecx, {chain}",
    "7:",
    "imul eax, eax, 3",
    "imul eax, eax, 3",
    "imul eax, eax, 3",
    "imul eax, eax, 3",
    "dec ecx",
    "jnz 7b",
    "lfence",
    "rdtsc",
    "sub eax, esi",
    "mov [rdi + {clock}], eax",
    "8:",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov [rdi + {begin}], rdx",
    // The next one after half to one and a half periods, by the time stamp's last bits.
    "imul eax, eax, 0x9e3779b1",
    "mov ecx, [rbx + {period}]",
    "mul ecx",
    "shr ecx, 1",
    "add edx, ecx",
    "mov fs:[r8 + {kept}], edx",
    "movabs rax, {looked_at} << 32",
    "mov fs:[r8 + {countdown}], rax",
    "dimmer_pop r8",
    "dimmer_pop rdi",
    "dimmer_pop rsi",
    "dimmer_pop rbx",
    "dimmer_pop rdx",
    "dimmer_pop rcx",
    "dimmer_pop rax",
    "mov r11, [rsp + 16]",
    "lea rsp, [rsp + 32]",
    ".cfi_adjust_cfa_offset -32",
    "jmp qword ptr [rsp - 32]",
    ".cfi_adjust_cfa_offset 88",
    // The first hooked call of a thread.
    "20:",
    "mov eax, [rip + {pool} + {pool_next}]",
    "cmp eax, [rip + {pool} + {pool_had}]",
    "jae 30f",
    "lea ecx, [rax + 1]",
    "lock cmpxchg [rip + {pool} + {pool_next}], ecx",
    "jne 20b",
    "lea rdx, [rip + {pool}]",
    "mov rbx, [rdx + rax * 8 + {pool_places}]",
    // A child of a fork, or its parent, may have it.
    "xor eax, eax",
    "lock cmpxchg [rbx + {claimed}], ecx",
    "jne 20b",
    // Threads begin to look for rows at different places.
    "dec ecx",
    "shl ecx, 4",
    "mov fs:[r8 + {row}], ecx",
    // By no system call: it may not be allowed any more.
    "mov eax, [rip + {process}]",
    "mov [rbx + {pid}], eax",
    "mov rax, [rip + {tid_at}]",
    "test rax, rax",
    "jz 33f",
    "mov eax, fs:[rax]",
    "33:",
    "mov [rbx + {tid}], eax",
    "jmp 31f",
    "30:",
    "mov rdx, [rip + {ledger}]",
    "test rdx, rdx",
    "jz 32f",
    "lock inc dword ptr [rdx + {left_out}]",
    "32:",
    "lea rbx, [rip + dimmer_hook_waste + {counters}]",
    "31:",
    "mov fs:[r8 + {counted_at}], rbx",
    "jmp 21b",
    // No room: count for a while.
    "40:",
    "inc qword ptr [rbx + {dropped}]",
    "41:",
    "mov eax, {later}",
    "mov fs:[r8 + {countdown}], rax",
    "jmp 45f",
    // Note where the timed call goes on, and look at the next.
    "50:",
    "movabs rax, {looked_at} << 32",
    "mov fs:[r8 + {countdown}], rax",
    "mov rax, [rsp + 80]",
    "sub rax, rcx",
    "shr rax, 4",
    "shl rax, 6",
    "lea rdi, [rip + {table}]",
    "add rdi, rax",
    "mov eax, [r11]",
    "inc eax",
    "mov [rdi + {goes_on}], eax",
    // Go on without timing.
    "45:",
    "dimmer_pop r8",
    "dimmer_pop rdi",
    "dimmer_pop rsi",
    "dimmer_pop rbx",
    "dimmer_pop rdx",
    "dimmer_pop rcx",
    "dimmer_pop rax",
    "mov r11, [rsp + 16]",
    "lea rsp, [rsp + 24]",
    ".cfi_adjust_cfa_offset -24",
    "jmp qword ptr [rsp - 16]",
    ".cfi_endproc",
    ".size dimmer_hook_slow, . - dimmer_hook_slow",
    ".p2align 6",
    ".hidden dimmer_hook_return",
    ".globl dimmer_hook_return",
    ".type dimmer_hook_return,@function",
    // A return stub comes here. In: at C-8, where the stack pointer is, the number of the row.
    "dimmer_hook_return:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 8",
    ".cfi_undefined rip",
    "dimmer_push r11",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "dimmer_push rax",
    "dimmer_push rcx",
    "dimmer_push rdx",
    "dimmer_push rbx",
    "dimmer_push rsi",
    "dimmer_push rdi",
    "dimmer_push r8",
    // rsp = C-80.
    "mov edi, [rsp + 72]",
    "shl edi, 6",
    "lea rax, [rip + {table}]",
    "add rdi, rax",
    "cmp dword ptr [rdi + {is_away}], 0",
    "jne dimmer_away_return",
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 10f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + 72], rax",
    ".cfi_offset rip, -8",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "mov rbx, fs:[r8 + {counted_at}]",
    // None: the child of a fork within the function.
    "test rbx, rbx",
    "jz 9f",
    "mov rcx, [rbx + {head}]",
    "sub rcx, [rbx + {tail}]",
    "cmp rcx, {records}",
    "jae 8f",
    // Whether it follows, and whether there was an interrupt since its begin.
    "mov eax, es",
    "cmp eax, {undisturbed}",
    "je 23f",
    "inc dword ptr fs:[r8 + {interrupts}]",
    "mov eax, {undisturbed}",
    "mov es, eax",
    "23:",
    "mov ecx, [rdi + {interrupts_then}]",
    "mov esi, ecx",
    "and esi, 1",
    "mov eax, fs:[r8 + {interrupts}]",
    "add eax, eax",
    "xor eax, ecx",
    "cmp eax, 1",
    "jbe 24f",
    "or esi, 2",
    "24:",
    "mov eax, [rdi + {goes_on}]",
    "shl eax, {goes_on_shift}",
    "or esi, eax",
    "mov eax, 1",
    "xadd [rbx + {head}], rax",
    "and eax, {records} - 1",
    "shl eax, 5",
    "lea rax, [rbx + rax + {ring}]",
    "mov rcx, [rdi + {begin}]",
    "mov [rax], rcx",
    "mov ecx, [rdi + {of_site}]",
    "mov [rax + 16], ecx",
    "mov [rax + 20], esi",
    "mov ecx, [rdi + {clock}]",
    "mov [rax + 28], ecx",
    "mov dword ptr [rax + 24], 0",
    // The clock after the call, now and then.
    "mov rcx, rax",
    "sub rcx, rbx",
    "sub rcx, {ring}",
    "shr rcx, 5",
    "and ecx, {clock_every} - 1",
    "jnz 27f",
    "dimmer_push rdx",
    "dimmer_push rax",
    "lfence",
    "rdtsc",
    "mov r11d, eax",
    "mov ecx, {chain}",
    "26:",
    "imul eax, eax, 3",
    "imul eax, eax, 3",
    "imul eax, eax, 3",
    "imul eax, eax, 3",
    "dec ecx",
    "jnz 26b",
    "lfence",
    "rdtsc",
    "sub eax, r11d",
    "mov ecx, eax",
    "dimmer_pop rax",
    "dimmer_pop rdx",
    "mov [rax + 24], ecx",
    "27:",
    // The end last: with it the record is complete.
    "mov [rax + 8], rdx",
    // Timed calls come in pairs, so that the time between two calls is known.
    "cmp dword ptr [rbx + {period}], 1",
    "jbe 22f",
    "test esi, 1",
    "jnz 28f",
    "22:",
    "movabs rax, {follows} << 32",
    "mov fs:[r8 + {countdown}], rax",
    "jmp 9f",
    "28:",
    "cmp dword ptr fs:[r8 + {next}], {looked_at}",
    "jne 9f",
    "mov eax, fs:[r8 + {kept}]",
    "mov fs:[r8 + {countdown}], rax",
    "jmp 9f",
    "8:",
    "inc qword ptr [rbx + {dropped}]",
    "9:",
    ".cfi_remember_state",
    "mov qword ptr [rdi], 0",
    "dimmer_pop r8",
    "dimmer_pop rdi",
    "dimmer_pop rsi",
    "dimmer_pop rbx",
    "dimmer_pop rdx",
    "dimmer_pop rcx",
    "dimmer_pop rax",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "dimmer_pop r11",
    "ret",
    // No time may be taken any more.
    "10:",
    ".cfi_restore_state",
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + 72], rax",
    "jmp 9b",
    ".cfi_endproc",
    ".size dimmer_hook_return, . - dimmer_hook_return",
    only_counts = sym ONLY_COUNTS,
    process = sym PROCESS,
    tid_at = sym TID_AT,
    ledger = sym LEDGER,
    table = sym rows::TABLE,
    rows = const rows::ROWS,
    window = const rows::WINDOW,
    stubs_bytes = const rows::STUBS_BYTES,
    returns_to = const rows::RETURNS_TO,
    of_site = const rows::SITE,
    interrupts_then = const rows::INTERRUPTS,
    begin = const rows::BEGIN,
    clock = const rows::CLOCK,
    goes_on = const rows::GOES_ON,
    is_away = const rows::IS_AWAY,
    row = const ROW,
    left = const LEFT,
    slot_bytes = const SLOT_BYTES,
    counters = const COUNTERS,
    left_out = const LEFT_OUT,
    pool = sym POOL,
    pool_next = const slots::NEXT,
    pool_had = const slots::HAD,
    pool_places = const slots::PLACES,
    // All parts of a slot as seen from its counters.
    claimed = const CLAIMED.cast_signed() - COUNTERS.cast_signed(),
    tid = const TID.cast_signed() - COUNTERS.cast_signed(),
    pid = const PID.cast_signed() - COUNTERS.cast_signed(),
    period = const PERIOD.cast_signed() - COUNTERS.cast_signed(),
    dropped = const DROPPED.cast_signed() - COUNTERS.cast_signed(),
    head = const HEAD.cast_signed() - COUNTERS.cast_signed(),
    tail = const TAIL.cast_signed() - COUNTERS.cast_signed(),
    ring = const RING.cast_signed() - COUNTERS.cast_signed(),
    records = const RECORDS,
    ring_room = const RECORDS - UNDER_WAY,
    later = const LATER,
    countdown = const COUNTDOWN,
    next = const NEXT,
    follows = const FOLLOWS,
    looked_at = const LOOKED_AT,
    kept = const KEPT,
    goes_on_shift = const GOES_ON_SHIFT,
    interrupts = const INTERRUPTS,
    undisturbed = const UNDISTURBED,
    clock_every = const CLOCK_EVERY,
    chain = const CHAIN / 4,
    counted_at = const COUNTED_AT,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_slow();
}

/// Where stubs go when their countdown ends.
pub(crate) fn slow() -> u64 {
    dimmer_hook_slow as *const () as u64
}

/// How far from the FS base each thread's memory for hooks is (bytes).
#[must_use]
pub fn thread_offset() -> i64 {
    let offset: i64;
    // SAFETY: the loader has filled in this entry of the table, and reading it changes nothing.
    unsafe {
        asm!(
            "mov {}, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
            out(reg) offset,
            options(nostack, pure, readonly, preserves_flags)
        );
    }
    offset
}

/// Makes the calling thread's next hooked call a timed one.
pub(crate) fn time_next() {
    // SAFETY: the thread's own memory; the countdown may have any value.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {countdown}], 0",
            offset = in(reg) thread_offset(),
            countdown = const COUNTDOWN,
            options(nostack, preserves_flags)
        );
    }
}

/// Where the calling thread's counters are; null before its first hooked call.
pub(crate) fn counters() -> *mut u8 {
    let counters: *mut u8;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {}, fs:[{offset} + {counted_at}]",
            out(reg) counters,
            offset = in(reg) thread_offset(),
            counted_at = const COUNTED_AT,
            options(nostack, readonly, preserves_flags)
        );
    }
    counters
}

/// In the child of a fork: makes the calling thread claim a slot of its own at its next hooked
/// call, as it would go on in its parent's.
pub fn forget_thread() {
    slots::go_on_in_child();
    process::begin_child();
    const { assert!(COUNTDOWN == 0 && COUNTED_AT == 8) };
    // SAFETY: the thread's own memory, aligned. One store, so that no signal handler sees half of
    // it.
    unsafe {
        asm!(
            "xorps {zero}, {zero}",
            "movaps fs:[{offset}], {zero}",
            zero = out(xmm_reg) _,
            offset = in(reg) thread_offset(),
            options(nostack, preserves_flags)
        );
    }
}

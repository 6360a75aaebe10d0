//! The code that a hooked function's calls run through, and the memory that it needs.
//!
//! Most calls are only counted: the stub at the entry ([`crate::entry`]) counts down, counts up,
//! and goes on in the function. When the countdown ends, the stub comes here, and this one call is
//! *timed*: its return address is taken off the stack and kept in a table, and the function is
//! called in its place. When the function returns, the address is put back and returned to. Calls
//! and returns stay paired, as return prediction and shadow stacks need. The function finds its
//! stack unchanged, arguments included. All registers stay as they were, and at the end the flags
//! too.
//!
//! *The table* ([`crate::rows`]) is one for the process. The address that the function returns to
//! identifies its row, so the code needs neither the thread nor the place of the stack. A coroutine
//! may go on in another thread, or be copied away and back. C++ exceptions, Rust panics and
//! backtraces pass through a call that is being timed.
//!
//! *Jumps.* A function may end by a jump into another function, which is hooked as well and needs
//! more care. So the first hooked call after the start of a timed one is *looked at*. If it was
//! reached by such a jump (its return address is that of a timed call), the row gets the number of
//! the function, and the next call is looked at too.
//!
//! *Only counted* are calls for which no row is free, or for which the ring has no room. All calls
//! are only counted once the process may not read time stamps, or may not take return addresses off
//! the stack ([`crate::only_count`]).
//!
//! *Signals* may come anywhere: between two instructions, a thread's memory never holds anything
//! that a signal handler with hooked calls could overwrite. Data below the stack pointer lies
//! within the 128 bytes that the kernel leaves alone, the red zone (System V ABI, x86-64
//! supplement, §3.2.2).

use std::arch::{asm, global_asm};

use crate::delegate::Passed;
use crate::ledger::{
    CLAIMED, COUNTERS, DROPPED, GOES_ON_SHIFT, HEAD, LEFT_OUT, PERIOD, PID, RECORD_BYTES, RECORDS,
    RING, SLOT_BYTES, TAIL, TID,
};
use crate::process::{self, LEDGER, ONLY_COUNTS, PROCESS, TID_AT};
use crate::rows;
use crate::slots::{self, POOL};

/// Timed calls under way for which the ring of records keeps room.
const UNDER_WAY: usize = 64;

/// Calls until the next check whether the ring of records has room.
const LATER: u32 = 1 << 12;

/// Offset in the thread block of the countdown to the next timed call (32 bits). Zero or less: the
/// next call is timed. It is below zero while a call is on its way to be timed; a signal handler's
/// calls then go the same way.
pub(crate) const COUNTDOWN: i64 = 0;
/// Offset in the thread block of the purpose of the call that ends the countdown (32 bits): 0 to be
/// timed, or one of the following.
const NEXT: i64 = 4;
/// The call is the next one of all after a timed call, and is timed as well.
const FOLLOWS: u32 = 1;
/// The call is the next one of all after the start of a timed call, and is looked at.
const LOOKED_AT: u32 = 2;
/// Offset in the thread block of the address of the thread's counters; null before its first hooked
/// call.
pub(crate) const COUNTED_AT: i64 = 8;
/// Offset in the thread block of the number of interruptions of the thread that timed calls have
/// seen (32 bits).
const INTERRUPTS: i64 = 16;
/// Offset in the thread block of the countdown that is kept while a call is looked at (32 bits).
const KEPT: i64 = 20;
/// Offset in the thread block (symbol `dimmer_hook_thread`, [`thread_offset`] from the FS base) of
/// the id of the kernel thread that runs this thread while a call is migrated; 0 otherwise (32
/// bits).
pub const MIGRATED: i64 = 24;
/// Offset in the thread block of the count of reasons why the thread's calls must not move (32
/// bits).
pub(crate) const INHIBITED: i64 = 28;
/// Offset in the thread block of the row where the thread's next search starts (32 bits).
pub(crate) const ROW: i64 = 32;
/// Offset in the thread block of the row of a call that was left by an exception. The unwinder may
/// still need it. Null if there is none.
pub(crate) const LEFT: i64 = 40;

/// A null selector that no other code uses. It is in `es` until the kernel returns from an
/// interrupt, which leaves zero there (Intel SDM, vol. 2, IRET; AMD's processors may not do that).
const UNDISTURBED: u32 = 3;

/// One timed call in `CLOCK_EVERY` has the clock measured after it, and one before it.
const CLOCK_EVERY: usize = 64;

/// Multiplications that measure the clock. Each waits for the one before it and takes three cycles
/// (`dimmer_probe` measures that). Together they take 0.3 us.
const CHAIN: usize = 320;

// Countdown and purpose are written as one word, so that no signal handler sees half of it.
const _: () = assert!(NEXT == COUNTDOWN + 4);
const _: () = assert!(RECORD_BYTES == 1 << 5);

/// The data that the stub passes on: the function's number, and the address to go on at.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Site {
    /// The function's number in the ledger.
    pub(crate) number: u32,
    /// Address of the displaced instructions of the entry.
    pub(crate) body: u64,
    /// For a leaf function: the registers that travel.
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
    // The thread block, one for each thread.
    ".section .tbss.dimmer_hook_thread,\"awT\",@nobits",
    ".p2align 6",
    ".hidden dimmer_hook_thread",
    ".globl dimmer_hook_thread",
    ".type dimmer_hook_thread,@object",
    ".size dimmer_hook_thread, 64",
    "dimmer_hook_thread:",
    ".zero 64",
    // Counters for threads beyond those that the ledger has room for.
    ".section .bss.dimmer_hook_waste,\"aw\",@nobits",
    ".p2align 6",
    "dimmer_hook_waste:",
    ".zero {slot_bytes}",
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_slow",
    ".globl dimmer_hook_slow",
    ".type dimmer_hook_slow,@function",
    // In: r11 the site. Let C be the stack pointer before the call. The return address is at C-8,
    // and the caller's r11 at C-16.
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
    // rsp = C-88. The address to go on at is kept at C-24.
    "mov rax, [r11 + 8]",
    "mov [rsp + 64], rax",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "mov rbx, fs:[r8 + {counted_at}]",
    "test rbx, rbx",
    "jz 20f",
    "21:",
    "mov eax, [r11]",
    "inc dword ptr [rbx + rax * 4]",
    // If the function was reached by a jump from one whose call is being timed, its time belongs to
    // that call.
    "mov rax, [rsp + 80]",
    rows::if_stub!("50f"),
    // The call is only looked at, unless all calls are timed.
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
    // At C-32, the return stub, which calls the function.
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
    "mov dword ptr [rdx + {is_migrated}], 0",
    "mov rdi, rdx",
    // Measure the clock before the call, now and then.
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
    // The next call is timed after half to one and a half periods. The time stamp's last bits
    // choose.
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
    // A child of a fork, or its parent, may have claimed it.
    "xor eax, eax",
    "lock cmpxchg [rbx + {claimed}], ecx",
    "jne 20b",
    // Threads start their search for rows at different places.
    "dec ecx",
    "shl ecx, 4",
    "mov fs:[r8 + {row}], ecx",
    // Without a system call, which may not be allowed any more.
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
    // No room: only count for a while.
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
    // A return stub jumps here. In: at C-8, where the stack pointer is, the number of the row.
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
    "cmp dword ptr [rdi + {is_migrated}], 0",
    "jne dimmer_migrate_return",
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
    // Null in the child of a fork within the function.
    "test rbx, rbx",
    "jz 9f",
    "mov rcx, [rbx + {head}]",
    "sub rcx, [rbx + {tail}]",
    "cmp rcx, {records}",
    "jae 8f",
    // Does the call follow a timed one, and was there an interrupt since its start?
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
    // Measure the clock after the call, now and then.
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
    // Write the end last: it completes the record.
    "mov [rax + 8], rdx",
    // Timed calls come in pairs, so that the time between two calls is measured.
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
    // The process may not read time stamps any more.
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
    is_migrated = const rows::IS_MIGRATED,
    row = const ROW,
    left = const LEFT,
    slot_bytes = const SLOT_BYTES,
    counters = const COUNTERS,
    left_out = const LEFT_OUT,
    pool = sym POOL,
    pool_next = const slots::NEXT,
    pool_had = const slots::HAD,
    pool_places = const slots::PLACES,
    // Offsets of a slot's parts from its counters.
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

/// Address of the code to which stubs jump when their countdown ends.
pub(crate) fn slow() -> u64 {
    dimmer_hook_slow as *const () as u64
}

/// Distance of a thread's block from its FS base (bytes).
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

/// Address of the calling thread's counters; null before its first hooked call.
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

/// For the child of a fork: makes the calling thread claim a slot of its own at its next hooked
/// call. Otherwise it would go on in its parent's slot.
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

//! The code that a hooked function's calls run through, and the memory that it needs.
//!
//! Most calls are only counted: the stub at the entry ([`super::entry`]) counts down, counts up,
//! and goes on in the function. When the countdown ends, the stub comes here, and this one call is
//! *timed*: its return address is taken off the stack and kept in a table, and the function is
//! called in its place. When the function returns, the address is put back and returned to. Calls
//! and returns stay paired, as return prediction and shadow stacks need. The function finds its
//! stack unchanged, arguments included. All registers stay as they were, and at the end the flags
//! too.
//!
//! *The table* ([`super::rows`]) is one for the process. The address that the function returns to
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
//! the stack ([`mod@crate::giving_up`]).
//!
//! *Signals* may come anywhere: between two instructions, a thread's memory never holds anything
//! that a signal handler with hooked calls could overwrite. Data below the stack pointer lies
//! within the 128 bytes that the kernel leaves alone, the red zone (System V ABI, x86-64
//! supplement, §3.2.2).

use std::arch::global_asm;
use std::mem::offset_of;

use super::frame::{self, pop, pop_timed, push, push_timed};
use super::rows;
use super::thread_block::{self, load_thread_offset};
use crate::ledger::{
    CHAIN_AFTER, CHAIN_BEFORE, CLAIMED, COUNTER_BYTES, COUNTERS, DROPPED, FOLLOWS, GOES_ON_SHIFT,
    HEAD, INTERRUPTED, LEFT_OUT, PERIOD, PID, RECORD_BEGIN, RECORD_END, RECORD_FLAGS, RECORD_SHIFT,
    RECORD_SITE, RECORDS, RING, SLOT_BYTES, TAIL, TID, UNHOOK_ORDERS,
};
use crate::process::{ATTEMPTS, LEDGER, ONLY_COUNTS, ORDERS_DONE, PROCESS, TID_AT};
use crate::site::Site;
use crate::slots::{self, POOL};

/// Timed calls under way for which the ring of records keeps room.
const UNDER_WAY: usize = 64;

/// Calls until the next check whether the ring of records has room.
const LATER: u32 = 1 << 12;

/// Calls from one attempt to take hooks out to the next.
const SOON: u32 = 1 << 10;

/// A null selector that no other code uses. It is in `es` until the kernel returns from an
/// interrupt, which leaves zero there (Intel SDM, vol. 2, IRET; AMD's processors may not do that).
const UNDISTURBED: u32 = 3;

/// One timed call in `CLOCK_EVERY` has the clock measured after it, and one before it.
const CLOCK_EVERY: usize = 64;

/// Multiplications that measure the clock. Each waits for the one before it and takes three cycles
/// (`dimmer_probe` measures that). Together they take 0.3 us.
const CHAIN: u32 = 320;

/// Cycles that the chain takes.
pub(crate) const CHAIN_CYCLES: u32 = CHAIN * 3;

/// Multiplications in each turn of the loop.
const CHAIN_TURN: u32 = 4;

const _: () = assert!(CHAIN.is_multiple_of(CHAIN_TURN));

// The row's count of interruptions is shifted by the flag below it.
const _: () = assert!(FOLLOWS == 1 && thread_block::FOLLOWS == FOLLOWS);

/// Measures the clock: `$ticks`, a 32-bit register other than eax and ecx, gets the duration of the
/// chain. Changes rax, rcx and rdx. Uses the operand `chain`; `$label` is free, and `$back` leads
/// back to it.
macro_rules! measure_clock {
    ($ticks:literal, $label:literal, $back:literal) => {
        concat!(
            "lfence\n",
            "rdtsc\n",
            "mov ",
            $ticks,
            ", eax\n",
            "mov ecx, {chain}\n",
            $label,
            ":\n",
            "imul eax, eax, 3\n",
            "imul eax, eax, 3\n",
            "imul eax, eax, 3\n",
            "imul eax, eax, 3\n",
            "dec ecx\n",
            "jnz ",
            $back,
            "\n",
            "lfence\n",
            "rdtsc\n",
            "sub eax, ",
            $ticks,
            "\n",
            "mov ",
            $ticks,
            ", eax\n",
        )
    };
}

global_asm!(
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
    // Stubs jump here at the start of a call. In: r11 the site ([`Site`]), at C - 16 the caller's
    // r11. All other registers are the caller's.
    //
    //              |  stack of the caller          |
    // C            +-------------------------------+
    //              |  return address               |  <- rsp on entry
    //              |  r11                          |
    //              |  body, where the call goes on |
    //              |  own: the return stub         |
    // C - 32       +-------------------------------+
    //              |  rax rcx rdx rbx rsi rdi r8   |
    // C - 88       +-------------------------------+  <- rsp, [`frame::Timed`]
    //
    // | register | holds |
    // |---|---|
    // | r8 | distance of the thread block from the FS base |
    // | r11 | the site |
    // | rbx | the thread's counters |
    // | rdx, then rdi | the row |
    // | rax, rcx, rsi | whatever is at hand |
    "dimmer_hook_slow:",
    ".cfi_startproc",
    "lea rsp, [rsp - {returns_at}]",
    ".cfi_adjust_cfa_offset {returns_at}",
    push_timed!(),
    "mov rax, [r11 + {site_body}]",
    "mov [rsp + {timed_kept} + {body_at}], rax",
    load_thread_offset!("r8"),
    "mov rbx, fs:[r8 + {counted_at}]",
    "test rbx, rbx",
    "jz 20f",
    "21:",
    "mov eax, [r11 + {site_number}]",
    "inc dword ptr [rbx + rax * {counter_bytes}]",
    // If the function was reached by a jump from one whose call is being timed, its time belongs to
    // that call.
    "mov rax, [rsp + {timed_kept} + {returns_at}]",
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
    // Has the observer ordered that hooks be taken out?
    "mov rax, [rip + {ledger}]",
    "test rax, rax",
    "jz 23f",
    "mov eax, [rax + {unhook_orders}]",
    "cmp eax, [rip + {orders_done}]",
    "je 23f",
    // Each second time, in case that none can be taken out at this thread's calls.
    "inc dword ptr [rip + {attempts}]",
    "test dword ptr [rip + {attempts}], 1",
    "jnz 60f",
    "23:",
    "mov rdx, [rbx + {head}]",
    "sub rdx, [rbx + {tail}]",
    "cmp rdx, {ring_room}",
    "ja 40f",
    "lea rsi, [rsp + {timed_bytes}]",
    rows::claim!("40f"),
    "mov rax, [rsp + {timed_kept} + {returns_at}]",
    "mov [rdx + {returns_to}], rax",
    "mov eax, [r11 + {site_number}]",
    "mov [rdx + {of_site}], eax",
    // The return stub, which calls the function.
    rows::stub_of!(),
    "mov [rsp + {timed_kept} + {own_at}], rax",
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
    measure_clock!("esi", "7", "7b"),
    "mov [rdi + {clock}], esi",
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
    pop_timed!(),
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {kept_bytes}]",
    ".cfi_adjust_cfa_offset -{kept_bytes}",
    "jmp qword ptr [rsp - {kept_bytes} + {own_at}]",
    ".cfi_adjust_cfa_offset {timed_bytes}",
    // The first hooked call of a thread.
    "20:",
    "mov eax, [rip + {pool} + {pool_next}]",
    "cmp eax, [rip + {pool} + {pool_had}]",
    "jae 30f",
    "lea ecx, [rax + 1]",
    "lock cmpxchg [rip + {pool} + {pool_next}], ecx",
    "jne 20b",
    "lea rdx, [rip + {pool}]",
    "mov rbx, [rdx + rax * {place_bytes} + {pool_places}]",
    // A child of a fork, or its parent, may have claimed it.
    "xor eax, eax",
    "lock cmpxchg [rbx + {claimed}], ecx",
    "jne 20b",
    // Threads start their search for rows at different places.
    "dec ecx",
    "imul ecx, ecx, {window}",
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
    "mov rax, [rsp + {timed_kept} + {returns_at}]",
    "sub rax, rcx",
    "shr rax, {stub_shift}",
    "mov edi, eax",
    rows::row_of_number!("edi", "rdi"),
    "mov eax, [r11 + {site_number}]",
    "inc eax",
    "mov [rdi + {goes_on}], eax",
    // Go on without timing.
    "45:",
    ".cfi_remember_state",
    pop_timed!(),
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp qword ptr [rsp - {returns_at} + {body_at}]",
    ".cfi_restore_state",
    // Take hooks out, and come back soon: there may be more of them.
    "60:",
    "mov eax, {soon}",
    "mov fs:[r8 + {countdown}], rax",
    pop_timed!(),
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp dimmer_hook_take_out",
    ".cfi_endproc",
    ".size dimmer_hook_slow, . - dimmer_hook_slow",
    ".p2align 6",
    ".hidden dimmer_hook_return",
    ".globl dimmer_hook_return",
    ".type dimmer_hook_return,@function",
    // Return stubs jump here when a call returns. In: at C - 8, where the stack pointer is, the
    // number of the row. All registers are the function's results, or the caller's.
    //
    //              |  stack of the caller                  |
    // C            +---------------------------------------+
    //              |  the row's number; the return address |  <- rsp on entry
    //              |  r11                                  |
    //              |  flags                                |
    //              |  rax rcx rdx rbx rsi rdi r8           |
    // C - 80       +---------------------------------------+  <- rsp, [`frame::Returned`]
    //
    // | register | holds |
    // |---|---|
    // | r8 | distance of the thread block from the FS base |
    // | rdi | the row |
    // | rbx | the thread's counters |
    // | rdx | the time of the end |
    // | esi | the record's flags |
    // | rax, rcx, r11 | whatever is at hand |
    "dimmer_hook_return:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 8",
    ".cfi_undefined rip",
    push!("r11"),
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    push_timed!(),
    "mov edi, [rsp + {row_at}]",
    rows::row_of_number!("edi", "rdi"),
    "cmp dword ptr [rdi + {is_migrated}], 0",
    "jne dimmer_migrate_return",
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 10f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + {row_at}], rax",
    ".cfi_offset rip, -8",
    load_thread_offset!("r8"),
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
    "and esi, {follows}",
    "mov eax, fs:[r8 + {interrupts}]",
    "add eax, eax",
    "xor eax, ecx",
    "cmp eax, {follows}",
    "jbe 24f",
    "or esi, {interrupted}",
    "24:",
    "mov eax, [rdi + {goes_on}]",
    "shl eax, {goes_on_shift}",
    "or esi, eax",
    "mov eax, 1",
    "xadd [rbx + {head}], rax",
    "and eax, {records} - 1",
    "shl eax, {record_shift}",
    "lea rax, [rbx + rax + {ring}]",
    "mov rcx, [rdi + {begin}]",
    "mov [rax + {record_begin}], rcx",
    "mov ecx, [rdi + {of_site}]",
    "mov [rax + {record_site}], ecx",
    "mov [rax + {record_flags}], esi",
    "mov ecx, [rdi + {clock}]",
    "mov [rax + {chain_before}], ecx",
    "mov dword ptr [rax + {chain_after}], 0",
    // Measure the clock after the call, now and then.
    "mov rcx, rax",
    "sub rcx, rbx",
    "sub rcx, {ring}",
    "shr rcx, {record_shift}",
    "and ecx, {clock_every} - 1",
    "jnz 27f",
    push!("rdx", "rax"),
    measure_clock!("r11d", "26", "26b"),
    pop!("rax", "rdx"),
    "mov [rax + {chain_after}], r11d",
    "27:",
    // Write the end last: it completes the record.
    "mov [rax + {record_end}], rdx",
    // Timed calls come in pairs, so that the time between two calls is measured.
    "cmp dword ptr [rbx + {period}], 1",
    "jbe 22f",
    "test esi, {follows}",
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
    "mov qword ptr [rdi + {stack}], 0",
    pop_timed!(),
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    pop!("r11"),
    "ret",
    // The process may not read time stamps any more.
    "10:",
    ".cfi_restore_state",
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + {row_at}], rax",
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
    stack = const rows::STACK,
    row_shift = const rows::ROW_SHIFT,
    stub_shift = const rows::STUB_SHIFT,
    row = const thread_block::ROW,
    left = const thread_block::LEFT,
    site_number = const offset_of!(Site, number),
    site_body = const offset_of!(Site, body),
    own_at = const frame::OWN,
    body_at = const frame::BODY,
    r11_at = const frame::R11,
    returns_at = const frame::RETURNS_TO,
    kept_bytes = const frame::KEPT_BYTES,
    timed_kept = const frame::TIMED_KEPT,
    timed_bytes = const frame::TIMED_BYTES,
    row_at = const frame::RETURNED_ROW,
    slot_bytes = const SLOT_BYTES,
    counters = const COUNTERS,
    counter_bytes = const COUNTER_BYTES,
    left_out = const LEFT_OUT,
    pool = sym POOL,
    pool_next = const slots::NEXT,
    pool_had = const slots::HAD,
    pool_places = const slots::PLACES,
    place_bytes = const slots::PLACE_BYTES,
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
    soon = const SOON,
    unhook_orders = const UNHOOK_ORDERS,
    orders_done = sym ORDERS_DONE,
    attempts = sym ATTEMPTS,
    record_shift = const RECORD_SHIFT,
    record_begin = const RECORD_BEGIN,
    record_end = const RECORD_END,
    record_site = const RECORD_SITE,
    record_flags = const RECORD_FLAGS,
    chain_after = const CHAIN_AFTER,
    chain_before = const CHAIN_BEFORE,
    interrupted = const INTERRUPTED,
    countdown = const thread_block::COUNTDOWN,
    next = const thread_block::NEXT,
    follows = const FOLLOWS,
    looked_at = const thread_block::LOOKED_AT,
    kept = const thread_block::KEPT,
    goes_on_shift = const GOES_ON_SHIFT,
    interrupts = const thread_block::INTERRUPTS,
    undisturbed = const UNDISTURBED,
    clock_every = const CLOCK_EVERY,
    chain = const CHAIN / CHAIN_TURN,
    counted_at = const thread_block::COUNTED_AT,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_slow();
}

/// Address of the code to which stubs jump when their countdown ends.
pub(crate) fn slow() -> u64 {
    dimmer_hook_slow as *const () as u64
}

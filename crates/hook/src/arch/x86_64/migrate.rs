//! Migrates calls of hooked functions: the caller's thread goes to another core when the function
//! is called, and comes home when it returns.
//!
//! As for a timed call ([`super::swap`]), the return address is taken off the stack and kept in the
//! table, and the function is called in its place. Functions that this crate is given
//! ([`crate::Mover`]) migrate the thread before the call and bring it home after it. They run on
//! the thread's own stack. The processor state beside the general registers is stored on the stack
//! at home and loaded on the other core, and the same on the way back. All of it goes along:
//! arguments and results may be anywhere, and compilers that see both sides rely on more registers
//! than the calling convention defines.
//!
//! An exception, or a thread's end, that passes such a call brings the thread home on its way: the
//! unwinder calls the frame's personality routine, as it does to run destructors. Code that leaves
//! the function in another way (`longjmp`), or that must run at home, has to call
//! [`crate::cut_migration_short`].

use std::arch::global_asm;
use std::mem::offset_of;

use super::frame::{self, pop, pop_timed, push, push_timed};
use super::thread_block::{self, load_thread_offset};
use super::{registers, rows};
use crate::ledger::{
    CHAIN_AFTER, COUNTER_BYTES, COUNTERS, HEAD, MIGRATED_CALL, MOVED, RECORD_BEGIN, RECORD_END,
    RECORD_FLAGS, RECORD_SHIFT, RECORD_SITE, RECORDS, RING, TAIL,
};
use crate::mover::{self, SIGNALS_ARE_RIGHT};
use crate::process::{ONLY_COUNTS, RESTRICTED};
use crate::sections;
use crate::site::Site;

/// Bytes of a signal mask, as the kernel's system calls expect it.
const MASK_BYTES: usize = 8;

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_migrate",
    ".globl dimmer_hook_migrate",
    ".type dimmer_hook_migrate,@function",
    // Stubs jump here at the start of a call that may migrate. In: r11 the site ([`Site`]), at
    // C - 16 the caller's r11. All other registers are the caller's.
    //
    //              |  stack of the caller                |
    // C            +-------------------------------------+
    //              |  return address                     |  <- rsp on entry
    //              |  r11                                |
    //              |  body, where the call goes on       |
    //              |  own: the row, then the return stub |
    // C - 32       +-------------------------------------+
    //              |  rax rcx rdx rbx rsi rdi r8 r9 r10  |
    // C - 104      +-------------------------------------+  <- rbx, [`frame::Migrating`]
    //              |  the processor's state              |
    //              +-------------------------------------+  <- rsp in `begin_migration`
    //
    // `begin_migration` returns on another kernel thread, with this stack. The function then runs
    // from C, and what is below C - 32 is free.
    "dimmer_hook_migrate:",
    ".cfi_startproc",
    "lea rsp, [rsp - {returns_at}]",
    ".cfi_adjust_cfa_offset {returns_at}",
    push_timed!(),
    push!("r9", "r10"),
    "mov rax, [r11 + {site_body}]",
    "mov [rsp + {migrating_kept} + {body_at}], rax",
    load_thread_offset!("r8"),
    "mov rbx, fs:[r8 + {counted_at}]",
    "test rbx, rbx",
    "jz 20f",
    "mov eax, [r11 + {site_number}]",
    "inc dword ptr [rbx + rax * {counter_bytes}]",
    // Inside a call that has moved, or while migration is inhibited.
    "cmp qword ptr fs:[r8 + {migrated}], 0",
    "jne 45f",
    // Reached by a jump from a function whose return address is in the table already.
    "mov rax, [rsp + {migrating_kept} + {returns_at}]",
    rows::if_stub!("45f"),
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 45f",
    // Tiles do not go along. Without XSAVEC there are none.
    "cmp dword ptr [rip + {features} + {has_xsavec}], 0",
    "je 46f",
    "mov ecx, 1",
    "xgetbv",
    "test eax, {tiles}",
    "jnz 45f",
    "46:",
    "lea rsi, [rsp + {migrating_bytes}]",
    rows::claim!("45f"),
    "mov rax, [rsp + {migrating_kept} + {returns_at}]",
    "mov [rdx + {returns_to}], rax",
    "mov eax, [r11 + {site_number}]",
    "mov [rdx + {of_site}], eax",
    "mov dword ptr [rdx + {is_migrated}], 1",
    "mov [rsp + {migrating_kept} + {own_at}], rdx",
    "mov rdi, rdx",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov [rdi + {begin}], rdx",
    // `begin_migration` may call functions that are hooked.
    "inc dword ptr fs:[r8 + {inhibited}]",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, {migrating_bytes}",
    registers::pack!(),
    "mov rdi, [rbx + {migrating_kept} + {own_at}]",
    "mov edi, [rdi + {of_site}]",
    "call [rip + {functions} + {begin_migration}]",
    "mov ecx, eax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, {migrating_bytes}",
    load_thread_offset!("r8"),
    "dec dword ptr fs:[r8 + {inhibited}]",
    "test ecx, ecx",
    "jz 44f",
    "mov dword ptr fs:[r8 + {migrated}], ecx",
    "mov rax, fs:[r8 + {counted_at}]",
    "inc qword ptr [rax + {moved}]",
    // The return stub, which calls the function.
    "mov rdx, [rsp + {migrating_kept} + {own_at}]",
    rows::stub_of!(),
    "mov [rsp + {migrating_kept} + {own_at}], rax",
    pop!("r10", "r9"),
    pop_timed!(),
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {kept_bytes}]",
    ".cfi_adjust_cfa_offset -{kept_bytes}",
    "jmp qword ptr [rsp - {kept_bytes} + {own_at}]",
    ".cfi_adjust_cfa_offset {migrating_bytes}",
    // The thread stays: the row is free again.
    "44:",
    "mov rdx, [rsp + {migrating_kept} + {own_at}]",
    "mov qword ptr [rdx + {stack}], 0",
    "45:",
    pop!("r10", "r9"),
    pop_timed!(),
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp qword ptr [rsp - {returns_at} + {body_at}]",
    ".cfi_adjust_cfa_offset {migrating_kept} + {returns_at}",
    // The first hooked call of a thread is timed at home, since that gives the thread its counters.
    "20:",
    pop!("r10", "r9"),
    pop_timed!(),
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp dimmer_hook_slow",
    ".cfi_endproc",
    ".size dimmer_hook_migrate, . - dimmer_hook_migrate",
    ".hidden dimmer_migrate_return",
    ".globl dimmer_migrate_return",
    ".type dimmer_migrate_return,@function",
    // `dimmer_hook_return` jumps here, with its frame, at the end of a migrated call, or of one
    // that is watched ([`super::section`]).
    //
    //              |  stack of the caller                  |
    // C            +---------------------------------------+
    //              |  the row's number; the return address |
    //              |  r11, flags                           |
    //              |  rax rcx rdx rbx rsi rdi r8           |
    // C - 80       +---------------------------------------+  <- rsp on entry
    //              |  r9 r10                               |
    //              |  mask: the signals to block           |
    // C - 104      +---------------------------------------+  <- rbx, [`frame::MigratedBack`]
    //              |  the processor's state                |
    //              +---------------------------------------+  <- rsp in `end_call`
    "dimmer_migrate_return:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, {returned_bytes}",
    ".cfi_undefined rip",
    ".cfi_rel_offset rbx, {returned_rbx}",
    push!("r9", "r10"),
    "lea rsp, [rsp - {mask_bytes}]",
    ".cfi_adjust_cfa_offset {mask_bytes}",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, {back_bytes}",
    load_thread_offset!("r8"),
    "inc dword ptr fs:[r8 + {inhibited}]",
    registers::pack!(),
    "mov edi, [rbx + {row_at}]",
    rows::row_of_number!("edi", "rdi"),
    "cmp dword ptr [rdi + {is_migrated}], {is_watched}",
    "jne 12f",
    // What watches calls reads time stamps. Its call ends, in its view, with the thread.
    "mov rax, {signals_are_right}",
    "cmp dword ptr [rip + {only_counts}], {restricted}",
    "jae 13f",
    "mov rdi, [rdi + {stack}]",
    "call [rip + {watcher} + {returned}]",
    "mov rax, {signals_are_right}",
    "jmp 13f",
    "12:",
    "call {home}",
    "13:",
    "mov [rbx + {mask_at}], rax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, {back_bytes}",
    load_thread_offset!("r8"),
    "dec dword ptr fs:[r8 + {inhibited}]",
    "mov edi, [rsp + {row_at}]",
    rows::row_of_number!("edi", "rdi"),
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + {row_at}], rax",
    ".cfi_offset rip, -8",
    // Install the signal mask here: handlers that leave by unwinding (cancellation, `pthread_exit`)
    // find the caller's frame from here on.
    "cmp qword ptr [rsp + {mask_at}], {signals_are_right}",
    "je 10f",
    "mov rbx, rdi",
    "mov edi, {set_mask}",
    "lea rsi, [rsp + {mask_at}]",
    "xor edx, edx",
    "mov r10d, {mask_bytes}",
    "mov eax, {sigprocmask}",
    "syscall",
    "mov rdi, rbx",
    "10:",
    // Record its time, if the ring has room and time stamps may be read.
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 9f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov rbx, fs:[r8 + {counted_at}]",
    // Null in the child of a fork within the function.
    "test rbx, rbx",
    "jz 9f",
    "mov rcx, [rbx + {head}]",
    "sub rcx, [rbx + {tail}]",
    "cmp rcx, {records}",
    "jae 9f",
    "mov eax, 1",
    "xadd [rbx + {head}], rax",
    "and eax, {records} - 1",
    "shl eax, {record_shift}",
    "lea rax, [rbx + rax + {ring}]",
    "mov rcx, [rdi + {begin}]",
    "mov [rax + {record_begin}], rcx",
    "mov ecx, [rdi + {of_site}]",
    "mov [rax + {record_site}], ecx",
    "mov dword ptr [rax + {record_flags}], {migrated_call}",
    // No chains: both durations.
    "mov qword ptr [rax + {chain_after}], 0",
    // Write the end last: it completes the record.
    "mov [rax + {record_end}], rdx",
    "9:",
    "mov qword ptr [rdi + {stack}], 0",
    "lea rsp, [rsp + {mask_bytes}]",
    ".cfi_adjust_cfa_offset -{mask_bytes}",
    pop!("r10", "r9", "r8", "rdi", "rsi", "rbx"),
    ".cfi_restore rbx",
    pop!("rdx", "rcx", "rax"),
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    pop!("r11"),
    "ret",
    ".cfi_endproc",
    ".size dimmer_migrate_return, . - dimmer_migrate_return",
    functions = sym mover::FUNCTIONS,
    begin_migration = const mover::BEGIN_MIGRATION,
    features = sym registers::FEATURES,
    has_avx = const registers::HAS_AVX,
    has_xsavec = const registers::HAS_XSAVEC,
    header = const registers::HEADER,
    carried = const registers::CARRIED,
    state_bytes = const registers::STATE_BYTES,
    tiles = const registers::TILES,
    only_counts = sym ONLY_COUNTS,
    restricted = const RESTRICTED,
    home = sym mover::end_call,
    signals_are_right = const SIGNALS_ARE_RIGHT.cast_signed(),
    set_mask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    mask_bytes = const MASK_BYTES,
    site_number = const offset_of!(Site, number),
    site_body = const offset_of!(Site, body),
    own_at = const frame::OWN,
    body_at = const frame::BODY,
    r11_at = const frame::R11,
    returns_at = const frame::RETURNS_TO,
    kept_bytes = const frame::KEPT_BYTES,
    migrating_kept = const frame::MIGRATING_KEPT,
    migrating_bytes = const frame::MIGRATING_BYTES,
    returned_rbx = const frame::RETURNED_RBX,
    returned_bytes = const frame::RETURNED_BYTES,
    row_at = const frame::BACK_ROW,
    mask_at = const frame::BACK_MASK,
    back_bytes = const frame::BACK_BYTES,
    counted_at = const thread_block::COUNTED_AT,
    migrated = const thread_block::MIGRATED,
    inhibited = const thread_block::INHIBITED,
    row = const thread_block::ROW,
    left = const thread_block::LEFT,
    counter_bytes = const COUNTER_BYTES,
    moved = const MOVED.cast_signed() - COUNTERS.cast_signed(),
    head = const HEAD.cast_signed() - COUNTERS.cast_signed(),
    tail = const TAIL.cast_signed() - COUNTERS.cast_signed(),
    ring = const RING.cast_signed() - COUNTERS.cast_signed(),
    records = const RECORDS,
    record_shift = const RECORD_SHIFT,
    record_begin = const RECORD_BEGIN,
    record_end = const RECORD_END,
    record_site = const RECORD_SITE,
    record_flags = const RECORD_FLAGS,
    chain_after = const CHAIN_AFTER,
    migrated_call = const MIGRATED_CALL,
    table = sym rows::TABLE,
    rows = const rows::ROWS,
    window = const rows::WINDOW,
    row_shift = const rows::ROW_SHIFT,
    stub_shift = const rows::STUB_SHIFT,
    stubs_bytes = const rows::STUBS_BYTES,
    stack = const rows::STACK,
    returns_to = const rows::RETURNS_TO,
    of_site = const rows::SITE,
    begin = const rows::BEGIN,
    is_migrated = const rows::IS_MIGRATED,
    is_watched = const rows::WATCHED,
    watcher = sym sections::FUNCTIONS,
    returned = const sections::RETURNED,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_migrate();
}

/// Address of the code for migrated calls, to which stubs jump.
pub(crate) fn entry() -> u64 {
    dimmer_hook_migrate as *const () as u64
}

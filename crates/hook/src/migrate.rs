//! Migrates calls of hooked functions: the caller's thread goes to another core when the function
//! is called, and comes home when it returns.
//!
//! As for a timed call ([`crate::swap`]), the return address is taken off the stack and kept in the
//! table, and the function is called in its place. Functions that this crate is given ([`Mover`])
//! migrate the thread before the call and bring it home after it. They run on the thread's own
//! stack. The processor state beside the general registers is stored on the stack at home and
//! loaded on the other core, and the same on the way back. All of it travels: arguments and results
//! may be anywhere, and compilers that see both sides rely on more registers than the calling
//! convention defines.
//!
//! An exception, or a thread's end, that passes such a call brings the thread home on its way: the
//! unwinder calls the frame's personality routine, as it does to run destructors. Code that leaves
//! the function in another way (`longjmp`), or that must run at home, has to call
//! [`cut_migration_short`].

use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::delegate::{LeafCall, LeafEnd};
use crate::ledger::{COUNTERS, HEAD, MIGRATED_CALL, MOVED, RECORD_BYTES, RECORDS, RING, TAIL};
use crate::process::ONLY_COUNTS;
use crate::registers::Form;
use crate::swap::{COUNTED_AT, INHIBITED, LEFT, MIGRATED, ROW, thread_offset};
use crate::{delegate, registers, rows};

/// Functions that migrate the calling thread and bring it home.
#[derive(Clone, Copy, Debug)]
pub struct Mover {
    /// Migrates the thread. Returns the id of the kernel thread that runs it now; 0 if it stays at
    /// home. Called on the stack that the function will have.
    pub begin_migration: extern "C" fn() -> u32,
    /// Brings the thread home at the end of a call. Called only if `begin_migration` has migrated
    /// it. Returns the signals to block from then on, in the kernel's format (signal 1 in bit 0),
    /// or [`SIGNALS_ARE_RIGHT`].
    pub end_migration: extern "C" fn() -> u64,
    /// Brings the thread home in the middle of a call; the rest of the call runs at home. The
    /// caller may be the handler of a fault of the thread's own.
    pub cut_migration_short: extern "C" fn(),
    /// Called at the end of a call that was cut short. Returns the signals to block from then on.
    pub end_cut_migration: extern "C" fn() -> u64,
    /// Delegates a call of a leaf function to another core while the thread waits at home. Returns
    /// `None` if that is not possible.
    pub delegate: fn(LeafCall<'_>) -> Option<LeafEnd>,
    /// Called when the unwinder passes that wait: waits for the call to end.
    pub unwind_delegated: extern "C" fn(),
}

/// Returned in place of a signal mask: the mask in force stays.
pub const SIGNALS_ARE_RIGHT: u64 = u64::MAX;

/// Reasons why calls cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotMove {
    /// Registers cannot travel.
    #[error("this processor lacks XSAVE, or the system does not use it")]
    NoXsave,
    /// Not all registers can travel.
    #[error(
        "this processor lacks XSAVEC or XGETBV with 1, and has more registers than XSAVE alone takes along"
    )]
    NoXsavec,
    /// The decisions about calls cannot be read.
    #[error("the ledger with the decisions cannot be mapped")]
    NoDecisions,
}

/// Functions and flags for the code below.
#[derive(Debug)]
#[repr(C)]
struct State {
    begin_migration: AtomicPtr<()>,
    end_migration: AtomicPtr<()>,
    /// Whether upper halves of registers have to be cleaned.
    has_avx: AtomicU32,
    /// Whether XSAVEC stores the processor's state.
    has_xsavec: AtomicU32,
    cut_migration_short: AtomicPtr<()>,
    end_cut_migration: AtomicPtr<()>,
}

static STATE: State = State {
    begin_migration: AtomicPtr::new(std::ptr::null_mut()),
    end_migration: AtomicPtr::new(std::ptr::null_mut()),
    has_avx: AtomicU32::new(0),
    has_xsavec: AtomicU32::new(0),
    cut_migration_short: AtomicPtr::new(std::ptr::null_mut()),
    end_cut_migration: AtomicPtr::new(std::ptr::null_mut()),
};

const _: () = assert!(offset_of!(State, begin_migration) == 0 && offset_of!(State, has_avx) == 16);
const _: () = assert!(offset_of!(State, has_xsavec) == 20);

// Assembly reads both as one word.
const _: () = assert!(INHIBITED == MIGRATED + 4);
const _: () = assert!(RECORD_BYTES == 1 << 5);

global_asm!(
    ".macro dimmer_migrate_push register",
    "push \\register",
    ".cfi_adjust_cfa_offset 8",
    ".endm",
    ".macro dimmer_migrate_pop register",
    "pop \\register",
    ".cfi_adjust_cfa_offset -8",
    ".endm",
    ".macro dimmer_migrate_push_all",
    ".irp register, rax, rcx, rdx, rbx, rsi, rdi, r8, r9, r10",
    "dimmer_migrate_push \\register",
    ".endr",
    ".endm",
    ".macro dimmer_migrate_pop_all",
    ".irp register, r10, r9, r8, rdi, rsi, rbx, rdx, rcx, rax",
    "dimmer_migrate_pop \\register",
    ".endr",
    ".endm",
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_migrate",
    ".globl dimmer_hook_migrate",
    ".type dimmer_hook_migrate,@function",
    // In: r11 the site. Let C be the stack pointer before the call. The return address is at C-8,
    // and the caller's r11 at C-16.
    "dimmer_hook_migrate:",
    ".cfi_startproc",
    "lea rsp, [rsp - 24]",
    ".cfi_adjust_cfa_offset 24",
    "dimmer_migrate_push_all",
    // rsp = C-104. The address to go on at is kept at C-24.
    "mov rax, [r11 + 8]",
    "mov [rsp + 80], rax",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "mov rbx, fs:[r8 + {counted_at}]",
    "test rbx, rbx",
    "jz 20f",
    "mov eax, [r11]",
    "inc dword ptr [rbx + rax * 4]",
    // Inside a call that has moved, or while migration is inhibited.
    "cmp qword ptr fs:[r8 + {migrated}], 0",
    "jne 45f",
    // Reached by a jump from a function whose return address is in the table already.
    "mov rax, [rsp + 96]",
    rows::if_stub!("45f"),
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 45f",
    // Tiles do not travel. Without XSAVEC there are none.
    "cmp dword ptr [rip + {state} + 20], 0",
    "je 46f",
    "mov ecx, 1",
    "xgetbv",
    "test eax, {tiles}",
    "jnz 45f",
    "46:",
    "lea rsi, [rsp + 104]",
    rows::claim!("45f"),
    "mov rax, [rsp + 96]",
    "mov [rdx + {returns_to}], rax",
    "mov eax, [r11]",
    "mov [rdx + {of_site}], eax",
    "mov dword ptr [rdx + {is_migrated}], 1",
    // The row is kept at C-32.
    "mov [rsp + 72], rdx",
    "mov rdi, rdx",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov [rdi + {begin}], rdx",
    // `begin_migration` may call functions that are hooked.
    "inc dword ptr fs:[r8 + {inhibited}]",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 104",
    registers::pack!(),
    "call [rip + {state}]",
    "mov ecx, eax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, 104",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "dec dword ptr fs:[r8 + {inhibited}]",
    "test ecx, ecx",
    "jz 44f",
    "mov dword ptr fs:[r8 + {migrated}], ecx",
    "mov rax, fs:[r8 + {counted_at}]",
    "inc qword ptr [rax + {moved}]",
    // At C-32, the return stub, which calls the function.
    "mov rdx, [rsp + 72]",
    rows::stub_of!(),
    "mov [rsp + 72], rax",
    "dimmer_migrate_pop_all",
    "mov r11, [rsp + 16]",
    "lea rsp, [rsp + 32]",
    ".cfi_adjust_cfa_offset -32",
    "jmp qword ptr [rsp - 32]",
    ".cfi_adjust_cfa_offset 104",
    // The thread stays: the row is free again.
    "44:",
    "mov rdx, [rsp + 72]",
    "mov qword ptr [rdx], 0",
    "45:",
    "dimmer_migrate_pop_all",
    "mov r11, [rsp + 16]",
    "lea rsp, [rsp + 24]",
    ".cfi_adjust_cfa_offset -24",
    "jmp qword ptr [rsp - 16]",
    ".cfi_adjust_cfa_offset 96",
    // The first hooked call of a thread is timed at home, since that gives the thread its counters.
    "20:",
    "dimmer_migrate_pop_all",
    "lea rsp, [rsp + 24]",
    ".cfi_adjust_cfa_offset -24",
    "jmp dimmer_hook_slow",
    ".cfi_endproc",
    ".size dimmer_hook_migrate, . - dimmer_hook_migrate",
    ".hidden dimmer_migrate_return",
    ".globl dimmer_migrate_return",
    ".type dimmer_migrate_return,@function",
    // `dimmer_hook_return` jumps here, after it has pushed r11, the flags, rax, rcx, rdx, rbx, rsi,
    // rdi and r8. The number of the row is at C-8. The signal mask will be at C-104.
    "dimmer_migrate_return:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 80",
    ".cfi_undefined rip",
    ".cfi_offset rbx, -56",
    "dimmer_migrate_push r9",
    "dimmer_migrate_push r10",
    "lea rsp, [rsp - 8]",
    ".cfi_adjust_cfa_offset 8",
    // rsp = C-104.
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 104",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "inc dword ptr fs:[r8 + {inhibited}]",
    registers::pack!(),
    "call {home}",
    "mov [rbx], rax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, 104",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "dec dword ptr fs:[r8 + {inhibited}]",
    "mov edi, [rsp + 96]",
    "shl edi, 6",
    "lea rax, [rip + {table}]",
    "add rdi, rax",
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + 96], rax",
    ".cfi_offset rip, -8",
    // Install the signal mask here: handlers that leave by unwinding (cancellation, `pthread_exit`)
    // find the caller's frame from here on.
    "cmp qword ptr [rsp], -1",
    "je 10f",
    "mov rbx, rdi",
    "mov edi, {set_mask}",
    "mov rsi, rsp",
    "xor edx, edx",
    "mov r10d, 8",
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
    "shl eax, 5",
    "lea rax, [rbx + rax + {ring}]",
    "mov rcx, [rdi + {begin}]",
    "mov [rax], rcx",
    "mov ecx, [rdi + {of_site}]",
    "mov [rax + 16], ecx",
    "mov dword ptr [rax + 20], {migrated_call}",
    "mov qword ptr [rax + 24], 0",
    // Write the end last: it completes the record.
    "mov [rax + 8], rdx",
    "9:",
    "mov qword ptr [rdi], 0",
    "lea rsp, [rsp + 8]",
    ".cfi_adjust_cfa_offset -8",
    "dimmer_migrate_pop r10",
    "dimmer_migrate_pop r9",
    "dimmer_migrate_pop r8",
    "dimmer_migrate_pop rdi",
    "dimmer_migrate_pop rsi",
    "dimmer_migrate_pop rbx",
    ".cfi_restore rbx",
    "dimmer_migrate_pop rdx",
    "dimmer_migrate_pop rcx",
    "dimmer_migrate_pop rax",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "dimmer_migrate_pop r11",
    "ret",
    ".cfi_endproc",
    ".size dimmer_migrate_return, . - dimmer_migrate_return",
    state = sym STATE,
    only_counts = sym ONLY_COUNTS,
    home = sym end_call,
    set_mask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    counted_at = const COUNTED_AT,
    moved = const MOVED.cast_signed() - COUNTERS.cast_signed(),
    head = const HEAD.cast_signed() - COUNTERS.cast_signed(),
    tail = const TAIL.cast_signed() - COUNTERS.cast_signed(),
    ring = const RING.cast_signed() - COUNTERS.cast_signed(),
    records = const RECORDS,
    migrated_call = const MIGRATED_CALL,
    migrated = const MIGRATED,
    travelling = const registers::TRAVELLING,
    state_bytes = const registers::STATE_BYTES,
    tiles = const registers::TILES,
    inhibited = const INHIBITED,
    table = sym rows::TABLE,
    rows = const rows::ROWS,
    window = const rows::WINDOW,
    stubs_bytes = const rows::STUBS_BYTES,
    returns_to = const rows::RETURNS_TO,
    of_site = const rows::SITE,
    begin = const rows::BEGIN,
    is_migrated = const rows::IS_MIGRATED,
    row = const ROW,
    left = const LEFT,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_migrate();
}

/// Address of the code for migrated calls, to which stubs jump.
pub(crate) fn entry() -> u64 {
    dimmer_hook_migrate as *const () as u64
}

/// From now on, `mover` moves calls.
///
/// # Errors
/// [`CannotMove`].
pub(crate) fn prepare(mover: Mover) -> Result<Form, CannotMove> {
    let form = Form::find()?;
    // Relaxed: no call is moved yet.
    STATE.begin_migration.store(mover.begin_migration as *mut (), Ordering::Relaxed);
    STATE.end_migration.store(mover.end_migration as *mut (), Ordering::Relaxed);
    STATE.cut_migration_short.store(mover.cut_migration_short as *mut (), Ordering::Relaxed);
    STATE.end_cut_migration.store(mover.end_cut_migration as *mut (), Ordering::Relaxed);
    STATE.has_avx.store(u32::from(form.has_avx()), Ordering::Relaxed);
    STATE.has_xsavec.store(u32::from(form.has_xsavec), Ordering::Relaxed);
    delegate::prepare(mover, form);
    Ok(form)
}

/// Brings the calling thread home, if it has migrated for a call. The rest of the call runs at
/// home.
pub extern "C" fn cut_migration_short() {
    if is_migrated() {
        note_home();
        let cut_migration_short = STATE.cut_migration_short.load(Ordering::Relaxed);
        // SAFETY: `prepare` has stored the function, or no thread would be away.
        let cut_migration_short =
            unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(cut_migration_short) };
        cut_migration_short();
    }
}

/// Called at the end of a migrated call: brings the thread home, if it is not there already.
/// Returns the signals to block then.
extern "C" fn end_call() -> u64 {
    let end = if is_migrated() {
        note_home();
        &STATE.end_migration
    } else {
        &STATE.end_cut_migration
    };
    let end = end.load(Ordering::Relaxed);
    // SAFETY: `prepare` has stored the function, or no call would be migrated.
    let end = unsafe { std::mem::transmute::<*mut (), extern "C" fn() -> u64>(end) };
    end()
}

/// Notes that the calling thread is at home. This happens before the thread goes there, because the
/// code that brings it home may ask again.
fn note_home() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {migrated}], 0",
            offset = in(reg) thread_offset(),
            migrated = const MIGRATED,
            options(nostack, preserves_flags)
        );
    }
}

/// Inhibits migration of the calling thread's calls. Nests; undone by [`allow_migration`].
pub extern "C" fn inhibit_migration() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "inc dword ptr fs:[{offset} + {inhibited}]",
            offset = in(reg) thread_offset(),
            inhibited = const INHIBITED,
            options(nostack)
        );
    }
}

/// Undoes a [`inhibit_migration`].
pub extern "C" fn allow_migration() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "dec dword ptr fs:[{offset} + {inhibited}]",
            offset = in(reg) thread_offset(),
            inhibited = const INHIBITED,
            options(nostack)
        );
    }
}

/// Whether the calling thread has migrated for a call.
fn is_migrated() -> bool {
    let is_migrated: u32;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {is_migrated:e}, fs:[{offset} + {migrated}]",
            is_migrated = out(reg) is_migrated,
            offset = in(reg) thread_offset(),
            migrated = const MIGRATED,
            options(nostack, readonly, preserves_flags)
        );
    }
    is_migrated != 0
}

//! Calls of hooked functions on another core: the caller's thread goes there when the function is
//! called, and comes home when it returns.
//!
//! As for a timed call ([`crate::swap`]) the return address is taken off the stack and kept in the
//! table, and the function is called in its place. Before it the thread is sent away, after it
//! brought home, by functions that this crate is given ([`Mover`]); they run on the thread's own
//! stack. What the processor keeps beside the general registers is put on the stack there and taken
//! up here, all of it: arguments and results may be anywhere, and compilers that know both sides
//! count on more registers than the calling convention says.
//!
//! An exception, or a thread's end, that passes such a call brings the thread home on its way: the
//! unwinder calls the frame's personality, as it does where destructors are to be run. What else
//! leaves the function (`longjmp`), or must not happen away, has to call [`come_home`].

use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::ledger::{AWAY_CALL, COUNTERS, HEAD, MOVED, RECORD_BYTES, RECORDS, RING, TAIL};
use crate::offload::{LeafCall, LeafEnd};
use crate::process::ONLY_COUNTS;
use crate::registers::Form;
use crate::swap::{AWAY, COUNTED_AT, LEFT, ROW, STAYS, thread_offset};
use crate::{offload, registers, rows};

/// How the calling thread gets to another core and back.
#[derive(Clone, Copy, Debug)]
pub struct Mover {
    /// Sends it there; the kernel's number of the thread that it is on now, 0 where it stays.
    /// Called with the stack that the function will have.
    pub leave: extern "C" fn() -> u32,
    /// Brings it home, where a call ends; which signals to block from then on, as the kernel has
    /// them (signal 1 in bit 0), or [`SIGNALS_ARE_RIGHT`]. Called only where `leave` has sent it
    /// away.
    pub come_home: extern "C" fn() -> u64,
    /// Brings it home in the middle of a call, whose rest runs at home; perhaps in the handler of a
    /// fault of the thread's own.
    pub cut_short: extern "C" fn(),
    /// Called where a call ends that was cut short; which signals to block from then on.
    pub end_at_home: extern "C" fn() -> u64,
    /// Makes a call of a leaf function on another core while the thread waits where it is; `None`
    /// if it cannot.
    pub lend: fn(LeafCall<'_>) -> Option<LeafEnd>,
    /// Called when the thread is unwound through that wait: waits for the call to end.
    pub unwind_lent: extern "C" fn(),
}

/// Instead of a mask of signals: the one in force is to stay.
pub const SIGNALS_ARE_RIGHT: u64 = u64::MAX;

/// Why calls cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotMove {
    /// Registers cannot be taken along.
    #[error("this processor lacks XSAVE, or the system does not use it")]
    NoXsave,
    /// Not all of them can.
    #[error(
        "this processor lacks XSAVEC or XGETBV with 1, and has more registers than XSAVE alone takes along"
    )]
    NoXsavec,
    /// What is decided of them cannot be read.
    #[error("the ledger with the decisions cannot be mapped")]
    NoDecisions,
}

/// What the code below needs to know.
#[derive(Debug)]
#[repr(C)]
struct State {
    leave: AtomicPtr<()>,
    come_home: AtomicPtr<()>,
    /// Whether there are upper halves of registers to be cleaned.
    has_avx: AtomicU32,
    /// Whether the processor's state is stored by XSAVEC.
    has_xsavec: AtomicU32,
    cut_short: AtomicPtr<()>,
    end_at_home: AtomicPtr<()>,
}

static STATE: State = State {
    leave: AtomicPtr::new(std::ptr::null_mut()),
    come_home: AtomicPtr::new(std::ptr::null_mut()),
    has_avx: AtomicU32::new(0),
    has_xsavec: AtomicU32::new(0),
    cut_short: AtomicPtr::new(std::ptr::null_mut()),
    end_at_home: AtomicPtr::new(std::ptr::null_mut()),
};

const _: () = assert!(offset_of!(State, leave) == 0 && offset_of!(State, has_avx) == 16);
const _: () = assert!(offset_of!(State, has_xsavec) == 20);

// Both are looked at as one.
const _: () = assert!(STAYS == AWAY + 4);
const _: () = assert!(RECORD_BYTES == 1 << 5);

global_asm!(
    ".macro dimmer_away_push register",
    "push \\register",
    ".cfi_adjust_cfa_offset 8",
    ".endm",
    ".macro dimmer_away_pop register",
    "pop \\register",
    ".cfi_adjust_cfa_offset -8",
    ".endm",
    ".macro dimmer_away_push_all",
    ".irp register, rax, rcx, rdx, rbx, rsi, rdi, r8, r9, r10",
    "dimmer_away_push \\register",
    ".endr",
    ".endm",
    ".macro dimmer_away_pop_all",
    ".irp register, r10, r9, r8, rdi, rsi, rbx, rdx, rcx, rax",
    "dimmer_away_pop \\register",
    ".endr",
    ".endm",
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_away",
    ".globl dimmer_hook_away",
    ".type dimmer_hook_away,@function",
    // In: r11 the site. Let C be the stack pointer before the call; the return address is at C-8,
    // and r11 as it was at C-16.
    "dimmer_hook_away:",
    ".cfi_startproc",
    "lea rsp, [rsp - 24]",
    ".cfi_adjust_cfa_offset 24",
    "dimmer_away_push_all",
    // rsp = C-104. Where to go is kept at C-24.
    "mov rax, [r11 + 8]",
    "mov [rsp + 80], rax",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "mov rbx, fs:[r8 + {counted_at}]",
    "test rbx, rbx",
    "jz 20f",
    "mov eax, [r11]",
    "inc dword ptr [rbx + rax * 4]",
    // Within a call that has moved, or where none moves.
    "cmp qword ptr fs:[r8 + {away}], 0",
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
    "mov dword ptr [rdx + {is_away}], 1",
    // At C-32.
    "mov [rsp + 72], rdx",
    "mov rdi, rdx",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov [rdi + {begin}], rdx",
    // What it takes to leave may call functions that are hooked.
    "inc dword ptr fs:[r8 + {stays}]",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 104",
    registers::pack!(),
    "call [rip + {state}]",
    "mov ecx, eax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, 104",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "dec dword ptr fs:[r8 + {stays}]",
    "test ecx, ecx",
    "jz 44f",
    "mov dword ptr fs:[r8 + {away}], ecx",
    "mov rax, fs:[r8 + {counted_at}]",
    "inc qword ptr [rax + {moved}]",
    // At C-32, where the function is called from.
    "mov rdx, [rsp + 72]",
    rows::stub_of!(),
    "mov [rsp + 72], rax",
    "dimmer_away_pop_all",
    "mov r11, [rsp + 16]",
    "lea rsp, [rsp + 32]",
    ".cfi_adjust_cfa_offset -32",
    "jmp qword ptr [rsp - 32]",
    ".cfi_adjust_cfa_offset 104",
    // It stays: the row is free again.
    "44:",
    "mov rdx, [rsp + 72]",
    "mov qword ptr [rdx], 0",
    "45:",
    "dimmer_away_pop_all",
    "mov r11, [rsp + 16]",
    "lea rsp, [rsp + 24]",
    ".cfi_adjust_cfa_offset -24",
    "jmp qword ptr [rsp - 16]",
    ".cfi_adjust_cfa_offset 96",
    // The first hooked call of a thread is timed where it is, as that gives it its counters.
    "20:",
    "dimmer_away_pop_all",
    "lea rsp, [rsp + 24]",
    ".cfi_adjust_cfa_offset -24",
    "jmp dimmer_hook_slow",
    ".cfi_endproc",
    ".size dimmer_hook_away, . - dimmer_hook_away",
    ".hidden dimmer_away_return",
    ".globl dimmer_away_return",
    ".type dimmer_away_return,@function",
    // `dimmer_hook_return` comes here, having pushed r11, the flags, rax, rcx, rdx, rbx, rsi, rdi
    // and r8. At C-8 is the number of the row, at C-104 there will be the mask of signals.
    "dimmer_away_return:",
    ".cfi_startproc",
    ".cfi_def_cfa rsp, 80",
    ".cfi_undefined rip",
    ".cfi_offset rbx, -56",
    "dimmer_away_push r9",
    "dimmer_away_push r10",
    "lea rsp, [rsp - 8]",
    ".cfi_adjust_cfa_offset 8",
    // rsp = C-104.
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 104",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "inc dword ptr fs:[r8 + {stays}]",
    registers::pack!(),
    "call {home}",
    "mov [rbx], rax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, 104",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "dec dword ptr fs:[r8 + {stays}]",
    "mov edi, [rsp + 96]",
    "shl edi, 6",
    "lea rax, [rip + {table}]",
    "add rdi, rax",
    "mov rax, [rdi + {returns_to}]",
    "mov [rsp + 96], rax",
    ".cfi_offset rip, -8",
    // Lets signals in, here, where handlers that leave by unwinding (cancellation, `pthread_exit`)
    // find the way.
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
    // Its time, if there is room for it, and it may be taken.
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 9f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov rbx, fs:[r8 + {counted_at}]",
    // None: the child of a fork within the function.
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
    "mov dword ptr [rax + 20], {away_call}",
    "mov qword ptr [rax + 24], 0",
    // The end last: with it the record is complete.
    "mov [rax + 8], rdx",
    "9:",
    "mov qword ptr [rdi], 0",
    "lea rsp, [rsp + 8]",
    ".cfi_adjust_cfa_offset -8",
    "dimmer_away_pop r10",
    "dimmer_away_pop r9",
    "dimmer_away_pop r8",
    "dimmer_away_pop rdi",
    "dimmer_away_pop rsi",
    "dimmer_away_pop rbx",
    ".cfi_restore rbx",
    "dimmer_away_pop rdx",
    "dimmer_away_pop rcx",
    "dimmer_away_pop rax",
    "popfq",
    ".cfi_adjust_cfa_offset -8",
    "dimmer_away_pop r11",
    "ret",
    ".cfi_endproc",
    ".size dimmer_away_return, . - dimmer_away_return",
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
    away_call = const AWAY_CALL,
    away = const AWAY,
    travelling = const registers::TRAVELLING,
    state_bytes = const registers::STATE_BYTES,
    tiles = const registers::TILES,
    stays = const STAYS,
    table = sym rows::TABLE,
    rows = const rows::ROWS,
    window = const rows::WINDOW,
    stubs_bytes = const rows::STUBS_BYTES,
    returns_to = const rows::RETURNS_TO,
    of_site = const rows::SITE,
    begin = const rows::BEGIN,
    is_away = const rows::IS_AWAY,
    row = const ROW,
    left = const LEFT,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_away();
}

/// Where stubs go whose calls are to be moved.
pub(crate) fn away() -> u64 {
    dimmer_hook_away as *const () as u64
}

/// Has calls moved by `mover` from now on.
///
/// # Errors
/// [`CannotMove`].
pub(crate) fn prepare(mover: Mover) -> Result<Form, CannotMove> {
    let form = Form::find()?;
    // Relaxed: no call is moved yet.
    STATE.leave.store(mover.leave as *mut (), Ordering::Relaxed);
    STATE.come_home.store(mover.come_home as *mut (), Ordering::Relaxed);
    STATE.cut_short.store(mover.cut_short as *mut (), Ordering::Relaxed);
    STATE.end_at_home.store(mover.end_at_home as *mut (), Ordering::Relaxed);
    STATE.has_avx.store(u32::from(form.has_avx()), Ordering::Relaxed);
    STATE.has_xsavec.store(u32::from(form.has_xsavec), Ordering::Relaxed);
    offload::prepare(mover, form);
    Ok(form)
}

/// Brings the calling thread home, if it is away for a moved call. What is left of the call runs at
/// home.
pub extern "C" fn come_home() {
    if is_away() {
        note_home();
        let cut_short = STATE.cut_short.load(Ordering::Relaxed);
        // SAFETY: `prepare` has put it there, or no thread would be away.
        let cut_short = unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(cut_short) };
        cut_short();
    }
}

/// A moved call ends: brings the thread home, if it is not there already. Which signals to block
/// then.
extern "C" fn end_call() -> u64 {
    let end = if is_away() {
        note_home();
        &STATE.come_home
    } else {
        &STATE.end_at_home
    };
    let end = end.load(Ordering::Relaxed);
    // SAFETY: `prepare` has put it there, or no call would be moved.
    let end = unsafe { std::mem::transmute::<*mut (), extern "C" fn() -> u64>(end) };
    end()
}

/// Notes that the calling thread is at home: before it goes there, as what brings it home may ask
/// again.
fn note_home() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov dword ptr fs:[{offset} + {away}], 0",
            offset = in(reg) thread_offset(),
            away = const AWAY,
            options(nostack, preserves_flags)
        );
    }
}

/// From now on, until as many [`go_again`], the calling thread's calls stay where they are.
pub extern "C" fn stay() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "inc dword ptr fs:[{offset} + {stays}]",
            offset = in(reg) thread_offset(),
            stays = const STAYS,
            options(nostack)
        );
    }
}

/// Undoes a [`stay`].
pub extern "C" fn go_again() {
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "dec dword ptr fs:[{offset} + {stays}]",
            offset = in(reg) thread_offset(),
            stays = const STAYS,
            options(nostack)
        );
    }
}

/// Whether the calling thread is away for a moved call.
fn is_away() -> bool {
    let is_away: u32;
    // SAFETY: the thread's own memory.
    unsafe {
        asm!(
            "mov {is_away:e}, fs:[{offset} + {away}]",
            is_away = out(reg) is_away,
            offset = in(reg) thread_offset(),
            away = const AWAY,
            options(nostack, readonly, preserves_flags)
        );
    }
    is_away != 0
}

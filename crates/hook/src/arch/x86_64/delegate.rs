//! Delegates calls of leaf functions to another core: only registers go, and the thread waits
//! at home.
//!
//! A function that `dimmer_scan` has shown to be a leaf function ([`dimmer_scan::Leaf`]) needs only
//! some registers of its caller. So its call can be delegated to a worker. The worker calls the
//! function on its own stack, with the registers that the function reads, and the registers in
//! which it may return something come back. At home, the processor's state is stored on the stack,
//! because compiled code waits ([`crate::Mover::delegate`]), and restored afterwards. All that the
//! function does not return stays as it was, which is more than the calling convention promises.
//!
//! The thread is at home all the while, signals are not blocked, and its stack is its own: handlers
//! and unwinders find a call of a function that is under way. Leaving the frame early waits for the
//! function: unwinding does so in the personality routine ([`crate::Mover::unwind_delegated`]), a
//! jump does so in a call of the runtime's own.

use std::arch::{asm, global_asm};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use super::leaf::{Job, LeafCall, job};
use super::registers::{self, Form};
use super::rows;
use super::thread_block::{self, load_thread_offset};
use crate::ledger::{
    CHAIN_AFTER, COUNTER_BYTES, COUNTERS, HEAD, MIGRATED_CALL, MOVED, RECORD_BEGIN, RECORD_END,
    RECORD_FLAGS, RECORD_SHIFT, RECORD_SITE, RECORDS, RING, TAIL,
};
use crate::mover;
use crate::process::ONLY_COUNTS;
use crate::site::{Passed, Site};

/// The processor's numbers of the registers in which functions return something.
const RAX: u16 = 0;
const RDX: u16 = 2;

/// What the assembly has on the stack while a call is delegated: C - 48 and up.
#[repr(C)]
struct Frame {
    rbx: u64,
    job: *mut Job,
    /// The time of the start (ticks).
    begin: u64,
    /// Address of the displaced instructions, where the function goes on.
    body: u64,
    r11: u64,
    returns_to: u64,
}

const _: () = assert!(size_of::<Frame>() == 48 && offset_of!(Frame, rbx) == 0);

/// Restores the registers of the caller from the job, and rbx from the frame, and moves the stack
/// pointer up to the return address. Registers that a callee keeps were not changed. r11 is to be
/// loaded afterwards, from the frame below the stack pointer. In: rsp the job.
macro_rules! leave {
    () => {
        concat!(
            "mov rax, [rsp + {rax}]\n",
            "mov rcx, [rsp + {rcx}]\n",
            "mov rdx, [rsp + {rdx}]\n",
            "mov rsi, [rsp + {rsi}]\n",
            "mov rdi, [rsp + {rdi}]\n",
            "mov r8, [rsp + {r8}]\n",
            "mov r9, [rsp + {r9}]\n",
            "mov r10, [rsp + {r10}]\n",
            "mov r11, rbx\n",
            ".cfi_def_cfa r11, {frame_bytes}\n",
            "mov rbx, [r11 + {rbx_at}]\n",
            ".cfi_restore rbx\n",
            "lea rsp, [r11 + {returns_at}]\n",
            ".cfi_def_cfa rsp, 8\n",
        )
    };
}

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_delegate",
    ".globl dimmer_hook_delegate",
    ".type dimmer_hook_delegate,@function",
    // Stubs jump here at the start of a call of a leaf function. In: r11 the site ([`Site`]), at
    // C - 16 the caller's r11. All other registers are the caller's.
    //
    //              |  stack of the caller                |
    // C            +-------------------------------------+
    //              |  return address                     |  <- rsp on entry
    //              |  r11                                |
    //              |  body, where the call goes on       |
    //              |  begin: the time of the start       |
    //              |  job: its address                   |
    //              |  rbx                                |
    // C - 48       +-------------------------------------+  <- rbx, [`Frame`]
    //              |  (up to 63 bytes unused)            |
    //              |  the job ([`Job`])                  |
    //              +-------------------------------------+  a multiple of 64
    //              |  the processor's state              |
    //              +-------------------------------------+  <- rsp in `delegate`
    //
    // | register | holds |
    // |---|---|
    // | rbx | the frame |
    // | r8 | distance of the thread block from the FS base |
    // | rcx | the thread's counters |
    // | r11 | the site |
    // | rax, rdx | whatever is at hand |
    "dimmer_hook_delegate:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    "lea rsp, [rsp - {returns_at} + 8]",
    ".cfi_adjust_cfa_offset {returns_at} - 8",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, {frame_bytes}",
    "sub rsp, {job_bytes}",
    "and rsp, -64",
    "mov [rsp + {rax}], rax",
    "mov [rsp + {rcx}], rcx",
    "mov [rsp + {rdx}], rdx",
    "mov rax, [rbx + {rbx_at}]",
    "mov [rsp + {rbx}], rax",
    "mov [rsp + {rbp}], rbp",
    "mov [rsp + {rsi}], rsi",
    "mov [rsp + {rdi}], rdi",
    "mov [rsp + {r8}], r8",
    "mov [rsp + {r9}], r9",
    "mov [rsp + {r10}], r10",
    "mov rax, [rbx + {r11_at}]",
    "mov [rsp + {r11}], rax",
    "mov [rsp + {r12}], r12",
    "mov [rsp + {r13}], r13",
    "mov [rsp + {r14}], r14",
    "mov [rsp + {r15}], r15",
    "mov [rsp + {site}], r11",
    "mov [rbx + {job_at}], rsp",
    "mov rax, [r11 + {site_body}]",
    "mov [rbx + {body_at}], rax",
    load_thread_offset!("r8"),
    "mov rcx, fs:[r8 + {counted_at}]",
    "test rcx, rcx",
    "jz 20f",
    "mov eax, [r11 + {site_number}]",
    "inc dword ptr [rcx + rax * {counter_bytes}]",
    // Inside a call that has moved, or while migration is inhibited.
    "cmp qword ptr fs:[r8 + {migrated}], 0",
    "jne 45f",
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 45f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov [rbx + {begin_at}], rdx",
    registers::pack!(),
    "mov rdi, [rbx + {job_at}]",
    "mov rsi, rsp",
    "call {delegate}",
    "movzx ecx, al",
    registers::unpack!(),
    "mov rsp, [rbx + {job_at}]",
    "test ecx, ecx",
    "jz 45f",
    "ldmxcsr [rsp + {mxcsr}]",
    // The results in vector registers.
    "mov r11, [rsp + {site}]",
    "movzx eax, byte ptr [r11 + {site_returned_bytes}]",
    "test eax, eax",
    "jz 30f",
    "cmp eax, 32",
    "je 31f",
    "ja 32f",
    "movups xmm0, [rsp + {first}]",
    "movups xmm1, [rsp + {second}]",
    "jmp 30f",
    "31:",
    "vmovdqu ymm0, [rsp + {first}]",
    "vmovdqu ymm1, [rsp + {second}]",
    "jmp 30f",
    "32:",
    "vmovdqu64 zmm0, [rsp + {first}]",
    "vmovdqu64 zmm1, [rsp + {second}]",
    "30:",
    load_thread_offset!("r8"),
    "mov rcx, fs:[r8 + {counted_at}]",
    // Null in the child of a fork by a handler.
    "test rcx, rcx",
    "jz 9f",
    "inc qword ptr [rcx + {moved}]",
    // Record its time, if the ring has room and time stamps may be read.
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 9f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov rax, [rcx + {head}]",
    "sub rax, [rcx + {tail}]",
    "cmp rax, {records}",
    "jae 9f",
    "mov eax, 1",
    "xadd [rcx + {head}], rax",
    "and eax, {records} - 1",
    "shl eax, {record_shift}",
    "lea rax, [rcx + rax + {ring}]",
    "mov rcx, [rbx + {begin_at}]",
    "mov [rax + {record_begin}], rcx",
    "mov ecx, [r11 + {site_number}]",
    "mov [rax + {record_site}], ecx",
    "mov dword ptr [rax + {record_flags}], {migrated_call}",
    // No chains: both durations.
    "mov qword ptr [rax + {chain_after}], 0",
    // Write the end last: it completes the record.
    "mov [rax + {record_end}], rdx",
    "9:",
    ".cfi_remember_state",
    leave!(),
    "mov r11, [rsp - {returns_at} + {r11_at}]",
    "ret",
    // The call stays at home.
    "45:",
    ".cfi_restore_state",
    ".cfi_remember_state",
    leave!(),
    "mov r11, [rsp - {returns_at} + {r11_at}]",
    "jmp qword ptr [rsp - {returns_at} + {body_at}]",
    // The first hooked call of a thread is timed at home, since that gives the thread its counters.
    // `dimmer_hook_slow` wants the site in r11: its place is that of the body meanwhile.
    "20:",
    ".cfi_restore_state",
    "mov [rbx + {body_at}], r11",
    leave!(),
    "mov r11, [rsp - {returns_at} + {body_at}]",
    "jmp dimmer_hook_slow",
    ".cfi_endproc",
    ".size dimmer_hook_delegate, . - dimmer_hook_delegate",
    only_counts = sym ONLY_COUNTS,
    personality = sym personality,
    delegate = sym delegate,
    features = sym registers::FEATURES,
    has_avx = const registers::HAS_AVX,
    has_xsavec = const registers::HAS_XSAVEC,
    header = const registers::HEADER,
    carried = const registers::VECTORS,
    state_bytes = const registers::STATE_BYTES,
    frame_bytes = const size_of::<Frame>(),
    rbx_at = const offset_of!(Frame, rbx),
    job_at = const offset_of!(Frame, job),
    begin_at = const offset_of!(Frame, begin),
    body_at = const offset_of!(Frame, body),
    r11_at = const offset_of!(Frame, r11),
    returns_at = const offset_of!(Frame, returns_to),
    job_bytes = const job::BYTES,
    rax = const job::RAX,
    rcx = const job::RCX,
    rdx = const job::RDX,
    rbx = const job::RBX,
    rbp = const job::RBP,
    rsi = const job::RSI,
    rdi = const job::RDI,
    r8 = const job::R8,
    r9 = const job::R9,
    r10 = const job::R10,
    r11 = const job::R11,
    r12 = const job::R12,
    r13 = const job::R13,
    r14 = const job::R14,
    r15 = const job::R15,
    site = const job::SITE,
    first = const job::FIRST,
    second = const job::SECOND,
    mxcsr = const job::MXCSR,
    site_number = const offset_of!(Site, number),
    site_body = const offset_of!(Site, body),
    site_returned_bytes = const offset_of!(Site, passed) + offset_of!(Passed, returned_bytes),
    counted_at = const thread_block::COUNTED_AT,
    migrated = const thread_block::MIGRATED,
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
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_delegate();
}

/// Address of the code for delegated calls, to which stubs of leaf functions jump.
pub(crate) fn entry() -> u64 {
    dimmer_hook_delegate as *const () as u64
}

/// The rights to memory with protection keys that the process started with: those of workers.
static KEYS: Keys = Keys { are_used: AtomicU32::new(0), rights: AtomicU32::new(0) };

#[derive(Debug)]
struct Keys {
    /// Whether the system uses protection keys.
    are_used: AtomicU32,
    rights: AtomicU32,
}

/// Notes what workers have, before any call is delegated.
pub(crate) fn prepare(form: Form) {
    /// The component of protection keys (Intel SDM, vol. 1, §13.1).
    const COMPONENT: u32 = 1 << 9;
    if form.enabled & COMPONENT != 0 {
        // Relaxed: no call is moved yet.
        // SAFETY: the system uses protection keys.
        KEYS.rights.store(unsafe { keys() }, Ordering::Relaxed);
        KEYS.are_used.store(1, Ordering::Relaxed);
    }
}

/// Delegates the call in `job` to another core. Returns whether that was possible. `state` is the
/// processor's state as it was stored.
extern "C-unwind" fn delegate(job: *mut Job, state: *const u8) -> bool {
    if KEYS.are_used.load(Ordering::Relaxed) != 0 {
        // SAFETY: the system uses protection keys.
        let keys = unsafe { keys() };
        if keys != KEYS.rights.load(Ordering::Relaxed) {
            return false;
        }
    }
    let mut mxcsr = 0_u32;
    // SAFETY: the instruction writes only `mxcsr`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    // SAFETY: assembly has filled both, and waits until this function returns.
    let call = unsafe { LeafCall::new(job, state, mxcsr) };
    let Some(end) = mover::delegate(call) else {
        return false;
    };
    // SAFETY: the job is the caller's own, on its stack, and the call has ended.
    let own = unsafe { &mut *job };
    own.mxcsr = end.mxcsr;
    // SAFETY: sites last until the process ends.
    let returned = unsafe { (*own.site).passed.returned };
    if returned & 1 << RAX != 0 {
        own.general.rax = end.rax;
    }
    if returned & 1 << RDX != 0 {
        own.general.rdx = end.rdx;
    }
    true
}

/// The calling thread's rights to memory with protection keys.
///
/// # Safety
/// The system must use protection keys.
unsafe fn keys() -> u32 {
    let keys: u32;
    // SAFETY: the caller guarantees that the system uses protection keys.
    unsafe { asm!("rdpkru", in("ecx") 0, out("eax") keys, out("edx") _, options(nomem, nostack)) };
    keys
}

rows::leaving!(unwind);

/// Waits for the delegated call to end.
fn unwind(_context: *const u64) {
    mover::unwind_delegated();
}

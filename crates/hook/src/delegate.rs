//! Delegates calls of leaf functions to another core: only registers travel, and the thread waits
//! at home.
//!
//! A function that `dimmer_scan` has shown to be a leaf function ([`Leaf`]) needs only some
//! registers of its caller. So its call can be delegated to a worker. The worker calls the function
//! on its own stack, with the registers that the function reads, and the registers in which it may
//! return something come back. At home, the processor's state is stored on the stack, because
//! compiled code waits ([`Mover::delegate`]), and restored afterwards. All that the function does
//! not return stays as it was, which is more than the calling convention promises.
//!
//! The thread is at home all the while, signals are not blocked, and its stack is its own: handlers
//! and unwinders find a call of a function that is under way. Leaving the frame early waits for the
//! function: unwinding does so in the personality routine ([`Mover::unwind_delegated`]), a jump
//! does so in a call of the runtime's own.

use std::arch::{asm, global_asm};
use std::marker::PhantomData;
use std::mem::offset_of;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use dimmer_scan::{Leaf, Width};

use crate::ledger::{COUNTERS, HEAD, MIGRATED_CALL, MOVED, RECORD_BYTES, RECORDS, RING, TAIL};
use crate::migrate::Mover;
use crate::process::ONLY_COUNTS;
use crate::registers::{self, Form};
use crate::rows;
use crate::swap::{COUNTED_AT, INHIBITED, MIGRATED, Site};

/// The part of a [`Leaf`] that the code below needs, beside the function's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Passed {
    /// Components of the processor's state that the function reads.
    vectors: u32,
    /// Whether the function reads one of `r8` to `r15`.
    reads_upper: u8,
    /// Bytes of the first two vector registers that are carried back: as wide as the function's
    /// results may be, and no wider than the processor's registers.
    returned_bytes: u8,
    /// General registers in which the function returns something, a bit each.
    returned: u16,
}

impl Passed {
    /// `form` limits the width of registers: a function that picks its path by CPUID names
    /// registers that the processor may lack.
    pub(crate) fn new(leaf: &Leaf, form: Form) -> Self {
        let returned = leaf.returns_vectors.map(|width| width.min(form.widest()));
        Self {
            // A leaf function has no components above 7.
            vectors: u32::try_from(leaf.reads_vectors).unwrap_or_default(),
            reads_upper: u8::from(leaf.reads_general >> 8 != 0),
            returned_bytes: match returned {
                None => 0,
                Some(Width::Bits128) => 16,
                Some(Width::Bits256) => 32,
                Some(Width::Bits512) => 64,
            },
            returned: leaf.returns_general,
        }
    }
}

/// A call of a leaf function. It lies on the caller's stack.
#[derive(Debug)]
#[repr(C, align(64))]
struct Job {
    /// General registers by number; the place of the stack pointer is unused.
    general: [u64; 16],
    site: *const Site,
    /// Control word and flags of vector arithmetic, before and after the call.
    mxcsr: u32,
    vectors: [[u64; 8]; 2],
}

/// A call that another thread makes, while its caller waits.
#[derive(Debug)]
pub struct LeafCall<'a> {
    job: *mut Job,
    site: *const Site,
    /// The state that XSAVEC or XSAVE has stored.
    state: *const u8,
    mxcsr: u32,
    caller: PhantomData<&'a mut Job>,
}

// SAFETY: the caller's data stays valid until the call has ended; sites last until the process
// ends.
unsafe impl Send for LeafCall<'_> {}

/// The registers in which a call returned something.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct LeafEnd {
    rax: u64,
    rdx: u64,
    mxcsr: u32,
}

impl LeafCall<'_> {
    /// Makes the call, on the calling thread's stack.
    #[must_use]
    pub fn make(self) -> LeafEnd {
        let mut end = LeafEnd::default();
        // SAFETY: `dimmer_hook_delegate` has filled the job for this site, whose function is a leaf
        // function.
        unsafe { dimmer_hook_leaf(self.job, self.site, self.mxcsr, &raw mut end, self.state) };
        end
    }
}

/// Functions and flags for the code below.
#[repr(C)]
struct State {
    delegate: AtomicPtr<()>,
    unwind_delegated: AtomicPtr<()>,
    /// Whether upper halves of registers have to be cleaned.
    has_avx: AtomicU32,
    /// Whether XSAVEC stores the processor's state.
    has_xsavec: AtomicU32,
    /// Whether the system uses protection keys.
    has_keys: AtomicU32,
    /// The rights that the process started with.
    keys: AtomicU32,
}

static STATE: State = State {
    delegate: AtomicPtr::new(std::ptr::null_mut()),
    unwind_delegated: AtomicPtr::new(std::ptr::null_mut()),
    has_avx: AtomicU32::new(0),
    has_xsavec: AtomicU32::new(0),
    has_keys: AtomicU32::new(0),
    keys: AtomicU32::new(0),
};

const _: () = assert!(offset_of!(State, has_avx) == 16 && offset_of!(State, has_xsavec) == 20);
const _: () = assert!(offset_of!(Job, site) == 128 && offset_of!(Job, mxcsr) == 136);
const _: () = assert!(offset_of!(Job, vectors) == 144 && size_of::<Job>() == 320);
const _: () = assert!(offset_of!(LeafEnd, rdx) == 8 && offset_of!(LeafEnd, mxcsr) == 16);
const _: () = assert!(offset_of!(Site, body) == 8 && offset_of!(Site, passed) == 16);
const _: () = assert!(offset_of!(Passed, vectors) == 0 && offset_of!(Passed, reads_upper) == 4);
const _: () = assert!(offset_of!(Passed, returned_bytes) == 5);
// Assembly reads both as one word.
const _: () = assert!(INHIBITED == MIGRATED + 4 && RECORD_BYTES == 1 << 5);

global_asm!(
    // Restores registers from the job, and rbx from the frame, and moves the stack pointer up to
    // the return address. r11 is to be loaded afterwards, from right below that address. In: rsp
    // the job.
    ".macro dimmer_delegate_leave",
    "mov rax, [rsp]",
    "mov rcx, [rsp + 8]",
    "mov rdx, [rsp + 16]",
    "mov rsi, [rsp + 48]",
    "mov rdi, [rsp + 56]",
    "mov r8, [rsp + 64]",
    "mov r9, [rsp + 72]",
    "mov r10, [rsp + 80]",
    "mov r11, rbx",
    ".cfi_def_cfa r11, 48",
    "mov rbx, [r11]",
    ".cfi_restore rbx",
    "lea rsp, [r11 + 40]",
    ".cfi_def_cfa rsp, 8",
    ".endm",
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_delegate",
    ".globl dimmer_hook_delegate",
    ".type dimmer_hook_delegate,@function",
    // In: r11 the site. Let C be the stack pointer before the call. The return address is at C-8,
    // and the caller's r11 at C-16. Also kept: at C-24 the address to go on at, at C-32 the time of
    // the start, at C-40 the job, at C-48 rbx. Then rbx = C-48.
    "dimmer_hook_delegate:",
    ".cfi_startproc",
    ".cfi_personality 0x1b, {personality}",
    "lea rsp, [rsp - 32]",
    ".cfi_adjust_cfa_offset 32",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_offset rbx, -48",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 48",
    "sub rsp, {job_bytes}",
    "and rsp, -64",
    "mov [rsp], rax",
    "mov [rsp + 8], rcx",
    "mov [rsp + 16], rdx",
    "mov rax, [rbx]",
    "mov [rsp + 24], rax",
    "mov [rsp + 40], rbp",
    "mov [rsp + 48], rsi",
    "mov [rsp + 56], rdi",
    "mov [rsp + 64], r8",
    "mov [rsp + 72], r9",
    "mov [rsp + 80], r10",
    "mov rax, [rbx + 32]",
    "mov [rsp + 88], rax",
    "mov [rsp + 96], r12",
    "mov [rsp + 104], r13",
    "mov [rsp + 112], r14",
    "mov [rsp + 120], r15",
    "mov [rsp + 128], r11",
    "mov [rbx + 8], rsp",
    "mov rax, [r11 + 8]",
    "mov [rbx + 24], rax",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
    "mov rcx, fs:[r8 + {counted_at}]",
    "test rcx, rcx",
    "jz 20f",
    "mov eax, [r11]",
    "inc dword ptr [rcx + rax * 4]",
    // Inside a call that has moved, or while migration is inhibited.
    "cmp qword ptr fs:[r8 + {migrated}], 0",
    "jne 45f",
    "cmp dword ptr [rip + {only_counts}], 0",
    "jne 45f",
    "rdtsc",
    "shl rdx, 32",
    "or rdx, rax",
    "mov [rbx + 16], rdx",
    registers::pack!(),
    "mov rdi, [rbx + 8]",
    "mov rsi, rsp",
    "call {delegate}",
    "movzx ecx, al",
    registers::unpack!(),
    "mov rsp, [rbx + 8]",
    "test ecx, ecx",
    "jz 45f",
    "ldmxcsr [rsp + 136]",
    // The results in vector registers.
    "mov r11, [rsp + 128]",
    "movzx eax, byte ptr [r11 + 21]",
    "test eax, eax",
    "jz 30f",
    "cmp eax, 32",
    "je 31f",
    "ja 32f",
    "movups xmm0, [rsp + 144]",
    "movups xmm1, [rsp + 208]",
    "jmp 30f",
    "31:",
    "vmovdqu ymm0, [rsp + 144]",
    "vmovdqu ymm1, [rsp + 208]",
    "jmp 30f",
    "32:",
    "vmovdqu64 zmm0, [rsp + 144]",
    "vmovdqu64 zmm1, [rsp + 208]",
    "30:",
    "mov r8, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
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
    "shl eax, 5",
    "lea rax, [rcx + rax + {ring}]",
    "mov rcx, [rbx + 16]",
    "mov [rax], rcx",
    "mov ecx, [r11]",
    "mov [rax + 16], ecx",
    "mov dword ptr [rax + 20], {migrated_call}",
    "mov qword ptr [rax + 24], 0",
    // Write the end last: it completes the record.
    "mov [rax + 8], rdx",
    "9:",
    ".cfi_remember_state",
    "dimmer_delegate_leave",
    "mov r11, [rsp - 8]",
    "ret",
    // The call stays at home.
    "45:",
    ".cfi_restore_state",
    ".cfi_remember_state",
    "dimmer_delegate_leave",
    "mov r11, [rsp - 8]",
    "jmp qword ptr [rsp - 16]",
    // The first hooked call of a thread is timed at home, since that gives the thread its counters.
    "20:",
    ".cfi_restore_state",
    "mov [rbx + 24], r11",
    "dimmer_delegate_leave",
    "mov r11, [rsp - 16]",
    "jmp dimmer_hook_slow",
    ".cfi_endproc",
    ".size dimmer_hook_delegate, . - dimmer_hook_delegate",
    ".p2align 6",
    ".hidden dimmer_hook_leaf",
    ".globl dimmer_hook_leaf",
    ".type dimmer_hook_leaf,@function",
    // In: rdi the job, rsi its site, edx the control word of vector arithmetic, rcx where to put
    // the results in registers, r8 the processor's state as it was stored. On the stack, from
    // below: the function's address, rcx, rdi, the control word of vector arithmetic as it was here
    // and as it is to be, rsi.
    "dimmer_hook_leaf:",
    ".cfi_startproc",
    ".irp register, rbx, rbp, r12, r13, r14, r15",
    "push \\register",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset \\register, 0",
    ".endr",
    "sub rsp, 56",
    ".cfi_adjust_cfa_offset 56",
    "mov rax, [rsi + 8]",
    "mov [rsp], rax",
    "mov [rsp + 8], rcx",
    "mov [rsp + 16], rdi",
    "mov [rsp + 32], rsi",
    "stmxcsr [rsp + 24]",
    "mov [rsp + 28], edx",
    "cmp edx, [rsp + 24]",
    "je 1f",
    "ldmxcsr [rsp + 28]",
    "1:",
    "mov eax, [rsi + 16]",
    "test eax, eax",
    "jz 2f",
    "xor edx, edx",
    "xrstor [r8]",
    "2:",
    "cmp byte ptr [rsi + 20], 0",
    "je 3f",
    "mov r8, [rdi + 64]",
    "mov r9, [rdi + 72]",
    "mov r10, [rdi + 80]",
    "mov r11, [rdi + 88]",
    "mov r12, [rdi + 96]",
    "mov r13, [rdi + 104]",
    "mov r14, [rdi + 112]",
    "mov r15, [rdi + 120]",
    "3:",
    "mov rax, [rdi]",
    "mov rcx, [rdi + 8]",
    "mov rdx, [rdi + 16]",
    "mov rbx, [rdi + 24]",
    "mov rbp, [rdi + 40]",
    "mov rsi, [rdi + 48]",
    "mov rdi, [rdi + 56]",
    "call [rsp]",
    "mov rcx, [rsp + 8]",
    "mov [rcx], rax",
    "mov [rcx + 8], rdx",
    "stmxcsr [rcx + 16]",
    "mov rsi, [rsp + 32]",
    "mov rdi, [rsp + 16]",
    "movzx eax, byte ptr [rsi + 21]",
    "test eax, eax",
    "jz 6f",
    "cmp eax, 32",
    "je 4f",
    "ja 5f",
    "movups [rdi + 144], xmm0",
    "movups [rdi + 208], xmm1",
    "jmp 6f",
    "4:",
    "vmovdqu [rdi + 144], ymm0",
    "vmovdqu [rdi + 208], ymm1",
    "jmp 6f",
    "5:",
    "vmovdqu64 [rdi + 144], zmm0",
    "vmovdqu64 [rdi + 208], zmm1",
    "6:",
    "cmp dword ptr [rip + {state} + 16], 0",
    "je 7f",
    "vzeroupper",
    "7:",
    "mov eax, [rcx + 16]",
    "cmp eax, [rsp + 24]",
    "je 8f",
    "ldmxcsr [rsp + 24]",
    "8:",
    "add rsp, 56",
    ".cfi_adjust_cfa_offset -56",
    ".irp register, r15, r14, r13, r12, rbp, rbx",
    "pop \\register",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore \\register",
    ".endr",
    "ret",
    ".cfi_endproc",
    ".size dimmer_hook_leaf, . - dimmer_hook_leaf",
    state = sym STATE,
    only_counts = sym ONLY_COUNTS,
    personality = sym personality,
    delegate = sym delegate,
    travelling = const registers::VECTORS,
    state_bytes = const registers::STATE_BYTES,
    job_bytes = const size_of::<Job>(),
    counted_at = const COUNTED_AT,
    migrated = const MIGRATED,
    moved = const MOVED.cast_signed() - COUNTERS.cast_signed(),
    head = const HEAD.cast_signed() - COUNTERS.cast_signed(),
    tail = const TAIL.cast_signed() - COUNTERS.cast_signed(),
    ring = const RING.cast_signed() - COUNTERS.cast_signed(),
    records = const RECORDS,
    migrated_call = const MIGRATED_CALL,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_delegate();
    /// Makes a call of a leaf function.
    fn dimmer_hook_leaf(
        job: *mut Job,
        site: *const Site,
        mxcsr: u32,
        end: *mut LeafEnd,
        state: *const u8,
    );
}

/// Address of the code for delegated calls, to which stubs of leaf functions jump.
pub(crate) fn entry() -> u64 {
    dimmer_hook_delegate as *const () as u64
}

/// From now on, `mover` delegates calls.
pub(crate) fn prepare(mover: Mover, form: Form) {
    // Relaxed: no call is moved yet.
    STATE.delegate.store(mover.delegate as *mut (), Ordering::Relaxed);
    STATE.unwind_delegated.store(mover.unwind_delegated as *mut (), Ordering::Relaxed);
    STATE.has_avx.store(u32::from(form.has_avx()), Ordering::Relaxed);
    STATE.has_xsavec.store(u32::from(form.has_xsavec), Ordering::Relaxed);
    const KEYS: u32 = 1 << 9;
    if form.enabled & KEYS != 0 {
        // SAFETY: the system uses protection keys.
        STATE.keys.store(unsafe { keys() }, Ordering::Relaxed);
        STATE.has_keys.store(1, Ordering::Relaxed);
    }
}

/// Delegates the call in `job` to another core. Returns whether that was possible. `state` is the
/// processor's state as it was stored.
extern "C-unwind" fn delegate(job: *mut Job, state: *const u8) -> bool {
    // SAFETY: the job is the caller's own, on its stack.
    let own = unsafe { &mut *job };
    if STATE.has_keys.load(Ordering::Relaxed) != 0 {
        // SAFETY: the system uses protection keys.
        let keys = unsafe { keys() };
        // Workers have the rights that the process started with.
        if keys != STATE.keys.load(Ordering::Relaxed) {
            return false;
        }
    }
    let delegate = STATE.delegate.load(Ordering::Relaxed);
    // SAFETY: `prepare` has stored the function, or no call would be moved.
    let delegate =
        unsafe { std::mem::transmute::<*mut (), fn(LeafCall<'_>) -> Option<LeafEnd>>(delegate) };
    let mut mxcsr = 0_u32;
    // SAFETY: the instruction writes only `mxcsr`.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut mxcsr, options(nostack, preserves_flags)) };
    let site = own.site;
    let Some(end) = delegate(LeafCall { job, site, state, mxcsr, caller: PhantomData }) else {
        return false;
    };
    own.mxcsr = end.mxcsr;
    // SAFETY: sites last until the process ends.
    let returned = unsafe { (*site).passed.returned };
    if returned & 1 != 0 {
        own.general[0] = end.rax;
    }
    if returned & 4 != 0 {
        own.general[2] = end.rdx;
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
    let unwind = STATE.unwind_delegated.load(Ordering::Relaxed);
    // SAFETY: `prepare` has stored the function, or no call would be delegated.
    let unwind = unsafe { std::mem::transmute::<*mut (), extern "C" fn()>(unwind) };
    unwind();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_carried_back_than_the_processor_has() {
        const SSE: u32 = 0b11;
        const AVX: u32 = 0b111;
        const AVX_512: u32 = 0b1110_0111;
        let bytes = |width, enabled| {
            let leaf = Leaf {
                reads_general: 0,
                reads_vectors: 0,
                returns_general: 0,
                returns_vectors: width,
            };
            Passed::new(&leaf, Form { enabled, has_xsavec: true }).returned_bytes
        };
        let on_each = |width| [SSE, AVX, AVX_512].map(|enabled| bytes(width, enabled));
        assert_eq!(on_each(None), [0, 0, 0]);
        assert_eq!(on_each(Some(Width::Bits128)), [16, 16, 16]);
        assert_eq!(on_each(Some(Width::Bits256)), [16, 32, 32]);
        assert_eq!(on_each(Some(Width::Bits512)), [16, 32, 64]);
    }
}

//! A call of a leaf function that another thread makes: what is handed over, and the assembly that
//! makes the call on the other thread's stack.

use std::arch::global_asm;
use std::marker::PhantomData;
use std::mem::offset_of;

use super::registers;
use crate::site::{Passed, Site};

/// General registers.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct General {
    pub(crate) rax: u64,
    pub(crate) rcx: u64,
    pub(crate) rdx: u64,
    pub(crate) rbx: u64,
    pub(crate) rbp: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    pub(crate) r8: u64,
    pub(crate) r9: u64,
    pub(crate) r10: u64,
    pub(crate) r11: u64,
    pub(crate) r12: u64,
    pub(crate) r13: u64,
    pub(crate) r14: u64,
    pub(crate) r15: u64,
}

/// A call of a leaf function. It lies on the caller's stack.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Job {
    /// Before the call; of those in which it returns something, after it.
    pub(crate) general: General,
    pub(crate) site: *const Site,
    /// The first two vector registers after the call, as wide as the function's results may be.
    pub(crate) vectors: [[u64; 8]; 2],
    /// Control word and flags of vector arithmetic, before and after the call.
    pub(crate) mxcsr: u32,
}

/// Offsets in a [`Job`], for assembly.
pub(crate) mod job {
    use super::{General, Job};
    use std::mem::offset_of;

    pub(crate) const RAX: usize = offset_of!(Job, general) + offset_of!(General, rax);
    pub(crate) const RCX: usize = offset_of!(Job, general) + offset_of!(General, rcx);
    pub(crate) const RDX: usize = offset_of!(Job, general) + offset_of!(General, rdx);
    pub(crate) const RBX: usize = offset_of!(Job, general) + offset_of!(General, rbx);
    pub(crate) const RBP: usize = offset_of!(Job, general) + offset_of!(General, rbp);
    pub(crate) const RSI: usize = offset_of!(Job, general) + offset_of!(General, rsi);
    pub(crate) const RDI: usize = offset_of!(Job, general) + offset_of!(General, rdi);
    pub(crate) const R8: usize = offset_of!(Job, general) + offset_of!(General, r8);
    pub(crate) const R9: usize = offset_of!(Job, general) + offset_of!(General, r9);
    pub(crate) const R10: usize = offset_of!(Job, general) + offset_of!(General, r10);
    pub(crate) const R11: usize = offset_of!(Job, general) + offset_of!(General, r11);
    pub(crate) const R12: usize = offset_of!(Job, general) + offset_of!(General, r12);
    pub(crate) const R13: usize = offset_of!(Job, general) + offset_of!(General, r13);
    pub(crate) const R14: usize = offset_of!(Job, general) + offset_of!(General, r14);
    pub(crate) const R15: usize = offset_of!(Job, general) + offset_of!(General, r15);
    pub(crate) const SITE: usize = offset_of!(Job, site);
    pub(crate) const FIRST: usize = offset_of!(Job, vectors);
    pub(crate) const SECOND: usize = FIRST + size_of::<[u64; 8]>();
    pub(crate) const MXCSR: usize = offset_of!(Job, mxcsr);
    pub(crate) const BYTES: usize = size_of::<Job>();
}

// The caller puts the job at an address that is a multiple of this, and vector registers of 64
// bytes in it.
const _: () = assert!(align_of::<Job>() == 64 && job::BYTES.is_multiple_of(64));
const _: () = assert!(job::FIRST.is_multiple_of(64) && job::SECOND.is_multiple_of(64));

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
    pub(crate) rax: u64,
    pub(crate) rdx: u64,
    pub(crate) mxcsr: u32,
}

impl LeafCall<'_> {
    /// A call with the control word `mxcsr` of vector arithmetic.
    ///
    /// # Safety
    /// As long as the call exists, the job and `state` must stay as assembly has filled them for a
    /// leaf function.
    pub(crate) unsafe fn new(job: *mut Job, state: *const u8, mxcsr: u32) -> Self {
        // SAFETY: the caller guarantees a job.
        let site = unsafe { (*job).site };
        Self { job, site, state, mxcsr, caller: PhantomData }
    }

    /// Makes the call, on the calling thread's stack.
    #[must_use]
    pub fn make(self) -> LeafEnd {
        let mut end = LeafEnd::default();
        // SAFETY: `new`'s caller guarantees that the job was filled for this site, whose function
        // is a leaf function.
        unsafe { dimmer_hook_leaf(self.job, self.site, self.mxcsr, &raw mut end, self.state) };
        end
    }
}

/// What [`dimmer_hook_leaf`] has on the stack during the call, below the registers that it must
/// keep.
#[repr(C)]
struct Making {
    /// Address of the function.
    body: u64,
    end: *mut LeafEnd,
    job: *mut Job,
    site: *const Site,
    /// The control word of vector arithmetic, as it is here and as the function gets it.
    mxcsr_here: u32,
    mxcsr_there: u32,
    unused: [u64; 2],
}

// With the return address and six registers, the function's stack is as the ABI wants it: a
// multiple of 16 at the call.
const _: () = assert!((size_of::<Making>() + (1 + 6) * 8).is_multiple_of(16));

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_leaf",
    ".globl dimmer_hook_leaf",
    ".type dimmer_hook_leaf,@function",
    // A function of the C ABI. In: rdi the job, rsi its site, edx the control word of vector
    // arithmetic, rcx where to put the results in registers ([`LeafEnd`]), r8 the processor's state
    // as it was stored.
    //
    //             |  stack of the worker          |
    //             +-------------------------------+
    //             |  return address               |  <- rsp on entry
    //             |  rbx rbp r12 r13 r14 r15      |
    //             +-------------------------------+
    //             |  [`Making`]                   |
    //             +-------------------------------+  <- rsp
    //             |  return address of the call   |  <- rsp in the function
    "dimmer_hook_leaf:",
    ".cfi_startproc",
    ".irp register, rbx, rbp, r12, r13, r14, r15",
    "push \\register",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset \\register, 0",
    ".endr",
    "sub rsp, {making_bytes}",
    ".cfi_adjust_cfa_offset {making_bytes}",
    "mov rax, [rsi + {site_body}]",
    "mov [rsp + {own_body}], rax",
    "mov [rsp + {own_end}], rcx",
    "mov [rsp + {own_job}], rdi",
    "mov [rsp + {own_site}], rsi",
    "stmxcsr [rsp + {mxcsr_here}]",
    "mov [rsp + {mxcsr_there}], edx",
    // Loading it takes longer than checking whether it differs.
    "cmp edx, [rsp + {mxcsr_here}]",
    "je 1f",
    "ldmxcsr [rsp + {mxcsr_there}]",
    "1:",
    // The components of the state that the function reads, and no others.
    "mov eax, [rsi + {site_vectors}]",
    "test eax, eax",
    "jz 2f",
    "xor edx, edx",
    "xrstor [r8]",
    "2:",
    "cmp byte ptr [rsi + {site_reads_upper}], 0",
    "je 3f",
    "mov r8, [rdi + {r8}]",
    "mov r9, [rdi + {r9}]",
    "mov r10, [rdi + {r10}]",
    "mov r11, [rdi + {r11}]",
    "mov r12, [rdi + {r12}]",
    "mov r13, [rdi + {r13}]",
    "mov r14, [rdi + {r14}]",
    "mov r15, [rdi + {r15}]",
    "3:",
    "mov rax, [rdi + {rax}]",
    "mov rcx, [rdi + {rcx}]",
    "mov rdx, [rdi + {rdx}]",
    "mov rbx, [rdi + {rbx}]",
    "mov rbp, [rdi + {rbp}]",
    "mov rsi, [rdi + {rsi}]",
    "mov rdi, [rdi + {rdi}]",
    "call [rsp + {own_body}]",
    "mov rcx, [rsp + {own_end}]",
    "mov [rcx + {end_rax}], rax",
    "mov [rcx + {end_rdx}], rdx",
    "stmxcsr [rcx + {end_mxcsr}]",
    "mov rsi, [rsp + {own_site}]",
    "mov rdi, [rsp + {own_job}]",
    "movzx eax, byte ptr [rsi + {site_returned_bytes}]",
    "test eax, eax",
    "jz 6f",
    "cmp eax, 32",
    "je 4f",
    "ja 5f",
    "movups [rdi + {first}], xmm0",
    "movups [rdi + {second}], xmm1",
    "jmp 6f",
    "4:",
    "vmovdqu [rdi + {first}], ymm0",
    "vmovdqu [rdi + {second}], ymm1",
    "jmp 6f",
    "5:",
    "vmovdqu64 [rdi + {first}], zmm0",
    "vmovdqu64 [rdi + {second}], zmm1",
    "6:",
    "cmp dword ptr [rip + {features} + {has_avx}], 0",
    "je 7f",
    "vzeroupper",
    "7:",
    "mov eax, [rcx + {end_mxcsr}]",
    "cmp eax, [rsp + {mxcsr_here}]",
    "je 8f",
    "ldmxcsr [rsp + {mxcsr_here}]",
    "8:",
    "add rsp, {making_bytes}",
    ".cfi_adjust_cfa_offset -{making_bytes}",
    ".irp register, r15, r14, r13, r12, rbp, rbx",
    "pop \\register",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore \\register",
    ".endr",
    "ret",
    ".cfi_endproc",
    ".size dimmer_hook_leaf, . - dimmer_hook_leaf",
    features = sym registers::FEATURES,
    has_avx = const registers::HAS_AVX,
    making_bytes = const size_of::<Making>(),
    own_body = const offset_of!(Making, body),
    own_end = const offset_of!(Making, end),
    own_job = const offset_of!(Making, job),
    own_site = const offset_of!(Making, site),
    mxcsr_here = const offset_of!(Making, mxcsr_here),
    mxcsr_there = const offset_of!(Making, mxcsr_there),
    end_rax = const offset_of!(LeafEnd, rax),
    end_rdx = const offset_of!(LeafEnd, rdx),
    end_mxcsr = const offset_of!(LeafEnd, mxcsr),
    site_body = const offset_of!(Site, body),
    site_vectors = const offset_of!(Site, passed) + offset_of!(Passed, vectors),
    site_reads_upper = const offset_of!(Site, passed) + offset_of!(Passed, reads_upper),
    site_returned_bytes = const offset_of!(Site, passed) + offset_of!(Passed, returned_bytes),
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
    first = const job::FIRST,
    second = const job::SECOND,
);

unsafe extern "C" {
    /// Makes a call of a leaf function.
    fn dimmer_hook_leaf(
        job: *mut Job,
        site: *const Site,
        mxcsr: u32,
        end: *mut LeafEnd,
        state: *const u8,
    );
}

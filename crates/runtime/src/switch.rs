//! The switch from one stack to another, in assembly.

use std::arch::{asm, naked_asm};

/// Puts what a called function must keep (System V ABI, x86-64 supplement, §3.2.1: six registers and the two control
/// words of floating point) on the stack, its end into `save`, and goes on with the stack that ends at `load`,
/// where the same had been done. Returns when somebody switches back.
///
/// # Safety
/// `load` comes from an earlier switch, or from [`prepare`], and is used once.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn switch(save: *mut u64, load: u64) {
    naked_asm!(
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov [rdi], rsp",
        "mov rsp, rsi",
        "fldcw [rsp + 4]",
        "ldmxcsr [rsp]",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
    )
}

/// Words that [`switch`] takes off the stack: control words, six registers, the return address.
const FRAME: usize = 8;

/// Makes the stack that ends at `end` one that [`switch`] can go on with: in `entry(argument)`, which never
/// returns.
///
/// # Safety
/// The memory below `end`, 256 bytes of it, is writable, aligned to 16 bytes and nobody's.
pub(crate) unsafe fn prepare(
    end: *mut u64,
    entry: unsafe extern "C" fn(*const ()) -> !,
    argument: *const (),
) -> u64 {
    #[unsafe(naked)]
    unsafe extern "C" fn begin() {
        naked_asm!("mov rdi, r12", "call r13", "ud2")
    }
    let control: u64 = 0x1F80 | 0x037F << 32; // As a new thread has them.
    let begin = begin as *const () as u64;
    // From the stack's end upwards: r15, r14, r13, r12, rbx, rbp, and where to return to. After it the stack is
    // aligned as it is before a call.
    let frame = [control, 0, 0, entry as *const () as u64, argument as u64, 0, 0, begin];
    // SAFETY: within the memory that is the caller's to give.
    let place = unsafe { end.sub(FRAME + 2) };
    // SAFETY: as above.
    unsafe { place.cast::<[u64; FRAME]>().write(frame) };
    place as u64
}

/// Where the calling thread's thread-local storage is.
///
/// # Safety
/// The kernel lets programs read it so (`HWCAP2_FSGSBASE`).
pub(crate) unsafe fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: reads a register.
    unsafe { asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Puts thread-local storage elsewhere.
///
/// # Safety
/// As [`thread_pointer`]; and until it is put back, the calling code uses no thread-local storage of its own.
pub(crate) unsafe fn set_thread_pointer(pointer: u64) {
    // SAFETY: the caller vouches for what is there.
    unsafe { asm!("wrfsbase {}", in(reg) pointer, options(nostack, preserves_flags)) };
}

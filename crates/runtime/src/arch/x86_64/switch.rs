//! The switch from one stack to another, in assembly.

use std::arch::{asm, naked_asm};

/// The point where a thread resumes: the registers that remain after the compiler has saved the
/// others on the stack.
///
/// It lies in the lane's cache line, which is transferred anyway, and not on the stack as usual.
/// The stack's lines are fetched when the thread needs them. A thread that only looks around and
/// goes back transfers none.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Context {
    /// Control and status of vector arithmetic.
    mxcsr: u32,
    /// Control word of the x87 unit, in the lower half.
    control: u32,
    unused: u32,
    stack_pointer: Pair,
    instruction: Pair,
    rbx: Pair,
    rbp: Pair,
}

/// 64 bits without alignment, so that a context fits behind a word.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Pair([u8; 8]);

impl Pair {
    const fn new(value: u64) -> Self {
        Self(value.to_le_bytes())
    }
}

const _: () = assert!(size_of::<Context>() == 44);

/// Passed from the thread that leaves to the one that resumes.
pub(crate) type Message = [*const (); 2];

/// Saves the calling thread's context in `save`, and resumes `load` with a message. Returns, with
/// another message, when `save` is resumed.
///
/// # Safety
/// `load` was filled by an earlier switch, or by [`prepare`], and is used once. Nothing resumes
/// `save` before this thread has left.
#[inline(always)]
pub(crate) unsafe fn switch(save: *mut Context, load: *const Context, message: Message) -> Message {
    let [mut first, mut second] = message;
    // SAFETY: the caller guarantees the context that is resumed. All registers are declared as
    // changed except `rbx` and `rbp`, which the compiler reserves and which are saved here, and the
    // stack pointer.
    unsafe {
        asm!(
            "stmxcsr [rdx]",
            "fnstcw [rdx + 4]",
            "mov [rdx + 12], rsp",
            "lea rax, [rip + 2f]",
            "mov [rdx + 20], rax",
            "mov [rdx + 28], rbx",
            "mov [rdx + 36], rbp",
            // Loading either takes longer than checking whether it differs.
            "mov eax, [rdx]",
            "cmp eax, [rcx]",
            "je 3f",
            "ldmxcsr [rcx]",
            "3:",
            "mov ax, [rdx + 4]",
            "cmp ax, [rcx + 4]",
            "je 4f",
            "fldcw [rcx + 4]",
            "4:",
            "mov rbx, [rcx + 28]",
            "mov rbp, [rcx + 36]",
            "mov rsp, [rcx + 12]",
            "jmp [rcx + 20]",
            "2:",
            inlateout("rdi") first,
            inlateout("rsi") second,
            inlateout("rdx") save => _,
            inlateout("rcx") load => _,
            out("r12") _,
            out("r13") _,
            out("r14") _,
            out("r15") _,
            clobber_abi("sysv64"),
        );
    }
    [first, second]
}

/// A context that calls `entry` on the stack that ends at `end`, with the first part of the message
/// and `argument`.
pub(crate) fn prepare(
    end: *mut u64,
    entry: unsafe extern "C" fn(*const (), *const ()) -> !,
    argument: *const (),
) -> Context {
    #[unsafe(naked)]
    unsafe extern "C" fn begin() {
        naked_asm!("mov rsi, rbx", "mov rax, rbp", "xor ebp, ebp", "call rax", "ud2")
    }
    Context {
        // The values in a new thread.
        mxcsr: 0x1F80,
        control: 0x037F,
        unused: 0,
        stack_pointer: Pair::new(end as u64),
        instruction: Pair::new(begin as *const () as u64),
        rbx: Pair::new(argument as u64),
        rbp: Pair::new(entry as *const () as u64),
    }
}

/// Address of the calling thread's thread-local storage (the FS base).
///
/// # Safety
/// The kernel allows programs to read it directly (`HWCAP2_FSGSBASE`).
pub(crate) unsafe fn thread_pointer() -> u64 {
    let pointer: u64;
    // SAFETY: reads a register; the caller guarantees that this is allowed.
    unsafe { asm!("rdfsbase {}", out(reg) pointer, options(nomem, nostack, preserves_flags)) };
    pointer
}

/// Sets the address of the thread-local storage (the FS base).
///
/// # Safety
/// As for [`thread_pointer`]. Also, until the address is restored, the calling code uses no
/// thread-local storage of its own.
#[inline(always)]
pub(crate) unsafe fn set_thread_pointer(pointer: u64) {
    // SAFETY: the caller guarantees that this is allowed, and the memory at `pointer`.
    unsafe { asm!("wrfsbase {}", in(reg) pointer, options(nostack, preserves_flags)) };
}

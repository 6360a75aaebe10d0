//! The switch from one stack to another, in assembly.

use std::arch::{asm, naked_asm};
use std::mem::offset_of;

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

// The lane's line has this much room, and no alignment to give.
const _: () = assert!(size_of::<Context>() == 44 && align_of::<Context>() == 4);

/// Passed from the thread that leaves to the one that resumes.
pub(crate) type Message = [*const (); 2];

/// Saves the calling thread's context in `save`, and resumes `load` with a message. Returns, with
/// another message, when `save` is resumed.
///
/// ```text
///   stack that is left                      stack that is resumed
///   +-----------------------------+         +-----------------------------+
///   | frames of the caller        |         | frames of another `switch`  |
///   | what the compiler keeps of  |         | what the compiler kept of   |
///   | the registers, all but two  |         | the registers, all but two  |
///   +-----------------------------+ <- rsp  +-----------------------------+ <- rsp afterwards
///          saved in `save`                         loaded from `load`
/// ```
///
/// | register | holds |
/// |---|---|
/// | rdi, rsi | the message |
/// | rdx | `save` |
/// | rcx | `load` |
/// | rax | whatever is at hand |
///
/// A context is not on the stack but where the caller says. The label in it is that of the compiled
/// place: this function is inlined, and each place has its own.
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
            "stmxcsr [rdx + {mxcsr}]",
            "fnstcw [rdx + {control}]",
            "mov [rdx + {stack_pointer}], rsp",
            "lea rax, [rip + 2f]",
            "mov [rdx + {instruction}], rax",
            "mov [rdx + {rbx}], rbx",
            "mov [rdx + {rbp}], rbp",
            // Loading either takes longer than checking whether it differs.
            "mov eax, [rdx + {mxcsr}]",
            "cmp eax, [rcx + {mxcsr}]",
            "je 3f",
            "ldmxcsr [rcx + {mxcsr}]",
            "3:",
            "mov ax, [rdx + {control}]",
            "cmp ax, [rcx + {control}]",
            "je 4f",
            "fldcw [rcx + {control}]",
            "4:",
            // From the first of these on, this is the other stack.
            "mov rbx, [rcx + {rbx}]",
            "mov rbp, [rcx + {rbp}]",
            "mov rsp, [rcx + {stack_pointer}]",
            "jmp [rcx + {instruction}]",
            // Here `save` is resumed, with a message in rdi and rsi.
            "2:",
            mxcsr = const offset_of!(Context, mxcsr),
            control = const offset_of!(Context, control),
            stack_pointer = const offset_of!(Context, stack_pointer),
            instruction = const offset_of!(Context, instruction),
            rbx = const offset_of!(Context, rbx),
            rbp = const offset_of!(Context, rbp),
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
        naked_asm!(
            // rdi has the first part of the message.
            "mov rsi, rbx",
            "mov rax, rbp",
            // Backtraces end here.
            "xor ebp, ebp",
            "call rax",
            "ud2"
        )
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
pub unsafe fn thread_pointer() -> u64 {
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

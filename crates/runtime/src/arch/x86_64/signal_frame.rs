//! How the kernel enters signal handlers, and handlers in assembly.
//!
//! Source: Linux, `struct rt_sigframe`, `ucontext` and `sigcontext_64` in arch/x86/include, and
//! arch/x86/include/uapi/asm/signal.h.

use std::mem::offset_of;

/// Flag of a signal's action: it has an address that the handler returns to (`SA_RESTORER`).
pub(crate) const RESTORER: u64 = 0x0400_0000;

/// Words of a handler's frame, from its return address, that [`begins_frame`] looks at.
pub(crate) const FRAME_WORDS: usize = SEGMENTS + 1;

/// The words with the flags and the link of the context, and with the selectors of segments.
const FLAGS: usize = 1;
const LINK: usize = 2;
const SEGMENTS: usize = 24;

/// Whether words of the stack, the first of them a return address, are the frame that the kernel
/// wrote for a handler, and not just a copy of that address.
pub(crate) fn begins_frame(words: &[usize; FRAME_WORDS]) -> bool {
    /// The segment of 64-bit code.
    const CODE: usize = 0x33;
    words[FLAGS] < 16 && words[LINK] == 0 && words[SEGMENTS] & 0xFFFF == CODE
}

/// Offset of the interrupted stack pointer in a handler's third argument.
pub(crate) const STACK_POINTER: usize = offset_of!(libc::ucontext_t, uc_mcontext)
    + offset_of!(libc::mcontext_t, gregs)
    + libc::REG_RSP as usize * size_of::<libc::greg_t>();

/// Calls an `extern "C" fn(usize) -> bool` with the address where the frames of this place begin,
/// above those of the functions that it calls.
///
/// ```text
///          |  frames of this place           |
///          +---------------------------------+  <- the address that is passed
///          |  return address of `look`       |  <- rsp
/// ```
macro_rules! call_with_frames {
    ($function:path) => {{
        #[unsafe(naked)]
        extern "C" fn look() -> bool {
            std::arch::naked_asm!(
                "lea rdi, [rsp + 8]",
                "jmp {function}",
                function = sym $function,
            )
        }
        look()
    }};
}

/// Defines a signal handler that calls `$look`, an `extern "C" fn(&mut Information, usize)` with
/// the interrupted stack pointer, for signals with the code `$code`, and then goes on in the
/// handler whose address is in the static `$next`. It leaves no frame of its own below that
/// handler, which may unwind.
///
/// ```text
///          |  frame that the kernel wrote     |
///          |  return address of the handler   |  <- rsp on entry, and at the jump
///          |  rdi rsi rdx, its arguments      |
///          +----------------------------------+  <- rsp at the call, a multiple of 16
/// ```
macro_rules! cancellation_handler {
    ($(#[$meta:meta])* unsafe fn $name:ident, $look:path, $code_at:expr, $code:expr, $next:path) => {
        $(#[$meta])*
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                ".cfi_startproc",
                "cmp dword ptr [rsi + {code_at}], {code}",
                "jne 2f",
                "push rdi",
                ".cfi_adjust_cfa_offset 8",
                "push rsi",
                ".cfi_adjust_cfa_offset 8",
                "push rdx",
                ".cfi_adjust_cfa_offset 8",
                "mov rdi, rsi",
                "mov rsi, [rdx + {stack_pointer}]",
                "call {look}",
                "pop rdx",
                ".cfi_adjust_cfa_offset -8",
                "pop rsi",
                ".cfi_adjust_cfa_offset -8",
                "pop rdi",
                ".cfi_adjust_cfa_offset -8",
                "2:",
                "jmp [rip + {next}]",
                ".cfi_endproc",
                code_at = const $code_at,
                code = const $code,
                stack_pointer = const $crate::arch::STACK_POINTER,
                look = sym $look,
                next = sym $next,
            )
        }
    };
}

pub(crate) use {call_with_frames, cancellation_handler};

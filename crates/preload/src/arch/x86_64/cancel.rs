//! The entry points of cancellation, through which a thread may be unwound.

use std::arch::naked_asm;
use std::mem::offset_of;

use super::frame::{pop, push, release, reserve};
use super::thread_data::load_offset;
use crate::cancel::{
    ASYNCHRONOUS, CANCEL, CANCELS, DISABLE, Information, MASK_BYTES, SET_STATE, SET_TYPE, SETS_IDS,
    SIGCANCEL, after_asynchronous, before_asynchronous, cancel, find, is_here,
};
use crate::thread;

/// The frame of [`pthread_cancel`].
#[repr(C)]
struct Cancelling {
    /// A mask with all signals.
    all: u64,
    /// The mask in force before.
    before: u64,
    /// The thread to cancel, then the result.
    thread: u64,
}

/// Looks up a function of a library with threads that was loaded since the start, and goes back to
/// the label 4. Without such a function, returns an error.
macro_rules! look_up {
    () => {
        concat!(
            push!("rdi", "rsi"),
            reserve!("8"),
            "lea rdi, [rip + {next}]\n",
            "call {find}\n",
            release!("8"),
            pop!("rsi", "rdi"),
            "test rax, rax\n",
            "jnz 4b\n",
            "mov eax, {lacks}\n",
            "ret\n",
        )
    };
}

/// pthread_cancel(3). A thread that cancels itself may be unwound from there. A thread that cancels
/// another one is not cancelled in between, so that all steps are done.
///
/// ```text
///          |  return address       |  <- rsp on entry
///          |  [`Cancelling`]       |
///          +-----------------------+  <- rsp at the call, a multiple of 16
/// ```
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_cancel() {
    naked_asm!(
        ".cfi_startproc",
        "cmp rdi, fs:[0]",
        "jne 2f",
        "mov rax, [rip + {next}]",
        "test rax, rax",
        "jz 2f",
        "jmp rax",
        "2:",
        push!("rdi"),
        push!("0", "-1"),
        "mov edi, {set_mask}",
        "lea rsi, [rsp + {all}]",
        "lea rdx, [rsp + {before}]",
        "mov r10d, {mask_bytes}",
        "mov eax, {sigprocmask}",
        "syscall",
        "mov rdi, [rsp + {thread}]",
        "call {cancel}",
        "mov [rsp + {thread}], rax",
        "mov edi, {set_mask}",
        "lea rsi, [rsp + {before}]",
        "xor edx, edx",
        "mov r10d, {mask_bytes}",
        "mov eax, {sigprocmask}",
        "syscall",
        "mov rax, [rsp + {thread}]",
        release!("{frame}"),
        "ret",
        ".cfi_endproc",
        all = const offset_of!(Cancelling, all),
        before = const offset_of!(Cancelling, before),
        thread = const offset_of!(Cancelling, thread),
        frame = const size_of::<Cancelling>(),
        set_mask = const libc::SIG_SETMASK,
        mask_bytes = const MASK_BYTES,
        sigprocmask = const libc::SYS_rt_sigprocmask,
        cancel = sym cancel,
        next = sym CANCEL,
    )
}

/// The signal's handler. Without a value, the signal is for the C library. This function leaves no
/// frame below the C library's handlers, one of which unwinds.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn receive() {
    naked_asm!(
        ".cfi_startproc",
        "cmp dword ptr [rsi + {code}], {with_value}",
        "je 2f",
        "jmp [rip + {sets_ids}]",
        "2:",
        push!("rsi", "rdx"),
        reserve!("8"),
        "mov rdi, rsi",
        "call {is_here}",
        release!("8"),
        pop!("rdx", "rsi"),
        "test al, al",
        "jz 3f",
        "mov edi, {cancel}",
        "jmp [rip + {cancels}]",
        "3:",
        "ret",
        ".cfi_endproc",
        code = const Information::CODE,
        with_value = const libc::SI_QUEUE,
        sets_ids = sym SETS_IDS,
        is_here = sym is_here,
        cancel = const SIGCANCEL,
        cancels = sym CANCELS,
    )
}

/// pthread_setcanceltype(3). If the thread asks to be cancelled anywhere, it may be unwound at
/// once, and from then on.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setcanceltype() {
    naked_asm!(
        ".cfi_startproc",
        "4:",
        "cmp qword ptr [rip + {next}], 0",
        "je 5f",
        load_offset!("rax"),
        "xor ecx, ecx",
        "cmp edi, {asynchronous}",
        "sete cl",
        // The type is as before, or neither of the two.
        "cmp ecx, fs:[rax + {is_asynchronous}]",
        "je 3f",
        push!("rdi"),
        "test ecx, ecx",
        "jz 2f",
        push!("rsi"),
        reserve!("8"),
        "call {before}",
        release!("8"),
        pop!("rsi", "rdi"),
        "3:",
        "jmp [rip + {next}]",
        "2:",
        ".cfi_adjust_cfa_offset 8",
        "call [rip + {next}]",
        pop!("rdi"),
        "test eax, eax",
        "jz {after}",
        "ret",
        "5:",
        look_up!(),
        ".cfi_endproc",
        asynchronous = const ASYNCHRONOUS,
        is_asynchronous = const thread::ASYNCHRONOUS,
        before = sym before_asynchronous,
        after = sym after_asynchronous,
        find = sym find,
        lacks = const libc::ENOSYS,
        next = sym SET_TYPE,
    )
}

/// pthread_setcancelstate(3). The state is noted before cancellation is enabled again, because the
/// C library may unwind the thread then.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_setcancelstate() {
    naked_asm!(
        ".cfi_startproc",
        "4:",
        "mov r11, [rip + {next}]",
        "test r11, r11",
        "jz 5f",
        // The C library refuses other values.
        "cmp edi, {disable}",
        "ja 3f",
        load_offset!("rax"),
        "mov fs:[rax + {is_off}], edi",
        "3:",
        "jmp r11",
        "5:",
        look_up!(),
        ".cfi_endproc",
        disable = const DISABLE,
        is_off = const thread::UNCANCELLABLE,
        find = sym find,
        lacks = const libc::ENOSYS,
        next = sym SET_STATE,
    )
}

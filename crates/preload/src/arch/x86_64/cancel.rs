//! The entry points of cancellation, through which a thread may be unwound.

use std::arch::naked_asm;

use super::thread_data::load_offset;
use crate::cancel::{
    ASYNCHRONOUS, CANCEL, CANCELS, DISABLE, Information, MASK_BYTES, SET_STATE, SET_TYPE, SETS_IDS,
    SIGCANCEL, after_asynchronous, before_asynchronous, cancel, find, is_here,
};
use crate::thread;

/// pthread_cancel(3). A thread that cancels itself may be unwound from there. A thread that cancels
/// another one is not cancelled in between, so that all steps are done.
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
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        // Room for the mask in force, and a mask with all signals.
        "push 0",
        ".cfi_adjust_cfa_offset 8",
        "push -1",
        ".cfi_adjust_cfa_offset 8",
        "mov edi, {set_mask}",
        "mov rsi, rsp",
        "lea rdx, [rsp + 8]",
        "mov r10d, {mask_bytes}",
        "mov eax, {sigprocmask}",
        "syscall",
        "mov rdi, [rsp + 16]",
        "call {cancel}",
        "mov [rsp + 16], rax",
        "mov edi, {set_mask}",
        "lea rsi, [rsp + 8]",
        "xor edx, edx",
        "mov r10d, {mask_bytes}",
        "mov eax, {sigprocmask}",
        "syscall",
        "mov rax, [rsp + 16]",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
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
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "push rdx",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "mov rdi, rsi",
        "call {is_here}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rdx",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
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
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "test ecx, ecx",
        "jz 2f",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {before}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "3:",
        "jmp [rip + {next}]",
        "2:",
        ".cfi_adjust_cfa_offset 8",
        "call [rip + {next}]",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test eax, eax",
        "jz {after}",
        "ret",
        // A library with threads was loaded since the start.
        "5:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "lea rdi, [rip + {next}]",
        "call {find}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jnz 4b",
        "mov eax, {lacks}",
        "ret",
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
        // A library with threads was loaded since the start.
        "5:",
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "lea rdi, [rip + {next}]",
        "call {find}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "test rax, rax",
        "jnz 4b",
        "mov eax, {lacks}",
        "ret",
        ".cfi_endproc",
        disable = const DISABLE,
        is_off = const thread::UNCANCELLABLE,
        find = sym find,
        lacks = const libc::ENOSYS,
        next = sym SET_STATE,
    )
}

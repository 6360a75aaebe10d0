//! Functions on mutexes whose owner the kernel may record.

/// Offset of a mutex's kind, which is part of glibc's binary interface. Source: glibc,
/// `sysdeps/x86/nptl/bits/struct_mutex.h`.
pub(crate) const KIND: usize = 16;

/// Adds one to the count at `fs:[rcx]`.
macro_rules! taken {
    () => {
        "inc dword ptr fs:[rcx]"
    };
}

/// Subtracts one from the count, unless it is zero.
macro_rules! given_back {
    () => {
        concat!("cmp dword ptr fs:[rcx], 1\n", "adc dword ptr fs:[rcx], -1\n")
    };
}

/// Functions of at most three arguments, the first of them a mutex, with what to do to the count if
/// they succeed.
macro_rules! mutex_functions {
    ($($name:ident $next:ident $counted:ident)*) => {
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    ".cfi_startproc",
                    "test byte ptr [rdi + {kind}], {known_to_kernel}",
                    "jnz 2f",
                    "mov rax, [rip + {next}]",
                    "test rax, rax",
                    "jz 2f",
                    "jmp rax",
                    // Keep the kind: the mutex may no longer exist after a thread has unlocked it.
                    "2:",
                    "push rbx",
                    ".cfi_adjust_cfa_offset 8",
                    ".cfi_offset rbx, -16",
                    "movzx ebx, byte ptr [rdi + {kind}]",
                    "mov rax, [rip + {next}]",
                    "test rax, rax",
                    "jz 3f",
                    "mov rcx, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
                    "cmp dword ptr fs:[rcx + {migrated}], 0",
                    "je 4f",
                    "3:",
                    "sub rsp, 32",
                    ".cfi_adjust_cfa_offset 32",
                    "mov [rsp], rdi",
                    "mov [rsp + 8], rsi",
                    "mov [rsp + 16], rdx",
                    "lea rdi, [rip + {next}]",
                    "call {before}",
                    "mov rdi, [rsp]",
                    "mov rsi, [rsp + 8]",
                    "mov rdx, [rsp + 16]",
                    "add rsp, 32",
                    ".cfi_adjust_cfa_offset -32",
                    "4:",
                    "call rax",
                    "test eax, eax",
                    "jnz 5f",
                    "test bl, {robust}",
                    "jnz 5f",
                    $crate::arch::thread_data::load_offset!("rcx"),
                    "add rcx, {held}",
                    $crate::arch::mutex::$counted!(),
                    "5:",
                    "pop rbx",
                    ".cfi_adjust_cfa_offset -8",
                    ".cfi_restore rbx",
                    "ret",
                    ".cfi_endproc",
                    kind = const $crate::arch::mutex::KIND,
                    known_to_kernel = const $crate::mutexes::KNOWN_TO_KERNEL,
                    robust = const $crate::mutexes::ROBUST,
                    migrated = const dimmer_hook::MIGRATED,
                    held = const $crate::thread::HELD,
                    before = sym $crate::mutexes::before,
                    next = sym $next,
                )
            }
        )*
    };
}

pub(crate) use {given_back, mutex_functions, taken};

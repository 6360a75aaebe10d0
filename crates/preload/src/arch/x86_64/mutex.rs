//! Functions on mutexes whose owner the kernel may record.

use std::mem::offset_of;

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

/// The arguments of a function below, while `mutexes::before` runs.
#[repr(C)]
pub(crate) struct Arguments {
    /// The mutex.
    first: u64,
    second: u64,
    third: u64,
    /// Aligns the stack for the call.
    unused: u64,
}

impl Arguments {
    pub(crate) const FIRST: usize = offset_of!(Self, first);
    pub(crate) const SECOND: usize = offset_of!(Self, second);
    pub(crate) const THIRD: usize = offset_of!(Self, third);
}

/// Functions of at most three arguments, the first of them a mutex, with what to do to the count if
/// they succeed: `taken` or `given_back`.
///
/// ```text
/// C        +----------------------------+
///          |  return address            |  <- rsp on entry, and at the first jump
///          |  rbx of the caller         |  <- rsp at the call of the C library's function
///          |  [`Arguments`]             |
/// C - 48   +----------------------------+  <- rsp at the call of `before`
/// ```
///
/// rbx keeps the kind meanwhile, and rax has the address of the C library's function.
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
                    $crate::arch::frame::push!("rbx"),
                    ".cfi_offset rbx, -16",
                    "movzx ebx, byte ptr [rdi + {kind}]",
                    "mov rax, [rip + {next}]",
                    "test rax, rax",
                    "jz 3f",
                    "mov rcx, qword ptr [rip + dimmer_hook_thread@GOTTPOFF]",
                    "cmp dword ptr fs:[rcx + {migrated}], 0",
                    "je 4f",
                    "3:",
                    $crate::arch::frame::reserve!("{arguments}"),
                    "mov [rsp + {first}], rdi",
                    "mov [rsp + {second}], rsi",
                    "mov [rsp + {third}], rdx",
                    "lea rdi, [rip + {next}]",
                    "call {before}",
                    "mov rdi, [rsp + {first}]",
                    "mov rsi, [rsp + {second}]",
                    "mov rdx, [rsp + {third}]",
                    $crate::arch::frame::release!("{arguments}"),
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
                    $crate::arch::frame::pop!("rbx"),
                    ".cfi_restore rbx",
                    "ret",
                    ".cfi_endproc",
                    arguments = const size_of::<$crate::arch::mutex::Arguments>(),
                    first = const $crate::arch::mutex::Arguments::FIRST,
                    second = const $crate::arch::mutex::Arguments::SECOND,
                    third = const $crate::arch::mutex::Arguments::THIRD,
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

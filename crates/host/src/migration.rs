//! Whether a thread's stack and thread-local storage can continue on another kernel thread in this
//! process.

use std::arch::asm;

/// The bit that says that the kernel lets programs change the FS base (`AT_HWCAP2`, Linux
/// `arch/x86/include/uapi/asm/hwcap2.h`).
const HWCAP2_FSGSBASE: libc::c_ulong = 1 << 1;

/// Queries which shadow-stack features are on (Linux `arch/x86/include/uapi/asm/prctl.h`).
const ARCH_SHSTK_STATUS: libc::c_long = 0x5005;

/// Whether programs may themselves change the FS base, which points to thread-local storage: Linux
/// 5.9 or later, on a processor that has the instructions.
#[must_use]
pub fn can_change_thread_pointer() -> bool {
    // SAFETY: the call reads what the kernel passed to the process at its start.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// Whether the processor keeps a shadow stack of return addresses for this process. The shadow
/// stack would not move with the stack.
#[must_use]
pub fn has_shadow_stack() -> bool {
    let mut features: u64 = 0;
    // SAFETY: the kernel writes 64 bits, or refuses.
    let told = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &raw mut features) };
    told == 0 && features != 0
}

/// Whether Valgrind runs this process. Its threads are then Valgrind's, and Valgrind does not
/// support the instructions that change the FS base, although it reports the kernel's permission
/// for them.
#[must_use]
pub fn is_under_valgrind() -> bool {
    /// Source: `valgrind.h`, `VG_USERREQ__RUNNING_ON_VALGRIND`.
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut depth = 0_u64;
    // SAFETY: on a processor, these instructions have no effect: a rotation by 128 bits, and an
    // exchange of a register with itself. Valgrind takes them as a request and returns the answer
    // in `rdx`. Source: `valgrind.h`, `VALGRIND_DO_CLIENT_REQUEST_EXPR` for amd64.
    unsafe {
        asm!(
            "rol rdi, 3",
            "rol rdi, 13",
            "rol rdi, 61",
            "rol rdi, 51",
            "xchg rbx, rbx",
            in("rax") request.as_ptr(),
            inout("rdx") depth,
            inout("rdi") 0_u64 => _,
            options(nostack),
        );
    }
    depth != 0
}

/// Head of the list of robust mutexes that the calling thread holds. The kernel walks the list when
/// the thread ends. The head of an empty list points to itself. `None` if the C library keeps no
/// such list.
///
/// Source: Linux `Documentation/locking/robust-futexes.rst`, get_robust_list(2).
#[must_use]
pub fn robust_list() -> Option<*const *const ()> {
    let (mut head, mut length) = (std::ptr::null::<*const ()>(), 0_usize);
    // SAFETY: the kernel writes both values, or refuses; 0 is the calling thread.
    let told =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    (told == 0 && !head.is_null()).then_some(head)
}

//! Whether a thread's stack and thread-local storage can go on in another kernel thread, in this
//! process.

use std::arch::asm;

/// The kernel lets programs change the FS base (`AT_HWCAP2`, Linux
/// `arch/x86/include/uapi/asm/hwcap2.h`).
const HWCAP2_FSGSBASE: libc::c_ulong = 1 << 1;

/// Asks which shadow-stack features are on (Linux `arch/x86/include/uapi/asm/prctl.h`).
const ARCH_SHSTK_STATUS: libc::c_long = 0x5005;

/// Whether programs may change the FS base, which holds thread-local storage, by themselves: Linux
/// 5.9 or later, on a processor that has the instructions.
#[must_use]
pub fn can_change_thread_pointer() -> bool {
    // SAFETY: reads what the kernel told the process at its start.
    unsafe { libc::getauxval(libc::AT_HWCAP2) & HWCAP2_FSGSBASE != 0 }
}

/// Whether return addresses are kept by the processor too, in this process; they would not move
/// with the stack.
#[must_use]
pub fn has_shadow_stack() -> bool {
    let mut features: u64 = 0;
    // SAFETY: the kernel writes 64 bits, or refuses.
    let told = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SHSTK_STATUS, &raw mut features) };
    told == 0 && features != 0
}

/// Whether Valgrind runs this process: its threads are Valgrind's then, which does not know the
/// instructions that change the FS base, although it passes on that the kernel permits them.
#[must_use]
pub fn is_under_valgrind() -> bool {
    /// Source: `valgrind.h`, `VG_USERREQ__RUNNING_ON_VALGRIND`.
    const RUNNING_ON_VALGRIND: u64 = 0x1001;
    let request = [RUNNING_ON_VALGRIND, 0, 0, 0, 0, 0];
    let mut depth = 0_u64;
    // SAFETY: on a processor these do nothing: 128 bits of rotation, and an exchange of a register
    // with itself. Valgrind takes them for a request, whose answer is in `rdx`. Source:
    // `valgrind.h`, `VALGRIND_DO_CLIENT_REQUEST_EXPR` for amd64.
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

/// The list of the robust mutexes that the calling thread holds, as the kernel walks it when the
/// thread ends: where its head is, which points to itself when there are none. `None` where the C
/// library keeps no such list.
///
/// Source: Linux `Documentation/locking/robust-futexes.rst`, get_robust_list(2).
#[must_use]
pub fn robust_list() -> Option<*const *const ()> {
    let (mut head, mut length) = (std::ptr::null::<*const ()>(), 0_usize);
    // SAFETY: the kernel writes both, or refuses; 0 is the calling thread.
    let told =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut length) };
    (told == 0 && !head.is_null()).then_some(head)
}

//! A program that gives up time stamps or system calls, which this library uses.

use std::ffi::{c_int, c_long, c_ulong};

use dimmer_contention::stop;

use crate::next;

/// prctl(2). The C library's takes a variable number of arguments, all of them in registers.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // SAFETY: the caller's arguments.
    let call = || unsafe { next::prctl(option, second, third, fourth, fifth) };
    stopping(gives_up(option, second), call)
}

/// Whether such a call gives something up.
fn gives_up(option: c_int, second: c_ulong) -> bool {
    // The kernel takes the lower half, and the caller may have left anything in the upper one.
    let mode = second & c_ulong::from(u32::MAX);
    let takes_time =
        option == libc::PR_SET_TSC && c_int::try_from(mode) == Ok(libc::PR_TSC_SIGSEGV);
    takes_time || option == libc::PR_SET_SECCOMP
}

/// Calls a function, stopped if it gives something up, and for good if it succeeds then.
fn stopping<T: Copy + Default + PartialOrd>(gives_up: bool, call: impl FnOnce() -> T) -> T {
    if gives_up {
        stop::stop();
    }
    let result = call();
    if gives_up {
        // A filter for all threads has failed, too, if it returns the number of one of them.
        if result == T::default() { stop::stopped() } else { stop::go_on() }
    }
    result
}

/// syscall(2). All but two of the calls go on in the C library's with the registers and the stack
/// as they are: some of them return twice, as vfork does.
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn syscall() {
    std::arch::naked_asm!(
        ".cfi_startproc",
        "cmp rdi, {seccomp}",
        "je {own}",
        "cmp rdi, {prctl}",
        "je {own}",
        "mov rax, [rip + {next}]",
        // Not found yet: another library's initialisation comes first.
        "test rax, rax",
        "je {own}",
        "jmp rax",
        ".cfi_endproc",
        seccomp = const libc::SYS_seccomp,
        prctl = const libc::SYS_prctl,
        own = sym own_syscall,
        next = sym next::SYSCALL,
    )
}

/// The arguments of syscall(2) after the number: five in registers, and one on the stack.
type Arguments = (c_long, c_long, c_long, c_long, c_long, c_long);

unsafe extern "C" fn own_syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    // The kernel takes the lower half of what is first.
    let what = u32::try_from(first & c_long::from(u32::MAX)).unwrap_or(u32::MAX);
    let gives_up = match number {
        // Other operations only ask.
        libc::SYS_seccomp => {
            matches!(what, libc::SECCOMP_SET_MODE_STRICT | libc::SECCOMP_SET_MODE_FILTER)
        }
        libc::SYS_prctl => gives_up(what.cast_signed(), second.cast_unsigned()),
        _ => false,
    };
    let arguments = (first, second, third, fourth, fifth, sixth);
    // SAFETY: the caller's arguments.
    stopping(gives_up, || unsafe { call(number, arguments) })
}

/// Calls the C library's function.
///
/// # Safety
///
/// As for that.
unsafe fn call(number: c_long, arguments: Arguments) -> c_long {
    // SAFETY: what has this name takes these arguments.
    let function = unsafe {
        std::mem::transmute::<
            *mut std::ffi::c_void,
            unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long,
        >(next::SYSCALL.get())
    };
    let (first, second, third, fourth, fifth, sixth) = arguments;
    // SAFETY: by contract.
    unsafe { function(number, first, second, third, fourth, fifth, sixth) }
}

//! A program that gives up time stamps or system calls, which this library uses.

use std::ffi::{c_int, c_long, c_ulong};

use dimmer_contention::giving_up::{GivingUp, lower_half};
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
    let call = || unsafe { next::prctl(option, second, third, fourth, fifth) }.into();
    let arguments = [option.into(), second.cast_signed(), third.cast_signed()];
    lower_half(stopping(libc::SYS_prctl, arguments, call))
}

/// Makes a system call. If it gives something up, the process stops before, and for good if the
/// call succeeds.
fn stopping(
    number: c_long,
    [first, second, third]: [c_long; 3],
    call: impl FnOnce() -> c_long,
) -> c_long {
    let giving_up = GivingUp::of(number, lower_half(first), lower_half(second), third != 0);
    let Some(giving_up) = giving_up else { return call() };
    stop::stop();
    let result = call();
    if giving_up.has_succeeded(result) {
        stop::stopped();
    } else {
        stop::go_on();
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
    let arguments = (first, second, third, fourth, fifth, sixth);
    // SAFETY: the caller's arguments.
    stopping(number, [first, second, third], || unsafe { call(number, arguments) })
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

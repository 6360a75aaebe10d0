//! Hides features from the CPUID instruction, so that code without a switch of its own chooses
//! narrower vectors by itself.
//!
//! Linux makes CPUID fault in a thread that asks for it (`arch_prctl(ARCH_SET_CPUID, 0)`, since
//! 4.12, on processors that can do it). The fault arrives as SIGSEGV. The handler here executes the
//! instruction with faulting switched off, removes the features, and goes on after it. New threads
//! and forked children inherit the setting. Other programs (`execve`) start without it, and find
//! the request in their environment.
//!
//! Queries before this library is initialised get the true answer. The loader makes some for itself
//! and glibc, so glibc needs a setting of its own (`GLIBC_TUNABLES`). The resolvers of indirect
//! functions in files that are loaded at the start make some, too. XGETBV cannot be made to fault:
//! it still shows the register states of hidden features. [`dimmer_narrow::masked`] explains why
//! that is safe, and why leaf 0xD stays as it is.
//!
//! Each CPUID takes longer: 34 us instead of 7 us on a virtual machine on an Emerald Rapids host,
//! where the instruction and each change of the setting leave the guest. Programs that use CPUID to
//! keep time stamps in order notice this. Programs that limit their system calls (seccomp) before
//! they execute CPUID must allow arch_prctl.
//!
//! Source: Linux, arch_prctl(2), arch/x86/kernel/process.c.

use std::ffi::{c_int, c_long, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_narrow::{CPUID_WIDTH, Registers, Width, masked};

use crate::{program, signals};

/// Source: Linux `arch/x86/include/uapi/asm/prctl.h`.
const ARCH_SET_CPUID: c_int = 0x1012;

/// The `si_code` of a signal by which the kernel reports a general-protection fault.
const SI_KERNEL: c_int = 0x80;

/// The bytes of the instruction.
const CPUID: [u8; 2] = [0x0f, 0xa2];

/// The highest address of a program, unless it asks for higher ones. A higher address may not
/// exist, and reading there would make this library fault itself.
const HIGHEST: u64 = 1 << 47;

/// Places of registers in the context of a signal (ucontext.h).
const RBX: usize = 11;
const RDX: usize = 12;
const RAX: usize = 13;
const RCX: usize = 14;
const RIP: usize = 16;

/// The width in bits; 0 while nothing is hidden.
static WIDTH: AtomicU32 = AtomicU32::new(0);

/// Whether features are hidden in this process.
pub(crate) fn is_active() -> bool {
    // Relaxed: it changes once, before there are other threads.
    WIDTH.load(Ordering::Relaxed) != 0
}

/// Starts to hide features, if the environment asks for it, and the machine and the program allow
/// it.
pub(crate) fn start() -> Option<()> {
    let width: Width = std::env::var(CPUID_WIDTH).ok()?.parse().ok()?;
    // The Go runtime installs its signal handlers without the C library, and would take CPUID's
    // fault for a crash.
    if program::is_go() || !set_faulting(false) {
        return None;
    }
    signals::take_faults(handle)?;
    // Relaxed: there is one thread.
    WIDTH.store(width.bits(), Ordering::Relaxed);
    set_faulting(true).then_some(())
}

/// Makes CPUID fault in this thread, or not. Returns whether that worked.
fn set_faulting(faulting: bool) -> bool {
    let allowed = c_long::from(!faulting);
    // SAFETY: takes a number, no pointer, and changes only how this thread's CPUID behaves.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_CPUID, allowed) };
    result == 0
}

/// Handles each SIGSEGV of the process.
extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, valid as long as the handler runs.
    let code = unsafe { (*info).si_code };
    if code == SI_KERNEL {
        // SAFETY: the kernel passes it, and no other code uses it.
        let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
        if answer(&mut context.uc_mcontext.gregs) {
            return;
        }
    }
    // The program's handler may run with SIGSEGV blocked, and a fault would then end the process.
    // So CPUID gives true answers meanwhile. If the handler leaves by longjmp, this thread goes on
    // that way.
    set_faulting(false);
    signals::pass_on(signal, info, context);
    set_faulting(true);
}

/// Answers the CPUID instruction at the thread's instruction pointer. Returns false if there is
/// another instruction.
fn answer(registers: &mut [i64; 23]) -> bool {
    let rip = registers[RIP].cast_unsigned();
    let Some(length) = length(rip) else { return false };
    if !set_faulting(false) {
        return false;
    }
    let (leaf, subleaf) = (low(registers[RAX]), low(registers[RCX]));
    let real = execute(leaf, subleaf);
    set_faulting(true);
    // Relaxed: stored before faulting was switched on.
    let width = match WIDTH.load(Ordering::Relaxed) {
        128 => Width::Bits128,
        _ => Width::Bits256,
    };
    let shown = masked(leaf, subleaf, real, width);
    registers[RAX] = i64::from(shown.eax);
    registers[RBX] = i64::from(shown.ebx);
    registers[RCX] = i64::from(shown.ecx);
    registers[RDX] = i64::from(shown.edx);
    registers[RIP] = (rip + length).cast_signed();
    true
}

/// The lower 32 bits of a register.
fn low(register: i64) -> u32 {
    let bytes = register.to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The length of the CPUID instruction at an address; `None` if there is another one. Reads single
/// bytes, because the page may end after a shorter instruction.
fn length(address: u64) -> Option<u64> {
    let byte = |offset: u64| {
        let address = address.checked_add(offset).filter(|address| *address < HIGHEST)?;
        let at = std::ptr::with_exposed_provenance::<u8>(usize::try_from(address).ok()?);
        // SAFETY: the processor has just read the instruction there, up to this byte.
        Some(unsafe { at.read() })
    };
    let mut prefixes = 0;
    // REX, and the prefixes that CPUID accepts and ignores.
    while matches!(byte(prefixes)?, 0x40..=0x4f | 0x66 | 0xf2 | 0xf3 | 0x2e | 0x3e) && prefixes < 13
    {
        prefixes += 1;
    }
    let is_it = byte(prefixes)? == CPUID[0] && byte(prefixes + 1)? == CPUID[1];
    is_it.then_some(prefixes + 2)
}

/// Executes the instruction.
fn execute(leaf: u32, subleaf: u32) -> Registers {
    let (eax, ebx, ecx, edx): (u32, u64, u32, u32);
    // Compilers reserve rbx for themselves, so it is kept in a register of their choice meanwhile.
    // SAFETY: every x86-64 processor has the instruction; it writes the four registers.
    unsafe {
        std::arch::asm!(
            "mov {kept}, rbx",
            "cpuid",
            "xchg {kept}, rbx",
            kept = out(reg) ebx,
            inout("eax") leaf => eax,
            inout("ecx") subleaf => ecx,
            out("edx") edx,
            options(nostack, preserves_flags),
        );
    }
    Registers { eax, ebx: low(ebx.cast_signed()), ecx, edx }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instruction_is_found_behind_its_prefixes() {
        let at = |bytes: &[u8]| length(u64::try_from(bytes.as_ptr().expose_provenance()).unwrap());
        assert_eq!(at(&[0x0f, 0xa2, 0x90]), Some(2));
        assert_eq!(at(&[0x66, 0x48, 0x0f, 0xa2]), Some(4));
        assert_eq!(at(&[0x0f, 0x0b]), None);
        assert_eq!(at(&[0xf4]), None);
        assert_eq!(length(HIGHEST), None);
    }

    #[test]
    fn registers_lie_where_the_c_library_says() {
        let theirs = [libc::REG_RBX, libc::REG_RDX, libc::REG_RAX, libc::REG_RCX, libc::REG_RIP];
        let ours = [RBX, RDX, RAX, RCX, RIP].map(|at| i32::try_from(at).unwrap());
        assert_eq!(ours, theirs);
    }

    #[test]
    fn instruction_tells_what_the_standard_library_says() {
        let told = execute(7, 0);
        assert_eq!(told.ebx & 1 << 5 != 0, std::arch::is_x86_feature_detected!("avx2"));
    }
}

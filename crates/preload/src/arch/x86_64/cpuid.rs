//! The CPUID instruction: making it fault, recognizing it, executing it.

use std::ffi::{c_int, c_long};

use dimmer_narrow::Registers;

/// Source: Linux `arch/x86/include/uapi/asm/prctl.h`.
const ARCH_SET_CPUID: c_int = 0x1012;

/// The `si_code` of a signal by which the kernel reports a general-protection fault.
pub(crate) const FAULT: c_int = 0x80;

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

/// Makes CPUID fault in this thread, or not. Returns whether that worked.
pub(crate) fn set_faulting(faulting: bool) -> bool {
    let allowed = c_long::from(!faulting);
    // SAFETY: takes a number, no pointer, and changes only how this thread's CPUID behaves.
    let result = unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_SET_CPUID, allowed) };
    result == 0
}

/// A CPUID instruction that has faulted.
pub(crate) struct Query<'a> {
    /// Those of the thread that was interrupted.
    registers: &'a mut [i64; 23],
    /// The number of bytes of the instruction.
    length: u64,
}

impl<'a> Query<'a> {
    /// The instruction at which a signal with the code [`FAULT`] interrupted the thread; `None` if
    /// it is another one.
    pub(crate) fn find(context: &'a mut libc::ucontext_t) -> Option<Self> {
        let registers = &mut context.uc_mcontext.gregs;
        let length = length(registers[RIP].cast_unsigned())?;
        Some(Self { registers, length })
    }

    pub(crate) fn leaf(&self) -> u32 {
        low(self.registers[RAX])
    }

    pub(crate) fn subleaf(&self) -> u32 {
        low(self.registers[RCX])
    }

    /// Executes the instruction, which must not fault meanwhile.
    pub(crate) fn execute(&self) -> Registers {
        execute(self.leaf(), self.subleaf())
    }

    /// Writes the answer to the thread's registers. The thread goes on after the instruction.
    pub(crate) fn answer(self, shown: &Registers) {
        self.registers[RAX] = i64::from(shown.eax);
        self.registers[RBX] = i64::from(shown.ebx);
        self.registers[RCX] = i64::from(shown.ecx);
        self.registers[RDX] = i64::from(shown.edx);
        let next = self.registers[RIP].cast_unsigned() + self.length;
        self.registers[RIP] = next.cast_signed();
    }
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

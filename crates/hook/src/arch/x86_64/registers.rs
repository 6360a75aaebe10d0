//! Saves and restores the processor state beside the general registers, on the stack. The pieces of
//! assembly are shared by [`super::migrate`] and [`super::delegate`].
//!
//! They use the operands `state_bytes`, `carried`, `features`, `has_avx`, `has_xsavec` and
//! `header`: see [`FEATURES`] and [`HEADER`]. Older processors (Haswell, Broadwell) have XSAVE,
//! which leaves gaps for what it does not store.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use dimmer_scan::Width;

use crate::error::CannotMove;

/// Components of the processor's state that go with the thread: x87, SSE, AVX, the masks and
/// both parts of AVX-512, protection keys (Intel SDM, vol. 1, §13.1). The processor skips
/// components that it lacks.
pub(crate) const CARRIED: u64 = 0b10_1110_0111;

/// The components that compiled code may change while a thread waits at home: SSE, AVX, the masks
/// and both parts of AVX-512.
pub(crate) const VECTORS: u64 = 0b1110_0110;

/// Room for all components that go along, where XSAVE puts them: the protection keys come last, at
/// byte 2688 (CPUID leaf 0xD of Skylake-SP; those of others come earlier). XSAVEC packs them closer
/// together.
pub(crate) const STATE_BYTES: u64 = 2688 + 64;

/// Components that do not go along: a thread that has configured tiles stays. XGETBV with 1 reports
/// that.
pub(crate) const TILES: u32 = 3 << 17;

/// Offset in the stored state of its header: the components that are stored, and reserved bytes
/// that have to be zero (Intel SDM, vol. 1, §13.4.2).
pub(crate) const HEADER: usize = 512;

/// Bytes of the header.
const HEADER_BYTES: usize = 64;

// The assembly clears the header in eight words; XSAVE and XSAVEC take an address that is a
// multiple of 64.
const _: () = assert!(HEADER_BYTES == 8 * 8 && STATE_BYTES.is_multiple_of(64));

/// What assembly has to know about the processor.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Features {
    /// Nonzero: upper halves of registers have to be cleaned.
    has_avx: AtomicU32,
    /// Nonzero: XSAVEC stores the processor's state.
    has_xsavec: AtomicU32,
}

/// The features of this processor, after [`Form::put_in_force`].
pub(crate) static FEATURES: Features = Features::new();

/// Offset in [`FEATURES`] of the first word.
pub(crate) const HAS_AVX: usize = offset_of!(Features, has_avx);
/// Offset in [`FEATURES`] of the second word.
pub(crate) const HAS_XSAVEC: usize = offset_of!(Features, has_xsavec);

impl Features {
    const fn new() -> Self {
        Self { has_avx: AtomicU32::new(0), has_xsavec: AtomicU32::new(0) }
    }

    fn set(&self, has_avx: bool, has_xsavec: bool) {
        // Relaxed: no call is moved yet.
        self.has_avx.store(has_avx.into(), Ordering::Relaxed);
        self.has_xsavec.store(has_xsavec.into(), Ordering::Relaxed);
    }
}

/// How the state is stored on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Form {
    /// The components that the system uses.
    pub(crate) enabled: u32,
    /// Whether the processor has XSAVEC, and XGETBV with 1.
    pub(crate) has_xsavec: bool,
}

impl Form {
    /// Finds how the state is stored here.
    ///
    /// # Errors
    /// [`CannotMove`].
    pub(crate) fn find() -> Result<Self, CannotMove> {
        const OSXSAVE: u32 = 1 << 27;
        const XSAVEC_AND_XGETBV1: u32 = 0b110;
        if __cpuid(1).ecx & OSXSAVE == 0 {
            return Err(CannotMove::NoXsave);
        }
        let enabled: u32;
        // SAFETY: the system lets programs use this instruction, as just checked.
        unsafe {
            asm!("xgetbv", in("ecx") 0, out("eax") enabled, out("edx") _, options(nomem, nostack))
        };
        let has_xsavec = __cpuid_count(0xd, 1).eax & XSAVEC_AND_XGETBV1 == XSAVEC_AND_XGETBV1;
        // Where each component ends that XSAVE would store (Intel SDM, vol. 1, §13.4.3).
        let is_carried = |part: &u32| u64::from(enabled) & CARRIED & 1 << part != 0;
        let end = |part: u32| {
            let (size, offset) = (__cpuid_count(0xd, part).eax, __cpuid_count(0xd, part).ebx);
            u64::from(size) + u64::from(offset)
        };
        let fits = (2..u32::BITS).filter(is_carried).all(|part| end(part) <= STATE_BYTES);
        if has_xsavec || fits && enabled & TILES == 0 {
            Ok(Self { enabled, has_xsavec })
        } else {
            Err(CannotMove::NoXsavec)
        }
    }

    /// From now on, assembly stores the state in this form.
    pub(crate) fn put_in_force(self) {
        FEATURES.set(self.has_avx(), self.has_xsavec);
    }

    /// Whether upper halves of registers have to be cleaned.
    pub(crate) fn has_avx(self) -> bool {
        self.enabled & 1 << 2 != 0
    }

    /// The widest vector registers that the system lets programs use (Intel SDM, vol. 1, §13.3).
    pub(crate) fn widest(self) -> Width {
        const AVX_512: u32 = 0b1110_0000;
        if self.enabled & AVX_512 == AVX_512 {
            Width::Bits512
        } else if self.has_avx() {
            Width::Bits256
        } else {
            Width::Bits128
        }
    }
}

/// Stores the processor's state below the stack pointer, and leaves the registers as compiled code
/// expects them: an empty x87 stack, and clean upper halves. Changes `rax` and `rdx`. Afterwards:
///
/// ```text
///             |  (up to 63 bytes unused)        |
///             +---------------------------------+
///             |  the rest of the components     |
/// rsp + 576   +---------------------------------+
///             |  header: what is stored         |
/// rsp + 512   +---------------------------------+
///             |  x87 and SSE components         |
/// rsp         +---------------------------------+  a multiple of 64
/// ```
macro_rules! pack {
    () => {
        concat!(
            "sub rsp, {state_bytes}\n",
            "and rsp, -64\n",
            // XSAVE reads the header and leaves what it does not store.
            "xor eax, eax\n",
            ".irp word, 0, 1, 2, 3, 4, 5, 6, 7\n",
            "mov [rsp + {header} + 8 * \\word], rax\n",
            ".endr\n",
            "mov eax, {carried}\n",
            "xor edx, edx\n",
            "cmp dword ptr [rip + {features} + {has_xsavec}], 0\n",
            "je 95f\n",
            "xsavec [rsp]\n",
            "jmp 96f\n",
            "95:\n",
            "xsave [rsp]\n",
            "96:\n",
            // The first component: x87.
            "test byte ptr [rsp + {header}], 1\n",
            "jz 97f\n",
            "fninit\n",
            "97:\n",
            "cmp dword ptr [rip + {features} + {has_avx}], 0\n",
            "je 98f\n",
            "vzeroupper\n",
            "98:\n",
        )
    };
}

/// Restores the state from the stack pointer's place. Changes `rax` and `rdx`.
macro_rules! unpack {
    () => {
        concat!(
            "mov eax, {carried}\n", //
            "xor edx, edx\n",
            "xrstor [rsp]\n",
        )
    };
}

pub(crate) use {pack, unpack};

#[cfg(test)]
mod tests {
    use std::arch::global_asm;

    use super::*;

    /// The features in force for this test alone.
    static OWN: Features = Features::new();

    global_asm!(
        // In: rdi the content of sixteen registers, rsi that of one x87 register. Out: what they
        // hold after they were saved, cleared and restored.
        "dimmer_hook_test_registers:",
        "push rbx",
        "mov rbx, rsp",
        ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovdqu ymm\\number, [rdi + 32 * \\number]",
        ".endr",
        "fld tbyte ptr [rsi]",
        pack!(),
        "vzeroall",
        unpack!(),
        "mov rsp, rbx",
        ".irp number, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15",
        "vmovdqu [rdi + 32 * \\number], ymm\\number",
        ".endr",
        "fstp tbyte ptr [rsi]",
        "vzeroupper",
        "pop rbx",
        "ret",
        features = sym OWN,
        has_avx = const HAS_AVX,
        has_xsavec = const HAS_XSAVEC,
        header = const HEADER,
        carried = const 0b111,
        state_bytes = const STATE_BYTES,
    );

    unsafe extern "C" {
        fn dimmer_hook_test_registers(vectors: *mut [u8; 512], old: *mut [u8; 10]);
    }

    #[test]
    #[expect(clippy::print_stdout, reason = "a test that cannot run says so")]
    fn registers_come_back_however_they_are_stored() {
        let Some(form) = Form::find().ok().filter(|form| form.has_avx()) else {
            println!("SKIPPED: there is no AVX here");
            return;
        };
        let forms = if form.has_xsavec { &[false, true][..] } else { &[false] };
        for has_xsavec in forms {
            OWN.set(true, *has_xsavec);
            let vectors = std::array::from_fn(|at| u8::try_from(at % 251).unwrap_or_default());
            // 1.5 plus some low bits.
            let old = [1, 2, 3, 4, 5, 6, 7, 0xC0, 0xFF, 0x3F];
            let (mut vectors_after, mut old_after) = (vectors, old);
            // SAFETY: there is AVX, and XSAVEC if `OWN` has it; no other test uses the state.
            unsafe { dimmer_hook_test_registers(&raw mut vectors_after, &raw mut old_after) };
            assert_eq!((vectors_after, old_after), (vectors, old), "{has_xsavec}");
        }
    }
}

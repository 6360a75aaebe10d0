//! What the processor keeps beside the general registers: put on the stack and taken up again, as pieces of assembly that [`crate::away`]
//! and [`crate::offload`] have in common.
//!
//! They name `{state_bytes}` and `{travelling}`, and `{state}`, at whose byte 16 is whether there are upper halves to be cleaned.

/// Parts of the processor's state that travel: x87, SSE, AVX, the masks and both parts of AVX-512, protection keys (Intel SDM,
/// vol. 1, §13.1). What the processor lacks it leaves out.
pub(crate) const TRAVELLING: u64 = 0b10_1110_0111;

/// The part of it that compiled code may change while a thread waits where it is: SSE, AVX, the masks and both parts of AVX-512.
pub(crate) const VECTORS: u64 = 0b1110_0110;

/// Room for all that travels: the old part and the head, AVX, masks, the upper halves of 16 registers, 16 more, keys (as above).
pub(crate) const STATE_BYTES: u64 = 576 + 256 + 64 + 512 + 1024 + 64;

/// Puts the processor's state below the stack pointer, and leaves the registers as compiled code expects them. Changes `rax` and `rdx`.
macro_rules! pack {
    () => {
        "sub rsp, {state_bytes}\n and rsp, -64\n xor eax, eax\n .irp at, 512, 520, 528, 536, 544, 552, 560, 568\n mov [rsp + \\at], rax\n .endr\n mov eax, {travelling}\n xor edx, edx\n xsavec [rsp]\n test byte ptr [rsp + 512], 1\n jz 98f\n fninit\n 98:\n cmp dword ptr [rip + {state} + 16], 0\n je 98f\n vzeroupper\n 98:"
    };
}

/// Takes it up again from where the stack pointer is. Changes `rax` and `rdx`.
macro_rules! unpack {
    () => {
        "mov eax, {travelling}\n xor edx, edx\n xrstor [rsp]"
    };
}

pub(crate) use {pack, unpack};

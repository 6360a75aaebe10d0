//! Passes a mark at the entry of a hooked function.
//!
//! A function that this crate is given ([`crate::Hooks::pass_marks`]) runs on the caller's stack,
//! with the processor's state stored there, and may return on another kernel thread. It returns the
//! signals to block from then on, or [`SIGNALS_ARE_RIGHT`]. Then the call goes on in the function.
//! Return addresses stay where they are.

use std::arch::global_asm;
use std::mem::offset_of;

use super::frame::{self, pop, pop_timed, push, push_timed};
use super::registers;
use super::thread_block::{self, load_thread_offset};
use crate::marks::PASS;
use crate::mover::SIGNALS_ARE_RIGHT;
use crate::process::{ONLY_COUNTS, RESTRICTED};
use crate::site::Site;

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_mark",
    ".globl dimmer_hook_mark",
    ".type dimmer_hook_mark,@function",
    // Stubs jump here at a mark. In: r11 the site ([`Site`]), at C - 16 the caller's r11. All other
    // registers are the caller's, and the stack is as in [`super::migrate`], but for `own`, which
    // is the site.
    "dimmer_hook_mark:",
    ".cfi_startproc",
    "cmp dword ptr [r11 + {site_is_off}], 0",
    "jne 47f",
    "lea rsp, [rsp - {returns_at}]",
    ".cfi_adjust_cfa_offset {returns_at}",
    push_timed!(),
    push!("r9", "r10"),
    ".cfi_rel_offset rbx, {rbx_at}",
    "mov rax, [r11 + {site_displaced}]",
    "mov [rsp + {kept} + {body_at}], rax",
    "mov [rsp + {kept} + {own_at}], r11",
    load_thread_offset!("r8"),
    "cmp dword ptr fs:[r8 + {inhibited}], 0",
    "jne 45f",
    // Stacks may be small there (Go).
    "cmp dword ptr [rip + {only_counts}], {restricted}",
    "jae 45f",
    // Tiles do not go along. Without XSAVEC there are none.
    "cmp dword ptr [rip + {features} + {has_xsavec}], 0",
    "je 46f",
    "mov ecx, 1",
    "xgetbv",
    "test eax, {tiles}",
    "jnz 45f",
    "46:",
    // What is called may call functions that are hooked.
    "inc dword ptr fs:[r8 + {inhibited}]",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, {frame_bytes}",
    registers::pack!(),
    "mov rdi, [rbx + {kept} + {own_at}]",
    "mov edi, [rdi + {site_mark}]",
    "call [rip + {pass}]",
    "mov [rbx + {kept} + {own_at}], rax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, {frame_bytes}",
    load_thread_offset!("r8"),
    "dec dword ptr fs:[r8 + {inhibited}]",
    // Here, because a handler may leave by a jump, or unwind.
    "cmp qword ptr [rsp + {kept} + {own_at}], {signals_are_right}",
    "je 45f",
    "mov edi, {set_mask}",
    "lea rsi, [rsp + {kept} + {own_at}]",
    "xor edx, edx",
    "mov r10d, {mask_bytes}",
    "mov eax, {sigprocmask}",
    "syscall",
    "45:",
    pop!("r10", "r9"),
    pop_timed!(),
    ".cfi_restore rbx",
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp qword ptr [rsp - {returns_at} + {body_at}]",
    // Below the stack pointer, where no call leaves anything.
    "47:",
    "mov [rsp - 24], rax",
    "mov rax, [r11 + {site_displaced}]",
    "mov [rsp - 16], rax",
    "mov rax, [rsp - 24]",
    "mov r11, [rsp - 8]",
    "jmp qword ptr [rsp - 16]",
    ".cfi_endproc",
    ".size dimmer_hook_mark, . - dimmer_hook_mark",
    signals_are_right = const SIGNALS_ARE_RIGHT.cast_signed(),
    set_mask = const libc::SIG_SETMASK,
    sigprocmask = const libc::SYS_rt_sigprocmask,
    mask_bytes = const size_of::<u64>(),
    pass = sym PASS,
    only_counts = sym ONLY_COUNTS,
    restricted = const RESTRICTED,
    features = sym registers::FEATURES,
    has_avx = const registers::HAS_AVX,
    has_xsavec = const registers::HAS_XSAVEC,
    header = const registers::HEADER,
    carried = const registers::CARRIED,
    state_bytes = const registers::STATE_BYTES,
    tiles = const registers::TILES,
    site_mark = const offset_of!(Site, mark),
    site_displaced = const offset_of!(Site, displaced),
    site_is_off = const offset_of!(Site, is_off),
    own_at = const frame::OWN,
    body_at = const frame::BODY,
    r11_at = const frame::R11,
    rbx_at = const frame::MIGRATING_RBX,
    returns_at = const frame::RETURNS_TO,
    kept = const frame::MIGRATING_KEPT,
    frame_bytes = const frame::MIGRATING_BYTES,
    inhibited = const thread_block::INHIBITED,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_mark();
}

/// Address of the code for marks, to which stubs jump.
pub(crate) fn entry() -> u64 {
    dimmer_hook_mark as *const () as u64
}

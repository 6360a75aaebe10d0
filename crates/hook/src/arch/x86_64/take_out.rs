//! Has hooks taken out at a timed call, when the observer has ordered that.
//!
//! As at a mark ([`super::mark`]), a function of this crate ([`unhook::take_out`]) runs on the
//! caller's stack, with the processor's state stored there. Then the call goes on, only counted.

use std::arch::global_asm;
use std::mem::offset_of;

use super::frame::{self, pop, pop_timed, push, push_timed};
use super::registers;
use super::thread_block::{self, load_thread_offset};
use crate::site::Site;
use crate::unhook;

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_take_out",
    ".globl dimmer_hook_take_out",
    ".type dimmer_hook_take_out,@function",
    // [`super::swap`] jumps here at the start of a call that it has counted. In: r11 the site
    // ([`Site`]), at C - 16 the caller's r11. All other registers are the caller's, and the stack
    // is as in [`super::migrate`].
    "dimmer_hook_take_out:",
    ".cfi_startproc",
    "lea rsp, [rsp - {returns_at}]",
    ".cfi_adjust_cfa_offset {returns_at}",
    push_timed!(),
    push!("r9", "r10"),
    ".cfi_rel_offset rbx, {rbx_at}",
    "mov rax, [r11 + {site_body}]",
    "mov [rsp + {kept} + {body_at}], rax",
    load_thread_offset!("r8"),
    "cmp dword ptr fs:[r8 + {inhibited}], 0",
    "jne 45f",
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
    "call {take_out}",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, {frame_bytes}",
    load_thread_offset!("r8"),
    "dec dword ptr fs:[r8 + {inhibited}]",
    "45:",
    pop!("r10", "r9"),
    pop_timed!(),
    ".cfi_restore rbx",
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp qword ptr [rsp - {returns_at} + {body_at}]",
    ".cfi_endproc",
    ".size dimmer_hook_take_out, . - dimmer_hook_take_out",
    take_out = sym unhook::take_out,
    features = sym registers::FEATURES,
    has_avx = const registers::HAS_AVX,
    has_xsavec = const registers::HAS_XSAVEC,
    header = const registers::HEADER,
    carried = const registers::CARRIED,
    state_bytes = const registers::STATE_BYTES,
    tiles = const registers::TILES,
    site_body = const offset_of!(Site, body),
    body_at = const frame::BODY,
    r11_at = const frame::R11,
    rbx_at = const frame::MIGRATING_RBX,
    returns_at = const frame::RETURNS_TO,
    kept = const frame::MIGRATING_KEPT,
    frame_bytes = const frame::MIGRATING_BYTES,
    inhibited = const thread_block::INHIBITED,
);

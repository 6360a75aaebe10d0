//! Reports the calls of a hooked function, and their ends, to the [`crate::Watcher`].
//!
//! As at a mark ([`super::mark`]), the function that is called runs on the caller's stack, with the
//! processor's state stored there. If the end of the call is wanted, the return address is taken
//! off the stack and kept in the table ([`super::rows`]), and the function is called in its place,
//! as for a call that migrates. [`super::migrate`] has what happens when it returns.

use std::arch::global_asm;
use std::mem::offset_of;

use super::frame::{self, pop, pop_timed, push, push_timed};
use super::thread_block::{self, load_thread_offset};
use super::{registers, rows};
use crate::process::{ONLY_COUNTS, RESTRICTED};
use crate::sections;
use crate::site::Site;

/// Bytes below [`frame::Migrating`]: the site, and below it the row; null if there is none.
const OWN_BYTES: usize = 16;

global_asm!(
    ".text",
    ".p2align 6",
    ".hidden dimmer_hook_section",
    ".globl dimmer_hook_section",
    ".type dimmer_hook_section,@function",
    // Stubs jump here at the start of a call. In: r11 the site ([`Site`]), at C - 16 the caller's
    // r11. All other registers are the caller's, and the stack is as in [`super::migrate`], with
    // [`OWN_BYTES`] more.
    "dimmer_hook_section:",
    ".cfi_startproc",
    "lea rsp, [rsp - {returns_at}]",
    ".cfi_adjust_cfa_offset {returns_at}",
    push_timed!(),
    push!("r9", "r10"),
    ".cfi_rel_offset rbx, {rbx_at}",
    "mov rax, [r11 + {site_displaced}]",
    "mov [rsp + {kept} + {body_at}], rax",
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
    // Reached by a jump from a function whose return address is in the table already?
    "xor edx, edx",
    "mov rax, [rsp + {kept} + {returns_at}]",
    rows::if_stub!("48f"),
    "lea rsi, [rsp + {frame_bytes}]",
    rows::claim!("47f"),
    "mov rax, [rsp + {kept} + {returns_at}]",
    "mov [rdx + {returns_to}], rax",
    "mov eax, [r11 + {site_number}]",
    "mov [rdx + {of_site}], eax",
    "mov dword ptr [rdx + {is_migrated}], {is_watched}",
    "mov esi, 1",
    "jmp 49f",
    // No row is free.
    "47:",
    "xor edx, edx",
    "xor esi, esi",
    "jmp 49f",
    "48:",
    "mov esi, 2",
    "49:",
    push!("r11", "rdx"),
    // What is called may call functions that are hooked.
    "inc dword ptr fs:[r8 + {inhibited}]",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, {frame_bytes} + {own_bytes}",
    registers::pack!(),
    "mov edx, esi",
    "mov edi, [r11 + {site_mark}]",
    "lea rsi, [rbx + {frame_bytes} + {own_bytes}]",
    "call [rip + {functions} + {called}]",
    "mov ecx, eax",
    registers::unpack!(),
    "mov rsp, rbx",
    ".cfi_def_cfa rsp, {frame_bytes} + {own_bytes}",
    load_thread_offset!("r8"),
    "dec dword ptr fs:[r8 + {inhibited}]",
    pop!("rdx", "r11"),
    "test rdx, rdx",
    "jz 45f",
    "test ecx, ecx",
    "jz 44f",
    // The return stub, which calls the function.
    rows::stub_of!(),
    "mov [rsp + {kept} + {own_at}], rax",
    pop!("r10", "r9"),
    pop_timed!(),
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {kept_bytes}]",
    ".cfi_adjust_cfa_offset -{kept_bytes}",
    "jmp qword ptr [rsp - {kept_bytes} + {own_at}]",
    ".cfi_adjust_cfa_offset {frame_bytes}",
    // Its end is not wanted: the row is free again.
    "44:",
    "mov qword ptr [rdx + {stack}], 0",
    "45:",
    pop!("r10", "r9"),
    pop_timed!(),
    ".cfi_restore rbx",
    "mov r11, [rsp + {r11_at}]",
    "lea rsp, [rsp + {returns_at}]",
    ".cfi_adjust_cfa_offset -{returns_at}",
    "jmp qword ptr [rsp - {returns_at} + {body_at}]",
    ".cfi_endproc",
    ".size dimmer_hook_section, . - dimmer_hook_section",
    functions = sym sections::FUNCTIONS,
    called = const sections::CALLED,
    own_bytes = const OWN_BYTES,
    only_counts = sym ONLY_COUNTS,
    restricted = const RESTRICTED,
    features = sym registers::FEATURES,
    has_avx = const registers::HAS_AVX,
    has_xsavec = const registers::HAS_XSAVEC,
    header = const registers::HEADER,
    carried = const registers::CARRIED,
    state_bytes = const registers::STATE_BYTES,
    tiles = const registers::TILES,
    site_number = const offset_of!(Site, number),
    site_mark = const offset_of!(Site, mark),
    site_displaced = const offset_of!(Site, displaced),
    own_at = const frame::OWN,
    body_at = const frame::BODY,
    r11_at = const frame::R11,
    rbx_at = const frame::MIGRATING_RBX,
    returns_at = const frame::RETURNS_TO,
    kept = const frame::MIGRATING_KEPT,
    kept_bytes = const frame::KEPT_BYTES,
    frame_bytes = const frame::MIGRATING_BYTES,
    inhibited = const thread_block::INHIBITED,
    row = const thread_block::ROW,
    left = const thread_block::LEFT,
    table = sym rows::TABLE,
    rows = const rows::ROWS,
    window = const rows::WINDOW,
    row_shift = const rows::ROW_SHIFT,
    stub_shift = const rows::STUB_SHIFT,
    stubs_bytes = const rows::STUBS_BYTES,
    stack = const rows::STACK,
    returns_to = const rows::RETURNS_TO,
    of_site = const rows::SITE,
    is_migrated = const rows::IS_MIGRATED,
    is_watched = const rows::WATCHED,
);

unsafe extern "C" {
    /// Not a function to call: stubs jump there.
    fn dimmer_hook_section();
}

/// Address of the code for sections, to which stubs jump.
pub(crate) fn entry() -> u64 {
    dimmer_hook_section as *const () as u64
}

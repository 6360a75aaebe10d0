//! Functions that do nothing, for measuring hooks.

use std::arch::global_asm;

// On pages of their own, which are not executable while the entry is patched.
global_asm!(
    ".section .text.dimmer_hook_trial,\"ax\",@progbits",
    ".p2align 12",
    // Functions that do nothing, so that nothing hides the time of a hook. The first is not hooked.
    ".hidden dimmer_hook_plain",
    ".globl dimmer_hook_plain",
    ".type dimmer_hook_plain,@function",
    "dimmer_hook_plain:",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    ".p2align 6",
    ".hidden dimmer_hook_hooked",
    ".globl dimmer_hook_hooked",
    ".type dimmer_hook_hooked,@function",
    "dimmer_hook_hooked:",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    // Hooked as a leaf function; 64 bytes after the previous one.
    ".p2align 6",
    ".hidden dimmer_hook_delegated",
    ".globl dimmer_hook_delegated",
    ".type dimmer_hook_delegated,@function",
    "dimmer_hook_delegated:",
    ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00",
    "ret",
    ".p2align 12",
    ".text",
);

unsafe extern "C" {
    /// Not hooked.
    pub(crate) fn dimmer_hook_plain();
    /// For timed and migrated calls.
    pub(crate) fn dimmer_hook_hooked();
    /// For delegated calls.
    pub(crate) fn dimmer_hook_delegated();
}

/// Bytes of the first instruction of each function above.
pub(crate) const HEAD_BYTES: u8 = 5;

/// The first instruction of each function above.
pub(crate) const HEAD: [u8; HEAD_BYTES as usize] = [0x0f, 0x1f, 0x44, 0x00, 0x00];

/// Distance of the function for delegated calls from the one for the others.
pub(crate) const DISTANCE: u64 = 64;

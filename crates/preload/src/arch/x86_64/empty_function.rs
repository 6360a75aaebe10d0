//! The loader's empty function for debuggers, and a jump to write over it.

/// Functions of the loader start at multiples of this.
pub(crate) const FUNCTION_BYTES: usize = 16;

/// A jump to a function, with the target in a register, because it may be far away.
pub(crate) fn jump_to(function: extern "C" fn()) -> Vec<u8> {
    // mov rax, function; jmp rax
    let target = function as usize as u64;
    let mut code = vec![0x48, 0xb8];
    code.extend(target.to_le_bytes());
    code.extend([0xff, 0xe0]);
    code
}

/// Whether `head` is a function that only returns, and padding after it.
pub(crate) fn is_empty_function(head: &[u8]) -> bool {
    let body = head.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(head);
    // Padding: `nop`s of all lengths, `int3`, zeros.
    body.first() == Some(&0xc3)
        && body[1..].iter().all(|byte| {
            matches!(
                byte,
                0x00 | 0x0f | 0x1f | 0x2e | 0x40 | 0x44 | 0x66 | 0x80 | 0x84 | 0x90 | 0xcc
            )
        })
}

//! The table of return addresses, as pieces of assembly that [`crate::swap`] and [`crate::away`] have in common; and what unwinders call for
//! frames that have to be told when they are left, of [`crate::away`] and [`crate::offload`].
//!
//! The former name `{rows}`, `{window}` and `{row_bytes}`, which are [`crate::swap`]'s.

/// In: `rsi`, a key. Out: `rdi`, where its row is at the earliest. Changes `rax`.
macro_rules! first_place {
    () => {
        "mov rdi, rsi\n shr rdi, 3\n and edi, {rows} - 1\n shl rdi, 6\n lea rax, [rip + dimmer_hook_rows]\n add rdi, rax"
    };
}

/// In: `rsi`, a key. Out: `rdx`, its row: one left over from this place of the stack, or a free one; `$none` is where to go
/// without any. Changes `rax`, `rcx` and `rdi`.
macro_rules! claim {
    ($none:literal) => {
        concat!(
            $crate::rows::first_place!(),
            "\n mov ecx, {window}\n mov rdx, rdi\n",
            "92:\n cmp [rdx], rsi\n je 95f\n add rdx, {row_bytes}\n dec ecx\n jnz 92b\n",
            "mov ecx, {window}\n mov rdx, rdi\n",
            "93:\n xor eax, eax\n lock cmpxchg [rdx], rsi\n je 95f\n add rdx, {row_bytes}\n dec ecx\n jnz 93b\n",
            "jmp ",
            $none,
            "\n95:"
        )
    };
}

/// In: `rsi`, a key that has a row. Out: `rdi`, the row. Changes `rax`.
macro_rules! find {
    () => {
        concat!(
            $crate::rows::first_place!(),
            "\n96:\n cmp [rdi], rsi\n je 97f\n add rdi, {row_bytes}\n jmp 96b\n97:"
        )
    };
}

/// What stands before a call of a function whose return address is in the table: how far the table is from there.
macro_rules! distance {
    () => {
        ".p2align 4, 0xcc\n .zero 12, 0xcc\n 94:\n .long dimmer_hook_rows - 94b"
    };
}

/// How unwinders find the return address of such a call, which must follow within 16 bytes: a value of register 16 by an
/// expression of 38 bytes. On the stack is C, the stack pointer before the call.
macro_rules! unwinding {
    () => {
        concat!(
            ".cfi_def_cfa rsp, 0\n .cfi_escape 0x16, 0x10, 0x26\n",
            // dup, lit3, shr, const2u 0xfff, and, lit6, shl: where its own row is in the table.
            ".cfi_escape 0x12, 0x33, 0x25, 0x0a, 0xff, 0x0f, 0x1a, 0x36, 0x24\n",
            // breg16 0, lit15, not, and, lit4, minus: where the distance to the table is.
            ".cfi_escape 0x80, 0x00, 0x3f, 0x20, 0x1a, 0x34, 0x1c\n",
            // dup, deref_size 4, plus, plus: the row.
            ".cfi_escape 0x12, 0x94, 0x04, 0x22, 0x22\n",
            // over, over, deref, eq, bra 5, plus_uconst 64, skip -12: until it has the key.
            ".cfi_escape 0x14, 0x14, 0x06, 0x29, 0x28, 0x05, 0x00, 0x23, 0x40, 0x2f, 0xf4, 0xff\n",
            // plus_uconst 8, deref, lit1, minus.
            ".cfi_escape 0x23, 0x08, 0x06, 0x31, 0x1c"
        )
    };
}

/// What the unwinder calls for a frame of this crate, which `$leaves` is called for where it is left. (It looks for handlers first,
/// and then leaves frame after frame. Source: Itanium C++ ABI, exception handling, §1.6.)
macro_rules! personality {
    ($leaves:path) => {
        extern "C" fn personality(
            _version: std::ffi::c_int,
            actions: std::ffi::c_int,
            _class: u64,
            _exception: *mut (),
            _context: *mut (),
        ) -> std::ffi::c_int {
            const LEAVES: std::ffi::c_int = 2;
            const CONTINUE: std::ffi::c_int = 8;
            if actions & LEAVES != 0 {
                $leaves();
            }
            CONTINUE
        }
    };
}

pub(crate) use {claim, distance, find, first_place, personality, unwinding};

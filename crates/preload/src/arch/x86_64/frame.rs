//! Macros for assembly that move the stack pointer and the unwinding record together.

/// Pushes registers; the unwinding record follows.
macro_rules! push {
    ($($register:literal),+) => {
        concat!($("push ", $register, "\n.cfi_adjust_cfa_offset 8\n"),+)
    };
}

/// Pops registers; the unwinding record follows.
macro_rules! pop {
    ($($register:literal),+) => {
        concat!($("pop ", $register, "\n.cfi_adjust_cfa_offset -8\n"),+)
    };
}

/// Takes `{$bytes}`, an operand, off the stack pointer; the unwinding record follows.
macro_rules! reserve {
    ($bytes:literal) => {
        concat!("sub rsp, ", $bytes, "\n.cfi_adjust_cfa_offset ", $bytes, "\n")
    };
}

/// Undoes `reserve!`.
macro_rules! release {
    ($bytes:literal) => {
        concat!("add rsp, ", $bytes, "\n.cfi_adjust_cfa_offset -", $bytes, "\n")
    };
}

pub(crate) use {pop, push, release, reserve};

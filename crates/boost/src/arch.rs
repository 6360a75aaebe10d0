//! Functions that know where their call returns to. x86-64.

/// Functions of the C library's names and numbers of arguments, each of which goes on in a function
/// of this crate with its return address as one more argument.
macro_rules! with_caller {
    ($($name:ident($register:literal) $own:path;)*) => {
        $(
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    ".cfi_startproc",
                    concat!("mov ", $register, ", [rsp]"),
                    "jmp {own}",
                    ".cfi_endproc",
                    own = sym $own,
                )
            }
        )*
    };
}

pub(crate) use with_caller;

//! Functions that learn where their call returns to.

/// A function of two arguments that goes on in `$own`, with its return address as third argument.
macro_rules! with_return_address {
    ($(#[$meta:meta])* extern $abi:literal $name:ident $own:path) => {
        $(#[$meta])*
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern $abi fn $name() {
            std::arch::naked_asm!("mov rdx, [rsp]", "jmp {own}", own = sym $own)
        }
    };
}

pub(crate) use with_return_address;

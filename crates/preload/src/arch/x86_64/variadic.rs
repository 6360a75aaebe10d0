//! Functions with any number of arguments.

/// Defines a variadic function that puts its arguments into an array, and calls `$function` with
/// the first one and that array. The arguments from registers are put right before the others, over
/// the return address:
///
/// ```text
///         before                 in the call
///  rsp -> return address         return address, again
///         sixth argument         second argument          <- the array
///         ...                    ... sixth argument, ...
/// ```
macro_rules! gather {
    ($(#[$attribute:meta])* $name:ident, $function:ident) => {
        #[unsafe(naked)]
        $(#[$attribute])*
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "pop r11",
                "push r9",
                "push r8",
                "push rcx",
                "push rdx",
                "push rsi",
                "mov rsi, rsp",
                "push r11",
                // Aligned: the stack was before the caller's call, and has six more words.
                "call {function}",
                "pop r11",
                "lea rsp, [rsp + {gathered}]",
                "push r11",
                "ret",
                gathered = const 5 * size_of::<usize>(),
                function = sym $function,
            )
        }
    };
}

pub(crate) use gather;

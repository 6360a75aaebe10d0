//! Functions of the C library's names, with any arguments, that do something and then go on in the
//! C library's function.

/// Defines the C library's function `$name`: calls `$before` with the arguments of the call, and
/// goes on, with the same arguments, at the address that this returns. Instead of null, goes on in
/// `$otherwise`.
///
/// All general registers in which arguments lie are saved, with al, which variadic functions read.
/// Vector registers are not: the functions defined here take no floating-point numbers.
///
/// ```text
///          |  arguments on the stack         |
///          |  return address                 |  <- rsp on entry, and at the jump
///          |  rdi rsi rdx rcx r8 r9 rax      |
///          +---------------------------------+  <- rsp at the call, a multiple of 16
/// ```
macro_rules! forward {
    ($name:ident, $before:path) => {
        $crate::arch::forward!(@ $name, $before, []);
    };
    ($name:ident, $before:path, $otherwise:path) => {
        $crate::arch::forward!(
            @ $name, $before, ["test r11, r11", "jz {otherwise}",], otherwise = sym $otherwise
        );
    };
    // What both rules above lead to: the test for null, and the operand that it uses.
    (@ $name:ident, $before:path, [$($test:literal,)*] $(, $operand:ident = sym $path:path)?) => {
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                $($test,)*
                "jmp r11",
                before = sym $before,
                $($operand = sym $path,)?
            )
        }
    };
}

pub(crate) use forward;

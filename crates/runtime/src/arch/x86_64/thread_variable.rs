//! Variables of each thread at an address that is computed without a call (the initial-exec model
//! of thread-local storage: ELF Handling For Thread-Local Storage, §4.4).

/// Defines a function that returns the calling thread's own value of a type whose all-zero bytes
/// are valid. It is async-signal-safe. `$symbol` names the variable; the value has no destructor.
///
/// The compiler must not keep the address across a migration, since other storage may be in use
/// then. Therefore the assembly is not declared `pure`.
#[macro_export]
macro_rules! of_thread {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident() -> $type:ty, $symbol:literal;) => {
        #[cfg(not(miri))]
        std::arch::global_asm!(
            concat!(".section .tbss.", $symbol, ",\"awT\",@nobits"),
            ".p2align 4",
            concat!(".hidden ", $symbol),
            concat!(".globl ", $symbol),
            concat!(".type ", $symbol, ",@object"),
            concat!(".size ", $symbol, ", {bytes}"),
            concat!($symbol, ":"),
            ".zero {bytes}",
            ".text",
            bytes = const size_of::<$type>(),
        );

        $(#[$meta])*
        #[cfg(not(miri))]
        #[inline(always)]
        $visibility fn $name() -> &'static $type {
            const { assert!(align_of::<$type>() <= 16 && !std::mem::needs_drop::<$type>()) };
            let place: *const $type;
            // SAFETY: the loader has filled in this entry of the table, and the first word of
            // thread-local storage holds the storage's address.
            unsafe {
                std::arch::asm!(
                    concat!("mov {place}, qword ptr [rip + ", $symbol, "@GOTTPOFF]"),
                    "add {place}, qword ptr fs:[0]",
                    place = out(reg) place,
                    options(nostack, readonly)
                );
            }
            // SAFETY: it has the size that was reserved above, and is zero at first, which is
            // valid. It lives as long as the thread, and no other thread has a reference to it,
            // but where the type is for that.
            unsafe { &*place }
        }

        // Miri cannot execute assembly.
        $(#[$meta])*
        #[cfg(miri)]
        $visibility fn $name() -> &'static $type {
            thread_local! {
                // SAFETY: all bytes zero are valid.
                static OWN: $type =
                    const { unsafe { std::mem::MaybeUninit::zeroed().assume_init() } };
            }
            // SAFETY: it has no destructor, so it lives as long as the thread.
            OWN.with(|own| unsafe { &*std::ptr::from_ref(own) })
        }
    };
}
pub(crate) use of_thread;

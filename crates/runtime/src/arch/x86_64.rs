//! The x86-64 side of the contract in [`crate::arch`].

mod clock;
mod monitorx;
mod signal_frame;
mod switch;
mod system_call;
mod thread_variable;
mod umwait;

pub(crate) use clock::chain;
pub(crate) use signal_frame::{
    FRAME_WORDS, RESTORER, STACK_POINTER, begins_frame, call_with_frames, cancellation_handler,
};
pub use switch::thread_pointer;
pub(crate) use switch::{Context, Message, prepare, set_thread_pointer, switch};
pub use system_call::system_call;
pub(crate) use thread_variable::of_thread;

use crate::wait::Way;

/// The processor's ways to wait for a write to a line, best first.
pub(crate) const MONITORS: [Way; 2] = [umwait::WAY, monitorx::WAY];

/// Looks at compiled functions.
#[cfg(all(test, not(loom)))]
pub(crate) mod tests {
    use iced_x86::{Code, Decoder, DecoderOptions};

    /// The instructions of a function, from its first one to its return or its jump to another
    /// function.
    fn decoded(function: *const ()) -> Vec<Code> {
        /// More than the length of any of them.
        const BYTES: usize = 256;
        // SAFETY: the function's code and what follows it, which is code of this program, too.
        let code = unsafe { std::slice::from_raw_parts(function.cast::<u8>(), BYTES) };
        let codes = Decoder::new(64, code, DecoderOptions::NONE).into_iter();
        let codes: Vec<Code> = codes.map(|instruction| instruction.code()).collect();
        let is_end = |code: &Code| matches!(code, Code::Retnq | Code::Jmp_rel32_64);
        let end = codes.iter().position(is_end).expect("an end");
        codes[..end].to_vec()
    }

    #[track_caller]
    pub(crate) fn check(function: *const (), expected: &[Code]) {
        let found = decoded(function);
        let is_expected = |code: &&Code| expected.contains(code);
        assert_eq!(
            found.iter().filter(is_expected).copied().collect::<Vec<_>>(),
            expected,
            "{found:?}"
        );
    }
}

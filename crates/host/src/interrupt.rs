//! SIGINT, SIGTERM and SIGHUP as a flag to look at, so that whoever changed the machine gets to
//! change it back.
//!
//! A signal that was ignored when this process was started (`nohup`, commands in the background)
//! stays ignored.
//!
//! The first signal sets the flag. The second one kills as if nothing had been installed: what
//! is left changed then is undone from the [`crate::journal`] by whoever comes next.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::relay::is_ignored;

/// The flag. Clones share it.
#[derive(Clone, Debug)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers, for the rest of the process, that of SIGTERM last.
    ///
    /// # Errors
    /// The kernel refused a handler.
    pub fn install() -> io::Result<Self> {
        let seen = Arc::new(AtomicBool::new(false));
        let signal = Arc::new(AtomicUsize::new(0));
        let signals = [(SIGINT, 2), (SIGHUP, 1), (SIGTERM, 15)];
        for (number, value) in signals.into_iter().filter(|(number, _)| !is_ignored(*number)) {
            // Order matters: the first signal finds `seen` unset here and sets it below.
            flag::register_conditional_default(number, Arc::clone(&seen))?;
            flag::register(number, Arc::clone(&seen))?;
            flag::register_usize(number, Arc::clone(&signal), value)?;
        }
        Ok(Self { signal })
    }

    /// The exit status that tells of the signal, 128 plus its number (130 for SIGINT); `None` if
    /// none has come.
    #[must_use]
    pub fn exit_status(&self) -> Option<u8> {
        // Relaxed: the number is all that is shared; nothing is published with it.
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => u8::try_from(128 + signal).ok(),
        }
    }

    /// Whether a signal has come. One load: fit for a loop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.exit_status().is_some()
    }
}

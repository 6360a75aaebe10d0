//! SIGINT, SIGQUIT, SIGTERM and SIGHUP as a flag that code polls, so that a process that changed
//! the machine can change it back.
//!
//! A signal that was ignored when this process was started (`nohup`, background commands) stays
//! ignored.
//!
//! The first signal sets the flag. The second one kills the process as if there were no handler.
//! Changes that remain then are undone from the [`crate::journal`] by the next process that uses
//! it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;

use crate::relay::is_ignored;

/// The flag. Clones share it.
#[derive(Clone, Debug)]
pub struct Interrupt {
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Installs the handlers, SIGTERM's last. They stay until the process ends.
    ///
    /// # Errors
    /// The kernel refused to install a handler.
    pub fn install() -> io::Result<Self> {
        let seen = Arc::new(AtomicBool::new(false));
        let signal = Arc::new(AtomicUsize::new(0));
        let signals = [(SIGINT, 2), (SIGQUIT, 3), (SIGHUP, 1), (SIGTERM, 15)];
        for (number, value) in signals.into_iter().filter(|(number, _)| !is_ignored(*number)) {
            // The order matters: at the first signal, this handler finds `seen` unset and the next
            // one sets it.
            flag::register_conditional_default(number, Arc::clone(&seen))?;
            flag::register(number, Arc::clone(&seen))?;
            flag::register_usize(number, Arc::clone(&signal), value)?;
        }
        Ok(Self { signal })
    }

    /// The exit status for the signal: 128 plus its number (130 for SIGINT). `None` if no signal
    /// has arrived.
    #[must_use]
    pub fn exit_status(&self) -> Option<u8> {
        // Relaxed: only the number is shared; it publishes nothing else.
        match self.signal.load(Ordering::Relaxed) {
            0 => None,
            signal => u8::try_from(128 + signal).ok(),
        }
    }

    /// Whether a signal has arrived. Costs one load, so it may be called in a loop.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.exit_status().is_some()
    }
}

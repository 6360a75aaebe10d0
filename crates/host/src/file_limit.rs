//! The limit on a file's length (RLIMIT_FSIZE, `ulimit -f`): makes a write beyond it fail instead
//! of ending this process by SIGXFSZ.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;

/// Makes writes beyond the limit fail with EFBIG from now on. Started programs get the disposition
/// that this process had before: unlike an ignored signal, a handler is not inherited.
///
/// # Errors
/// The kernel refused the handler; the signal still ends the process.
pub fn report() -> io::Result<()> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call reads the disposition of a signal into memory that outlives the call.
    if unsafe { libc::sigaction(SIGXFSZ, std::ptr::null(), now.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero bytes are a valid `sigaction`, so it is initialized whatever the call did.
    let now = unsafe { now.assume_init() };
    if now.sa_sigaction == libc::SIG_DFL {
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

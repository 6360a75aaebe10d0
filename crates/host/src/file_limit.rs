//! The limit of how long a file may become (RLIMIT_FSIZE, `ulimit -f`): a write beyond it fails
//! instead of ending this process by SIGXFSZ.

use std::io;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::SIGXFSZ;
use signal_hook::flag;

/// Has writes beyond the limit fail with EFBIG from now on. Programs that are started have the
/// signal as this process had it: a handler, unlike an ignored signal, is not inherited.
///
/// # Errors
/// The kernel refused a handler: the signal ends the process as before.
pub fn report() -> io::Result<()> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the disposition of a signal, into memory that outlives the call.
    if unsafe { libc::sigaction(SIGXFSZ, std::ptr::null(), now.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all-zero bytes are a valid `sigaction`, so it is initialised in any case.
    let now = unsafe { now.assume_init() };
    if now.sa_sigaction == libc::SIG_DFL {
        flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

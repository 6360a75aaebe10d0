//! Programs whose allocator may call what moves.
//!
//! Starting a thread allocates, by the program's own functions. A call that moves may be in the
//! middle of just these: they may hold a lock, or rely on not being entered again. So nothing is
//! started during calls in such a program. Everything starts in advance: when the process begins,
//! and in each child of fork(2).

use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno::KeepErrno;

/// What starts everything, in programs where that happens in advance.
static START: OnceLock<fn()> = OnceLock::new();

/// Whether a thread may be in the middle of the allocator when it comes here.
static MAY_BE_IN_IT: AtomicBool = AtomicBool::new(false);

/// Starts nothing from now on, until it is known whether the program's allocator may call what
/// moves.
pub fn start_nothing() {
    MAY_BE_IN_IT.store(true, Ordering::Relaxed);
}

/// The program's allocator calls nothing that moves: everything starts when it is needed.
pub fn start_when_needed() {
    MAY_BE_IN_IT.store(false, Ordering::Relaxed);
}

/// The program's allocator may call what moves: starts everything now, and in each child of
/// fork(2), and nothing at any other time.
///
/// The calling thread must not be in the allocator. In a child, `start` runs last of all handlers
/// of forks that were there before.
pub fn start_in_advance(start: fn()) {
    if START.set(start).is_err() {
        return;
    }
    start_out_of_it(start);
    // Now that the allocator was used, it has its own handlers. It is usable in a child when this
    // one runs.
    // SAFETY: the handler runs in a child, where no other thread is.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    let _errno = KeepErrno::new();
    if let Some(start) = START.get() {
        let _ = catch_unwind(|| start_out_of_it(*start));
    }
}

fn start_out_of_it(start: fn()) {
    MAY_BE_IN_IT.store(false, Ordering::Relaxed);
    start();
    MAY_BE_IN_IT.store(true, Ordering::Relaxed);
}

/// Whether the calling thread may be in the middle of the program's allocator. Costs a load.
#[inline]
pub(crate) fn may_be_in_it() -> bool {
    MAY_BE_IN_IT.load(Ordering::Relaxed)
}

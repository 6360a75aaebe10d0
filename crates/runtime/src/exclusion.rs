//! Keeping the process's own threads off dedicated cores, and giving these back.
//!
//! What is known of that is the process's, not some [`Cores`](crate::Cores)': children of fork(2)
//! inherit where they may run, and have to be able to undo it; and a server may dedicate cores that
//! a process sends nothing to.

use std::sync::Mutex;

use dimmer_host::exclusion::KeptOff;
use dimmer_host::process;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

static KEPT_OFF: Mutex<KeptOff> = Mutex::new(KeptOff::new());

/// Keeps the process's threads but these off the cores, as [`KeptOff::keep_off`].
///
/// Does nothing while another thread does the same, or did so when the process was forked.
pub(crate) fn keep_off(root: &Root, dedicated: &[CpuId], but: &[u32]) {
    let Ok(mut kept_off) = KEPT_OFF.try_lock() else { return };
    let threads = process::threads(root, std::process::id());
    kept_off.keep_off(&threads, dedicated, |thread| but.contains(&thread));
}

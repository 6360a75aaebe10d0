//! Exclusion: keeps the process's own threads off dedicated cores, and lets them back.
//!
//! Its state belongs to the process, not to a [`Cores`](crate::Cores), for two reasons: children of
//! fork(2) inherit the CPU affinity and must be able to undo the exclusion; and a server may
//! dedicate cores to which a process sends no work.

use std::sync::Mutex;

use dimmer_host::exclusion::KeptOff;
use dimmer_host::process;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

static KEPT_OFF: Mutex<KeptOff> = Mutex::new(KeptOff::new());

/// Keeps the process's threads, except `but`, off the cores: see [`KeptOff::keep_off`].
///
/// Does nothing while another thread does the same, or if one did when the process was forked.
pub(crate) fn keep_off(root: &Root, dedicated: &[CpuId], but: &[u32]) {
    let Ok(mut kept_off) = KEPT_OFF.try_lock() else { return };
    let threads = process::threads(root, std::process::id());
    kept_off.keep_off(&threads, dedicated, |thread| but.contains(&thread));
}

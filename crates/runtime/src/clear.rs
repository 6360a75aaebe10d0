//! Keeping the process's own threads off dedicated cores, and giving these back.
//!
//! What is known of that is the process's, not some [`Cores`](crate::Cores)': children of fork(2) inherit where they may run, and have to be
//! able to undo it; and a server may dedicate cores that a process sends nothing to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use dimmer_host::affinity;
use dimmer_host::process;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;

/// What was changed.
#[derive(Debug)]
struct KeptOff {
    /// Where threads might run before, by where they may since: also of those that have been started meanwhile.
    before: BTreeMap<Vec<CpuId>, Vec<CpuId>>,
    /// Threads that kept off by themselves: nothing is to be undone for them.
    untouched: BTreeSet<u32>,
}

static KEPT_OFF: Mutex<KeptOff> =
    Mutex::new(KeptOff { before: BTreeMap::new(), untouched: BTreeSet::new() });

/// Keeps the process's threads but these off the cores, and with them those that they start, threads and programs; and lets them on those
/// again that they were kept off before and that are not among these. A thread that may run nowhere else stays.
///
/// Does nothing while another thread does the same, or did so when the process was forked.
pub(crate) fn keep_off(root: &Root, dedicated: &[CpuId], but: &[u32]) {
    let Ok(mut kept_off) = KEPT_OFF.try_lock() else { return };
    let threads: Vec<u32> = process::threads(root, std::process::id());
    kept_off.untouched.retain(|thread| threads.contains(thread));
    for thread in threads.into_iter().filter(|thread| !but.contains(thread)) {
        if kept_off.untouched.contains(&thread) {
            continue;
        }
        let now = affinity::allowed_to(thread).unwrap_or_default();
        let before = kept_off.before.get(&now).unwrap_or(&now).clone();
        let mut cpus = before.clone();
        cpus.retain(|cpu| !dedicated.contains(cpu));
        if cpus == now && before == now && !dedicated.is_empty() {
            kept_off.untouched.insert(thread);
        } else if !cpus.is_empty() && cpus != now {
            // A thread that has ended meanwhile is no error.
            let _ = affinity::allow_thread(Some(thread), &cpus);
            kept_off.before.insert(cpus, before);
        }
    }
}

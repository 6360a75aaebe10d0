//! Threads of this crate's own, which serve the program's.

use std::sync::mpsc;
use std::thread::{Builder, Thread};

use dimmer_host::root::Root;
use dimmer_host::{affinity, signals, topology};

/// Starts a thread of this name for this work, on all CPUs of the process's cpuset. `None` if that
/// is one CPU, where nothing can be done for a thread while it executes, or if the system makes no
/// thread.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Option<Thread> {
    let (tell, told) = mpsc::channel();
    let serve = move || {
        // Signals are for the program's threads.
        signals::block_all();
        // The thread that starts this one may be pinned, and this one would be where it is.
        let cpus = topology::present(&Root::live()).unwrap_or_default();
        let _ = affinity::allow(&cpus);
        let has_others = affinity::allowed().is_ok_and(|allowed| allowed.len() > 1);
        if tell.send(has_others).is_ok() && has_others {
            work();
        }
    };
    let started = Builder::new().name(name.to_owned()).spawn(serve).ok()?;
    let thread = started.thread().clone();
    told.recv().is_ok_and(|has_others| has_others).then_some(thread)
}

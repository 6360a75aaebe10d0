//! Threads of this crate's own, which serve the program's.

use std::sync::mpsc;
use std::thread::{Builder, Thread};

use dimmer_host::root::Root;
use dimmer_host::{affinity, signals, topology};

/// Starts a thread of this name for this work, on all CPUs of the process's cpuset. The work is
/// passed whether these are several: on one CPU nothing can be done for a thread while it executes.
/// `None` if the system makes no thread.
///
/// Does not wait for the thread: the caller may be loading a library, and until it has, threads of
/// the standard library's do not begin.
pub(crate) fn begin(name: &str, work: impl FnOnce(bool) + Send + 'static) -> Option<Thread> {
    let serve = move || {
        // Signals are for the program's threads.
        signals::block_all();
        // The thread that starts this one may be pinned, and this one would be where it is.
        let cpus = topology::present(&Root::live()).unwrap_or_default();
        let _ = affinity::allow(&cpus);
        work(affinity::allowed().is_ok_and(|allowed| allowed.len() > 1));
    };
    Some(Builder::new().name(name.to_owned()).spawn(serve).ok()?.thread().clone())
}

/// The same, and waits for the thread. `None` also if there is one CPU.
pub(crate) fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Option<Thread> {
    let (tell, told) = mpsc::channel();
    let thread = begin(name, move |has_others| {
        if tell.send(has_others).is_ok() && has_others {
            work();
        }
    })?;
    told.recv().is_ok_and(|has_others| has_others).then_some(thread)
}

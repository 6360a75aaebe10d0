//! The library that `dimmer run --boost` makes the loader put into a program (`LD_PRELOAD`), to
//! observe its locks.
//!
//! It has functions of the names of the C library's that wait for mutexes, rwlocks, condition
//! variables and barriers. Each calls the C library's and counts what happened at its caller's
//! site, in the ledger of [`dimmer_contention`], and requests clocks as the site says. Functions
//! that begin and end sections are hooked by `dimmer-preload`, which calls this library. Without
//! [`dimmer_contention::DIRECTORY`] in the environment, with [`off::OFF`], under a filter of system
//! calls that another program of the run has set, or if anything goes wrong, they only call the C
//! library's.
//!
//! A thread may be cancelled in the middle of a wait, which unwinds its stack through these
//! functions. So nothing in them has a destructor, and what a wait changes is such that its end
//! need not be seen ([`dimmer_contention::held`]).

mod arch;
mod confine;
mod locks;
mod next;
mod sections;
mod waits;

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicBool, Ordering};

use dimmer_contention::{filters, off};

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

/// The loader's arguments are those of `main`. The C library's own `environ` is set later.
extern "C" fn begin(
    _count: c_int,
    _arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    begin_once(environment);
}

/// Begins with the loader's environment, unless that was done: another library that is initialised
/// first may need this one ([`sections`]).
fn begin_once(environment: *const *const c_char) {
    static HAS_BEGUN: AtomicBool = AtomicBool::new(false);
    // Relaxed: there is one thread.
    if HAS_BEGUN.swap(true, Ordering::Relaxed) {
        return;
    }
    next::find();
    // SAFETY: the loader's environment.
    let variable = |name: &str| unsafe { variable(environment, name.as_bytes()) };
    let is_off = variable(off::OFF).is_some_and(off::means_off);
    let directory = variable(dimmer_contention::DIRECTORY).filter(|_| !is_off);
    let may_begin = |_: &&OsStr| !filters::has_filter_of_run(variable(filters::FILTERS));
    if let Some(directory) = directory.filter(may_begin) {
        dimmer_contention::own::begin(directory);
        variable(dimmer_contention::REQUESTS).map(dimmer_contention::requests::begin);
        variable(dimmer_contention::COUNTERS).map(dimmer_contention::counters::begin);
        variable(dimmer_contention::SECTIONS).map(dimmer_contention::sections::begin);
        // SAFETY: it only writes to the thread's own memory and to an atomic number.
        unsafe { libc::pthread_atfork(None, None, Some(forked)) };
    }
}

extern "C" fn forked() {
    dimmer_contention::own::forked();
}

/// The value of a variable in this environment.
///
/// # Safety
///
/// `environment` is null, or a list of texts that ends with null.
unsafe fn variable<'a>(mut environment: *const *const c_char, name: &[u8]) -> Option<&'a OsStr> {
    // SAFETY: by contract.
    while let Some(text) = unsafe { environment.as_ref() }.filter(|text| !text.is_null()) {
        // SAFETY: a text of the list.
        let text = unsafe { CStr::from_ptr(*text) }.to_bytes();
        if let Some(value) = text.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"=")) {
            return Some(OsStr::from_bytes(value));
        }
        // SAFETY: the list goes on until null.
        environment = unsafe { environment.add(1) };
    }
    None
}

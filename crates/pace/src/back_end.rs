//! Back ends: what a machine has by which a thread can ask for a clock.

pub(crate) mod cores;
pub(crate) mod cpufreq;
pub(crate) mod driver;
pub(crate) mod levels;
pub(crate) mod pstates;
pub(crate) mod uclamp;

use std::fmt::Debug;

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::journal::{JournalError, Report};
use dimmer_host::off;
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};

use crate::Request;

/// The thread that a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    /// Its number in the kernel.
    pub(crate) id: u32,
    /// The CPU that executes it.
    pub(crate) cpu: CpuId,
}

/// A way to ask for clocks. All of it may be called from any thread at any time, but in a signal
/// handler.
pub(crate) trait BackEnd: Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Whether the kernel takes the request along when the thread moves to another core, and ends
    /// it with the thread. Otherwise a request is for the core.
    fn follows_threads(&self) -> bool;

    /// Makes this the request of the calling thread, in place of an earlier one; `None` ends that.
    ///
    /// # Errors
    /// [`Refused`]. The thread has no request then.
    fn request(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused>;

    /// The same for a thread that may be of another process, and may have ended: with `None`, that
    /// it has.
    ///
    /// # Errors
    /// As [`Self::request`].
    fn request_for(&self, thread: Thread, request: Option<Request>) -> Result<(), Refused> {
        self.request(thread, request)
    }

    /// The clocks of this CPU.
    fn clocks(&self, cpu: CpuId) -> Option<Clocks>;

    /// The clock that the kernel reports of this CPU now.
    fn clock(&self, cpu: CpuId) -> Option<KiloHertz>;

    /// Undoes all requests. Those that come later are refused. The second time, it has nothing to
    /// undo.
    ///
    /// # Errors
    /// [`JournalError`]: what is on record cannot be undone.
    fn end(&self) -> Result<Report, JournalError>;
}

/// Why a request has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The machine does not say which clock is meant, or requests have ended.
    Unknown,
    /// The back end does not work any more, at least for this core: something else has changed what
    /// it uses. It leaves that alone from now on.
    Lost(Unavailable),
}

/// The machine's back end: the first that works. That of the kernel's scheduler comes first: it
/// takes no rights, follows threads, and leaves no file changed. Registers come last: they are
/// for machines on which the kernel does not set the clock.
///
/// # Errors
/// [`Unavailable`], with the reason of each.
pub(crate) fn choose(root: &Root) -> Result<Box<dyn BackEnd>, Unavailable> {
    if off::is_off() {
        let what = "clocks that threads ask for";
        return Err(Unavailable::new(what, format!("{} is set", off::OFF), "unset it"));
    }
    let uclamp = match uclamp::Uclamp::open(root) {
        Ok(back_end) => return Ok(Box::new(back_end)),
        Err(missing) => missing,
    };
    let cpufreq = match cpufreq::open(root) {
        Ok(back_end) => return Ok(Box::new(back_end)),
        Err(missing) => missing,
    };
    let driver = match driver::open(root) {
        Ok(back_end) => return Ok(Box::new(back_end)),
        Err(missing) => missing,
    };
    let pstates = match pstates::open(root) {
        Ok(back_end) => return Ok(Box::new(back_end)),
        Err(missing) => missing,
    };
    let levels = match levels::open(root) {
        Ok(back_end) => return Ok(Box::new(back_end)),
        Err(missing) => missing,
    };
    let [uclamp, cpufreq, driver, pstates, levels] =
        [uclamp, cpufreq, driver, pstates, levels].map(|missing| missing.why);
    let why = format!(
        "uclamp: {uclamp}; cpufreq: {cpufreq}; dimmer_pstate: {driver}; P-states: {pstates}; \
         performance levels: {levels}"
    );
    Err(Unavailable::new("clocks that threads ask for", why, "see `dimmer doctor --all`"))
}

//! The back end of the process, chosen at its first request, and what it has to report.

use std::io::{self, Write as _};
use std::sync::OnceLock;

use dimmer_host::at_exit;
use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::journal::{JournalError, Report};
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;

use dimmer_processor::units::CpuId;

use crate::back_end::{self, BackEnd};
use crate::thread;

static BACK_END: OnceLock<Result<Box<dyn BackEnd>, Unavailable>> = OnceLock::new();
static TROUBLE: OnceLock<Unavailable> = OnceLock::new();

/// The process's back end.
pub(crate) fn get() -> Result<&'static dyn BackEnd, &'static Unavailable> {
    get_under(&Root::live(), back_end::choose)
}

/// Chooses a back end.
type Choose = fn(&Root) -> Result<Box<dyn BackEnd>, Unavailable>;

fn get_under(root: &Root, choose: Choose) -> Result<&'static dyn BackEnd, &'static Unavailable> {
    let chosen = BACK_END.get_or_init(|| {
        let chosen = choose(root);
        if chosen.is_ok() {
            // If the C library has no room for it, the next start undoes what is left.
            at_exit::call(at_end);
        }
        chosen
    });
    chosen.as_ref().map(|chosen| &**chosen)
}

/// [`BackEnd::way`] of the process's back end.
pub(crate) fn way() -> Option<u8> {
    BACK_END.get()?.as_ref().ok()?.way()
}

extern "C" fn at_end() {
    // There is no caller left to report to: `dimmer restore` finds what could not be undone.
    let _ = end();
}

/// Undoes all requests of the process, and returns what of the machine could not be given back;
/// that stays on record for `dimmer restore`. Requests that come later are refused. Otherwise, they
/// are undone when the process ends.
///
/// # Errors
/// [`JournalError`]: the record cannot be read or locked, and nothing was given back.
pub fn end() -> Result<Report, JournalError> {
    let Some(Ok(chosen)) = BACK_END.get() else { return Ok(Report::default()) };
    thread::outside(|| chosen.end()).unwrap_or_else(|| Ok(Report::default()))
}

/// Chooses the process's back end, if there is none yet. Otherwise the first request does that: it
/// reads some files of each CPU, and undoes what a process has left that was killed.
///
/// # Errors
/// [`Unavailable`]: no back end works here, with the reason of each.
pub fn prepare() -> Result<(), Unavailable> {
    prepare_under(&Root::live())
}

/// The same on a made-up machine. Has no effect once the process has a back end.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_under(root: &Root) -> Result<(), Unavailable> {
    get_under(root, back_end::choose).map(|_| ()).map_err(Clone::clone)
}

/// The same for a server that makes the requests of all programs: by a back end whose requests are
/// for CPUs, and that has [`crate::at_least_for`].
///
/// # Errors
/// As [`prepare`].
pub fn prepare_for_server(root: &Root) -> Result<(), Unavailable> {
    get_under(root, back_end::for_server).map(|_| ()).map_err(Clone::clone)
}

/// The same without a server: for requests for threads of other programs, which a server refuses.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_direct(root: &Root) -> Result<(), Unavailable> {
    get_under(root, back_end::direct).map(|_| ()).map_err(Clone::clone)
}

/// The clocks of this CPU, and the CPUs that have them in common with it; `None` without a back
/// end, or if it does not know the CPU.
#[must_use]
pub fn domain(cpu: CpuId) -> Option<(Clocks, Vec<CpuId>)> {
    let back_end = get().ok()?;
    Some((back_end.clocks(cpu)?, back_end.domain_of(cpu)))
}

/// The name of the back end by which this process asks for clocks: `dimmerd`, `uclamp`, `cpufreq`,
/// `group clamps`, `preferences`, `dimmer_pstate`, `P-states`, `performance levels`, `core power`.
///
/// # Errors
/// As [`prepare`].
pub fn back_end() -> Result<&'static str, Unavailable> {
    get().map(BackEnd::name).map_err(Clone::clone)
}

/// Why the back end has stopped working for some core or thread; `None` if it has not. The first
/// reason in the process, which is on standard error, too.
#[must_use]
pub fn trouble() -> Option<&'static Unavailable> {
    TROUBLE.get()
}

/// Keeps and prints the first trouble of the process. If standard error is closed, the message is
/// lost.
pub(crate) fn report(trouble: Unavailable) {
    if TROUBLE.set(trouble).is_ok()
        && let Some(first) = TROUBLE.get()
    {
        let _ = writeln!(io::stderr(), "dimmer: {first}");
    }
}

//! Back ends: what a machine has by which a thread can ask for a clock.

pub(crate) mod core_power;
pub(crate) mod cores;
pub(crate) mod cpufreq;
pub(crate) mod driver;
pub(crate) mod group;
pub(crate) mod levels;
pub(crate) mod own_file;
pub(crate) mod preferences;
pub(crate) mod pstates;
pub(crate) mod server;
pub(crate) mod uclamp;

use std::fmt::Debug;

use dimmer_host::cpufreq::clocks::Clocks;
use dimmer_host::journal::{JournalError, Report};
use dimmer_host::off;
use dimmer_host::root::Root;
use dimmer_host::unavailable::Unavailable;
use dimmer_processor::units::{CpuId, KiloHertz};

use crate::Request;

/// The environment variable with the name of the back end that this program is to use, instead of
/// the first that works. Programs with more rights than their parent ignore it.
const CHOICE: &str = "DIMMER_PACE";

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
    /// it with the thread. Otherwise a request is for the core, and [`Self::follow`] moves it.
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

    /// Whether the request of a thread is for the CPUs that have their clock in common with this
    /// one; `None` if the thread has no request, or the kernel takes it along.
    fn is_for(&self, _thread: Thread) -> Option<bool> {
        None
    }

    /// Makes the request of a thread that has moved one for the CPU that executes it now. Does
    /// nothing if it has none.
    ///
    /// # Errors
    /// As [`Self::request`].
    fn follow(&self, _thread: Thread) -> Result<(), Refused> {
        Ok(())
    }

    /// As [`Self::request_for`], for a clock that is at least as fast: the machine may choose a
    /// faster one, as it may without a request. So nothing becomes slower.
    ///
    /// # Errors
    /// As [`Self::request`]; a back end whose requests follow threads refuses. `dimmer_pstate` does
    /// not know what the CPU does without a request, and takes the clock exactly, as do those that
    /// set no clock: [`for_server`] leaves all of them out.
    fn at_least_for(&self, _thread: Thread, _request: Request) -> Result<(), Refused> {
        Err(Refused::Unknown)
    }

    /// The clocks of this CPU.
    fn clocks(&self, cpu: CpuId) -> Option<Clocks>;

    /// The clock that the kernel reports of this CPU now.
    fn clock(&self, cpu: CpuId) -> Option<KiloHertz>;

    /// The CPUs that have their clock in common with this one.
    fn domain_of(&self, cpu: CpuId) -> Vec<CpuId> {
        vec![cpu]
    }

    /// Which of the ways in use has the requests that are made now: those that another one has must
    /// be made again. `None`: it must be found out, by a request.
    fn way(&self) -> Option<u8> {
        Some(0)
    }

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

/// The machine's back end: the one that [`CHOICE`] names; otherwise the server, if one moderates,
/// or else the first direct one that works.
///
/// # Errors
/// [`Unavailable`], with the reason of each.
pub(crate) fn choose(root: &Root) -> Result<Box<dyn BackEnd>, Unavailable> {
    refuse_if_off()?;
    let server = if choice().is_none() { server::open(root) } else { None };
    match server {
        Some(back_end) => Ok(Box::new(back_end)),
        None => direct(root),
    }
}

/// What [`CHOICE`] holds, if it is set to anything.
fn choice() -> Option<String> {
    let choice = dimmer_protocol::variable(CHOICE)?.to_string_lossy().into_owned();
    Some(choice).filter(|choice| !choice.is_empty())
}

fn refuse_if_off() -> Result<(), Unavailable> {
    if off::is_off() {
        let what = "clocks that threads ask for";
        return Err(Unavailable::new(what, format!("{} is set", off::OFF), "unset it"));
    }
    Ok(())
}

/// Opens a back end of the machine's own.
type Open = fn(&Root) -> Result<Box<dyn BackEnd>, Unavailable>;

/// The machine's own back ends with their names, in the order in which they are tried. That of the
/// kernel's scheduler comes first: it takes no rights, follows threads, and leaves no file changed.
/// Clamps of the group and preferences say less than limits: they are for processes that may write
/// those files only. Registers come last: they are for machines on which the kernel does not set
/// the clock. Classes of core power come after all: they are for the whole machine.
const OWN: [(&str, Open); 8] = [
    ("uclamp", |root| Ok(Box::new(uclamp::Uclamp::open(root)?))),
    ("cpufreq", |root| Ok(Box::new(cpufreq::open(root)?))),
    ("group clamps", |root| Ok(Box::new(group::open(root)?))),
    ("preferences", |root| Ok(Box::new(preferences::open(root)?))),
    ("dimmer_pstate", |root| Ok(Box::new(driver::open(root)?))),
    ("P-states", |root| Ok(Box::new(pstates::open(root)?))),
    ("performance levels", |root| Ok(Box::new(levels::open(root)?))),
    ("core power", |root| Ok(Box::new(core_power::open(root)?))),
];

/// The machine's own back end: the one that [`CHOICE`] names, or else the first that works.
///
/// # Errors
/// [`Unavailable`], with the reason of each.
pub(crate) fn direct(root: &Root) -> Result<Box<dyn BackEnd>, Unavailable> {
    match choice() {
        Some(name) => named(root, &name),
        None => first(root, |_| None),
    }
}

/// The machine's own back end of this name.
///
/// # Errors
/// [`Unavailable`]: it does not work here, or there is none of this name.
fn named(root: &Root, name: &str) -> Result<Box<dyn BackEnd>, Unavailable> {
    refuse_if_off()?;
    let found = OWN.iter().find(|(known, _)| *known == name);
    let (_, open) = found.ok_or_else(|| {
        let names = OWN.map(|(known, _)| known).join(", ");
        let why = format!("{CHOICE} is `{name}`, and no back end has that name");
        Unavailable::new("clocks that threads ask for", why, format!("use one of: {names}"))
    })?;
    open(root)
}

/// The back end by which a server makes the requests of all programs: the first whose requests are
/// for CPUs, and that can ask for a clock that is at least as fast.
///
/// # Errors
/// [`Unavailable`], with the reason of each.
pub(crate) fn for_server(root: &Root) -> Result<Box<dyn BackEnd>, Unavailable> {
    first(root, |name| match name {
        "uclamp" => Some("its requests follow threads, so shares and limits by CPU do not hold"),
        "group clamps" => Some("its requests are for the server's control group"),
        "preferences" | "core power" => {
            Some("it requests no clock, so shares and limits do not hold")
        }
        "dimmer_pstate" => Some("it does not report what a CPU requests without it"),
        _ => None,
    })
}

/// The first that works of those that are not left out, which `left_out` has the reason for.
fn first(
    root: &Root,
    left_out: impl Fn(&str) -> Option<&'static str>,
) -> Result<Box<dyn BackEnd>, Unavailable> {
    refuse_if_off()?;
    let mut whys = Vec::new();
    for (name, open) in OWN {
        let why = match left_out(name) {
            Some(why) => why.to_owned(),
            None => match open(root) {
                Ok(back_end) => return Ok(back_end),
                Err(missing) => missing.why,
            },
        };
        whys.push(format!("{name}: {why}"));
    }
    let remedy = "see `dimmer doctor --all`";
    Err(Unavailable::new("clocks that threads ask for", whys.join("; "), remedy))
}

/// Why a back end has given up on a core or a thread.
#[cfg(test)]
#[track_caller]
fn lost(result: Result<(), Refused>) -> String {
    match result {
        Err(Refused::Lost(lost)) => lost.why,
        other => panic!("not lost: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_back_end_is_chosen_by_its_name_alone() {
        let machine = tempfile::tempdir().expect("a directory");
        let root = Root::new(machine.path());
        let missing = |name: &str| named(&root, name).expect_err("a machine without clocks");
        assert_eq!(missing("core power").why, "no /dev/isst_interface");
        assert_eq!(missing("cpufreq").why, "no policy under /sys/devices/system/cpu/cpufreq");
        let unknown = missing("Core power");
        assert_eq!(unknown.why, "DIMMER_PACE is `Core power`, and no back end has that name");
        let names = OWN.map(|(name, _)| name).join(", ");
        assert_eq!(unknown.remedy, format!("use one of: {names}"));
    }
}

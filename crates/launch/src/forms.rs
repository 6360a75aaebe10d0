//! Whether a program under `--auto` has narrower code. The results of its runs are cached
//! for the next ones, and [`dimmer_policy::narrowing`] decides from them.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use dimmer_host::root::Root;
use dimmer_host::usage::{self, Usage};
use dimmer_observe::Tally;
use dimmer_policy::cost::{CallCost, Lost, Running};
use dimmer_policy::narrowing::{self, End, Form, Reason, Shown};
use dimmer_policy::ways::{self, Load, Way};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use crate::account::Next;
use crate::chosen::Key;
use crate::mechanism::{self, can_narrow};
use crate::program::Program;
use crate::{LaunchError, Request, cache};

/// The name under which runs are cached.
const RUNS: &str = "-runs";

/// The signals by which the kernel, or the program itself, ends a program because of a fault.
const FAULTS: [Signal; 6] =
    [Signal::ILL, Signal::SEGV, Signal::BUS, Signal::FPE, Signal::ABORT, Signal::TRAP];

/// A program's form in this run, and the key under which the other runs are cached.
#[derive(Debug)]
pub(crate) struct Forms {
    key: Key,
    /// A digest of the program's arguments, and of the width and switches that would narrow its
    /// code.
    work: u64,
    /// Whether anything can narrow the program here.
    can_narrow: bool,
    pub(crate) form: Form,
    pub(crate) reason: Reason,
}

/// CPU time and output of the children that have ended since this process started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spent {
    /// Time on CPUs, and switches.
    pub(crate) usage: Usage,
    /// Bytes written, including the few of this process; 0 if the kernel does not report them.
    pub(crate) written: u64,
}

impl Spent {
    /// Reads the totals up to now.
    pub(crate) fn read() -> Self {
        let written = usage::written(&Root::live()).unwrap_or(0);
        Self { usage: Usage::of_ended_children(), written }
    }

    /// The difference to `earlier`.
    pub(crate) fn since(self, earlier: Self) -> Self {
        let usage = self.usage.since(earlier.usage);
        Self { usage, written: self.written.saturating_sub(earlier.written) }
    }
}

/// A run as it is cached.
#[derive(Debug, Serialize, Deserialize)]
struct KeptRun {
    is_narrow: bool,
    work: u64,
    has_failed: bool,
    has_crashed: bool,
    on_cpu_ns: f64,
    calls: BTreeMap<String, u64>,
    written: u64,
    forecast: Option<(f64, f64)>,
}

impl Forms {
    /// Decides from the cached runs of this program with the same arguments.
    ///
    /// * `key`: of the choice of functions.
    ///
    /// # Errors
    /// [`LaunchError::Narrow`]: the user named switches that do not exist.
    pub(crate) fn decide(
        key: Key,
        request: &Request,
        program: &Program,
    ) -> Result<Self, LaunchError> {
        let key = key.of_runs(program);
        let can_narrow = can_narrow(request, program)?;
        let width = request.width.to_string();
        let arguments = request.command.iter().skip(1).map(|word| word.as_bytes());
        let number = request.command.len().to_le_bytes();
        let switches = request.only.iter().map(String::as_bytes);
        let narrowed = [number.as_slice(), width.as_bytes()];
        let work = cache::digest(arguments.chain(narrowed).chain(switches));
        let (form, reason) = narrowing::next(&runs(&key), work, can_narrow);
        Ok(Self { key, work, can_narrow, form, reason })
    }

    /// Caches the results of this run. Returns the code of the next run if that has other code, or
    /// would have it if that were possible.
    ///
    /// * `moving_ns`: the CPU time that moving calls has taken, whatever their code; `None`: not
    ///   known.
    pub(crate) fn keep(
        self,
        end: &mechanism::End,
        moving_ns: Option<f64>,
        shown: Shown,
    ) -> Option<Next> {
        let Self { key, work, can_narrow, form, .. } = self;
        let mechanism::End { status, is_asked_for, spent } = *end;
        let on_cpu_ns = spent.usage.on_cpu.as_secs_f64() * 1e9 - moving_ns.unwrap_or(0.0);
        let (on_cpu_ns, written) = (on_cpu_ns.max(0.0), spent.written);
        let end = ended(status, is_asked_for);
        let run = Shown { form, work, end, on_cpu_ns, written, ..shown };
        // Other runs may have ended meanwhile.
        let mut runs = runs(&key);
        narrowing::remember(&mut runs, run);
        let (next, reason) = narrowing::next(&runs, work, can_narrow);
        key.keep(RUNS, &runs.into_iter().map(KeptRun::from).collect::<Vec<_>>());
        let is_impossible = matches!(reason, Reason::Impossible(..));
        (is_impossible || next != form).then_some(Next { form: next, reason })
    }
}

/// The runs that are cached under this key.
fn runs(key: &Key) -> Vec<Shown> {
    let kept: Vec<KeptRun> = key.kept(RUNS).unwrap_or_default();
    kept.into_iter().map(Shown::from).collect()
}

/// How a run has ended. Programs that are asked to end by a signal may do so with any status.
fn ended(status: ExitStatus, is_asked_for: bool) -> End {
    let is_fault = |signal| FAULTS.iter().any(|fault| fault.as_raw() == signal);
    if status.signal().is_some_and(is_fault) {
        End::Crashed
    } else if status.code().is_some_and(|code| code != 0) && !is_asked_for {
        End::Failed
    } else {
        End::Usual
    }
}

/// The range of what narrower code would give back, as a share of CPU time, from the cost of the
/// functions' calls and the observed calls, as `dimmer observe` computes it. `None` if no cost is
/// known, and if no called function has 512-bit registers (`has_zmm`).
pub(crate) fn forecast<'a>(
    functions: impl Iterator<Item = (&'a CallCost, bool, &'a Tally)> + Clone,
    usage: Usage,
) -> Option<(f64, f64)> {
    let on_cpu_ns = usage.on_cpu.as_secs_f64() * 1e9;
    let stretches = functions.clone().flat_map(|(_, _, tally)| tally.stretches());
    let running = Running::new(stretches, on_cpu_ns, usage.switches);
    let (mut within, mut lost, mut is_wide) = (0.0, Lost::default(), false);
    for (cost, has_zmm, tally) in functions {
        is_wide |= has_zmm && tally.calls > 0;
        within += running.of_all(tally.lasted.iter());
        lost.add(cost.in_gaps(tally.lasted.iter(), tally.gap_after.iter(), &running));
    }
    let load =
        Load { on_cpu: on_cpu_ns, within: Some(within), lost: lost.total_ns(), ..Load::default() };
    let narrow = ways::prospects(&load).into_iter().find(|prospect| prospect.way == Way::Narrow);
    narrow.and_then(|narrow| narrow.gain).filter(|_| is_wide)
}

impl From<Shown> for KeptRun {
    fn from(run: Shown) -> Self {
        let Shown { form, work, end, on_cpu_ns, calls, written, forecast } = run;
        let (has_failed, has_crashed) = (end == End::Failed, end == End::Crashed);
        let is_narrow = form == Form::Narrow;
        Self { is_narrow, work, has_failed, has_crashed, on_cpu_ns, calls, written, forecast }
    }
}

impl From<KeptRun> for Shown {
    fn from(kept: KeptRun) -> Self {
        let KeptRun {
            is_narrow,
            work,
            has_failed,
            has_crashed,
            on_cpu_ns,
            calls,
            written,
            forecast,
        } = kept;
        let form = if is_narrow { Form::Narrow } else { Form::Plain };
        let end = match (has_crashed, has_failed) {
            (true, _) => End::Crashed,
            (false, true) => End::Failed,
            (false, false) => End::Usual,
        };
        Self { form, work, end, on_cpu_ns, calls, written, forecast }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_a_run_ended_is_told_by_its_status_and_kept() {
        let statuses = [
            (0, End::Usual),
            (1 << 8, End::Failed),
            (Signal::TERM.as_raw(), End::Usual),
            (Signal::ILL.as_raw(), End::Crashed),
            // With a core dump.
            (Signal::SEGV.as_raw() | 0x80, End::Crashed),
        ];
        for (status, expected) in statuses {
            let end = ended(ExitStatus::from_raw(status), false);
            let run = Shown { end, work: 7, ..Shown::default() };
            assert_eq!(run.end, expected, "{status}");
            let text = serde_json::to_string(&KeptRun::from(run.clone())).unwrap();
            assert_eq!(Shown::from(serde_json::from_str::<KeptRun>(&text).unwrap()), run);
        }
        // Programs that handle SIGINT often end with a status of their own.
        assert_eq!(ended(ExitStatus::from_raw(255 << 8), true), End::Usual);
        assert_eq!(ended(ExitStatus::from_raw(Signal::SEGV.as_raw()), true), End::Crashed);
    }
}

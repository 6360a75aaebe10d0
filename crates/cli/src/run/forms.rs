//! Whether a program under `--mechanism auto` has narrower code: what its runs have shown is kept for the next ones, which
//! [`dimmer_policy::narrowing`] decides by.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::time::Duration;

use dimmer_host::root::Root;
use dimmer_host::usage;
use dimmer_observe::Tally;
use dimmer_policy::cost::{CallCost, Lost};
use dimmer_policy::narrowing::{self, Form, Reason, Shown};
use dimmer_policy::ways::{self, Load, Way};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};

use super::chosen::Key;
use crate::report::number::percent;

/// By which name runs are kept.
const RUNS: &str = "-runs";

/// The signals by which the kernel ends a program for a fault of its own, or it does itself.
const FAULTS: [Signal; 6] =
    [Signal::ILL, Signal::SEGV, Signal::BUS, Signal::FPE, Signal::ABORT, Signal::TRAP];

/// A program's form in this run, and what is kept of the others.
#[derive(Debug)]
pub(super) struct Forms {
    key: Key,
    runs: Vec<Shown>,
    pub(super) form: Form,
    pub(super) reason: Reason,
}

/// What children that have ended took and got done, since this process began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spent {
    /// Time on CPUs.
    pub(super) on_cpu: Duration,
    /// Bytes written, this process's own few included; 0 where the kernel does not tell.
    pub(super) written: u64,
}

impl Spent {
    /// Up to now.
    pub(super) fn read() -> Self {
        let written = usage::written(&Root::live()).unwrap_or(0);
        Self { on_cpu: usage::time_of_ended_children(), written }
    }

    /// Since `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        let on_cpu = self.on_cpu.saturating_sub(earlier.on_cpu);
        Self { on_cpu, written: self.written.saturating_sub(earlier.written) }
    }
}

/// A run, as it is kept.
#[derive(Debug, Serialize, Deserialize)]
struct KeptRun {
    is_narrow: bool,
    is_crashed: bool,
    on_cpu_ns: f64,
    calls: BTreeMap<String, u64>,
    written: u64,
    forecast: Option<(f64, f64)>,
}

impl Forms {
    /// Decides by what is kept under this key.
    pub(super) fn decide(key: Key) -> Self {
        let kept: Vec<KeptRun> = key.kept(RUNS).unwrap_or_default();
        let runs: Vec<Shown> = kept.into_iter().map(Shown::from).collect();
        let (form, reason) = narrowing::next(&runs);
        Self { key, runs, form, reason }
    }

    /// Which code this run has, and why, in a sentence; `None` if it is the program's own for want of a reason to change it.
    pub(super) fn text(&self) -> Option<String> {
        Some(format!("This run has {}.", words(self.form, self.reason)?))
    }

    /// Keeps what this run has shown; the same sentence of the next one, if it has other code.
    pub(super) fn keep(
        mut self,
        status: ExitStatus,
        on_cpu: Duration,
        shown: Shown,
    ) -> Option<String> {
        let is_crashed = status
            .signal()
            .is_some_and(|signal| FAULTS.iter().any(|fault| fault.as_raw() == signal));
        let on_cpu_ns = on_cpu.as_secs_f64() * 1e9;
        let run = Shown { form: self.form, is_crashed, on_cpu_ns, ..shown };
        narrowing::remember(&mut self.runs, run);
        let (form, reason) = narrowing::next(&self.runs);
        self.key.keep(RUNS, &self.runs.into_iter().map(KeptRun::from).collect::<Vec<_>>());
        let words = words(form, reason).filter(|_| form != self.form)?;
        Some(format!("The next run has {words}."))
    }
}

/// A form with the reason for it, as the end of a sentence; `None` if there is none to change anything.
fn words(form: Form, reason: Reason) -> Option<String> {
    let words = match (form, reason) {
        (Form::Narrow, Reason::Measured(gain)) => {
            format!("narrower code, which took {} less CPU time", percent(gain))
        }
        (Form::Narrow, Reason::Forecast(least, most)) => {
            let [least, most] = [least, most].map(percent);
            format!(
                "narrower code, which by the model gives back {least} to {most} of the CPU time"
            )
        }
        (Form::Plain, Reason::Measured(gain)) => {
            format!("its own code, as narrower took {} more CPU time", percent(-gain))
        }
        (Form::Plain, Reason::Crashed) => {
            "its own code, as a run with narrower code ended by a fault".to_owned()
        }
        (Form::Plain, Reason::Anew) => {
            "its own code for once, to see whether narrower is still better".to_owned()
        }
        _ => return None,
    };
    Some(words)
}

/// What narrower code would give back, from and to, in parts of the time on CPUs, by what the functions' calls cost and what was seen of
/// them, as `dimmer observe` tells it. `None` where no cost is known, and if none that was called has 512-bit registers (`has_zmm`).
pub(super) fn forecast<'a>(
    functions: impl Iterator<Item = (CallCost, bool, &'a Tally)>,
    on_cpu: Duration,
) -> Option<(f64, f64)> {
    let on_cpu_ns = on_cpu.as_secs_f64() * 1e9;
    let (mut within, mut gaps, mut lost, mut is_wide) = (0.0, 0.0, Lost::default(), false);
    for (cost, has_zmm, tally) in functions {
        is_wide |= has_zmm && tally.calls > 0;
        within += tally.lasted.sum();
        gaps += tally.gap_after.sum();
        let of_it = cost.in_gaps(tally.gap_after.iter());
        lost.kept_ns += of_it.kept_ns;
        lost.episodes_ns += of_it.episodes_ns;
    }
    // Threads that wait take longer, but nothing more.
    let running = if within + gaps > on_cpu_ns { on_cpu_ns / (within + gaps) } else { 1.0 };
    let load = Load {
        on_cpu: on_cpu_ns,
        within: Some(within * running),
        lost: lost.kept_ns * running + lost.episodes_ns,
        ..Load::default()
    };
    let narrow = ways::prospects(&load).into_iter().find(|prospect| prospect.way == Way::Narrow);
    narrow.and_then(|narrow| narrow.gain).filter(|_| is_wide)
}

impl From<Shown> for KeptRun {
    fn from(run: Shown) -> Self {
        let Shown { form, is_crashed, on_cpu_ns, calls, written, forecast } = run;
        Self { is_narrow: form == Form::Narrow, is_crashed, on_cpu_ns, calls, written, forecast }
    }
}

impl From<KeptRun> for Shown {
    fn from(kept: KeptRun) -> Self {
        let KeptRun { is_narrow, is_crashed, on_cpu_ns, calls, written, forecast } = kept;
        let form = if is_narrow { Form::Narrow } else { Form::Plain };
        Self { form, is_crashed, on_cpu_ns, calls, written, forecast }
    }
}

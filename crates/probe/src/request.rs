//! What a probe measures, if the user names only a part of it or nothing.

use std::time::Duration;

use dimmer_processor::units::CpuId;

use crate::kernel::{self, Kernel};
use crate::lab::{Effort, Settings};
use crate::mode::Mode;
use crate::session::{Item, Plan};

/// Kernels of a quick probe: each class once, the light and narrow ones as controls.
const REPRESENTATIVES: [&str; 6] = [
    "vfmadd231pd-512-unrolled",
    "vfmadd231pd-512-unrolled-load",
    "vpaddd-512-unrolled",
    "vfmadd231pd-256-unrolled",
    "tdpbf16ps-tile-unrolled",
    "vfmadd231sd-scalar-unrolled",
];

/// Modes in which a quick probe measures each kernel.
const QUICK_MODES: [Mode; 3] = [Mode::Episode, Mode::Downclock, Mode::Recurrence];

/// Default number of instructions in a burst: about what one short call of a vectorized library
/// function executes.
const BURST: u32 = 800;

/// Bursts from one instruction to about a millisecond, beside [`BURST`].
const SWEEP: [u32; 5] = [1, 31, 10_000, 65_536, 4_000_000];

/// Time for a quick probe; calibration and the minimum repetitions may need more.
const QUICK_BUDGET: Duration = Duration::from_secs(16);

/// Time for a full probe.
const FULL_BUDGET: Duration = Duration::from_secs(420);

/// The user's request; a list is empty if the user named nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// What to measure.
    pub modes: &'a [Mode],
    /// The code to measure.
    pub kernels: &'a [Kernel],
    /// Instructions in a burst.
    pub bursts: &'a [u32],
    /// Whether to take seconds rather than minutes.
    pub quick: bool,
    /// Whether heavy code may run on all CPUs.
    pub all_cpus: bool,
}

impl Request<'_> {
    /// What to measure on this CPU. `settings.effort` is that of the request.
    #[must_use]
    pub fn plan(&self, cpu: CpuId, settings: Settings) -> Plan {
        let effort = if self.quick { Effort::Quick } else { Effort::Full };
        Plan {
            items: items(self),
            cpu,
            settings: Settings { effort, ..settings },
            budget: if self.quick { QUICK_BUDGET } else { FULL_BUDGET },
            only_where_effect: self.modes.is_empty(),
        }
    }
}

/// The kernels of a quick probe, and then those of `others` that are not among them.
#[must_use]
pub fn usual_and<'a>(others: impl IntoIterator<Item = &'a Kernel>) -> Vec<Kernel> {
    let is_other = |kernel: &&Kernel| !REPRESENTATIVES.contains(&kernel.name.as_str());
    let others = others.into_iter().filter(is_other).cloned();
    REPRESENTATIVES.iter().filter_map(|name| kernel::find(name).ok()).chain(others).collect()
}

/// The requested modes, kernels and bursts. The defaults for the rest fit the time: all kernels in
/// the modes that look for an effect, a few kernels in the modes that examine it. Levels, which
/// load the whole machine, only on request.
fn items(request: &Request<'_>) -> Vec<Item> {
    let Request { modes, kernels, bursts, quick, all_cpus } = *request;
    let named = |names: &[&str]| -> Vec<Kernel> {
        names.iter().filter_map(|name| kernel::find(name).ok()).collect()
    };
    let representatives = named(&REPRESENTATIVES);
    let burst = if bursts.is_empty() { &[BURST] } else { bursts };
    let with_levels = |modes: &[Mode]| -> Vec<Mode> {
        let others = modes.iter().copied().filter(|mode| *mode != Mode::Levels);
        others.chain(all_cpus.then_some(Mode::Levels)).collect()
    };
    match (modes.is_empty(), kernels.is_empty()) {
        (false, false) => Plan::cross(modes, kernels, burst),
        (false, true) if quick => Plan::cross(modes, &representatives, burst),
        (false, true) => Plan::cross(modes, kernel::all(), burst),
        (true, false) if quick => Plan::cross(&with_levels(&QUICK_MODES), kernels, burst),
        (true, false) => Plan::cross(&with_levels(&Mode::ALL), kernels, burst),
        (true, true) if quick => Plan::cross(&with_levels(&QUICK_MODES), &representatives, burst),
        (true, true) => {
            let find = [Mode::Episode, Mode::Downclock, Mode::Throttle];
            let examine = with_levels(&[Mode::Upclock, Mode::Instructions, Mode::Recurrence]);
            let sweep = if bursts.is_empty() { &SWEEP } else { bursts };
            let swept = [Mode::Episode, Mode::Recurrence];
            let mut items = Plan::cross(&find, kernel::all(), burst);
            items.extend(Plan::cross(&examine, &representatives, burst));
            items.extend(Plan::cross(&swept, &representatives[..1], sweep));
            items
        }
    }
}

//! Combines the observations with a processor model: what the calls cost the code around them, and
//! what each way to avoid that would gain. The formulas are `dimmer_policy`'s.

use std::collections::BTreeMap;
use std::path::Path;

use dimmer_observe::{Clocks, FunctionPlace};
use dimmer_policy::cost::{CallCost, Lost, Running};
use dimmer_policy::ways::{self, Load};
use dimmer_probe::stats::Samples;
use dimmer_processor::units::LicenseLevel;

use super::{ClockCheck, Function, Losses, Outlook, Run, hand_off};

/// Sets for each function what the code after its calls loses, and returns the sum; or the reason
/// why it is unknown.
pub(super) fn of(
    run: &Run<'_>,
    running: &Running,
    functions: &mut [Function],
) -> Result<Losses, String> {
    let Some((model, _)) = run.model else {
        return Err(
            "nothing is known of this machine's levels; `dimmer probe` measures them".to_owned()
        );
    };
    let on_cpu_ns = run.on_cpu.as_secs_f64() * 1e9;
    if on_cpu_ns <= 0.0 {
        return Err("the program had no time on a CPU that the kernel counted".to_owned());
    }
    let mut costs = Vec::new();
    for index in 0..u32::try_from(model.levels.len()).unwrap_or(u32::MAX) {
        let cost = CallCost::new(model, LicenseLevel::new(index));
        costs.push(cost.map_err(|missing| missing.to_string())?);
    }
    let by_name: BTreeMap<&str, &CallCost> =
        model.levels.iter().map(|level| level.name.as_str()).zip(costs.iter()).collect();
    let tallies = run.observed.functions();
    let mut sum = Lost::default();
    let (mut are_asking, mut are_seen) = (false, false);
    for function in functions {
        let place =
            FunctionPlace { file: Path::new(&function.file).into(), address: function.address };
        let cost = function.level.as_deref().and_then(|level| by_name.get(level));
        let (Some(cost), Some(tally)) = (cost, tallies.get(&place)) else { continue };
        if !cost.is_free() {
            are_asking = true;
            if tally.gap_after.measured() == 0 {
                continue;
            }
            are_seen = true;
        }
        let lost = cost.in_gaps(tally.lasted.iter(), tally.gap_after.iter(), running);
        function.lost_share = Some(lost.total_ns() / on_cpu_ns);
        sum.add(lost);
    }
    if are_asking && !are_seen {
        return Err("no gap between two calls was seen".to_owned());
    }
    let kept_below = costs.iter().map(|cost| cost.kept_below_ns);
    let long = costs.iter().flat_map(|cost| cost.between_long.iter().map(|long| long.gap_ns));
    let kept_below_ns = kept_below.fold(0.0, f64::max);
    Ok(Losses {
        share: sum.total_ns() / on_cpu_ns,
        kept_share: sum.kept_ns / on_cpu_ns,
        episodes_share: sum.episodes_ns / on_cpu_ns,
        between_long_share: sum.between_long_ns / on_cpu_ns,
        kept_below_ns,
        recovered_after_ns: long.fold(kept_below_ns, f64::max),
    })
}

/// The expected gain of each way to avoid the loss, the best first.
pub(super) fn ways(lost: Losses, run: &Run<'_>, functions: &[Function]) -> Vec<Outlook> {
    let load = Load {
        on_cpu: 1.0,
        within: (!run.is_counted)
            .then(|| functions.iter().filter_map(|function| function.time_share).sum()),
        lost: lost.share,
        calls: functions.iter().map(|function| function.calls as f64).sum::<f64>()
            / (run.on_cpu.as_secs_f64() * 1e9),
        hand_off: hand_off::mean_ns(run),
        is_governable: run.is_governable,
    };
    let prospects = ways::prospects(&load).into_iter();
    prospects.map(|found| Outlook { way: found.way.name(), gain: found.gain }).collect()
}

/// Compares the clock right after calls with the clock right before calls that follow a gap after
/// which, by the model, no call before it matters any more. This checks the model's statement
/// directly. The interval combines the worst ends of both medians' intervals.
pub(super) fn clock(run: &Run<'_>, recovered_after_ns: f64) -> Option<ClockCheck> {
    let mut clocks = Clocks::default();
    run.observed.threads.iter().for_each(|thread| clocks.merge(&thread.clocks));
    let long_after = clocks.before.iter().filter(|(gap, _)| *gap > recovered_after_ns);
    let before: Samples = long_after.map(|(_, chain)| *chain).collect();
    let after = Samples::new(clocks.after);
    if before.len().min(after.len()) < LEAST_CLOCKS {
        return None;
    }
    let (nominal, lowered) = (before.estimate()?, after.estimate()?);
    Some(ClockCheck {
        ratio: nominal.median / lowered.median,
        ci95: (nominal.ci95.0 / lowered.ci95.1, nominal.ci95.1 / lowered.ci95.0),
        after: after.len(),
        before: before.len(),
    })
}

/// Minimum number of chains for a result.
const LEAST_CLOCKS: usize = 20;

//! Why a mechanism gains or loses, in a sentence made of what its run and that of none counted.

use dimmer_study::Mechanism;
use dimmer_study::run::Run;

use crate::number::{grouped, percent, time};

/// * `own`, `none`: runs with the same seed; `hold_ns`: how long a level is kept.
pub(super) fn of(mechanism: Mechanism, own: &Run, none: &Run, hold_ns: Option<f64>) -> String {
    use Mechanism as M;
    let parts: Vec<String> = match mechanism {
        M::None => return bursts(own, hold_ns),
        M::Narrow => {
            let wide = none.bursts.as_ref().map_or(0.0, |bursts| bursts.wide_s);
            let wide = percent(wide / none.busy_s());
            vec![format!("wide code ran for {wide} of the busy time"), lowered(own, none)]
        }
        M::Delegate | M::Migrate | M::Trials | M::Thresholds => calls(own, none),
        M::Specialise | M::SpecialiseLearning | M::SpecialiseTold => {
            vec![taken(own, own.traps, "traps"), lowered(own, none)]
        }
        M::CoreScheduling => {
            let idle = |run: &Run| percent(run.idle_s / (run.idle_s + run.busy_s()));
            vec![
                format!("cores idle for {} instead of {}", idle(own), idle(none)),
                lowered(own, none),
            ]
        }
        M::Phases | M::PhasesLearning => vec![taken(own, own.migrations, "migrations")],
        M::Boost => {
            vec![format!("requests keep cores for {}", percent(own.governor_s / own.busy_s()))]
        }
        M::Avxfreq | M::User | M::Predictive | M::Oracle => governed(own, none),
    };
    parts.join("; ")
}

/// How often wide code comes, and what the processor makes of it.
fn bursts(own: &Run, hold_ns: Option<f64>) -> String {
    let Some(bursts) = own.bursts.as_ref().filter(|bursts| bursts.count > 0) else {
        return "no code asks for a license level".to_owned();
    };
    let takes = own.slower.map(|part| format!(", which takes {} of it", percent(part)));
    let lower = format!(
        "{} of the busy time at a lower clock{}",
        percent(own.lowered()),
        takes.unwrap_or_default()
    );
    let gap = bursts.gap_us.map(|us| time(us * 1e3));
    match (gap, hold_ns, bursts.kept) {
        (Some(gap), Some(hold), Some(kept)) => format!(
            "a burst {gap} after the last one (median), {} of them within the {} for which a level \
             is held: {lower}",
            percent(kept),
            time(hold)
        ),
        (Some(gap), _, _) => format!("a burst {gap} after the last one (median): {lower}"),
        (None, _, _) => format!("one burst on a core: {lower}"),
    }
}

/// The time at a lower clock and what that takes, beside those under none.
fn lowered(own: &Run, none: &Run) -> String {
    let lower = |run: &Run| percent(run.lowered());
    let told =
        format!("{} of the busy time at a lower clock instead of {}", lower(own), lower(none));
    match (own.slower, none.slower) {
        (Some(own), Some(none)) => {
            format!("{told}, which takes {} of it instead of {}", percent(own), percent(none))
        }
        _ => told,
    }
}

/// How often code moved, and what part of the busy time that took.
fn taken(own: &Run, count: u64, what: &str) -> String {
    let a_second = own.a_second(count);
    let a_second = grouped(a_second, if a_second < 10.0 { 1 } else { 0 });
    match own.move_ns {
        Some(ns) => {
            let part = percent(count as f64 * ns / 1e9 / own.busy_s());
            format!("{a_second} {what} a second at {}, {part} of the busy time", time(ns))
        }
        None => format!("{a_second} {what} a second"),
    }
}

fn calls(own: &Run, none: &Run) -> Vec<String> {
    if own.calls == 0 {
        return vec!["no call was complete".to_owned()];
    }
    if own.moved == 0 {
        return vec!["moved no call".to_owned(), lowered(own, none)];
    }
    let share = percent(own.moved as f64 / own.calls as f64);
    let cores = grouped(own.dedicated_cores, 2);
    vec![
        format!("{share} of the calls moved: {}", taken(own, own.moved, "moves")),
        format!("{cores} cores dedicated"),
        lowered(own, none),
    ]
}

fn governed(own: &Run, none: &Run) -> Vec<String> {
    let switching = |run: &Run| percent(run.switching());
    let mut parts = vec![
        lowered(own, none),
        format!("{} switching instead of {}", switching(own), switching(none)),
        format!("the governor takes {}", percent(own.governor_s / own.busy_s())),
    ];
    if own.below_s > 0.0 {
        let below = time(own.below_s * 1e9);
        parts.push(format!("code ran above the clock of its level for {below}: no rank"));
    }
    // The oracle's own way has no other name in a run.
    let way = own.way.as_deref().map(|way| if way == "oracle" { "the break-even" } else { way });
    parts.extend(way.map(|way| format!("it did as {way}")));
    parts
}

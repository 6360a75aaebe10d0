//! Core specialisation in the kernel, in words.

use dimmer_host::root::format_cpu_list;
use dimmer_host::specialisation::sets::Sets;
use dimmer_processor::units::CpuId;
use dimmer_watch::state::Specialise;

use crate::number::{grouped, time};

/// What is worth a thought about these sets; empty if nothing is.
pub fn note(sets: &Sets) -> String {
    let nodes: Vec<String> = sets.nodes_without_wide.iter().map(ToString::to_string).collect();
    if nodes.is_empty() {
        return String::new();
    }
    format!(
        "note: no CPU of NUMA node {} is wide, so its threads leave it for wide code, and their \
         memory stays there; name a core of each node to avoid that\n",
        nodes.join(", ")
    )
}

/// That these CPUs are narrow from now on.
pub fn begin(sets: &Sets, narrow: &str) -> String {
    let wide = format_cpu_list(&sets.wide);
    format!("CPUs {wide} are wide, and {narrow} narrow, until a signal ends this (Ctrl-C).\n")
}

/// What it does: since its module was loaded, and how often wide code has met a narrow CPU of late,
/// in words, if that is known.
pub fn line(now: &Specialise, rate: Option<String>) -> String {
    let Specialise { narrow, is_scheduled, faults, moves, move_ns, allowed, limits, .. } = now;
    let by = if *is_scheduled { "by the scheduler" } else { "by affinity" };
    let cpus: Vec<CpuId> = narrow.iter().copied().map(CpuId::new).collect();
    let sets = if cpus.is_empty() {
        "no cpu is narrow".to_owned()
    } else {
        format!("cpu {} is narrow, threads move {by}", format_cpu_list(&cpus))
    };
    let number = |number: u64| grouped(number as f64, 0);
    let rate = rate.map(|rate| format!(" ({rate} a second now)")).unwrap_or_default();
    let took = match moves {
        0 => String::new(),
        moves => format!(", after {} on average", time(*move_ns as f64 / *moves as f64)),
    };
    format!(
        "{sets}; wide code met one {} times{rate}, moved {} times{took}, stayed {} times",
        number(*faults),
        number(*moves),
        number(allowed.saturating_add(*limits)),
    )
}

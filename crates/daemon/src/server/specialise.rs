//! Core specialisation in the kernel, as the state has it: the module's own counters.

use dimmer_host::root::Root;
use dimmer_host::specialisation::{Counts, Module};
use dimmer_processor::units::CpuId;
use dimmer_watch::state::Specialise;

/// What the module's files hold now; `None` if it is not loaded or cannot be read.
pub(super) fn read(root: &Root) -> Option<Specialise> {
    let Module { narrow, wide, is_scheduled, counts } = Module::read(root).ok()??;
    let Counts {
        faults,
        moves,
        move_ns,
        returns,
        ended_by_calls,
        ended_by_time,
        allowed,
        limits,
        without_scheduler,
        switches,
        missed,
    } = counts;
    let numbers = |cpus: Vec<CpuId>| cpus.into_iter().map(CpuId::index).collect();
    Some(Specialise {
        narrow: numbers(narrow),
        wide: numbers(wide),
        is_scheduled,
        faults,
        moves,
        move_ns,
        returns,
        ended_by_calls,
        ended_by_time,
        allowed,
        limits,
        without_scheduler,
        switches,
        missed,
    })
}

//! Loops of a function, found by its backward jumps.

use std::collections::BTreeMap;

use dimmer_processor::class::InstructionClass;

use crate::function::{ClassCounts, HotLoop};

/// The loops with wide instructions that enclose no other such loop, by address.
///
/// `steps` are the offsets and classes of the instructions of a range at `start`, ascending.
/// `backward` are the targets and ends of its backward jumps, as offsets. Takes time in proportion
/// to both (and sorts the latter), however the loops overlap.
pub(crate) fn innermost(
    start: u64,
    steps: &[(u32, InstructionClass)],
    backward: &mut Vec<(u32, u32)>,
) -> Vec<HotLoop> {
    let mut before: BTreeMap<u32, ClassCounts> =
        backward.iter().flat_map(|(to, end)| [*to, *end]).map(|at| (at, <_>::default())).collect();
    let mut counts = ClassCounts::default();
    let mut steps = steps.iter().peekable();
    for (at, count) in &mut before {
        while let Some((_, class)) = steps.next_if(|(offset, _)| offset < at) {
            counts.count(*class);
        }
        *count = counts;
    }
    let within = |to: u32, end: u32| before[&end].less(&before[&to]);
    backward.retain(|(to, end)| within(*to, *end).wide() > 0);
    // Sorted by end, the shortest first at equal ends: a loop comes after all loops that it
    // encloses.
    backward.sort_unstable_by_key(|(to, end)| (*end, std::cmp::Reverse(*to)));
    backward.dedup();
    let mut last_begin = None;
    let mut loops = Vec::new();
    for (to, end) in backward.iter().copied() {
        if last_begin.is_none_or(|begin| begin < to) {
            last_begin = Some(to);
            let addresses = start + u64::from(to)..start + u64::from(end);
            loops.push(HotLoop { addresses, instructions: within(to, end) });
        }
    }
    loops
}

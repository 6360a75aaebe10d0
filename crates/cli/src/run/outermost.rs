//! `--hook auto`: which calls of a program may be worth moving, by what a processor's model says of its code.

use std::collections::BTreeMap;
use std::path::Path;

use dimmer_hook::is_own_ground;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_policy::cost::CallCost;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenceLevel;
use dimmer_scan::{Callers, Function, Scan};

use crate::named::Planned;
use crate::{bad_input, launch, scan};

/// A function around wide-vector code, and what its calls cost the code after them.
#[derive(Debug)]
pub(super) struct Around {
    pub(super) planned: Planned,
    pub(super) cost: CallCost,
}

/// The outermost functions around the code of a program, and of the libraries that it loads from the start, that costs the code after
/// it something.
pub(super) fn find(
    program: &launch::Program,
    model: &Model,
    machine: &Machine,
) -> anyhow::Result<Vec<Around>> {
    let mut found = Vec::new();
    for loaded in program.loaded() {
        let Ok(file) = loaded.file.canonicalize() else { continue };
        let Ok(bytes) = std::fs::read(&file) else { continue };
        let Ok(scan) = dimmer_scan::scan(&bytes) else { continue };
        if is_own_ground(scan.soname.as_deref().unwrap_or_default()) {
            continue;
        }
        let Ok(callers) = Callers::read(&bytes, &scan) else { continue };
        for (function, level) in of_file(&scan, &callers, model, machine) {
            let cost = CallCost::new(model, level).map_err(bad_input)?;
            if cost.episode_ns > 0.0 || cost.slower > 0.0 {
                let entries = function.hookable_entries().collect();
                let planned = Planned { file: file.clone(), title: String::new(), entries };
                found.push(Around { planned, cost });
            }
        }
    }
    name(&mut found);
    Ok(found)
}

/// The outermost functions of a file around those that ask for a licence level, with the highest that is asked for there.
fn of_file<'scan>(
    scan: &'scan Scan,
    callers: &Callers,
    model: &Model,
    machine: &Machine,
) -> Vec<(&'scan Function, LicenceLevel)> {
    let mut levels: BTreeMap<u64, (&Function, LicenceLevel)> = BTreeMap::new();
    for function in &scan.functions {
        let runs = |class: &InstructionClass| machine.runs(*class);
        let present = function.instructions.iter().filter(|(_, count)| *count > 0);
        let classes = present.map(|(class, _)| class).filter(runs);
        let level = dimmer_scan::level(classes, function.zmm > 0, model);
        if level == LicenceLevel::new(0) {
            continue;
        }
        for outer in callers.outermost(function, scan) {
            let (_, highest) = levels.entry(outer.addresses.start).or_insert((outer, level));
            *highest = level.max(*highest);
        }
    }
    levels.into_values().collect()
}

/// Gives functions the names that `dimmer scan` shows.
fn name(found: &mut [Around]) {
    let mut known = BTreeMap::new();
    for around in found {
        let planned = &mut around.planned;
        let of_file =
            known.entry(planned.file.clone()).or_insert_with_key(|file: &std::path::PathBuf| {
                scan::scan_narrow_too(&Root::live(), Path::new(file)).ok()
            });
        let Some((first, _)) = planned.entries.first() else { continue };
        let functions = of_file.iter().flat_map(|scan| &scan.wide_functions);
        let is_it = |function: &&scan::document::WideFunction| {
            (function.address..function.address + function.size.max(1)).contains(first)
        };
        planned.title = functions
            .into_iter()
            .find(is_it)
            .map_or_else(|| format!("{first:#x}"), scan::text::title);
    }
}

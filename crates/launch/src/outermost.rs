//! Without named functions: chooses the calls of a program that may be worth moving, by what a
//! processor model says about its code. These are calls of leaf functions with wide code, if they
//! can be delegated, and calls of the outermost functions around it, if threads may migrate.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use dimmer_hook::is_own_ground;
use dimmer_host::machine::Machine;
use dimmer_host::program;
use dimmer_host::root::Root;
use dimmer_policy::cost::CallCost;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use dimmer_scan::{Callers, Code, Function, Leaves, Scan};

use crate::chosen::{Candidate, Found};
use crate::mechanism::How;
use crate::named::{self, Planned};
use crate::program::Program;
use crate::{LaunchError, leaves, names};

/// A function around wide code, and what that code requests.
#[derive(Debug)]
struct Around {
    planned: Planned,
    demand: Demand,
}

/// What code requests.
#[derive(Clone, Copy, Debug)]
struct Demand {
    level: LicenseLevel,
    /// Whether it uses 512-bit registers, which narrower code does not.
    has_zmm: bool,
}

/// Finds the functions with, or around, code of a program and of the libraries that it loads from
/// the start, where that code costs the code after it something.
pub(crate) fn find(
    launched: &Program,
    how: How,
    model: &Model,
    machine: &Machine,
) -> Result<Found, LaunchError> {
    let (mut found, mut others, mut files) = (Vec::new(), Vec::new(), Vec::new());
    for loaded in launched.loaded() {
        let Ok(file) = loaded.file.canonicalize() else { continue };
        files.push(file.clone());
        let Ok(bytes) = program::read(&file) else { continue };
        let Ok(mut scan) = dimmer_scan::scan(&bytes) else { continue };
        // Functions around wide ones need not be wide.
        if scan.check_narrow(&bytes).is_err() {
            continue;
        }
        if is_own_ground(scan.soname.as_deref().unwrap_or_default()) {
            continue;
        }
        let Ok(callers) = Callers::read(&bytes, &scan) else { continue };
        let Ok(code) = Code::read(&bytes) else { continue };
        let mut leaves = Leaves::read(&bytes, &code, &scan).ok().filter(|_| how.delegates);
        let mut delegated = BTreeSet::new();
        let costly = costly(&scan, model, machine);
        for (function, demand) in &costly {
            let Some(leaves) = &mut leaves else { break };
            let start = function.addresses.start;
            let Some(mut around) = around(plan(&file, function), *demand, model)? else { continue };
            around.planned.title = function.name.clone().unwrap_or_else(|| format!("{start:#x}"));
            let alone = How { migrates: false, ..how };
            let no_leaf = leaves::judge_one(&mut around.planned, leaves, alone);
            others.extend(no_leaf.filter(|_| !how.migrates));
            if !around.planned.entries.is_empty() {
                delegated.insert(start);
                found.push(around);
            }
        }
        if how.migrates {
            let rest = costly
                .iter()
                .filter(|(function, _)| !delegated.contains(&function.addresses.start));
            let around_others = outermost(rest, &scan, &callers).into_iter();
            // No thread migrates for a delegated call.
            let is_other = |function: &Function| !delegated.contains(&function.addresses.start);
            for (function, demand) in around_others.filter(|(function, _)| is_other(function)) {
                found.extend(around(plan(&file, function), demand, model)?);
            }
        }
    }
    name(&mut found);
    let candidate = |Around { planned, demand }: &Around| {
        Candidate::new(planned).with_demand(demand.level, demand.has_zmm)
    };
    let functions = found.iter().map(candidate);
    Ok(Found { functions: functions.collect(), others, files })
}

/// A function with all its entries.
fn plan(file: &Path, function: &Function) -> Planned {
    let entries = named::planned_entries(function).collect();
    Planned { file: file.to_path_buf(), title: String::new(), entries }
}

/// A function around code that requests a license level, if that costs anything.
fn around(planned: Planned, demand: Demand, model: &Model) -> Result<Option<Around>, LaunchError> {
    let cost = CallCost::new(model, demand.level)?;
    Ok((!cost.is_free()).then_some(Around { planned, demand }))
}

/// The functions of a file that request a license level.
fn costly<'scan>(
    scan: &'scan Scan,
    model: &Model,
    machine: &Machine,
) -> Vec<(&'scan Function, Demand)> {
    let demand = |function: &'scan Function| {
        let runs = |class: &InstructionClass| machine.runs(*class);
        let present = function.instructions.iter().filter(|(_, count)| *count > 0);
        let classes = present.map(|(class, _)| class).filter(runs);
        let has_zmm = function.zmm > 0 && machine.has_more_than_256_bits();
        let level = dimmer_scan::level(classes, function.zmm > 0, model);
        (level != LicenseLevel::new(0)).then_some((function, Demand { level, has_zmm }))
    };
    scan.functions.iter().filter_map(demand).collect()
}

/// The outermost functions around these, each with the highest request of the code there.
fn outermost<'scan: 'a, 'a>(
    functions: impl Iterator<Item = &'a (&'scan Function, Demand)>,
    scan: &'scan Scan,
    callers: &Callers,
) -> Vec<(&'scan Function, Demand)> {
    let mut demands: BTreeMap<u64, (&Function, Demand)> = BTreeMap::new();
    for (function, demand) in functions {
        for outer in callers.outermost(function, scan) {
            let (_, most) = demands.entry(outer.addresses.start).or_insert((outer, *demand));
            most.level = most.level.max(demand.level);
            most.has_zmm |= demand.has_zmm;
        }
    }
    demands.into_values().collect()
}

/// Gives functions the names that `dimmer scan` shows.
fn name(found: &mut [Around]) {
    let mut known = BTreeMap::new();
    for around in found {
        let planned = &mut around.planned;
        let of_file = known
            .entry(planned.file.clone())
            .or_insert_with_key(|file| names::scan(&Root::live(), file).ok());
        let Some(first) = planned.entries.first().map(|entry| entry.address) else { continue };
        let functions = of_file.iter().flat_map(|named| &named.scan.functions);
        let is_it = |function: &&Function| {
            let Range { start, end } = function.addresses;
            (start..end.max(start + 1)).contains(&first)
        };
        let found = functions.into_iter().find(is_it);
        let (name, start) = found
            .map_or((None, first), |function| (function.name.as_deref(), function.addresses.start));
        planned.title = dimmer_scan::title(name, start);
    }
}

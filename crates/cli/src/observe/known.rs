//! What is known about the observed files: their functions, from scans.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dimmer_host::root::Root;
use dimmer_launch::named::Wanted;
use dimmer_observe::Observed;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_report::observe::{Known, KnownCounts, KnownFile};
use dimmer_report::scan::WideFunction;

use crate::scan;

/// The scan result for each observed file: its functions with instructions of these classes that
/// are meant. If `plans` contain the number of functions of a file, the file is scanned only if one
/// of them was called: a program has two hundred libraries, and calls functions of few.
pub(super) fn known(
    observed: &Observed,
    classes: &[InstructionClass],
    is_meant: impl Fn(&Path, &WideFunction) -> bool,
    plans: Option<&Path>,
    model: Option<&Model>,
) -> Known {
    let places = observed.threads.iter().flat_map(|thread| thread.functions.keys());
    let called: BTreeSet<&Path> = places.map(|place| place.file.as_ref()).collect();
    let known = |path: &PathBuf| {
        let hooked = observed.hooked.get(path).map_or(0, BTreeSet::len);
        let counts = plans.filter(|_| !called.contains(path.as_path()));
        let counts = counts.and_then(|plans| dimmer_hook::kept_counts(path, plans));
        let counts = counts.filter(|counts| counts.entries == hooked);
        if let Some(counts) = counts {
            let counts = KnownCounts {
                functions: counts.functions,
                hooked: counts.hookable,
                entered_unseen: counts.entered_unseen,
            };
            return KnownFile { functions: Vec::new(), counts: Some(counts) };
        }
        let mut functions = hookable(path, classes, model);
        functions.retain(|function| is_meant(path, function));
        KnownFile { functions, counts: None }
    };
    observed.files.keys().map(|path| (path.clone(), known(path))).collect()
}

/// The addresses of a function's entries, its start first.
fn entries(function: &WideFunction) -> impl Iterator<Item = u64> + '_ {
    let inner = function.entries.iter().map(|entry| entry.address);
    std::iter::once(function.address).chain(inner)
}

/// Whether the user has named this function, or none at all.
pub(super) fn is_wanted(wanted: &[Wanted], file: &Path, function: &WideFunction) -> bool {
    let entries: Vec<u64> = entries(function).collect();
    wanted.is_empty() || wanted.iter().any(|one| one.is(file, function.name.as_deref(), &entries))
}

/// Whether this function was hooked.
pub(super) fn is_hooked(observed: &Observed, file: &Path, function: &WideFunction) -> bool {
    let hooked = observed.hooked.get(file);
    hooked.is_some_and(|hooked| entries(function).any(|entry| hooked.contains(&entry)))
}

fn hookable(path: &Path, classes: &[InstructionClass], model: Option<&Model>) -> Vec<WideFunction> {
    let root = Root::live();
    let known = if classes.iter().all(|class| *class >= InstructionClass::Light256) {
        scan::scan_file(&root, path)
    } else {
        scan::scan_narrow_too(&root, path)
    };
    let Ok(known) = known else { return Vec::new() };
    let mut functions = known.with_levels(model).wide_functions;
    functions.retain(|function| {
        classes.iter().any(|class| function.instructions.contains_key(class.name()))
    });
    functions
}

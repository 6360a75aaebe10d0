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

/// The scan result for each observed file: its functions with instructions of these classes, or
/// only those of them that the user has named. If `plans` contain the number of functions of a
/// file, the file is scanned only if one of them was called: a program has two hundred libraries,
/// and calls functions of few.
pub(super) fn known(
    observed: &Observed,
    classes: &[InstructionClass],
    wanted: &[Wanted],
    plans: Option<&Path>,
    model: Option<&Model>,
) -> Known {
    let places = observed.threads.iter().flat_map(|thread| thread.functions.keys());
    let called: BTreeSet<&Path> = places.map(|place| place.file.as_path()).collect();
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
        if !wanted.is_empty() {
            functions.retain(|function| {
                let inner = function.entries.iter().map(|entry| entry.address);
                let entries: Vec<u64> = [function.address].into_iter().chain(inner).collect();
                wanted.iter().any(|one| one.is(path, function.name.as_deref(), &entries))
            });
        }
        KnownFile { functions, counts: None }
    };
    observed.files.keys().map(|path| (path.clone(), known(path))).collect()
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

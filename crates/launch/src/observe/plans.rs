//! Makes plans of what to hook before the program starts. So its own process need not scan these
//! files, which would cost its time and memory. It scans files that it loads later itself.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_processor::class::InstructionClass;

use crate::program::{Loaded, Program};

/// Makes the plans for all files whose code a program runs from its start, on all CPUs;
/// `environment` contains their directory.
pub(super) fn prepare(
    program: &Program,
    classes: &[InstructionClass],
    environment: &[(&'static str, OsString)],
) {
    let directory = environment.iter().find(|(name, _)| *name == dimmer_hook::PLANS);
    let Some((_, directory)) = directory else { return };
    let classes: BTreeSet<InstructionClass> = classes.iter().copied().collect();
    // The largest first, so that no large file is left for the end.
    let mut loaded = program.loaded();
    let length = |loaded: &Loaded| loaded.file.metadata().map_or(0, |file| file.len());
    loaded.sort_by_cached_key(|loaded| Reverse(length(loaded)));
    let next = AtomicUsize::new(0);
    let make = || {
        // Relaxed: it is enough that each number comes once.
        while let Some(loaded) = loaded.get(next.fetch_add(1, Ordering::Relaxed)) {
            // The process will find the same problem with the file, and report it.
            let _ = dimmer_hook::prepare_plan(&loaded.file, &classes, Path::new(directory));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 1..threads.min(loaded.len()) {
            scope.spawn(make);
        }
        make();
    });
}

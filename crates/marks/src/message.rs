//! What a library reports to the user: lines on standard error, since a running program has no
//! other way.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::names::Place;

/// A message that is printed once in a process and its children.
#[derive(Debug)]
pub(crate) struct Once(AtomicBool);

impl Once {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Prints the message, if it was not printed yet.
    pub(crate) fn print(&self, library: &str, what: impl FnOnce() -> String) {
        if !self.0.swap(true, Ordering::Relaxed) {
            print(library, what());
        }
    }
}

/// About marks outside of a session.
static OUTSIDE: Once = Once::new();

/// Prints, once, that a mark does nothing because no session is under way.
#[cold]
pub(crate) fn outside(library: &str, place: &Place) {
    OUTSIDE.print(library, || {
        let mark = place.mark();
        format!(
            "the mark `{mark}` is before swp_init() or after swp_deinit(): such marks do nothing"
        )
    });
}

/// Prints nothing about marks outside of a session any more: a child of fork(2) cannot help it.
pub(crate) fn keep_silent() {
    OUTSIDE.0.store(true, Ordering::Relaxed);
}

/// Whether nothing is printed.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Prints nothing from now on: the program does not know of its marks.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Prints a line. If standard error is closed, the message is lost.
pub(crate) fn print(library: &str, what: impl Display) {
    if !SILENT.load(Ordering::Relaxed) {
        let _ = writeln!(io::stderr(), "{library}: {what}");
    }
}

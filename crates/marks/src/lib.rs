//! Marks in a program's code: what runs between them is measured, or runs on the core that it
//! deserves.
//!
//! Implements paper 004, sections 4.1 and 4.2: what the libraries `libswp`, `libswp_migrate` and
//! `libultmigration` do, and `dimmer_mark()`. The libraries themselves are in `libraries/`, each a
//! few functions around a module of this crate. All that decides is in [`dimmer_policy::phases`];
//! threads migrate by [`dimmer_runtime`].
//!
//! | layer | modules |
//! |---|---|
//! | what a library does | [`measuring`], [`migrating`] |
//! | one thread's part | `recorder`, `passing` |
//! | between two kinds of cores | [`crossing`] |
//! | below all | `cache`, `names`, `source`, `output`, `message` |
//!
//! A program never stops because of its marks: what is wrong is reported on standard error, once,
//! and its threads stay where they are.

mod cache;
pub mod crossing;
pub mod measuring;
mod message;
pub mod migrating;
mod names;
mod output;
mod passing;
mod recorder;
mod source;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use message::silence;
pub use names::{Place, function_of};
pub use output::{FILE, Output};

/// Runs work of this crate for a caller in C: no panic leaves it. Returns `None` if it panicked.
#[inline]
pub fn contained<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// Passes a mark of the enclosing function and this line, which [`measuring`] measures if
/// [`FILE`] is set. The Rust face of `dimmer_mark()`.
///
/// ```
/// fn parse() {
///     dimmer_marks::mark!();
/// }
/// parse();
/// ```
#[macro_export]
macro_rules! mark {
    () => {{
        fn here() {}
        $crate::measuring::pass_started(&$crate::Place::Rust(
            $crate::function_of(here),
            concat!(file!(), ":", line!()),
        ));
    }};
}

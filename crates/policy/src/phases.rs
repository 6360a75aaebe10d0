//! A program's phases: which parts of its flow run on a fast core, and which on a slow one.
//!
//! Implements paper 004, sections 3.2 and 4.1, and its future work: many threads, profiles that
//! follow the program, thresholds for a deadline. A program passes *marks*; what runs from one mark
//! to the next is an *edge*. Memory-bound edges lose little on a slow core.
//!
//! [`Flow`] counts what one thread does, and [`Graph`] sums that up over threads and processes.
//! [`Profile`] has one value for each mark; the text formats of both are the paper's. A
//! [`Threshold`] divides the marks into fast and slow ones: [`Threshold::largest_gap`] finds it by
//! the values alone, [`solve()`] by a model of the cores. [`Plan`] decides for each mark, by a
//! profile or by what is [`Learned`] while the program runs, and [`Thread`] for each thread that
//! passes one. [`Follower`] and [`Leader`] are what a program's threads do to learn.
//! [`Choosing`] finds good marks among all functions of a program, [`Assessment`] lists what is
//! wrong with marks, and [`dot()`] draws the graph: with colors by
//! a [`Scale`] and widths by [`TimeShare`], as all drawings.
//!
//! No code here reads a clock or a counter, or migrates a thread.

mod assess;
mod choose;
mod decide;
mod dot;
mod drawing;
mod flow;
mod follow;
mod format;
mod learn;
mod machine;
mod profile;
mod reduce;
mod slow_cpus;
mod solve;
mod threshold;

use std::fmt;
use std::sync::Arc;

pub use self::assess::{Assessment, Finding};
pub use self::choose::{Choice, Choosing, ChosenMark, Measure, too_often};
pub use self::decide::{Decision, Plan, Settings, Thread};
pub use self::dot::dot;
pub use self::drawing::{Scale, TimeShare};
pub use self::flow::{Counters, Counts, Flow, Graph};
pub use self::follow::{Counted, Follower, Leader};
pub use self::format::{FormatError, Problem};
pub use self::learn::Learned;
pub use self::machine::{Kind, Machine};
pub use self::profile::{Metric, Profile, memory_share};
pub use self::slow_cpus::slow_cpus;
pub use self::solve::{Limit, Solution, Unsolved, solve};
pub use self::threshold::{Threshold, ThresholdError};

/// What separates the marks of an edge in text. No mark's name contains it.
const ARROW: &str = " -> ";

/// A place in a program's source code, as text formats and people name it: the function, then its
/// position in brackets, such as `do_command [sql/sql_parse.cc:943]`.
///
/// Marks with equal names are the same mark (paper 004 §4.1).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark(Arc<str>);

/// A name that no text format holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{name}` is no name of a mark: accepted are names without quotation marks, control \
     characters and ` -> `, with no space at either end"
)]
pub struct NameError {
    /// The name.
    pub name: String,
}

impl Mark {
    /// The mark of this name.
    ///
    /// # Errors
    /// If the text formats could not hold it: it is empty, has a space at either end, or contains
    /// ` -> `, a quotation mark or a control character.
    pub fn new(name: &str) -> Result<Self, NameError> {
        let is_refused = name.is_empty()
            || name.trim() != name
            || name.contains(ARROW)
            || name.ends_with(ARROW.trim_end())
            || name.contains(|char: char| char == '"' || char.is_control());
        if is_refused { Err(NameError { name: name.to_owned() }) } else { Ok(Self(name.into())) }
    }

    /// The mark in `function` at `position`, which is `FILE:LINE` or other text that distinguishes
    /// the marks of the function.
    ///
    /// # Errors
    /// As [`Mark::new`].
    pub fn at(function: &str, position: &str) -> Result<Self, NameError> {
        Self::new(&format!("{function} [{position}]"))
    }

    /// The whole name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The name without the position.
    #[must_use]
    pub fn function(&self) -> &str {
        self.parts().map_or(&self.0, |(function, _)| function)
    }

    /// What is in brackets at the end of the name, if there are any.
    #[must_use]
    pub fn position(&self) -> Option<&str> {
        self.parts().map(|(_, position)| position)
    }

    fn parts(&self) -> Option<(&str, &str)> {
        self.0.strip_suffix(']')?.rsplit_once(" [")
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A mark of a running program, by its number there: 0 for the first, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MarkId(u32);

impl MarkId {
    /// The mark numbered `index`.
    #[must_use]
    pub const fn new(index: u32) -> Self {
        Self(index)
    }

    /// The number, as an index.
    #[must_use]
    pub fn index(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

/// The kind of core that code runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Core {
    /// High clock, or a performance core.
    Fast,
    /// Low clock, or an efficiency core.
    Slow,
}

#[cfg(test)]
mod any;
#[cfg(test)]
mod tests;

//! Policy loops: what decides which groups of calls are moved, from how performance changes.
//!
//! The server knows a loop by the trait [`Loop`] alone, and a loop's constants by [`Constants`].
//! [`LOOPS`] lists all of them: configurations, the simulator, the comparison of loops and error
//! messages read it. A new loop is a file beside [`trials`] and a line in [`LOOPS`]; the tests of
//! this module then check it against the contract of [`Loop`].

pub mod auto;
pub mod thresholds;
pub mod trials;

use std::cmp::Ordering;
use std::fmt;

use dimmer_processor::units::{Nanos, Time};

use super::UserId;
use super::decision::{Action, Reason};
use super::evidence::{Density, LEVELS, NEGLIGIBLE};
use super::performance::Trend;
use super::settings::{Prices, Settings};
use super::work::Progress;
use crate::auto::Gain;

/// All loops.
pub static LOOPS: [&Definition; 3] =
    [&thresholds::DEFINITION, &trials::DEFINITION, &auto::DEFINITION];

/// The loop that decides where nothing else is configured.
pub static USUAL: &Definition = &trials::DEFINITION;

/// A loop as configurations, commands and results name it. Two definitions are equal if their names
/// are.
#[derive(Debug)]
pub struct Definition {
    /// The name in configurations, on the command line and in results; also the name of the table
    /// with its constants.
    pub name: &'static str,
    /// The loop in a few words.
    pub summary: &'static str,
    /// The usual constants.
    pub constants: fn() -> Box<dyn Constants>,
    /// The settings of a server on this number of cores that the loop is meant for. The loop may
    /// ignore prices.
    pub settings: fn(usize, Option<Prices>) -> Settings,
}

impl Definition {
    /// The loop of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<&'static Self> {
        LOOPS.into_iter().find(|definition| definition.name == name)
    }
}

impl PartialEq for Definition {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Definition {}

impl PartialOrd for Definition {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Definition {
    fn cmp(&self, other: &Self) -> Ordering {
        self.name.cmp(other.name)
    }
}

/// The end of a window, as a loop sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WindowEnd {
    /// The present time.
    pub now: Time,
    /// The change of performance since the window before.
    pub trend: Trend,
    /// Number of units that are moved at present.
    pub moved: usize,
}

/// A mechanism that a loop compares with others, for all clients at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mechanism {
    /// `none` or `delegate`.
    pub name: &'static str,
    /// Whether it is in force now, for a trial or not.
    pub is_in_force: bool,
    /// Whether it is the one found best so far.
    pub is_chosen: bool,
    /// What trials have shown; `None` for none, and without a trial.
    pub gain: Option<Gain>,
}

/// The state of a loop.
///
/// A *group* is what the loop decides about: the calls of one region of one program (or all of
/// them), in all its processes, which are the group's members. The server numbers groups from 0,
/// without large holes, and uses a number again after [`Self::forget`].
///
/// # Contract
/// * Any method accepts any group, known or not, and any number, infinite or not a number, in any
///   order. Time may go back. None panics.
/// * Equal calls give equal results. A loop has no clock, no random source, and no order of hashes.
/// * [`Self::decide`] gives the same answer for the same group and density until another method is
///   called.
/// * Memory grows with the numbers of groups and of users alone.
pub trait Loop: fmt::Debug + Send + Sync {
    /// A copy, which decides as this one does.
    fn copy(&self) -> Box<dyn Loop>;

    /// The length of a window, over which performance is measured; above zero.
    fn window_length(&self) -> Nanos;

    /// What is done with the calls of a group with this density, which nothing hinders, and why.
    fn decide(&self, group: usize, density: &Density) -> (Action, Reason);

    /// Ends a window. Returns whether any group must be decided again. Called after
    /// [`Self::pass`].
    fn window(&mut self, end: WindowEnd) -> bool;

    /// How long a change of decisions takes to settle. Performance is not measured meanwhile.
    /// `None`: the next window starts at once.
    fn settling(&self) -> Option<Nanos> {
        None
    }

    /// Whether the present window has to end now.
    fn ends_early(&self) -> bool {
        false
    }

    /// Records that windows have passed, those without clients included.
    fn pass(&mut self, windows: u64) {
        let _ = windows;
    }

    /// The share of wide SIMD code (0 to 1) up to which code counts as scalar, and stays.
    fn negligible(&self) -> f64 {
        NEGLIGIBLE
    }

    /// Whether the window in which a client comes says nothing about its performance.
    fn skips_first_window(&self) -> bool {
        true
    }

    /// Whether calls on dedicated cores, where other clients' code holds levels too, are evidence
    /// about the code of their region.
    fn counts_moved_calls(&self) -> bool {
        false
    }

    /// Records that a group belongs to this user.
    fn own(&mut self, group: usize, user: UserId) {
        let _ = (group, user);
    }

    /// Adds (`is_one`) or removes a member that nothing hinders from being moved.
    fn candidate(&mut self, group: usize, is_one: bool) {
        let _ = (group, is_one);
    }

    /// Records that moving a group is expected to bring `gain`, in parts of performance, by what
    /// calls cost on this processor.
    fn expect(&mut self, group: usize, gain: f64) {
        let _ = (group, gain);
    }

    /// Records that moved calls of one member lasted `longer_ns` longer than those that stayed, and
    /// that the dedicated core worked for `worked_ns`.
    fn spend(&mut self, group: usize, longer_ns: f64, worked_ns: f64) {
        let _ = (group, longer_ns, worked_ns);
    }

    /// Records that the last member of a group has gone. Members may come again.
    fn rest(&mut self, group: usize) {
        let _ = group;
    }

    /// Drops what is known about a group without members. Its number may be used again.
    fn forget(&mut self, group: usize) {
        let _ = group;
    }

    /// Takes the work of all clients up to now, at each step of the server, before the window may
    /// end. Clients come in the order of their numbers.
    fn step(&mut self, now: Time, clients: &mut dyn Iterator<Item = Progress>) {
        let _ = (now, clients);
    }

    /// When to call [`Self::step`] next, beside the end of the window.
    fn next_wakeup(&self, now: Time) -> Option<Time> {
        let _ = now;
        None
    }

    /// The mechanisms that the loop compares, none first; empty if it compares none.
    fn mechanisms(&self) -> Vec<Mechanism> {
        Vec::new()
    }

    /// The thresholds of L1, L2, ..., if the loop has any.
    fn thresholds(&self) -> Option<&[f64; LEVELS]> {
        None
    }
}

impl Clone for Box<dyn Loop> {
    fn clone(&self) -> Self {
        self.as_ref().copy()
    }
}

/// The constants of a loop.
///
/// # Contract
/// [`Self::list`] names each constant once, always in the same order, and its usual value lies in
/// its range. Any constants in their ranges start a loop. At each end of each range, with the usual
/// values of all other constants, it moves what gains much and leaves what loses much.
pub trait Constants: fmt::Debug + Send + Sync {
    /// The loop whose constants they are.
    fn definition(&self) -> &'static Definition;

    /// A copy.
    fn copy(&self) -> Box<dyn Constants>;

    /// All constants, to be read and set.
    fn list(&mut self) -> Vec<Constant<'_>>;

    /// The loop at its start.
    fn start(&self, now: Time) -> Box<dyn Loop>;
}

/// The longest time that a constant may be (ms): a day. A longer one is a mistake.
pub const LONGEST_MS: f64 = 86_400_000.0;

/// A constant of a loop. Times are in milliseconds here; their names end in `_ms`.
#[derive(Debug)]
pub struct Constant<'a> {
    /// The key in configurations.
    pub name: &'static str,
    /// The smallest value that is accepted.
    pub least: f64,
    /// The greatest value that is accepted.
    pub most: f64,
    place: Place<'a>,
}

/// Where a constant is stored.
#[derive(Debug)]
enum Place<'a> {
    Number(&'a mut f64),
    Time(&'a mut Nanos),
}

impl<'a> Constant<'a> {
    /// A number of this range.
    pub const fn number(name: &'static str, of: &'a mut f64, (least, most): (f64, f64)) -> Self {
        Self { name, least, most, place: Place::Number(of) }
    }

    /// A time of this range in milliseconds.
    pub const fn time(name: &'static str, of: &'a mut Nanos, (least, most): (f64, f64)) -> Self {
        Self { name, least, most, place: Place::Time(of) }
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> f64 {
        match &self.place {
            Place::Number(number) => **number,
            Place::Time(span) => span.as_f64() / 1e6,
        }
    }

    fn set(&mut self, value: f64) {
        match &mut self.place {
            Place::Number(number) => **number = value,
            Place::Time(span) => **span = Nanos::rounded(value * 1e6),
        }
    }
}

/// Why constants are refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ConstantError {
    /// The loop has no such constant.
    #[error("unknown constant `{of}.{name}`, expected one of {known}")]
    Unknown {
        /// The loop.
        of: &'static str,
        /// The constant.
        name: String,
        /// The names of the constants that it has.
        known: String,
    },
    /// A value is out of its range.
    #[error("`{of}.{name}` is {value}, accepted are {least} to {most}")]
    OutOfRange {
        /// The loop.
        of: &'static str,
        /// The constant.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The smallest value that is accepted.
        least: f64,
        /// The greatest value that is accepted.
        most: f64,
    },
}

/// A loop with its constants.
#[derive(Debug)]
pub struct Chosen(Box<dyn Constants>);

impl Chosen {
    /// The loop of these constants.
    #[must_use]
    pub fn new(constants: impl Constants + 'static) -> Self {
        Self(Box::new(constants))
    }

    /// A loop with its usual constants.
    #[must_use]
    pub fn usual(definition: &'static Definition) -> Self {
        Self((definition.constants)())
    }

    /// The loop.
    #[must_use]
    pub fn definition(&self) -> &'static Definition {
        self.0.definition()
    }

    /// Names and values of all constants.
    #[must_use]
    pub fn values(&self) -> Vec<(&'static str, f64)> {
        let mut constants = self.0.copy();
        constants.list().iter().map(|constant| (constant.name, constant.value())).collect()
    }

    /// Sets constants. The ranges of some depend on others, so they are checked when all are set.
    ///
    /// # Errors
    /// If a name is unknown or a value is out of its range; then nothing has changed.
    pub fn set(&mut self, values: &[(&str, f64)]) -> Result<(), ConstantError> {
        let of = self.definition().name;
        let mut constants = self.0.copy();
        for (name, value) in values {
            let mut list = constants.list();
            if let Some(constant) = list.iter_mut().find(|constant| constant.name == *name) {
                constant.set(*value);
            } else {
                let known: Vec<&str> = list.iter().map(|constant| constant.name).collect();
                let (name, known) = ((*name).to_owned(), known.join(", "));
                return Err(ConstantError::Unknown { of, name, known });
            }
        }
        for Constant { name, least, most, .. } in constants.list() {
            let set = values.iter().rfind(|(set, _)| *set == name);
            if let Some((_, value)) = set.filter(|(_, value)| !(least..=most).contains(value)) {
                return Err(ConstantError::OutOfRange { of, name, value: *value, least, most });
            }
        }
        self.0 = constants;
        Ok(())
    }

    /// The loop at its start.
    #[must_use]
    pub fn start(&self, now: Time) -> Box<dyn Loop> {
        self.0.start(now)
    }
}

impl Clone for Chosen {
    fn clone(&self) -> Self {
        Self(self.0.copy())
    }
}

impl PartialEq for Chosen {
    fn eq(&self, other: &Self) -> bool {
        self.definition() == other.definition() && self.values() == other.values()
    }
}

#[cfg(test)]
mod tests;

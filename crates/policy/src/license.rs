//! License governors: who decides which license level a core holds, and when.
//!
//! A governor is a state machine. What happens to its core goes in, with the time; what it wants of
//! the core ([`Order`]), and the time at which it wants to be called again, come out. It has no
//! clock, no thread and no chance of its own, so that the same code runs against a simulated core
//! and a real one.
//!
//! * [`hardware`]: what processors do by themselves;
//! * [`avxfreq`]: the same done again in the kernel, simplified (paper 000 §4.1.2);
//! * [`user`]: the program decides (paper 000 §4.2);
//! * [`oracle`]: knows what will run, and decides by the break-even;
//! * [`predictive`]: learns what will run.

pub mod avxfreq;
pub mod hardware;
pub mod oracle;
pub mod predictive;
pub mod user;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_processor::units::LicenseLevel;

/// A moment on the clock of whoever calls (ns); where that begins does not matter.
pub type Time = u64;

/// What runs on a core, as far as its governor cares.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The most demanding class of the code.
    pub class: InstructionClass,
    /// Whether 512-bit code has left the upper register halves dirty.
    pub upper: Upper,
    /// Instructions of the class per cycle while nothing throttles them.
    pub per_cycle: f64,
}

/// What a governor wants of its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The level whose clock it is to run at.
    pub level: LicenseLevel,
    /// Whether code that asks for a higher level is throttled.
    pub is_throttled: bool,
    /// Whether the core stands still, for the clock changes.
    pub is_still: bool,
}

/// Other code runs on a core than before, as a governor in software hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The level that the code asks for.
    pub asked: LicenseLevel,
    /// That the code before asked for.
    pub had: LicenseLevel,
    /// That the governor has decided for last, whether it is set already or not.
    pub held: LicenseLevel,
}

/// A source of chance, for what is measured as a distribution.
pub trait Chance {
    /// Evenly distributed from 0 up to, not including, 1.
    fn uniform(&mut self) -> f64;

    /// Normal, of mean 0 and standard deviation 1 (Box and Muller, "A Note on the Generation of
    /// Random Normal Deviates", 1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

/// What is so many standard deviations from the median of a log-normal distribution, given that and
/// the standard deviation of the natural logarithm.
fn log_normal(median: f64, log_sd: f64, deviations: f64) -> f64 {
    median * (log_sd * deviations).exp()
}

impl Demand {
    /// Scalar code.
    pub const SCALAR: Self =
        Self { class: InstructionClass::Scalar, upper: Upper::Any, per_cycle: 0.0 };
}

/// A span (ns), rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "out of range saturates, which is as long as can be told"
)]
pub(crate) fn span(ns: f64) -> Time {
    ns.round() as Time
}

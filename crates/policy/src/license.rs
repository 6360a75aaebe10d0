//! License governors: they decide which license level a core holds, and when.
//!
//! A governor is a state machine. The events of its core go in, with the time. The state that it
//! wants for the core ([`Order`]) and the time of its next call come out. It has no clock, no
//! thread and no random source of its own, so the same code runs against a simulated core and a
//! real one.
//!
//! * [`hardware`]: what processors do by themselves;
//! * [`avxfreq`]: the same, simplified, in the kernel (paper 000 §4.1.2);
//! * [`user`]: the program decides (paper 000 §4.2);
//! * [`oracle`]: decides by the break-even, given what will run;
//! * [`predictive`]: learns what will run.

pub mod avxfreq;
pub mod hardware;
pub mod oracle;
pub mod predictive;
pub mod user;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Upper;
use dimmer_processor::units::LicenseLevel;

/// The code that runs on a core, as far as its governor is concerned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The most demanding class of the code.
    pub class: InstructionClass,
    /// Whether 512-bit code has left the upper register halves dirty.
    pub upper: Upper,
    /// Instructions of the class per cycle while nothing throttles them.
    pub per_cycle: f64,
}

/// The state that a governor wants for its core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// The level whose clock the core is to run at.
    pub level: LicenseLevel,
    /// Whether code that asks for a higher level is throttled.
    pub is_throttled: bool,
    /// The level to which its clock changes now, if it does: the core stands still meanwhile.
    pub changes_to: Option<LicenseLevel>,
    /// Whether the level is kept for bursts that recur, and no code runs that asks for any. Only if
    /// the model has what that costs; the level's clock does not count then.
    pub is_between_bursts: bool,
    /// The number, from 0, of the model's `[[long_recurrence]]` by which code runs slower now, if
    /// any: between long bursts that recur.
    pub between_long: Option<usize>,
}

/// A change of the code on a core, as a governor in software is notified of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The level that the new code asks for.
    pub asked: LicenseLevel,
    /// The level that the previous code asked for.
    pub had: LicenseLevel,
    /// The level of the governor's last decision, whether it is already set or not.
    pub held: LicenseLevel,
}

/// A source of random numbers, for values that were measured as a distribution.
pub trait Chance {
    /// Uniformly distributed from 0 up to, not including, 1.
    fn uniform(&mut self) -> f64;

    /// Normally distributed, with mean 0 and standard deviation 1 (Box and Muller, "A Note on the
    /// Generation of Random Normal Deviates", 1958).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = (1.0 - self.uniform(), self.uniform());
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }
}

/// The value that lies `deviations` standard deviations from the median of a log-normal
/// distribution. `log_sd` is the standard deviation of the natural logarithm.
fn log_normal(median: f64, log_sd: f64, deviations: f64) -> f64 {
    median * (log_sd * deviations).exp()
}

impl Demand {
    /// Scalar code.
    pub const SCALAR: Self =
        Self { class: InstructionClass::Scalar, upper: Upper::Any, per_cycle: 0.0 };
}

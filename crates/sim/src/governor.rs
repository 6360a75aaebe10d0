//! Governors: what decides about a core's level beside the processor.

use dimmer_policy::license::avxfreq::{AvxFreq, Parameters};
use dimmer_policy::license::predictive::Predictive;
use dimmer_policy::license::user::User;
use dimmer_processor::units::LicenseLevel;

/// What decides which level a core has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Governor {
    /// The processor alone.
    Hardware,
    /// AVXFREQ (paper 000 §4.1).
    AvxFreq,
    /// The program itself (paper 000 §4.2), AVXFREQ switched off from the start.
    User,
    /// A governor that knows what will run. A [`Machine`](crate::Machine) sets levels by their
    /// break-even; a scenario does whatever way does its work the soonest.
    Oracle,
    /// A governor that learns what will run.
    Predictive,
}

impl Governor {
    /// All governors.
    pub const ALL: [Self; 5] =
        [Self::Hardware, Self::AvxFreq, Self::User, Self::Oracle, Self::Predictive];

    /// The name on the command line and in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hardware => "hardware",
            Self::AvxFreq => "avxfreq",
            Self::User => "user",
            Self::Oracle => "oracle",
            Self::Predictive => "predictive",
        }
    }
}

/// The costs of governors in software for the core that they govern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// From the start of the instruction at which a counter overflows until its interrupt comes:
    /// cycles of the core, which goes on executing.
    pub skid_cycles: f64,
    /// From the counter's interrupt until the level is changed (ns).
    pub interrupt_ns: f64,
    /// A timer's interrupt, a read of the counter, and setting the timer again (ns).
    pub look_ns: f64,
    /// A system call that changes the level (ns).
    pub call_ns: f64,
}

impl Default for Costs {
    /// * `skid_cycles`: 28.6, derived from the runs of code that is not unrolled alone: 6
    ///   multiply-adds at the 0.21 per cycle that the thesis measured of such code while it is
    ///   throttled (figure 3.6). The 6 are the middle of the 10 to 14 operations, two each, in the
    ///   author's published raw data of paper 000 (§5.2.1, L0 to L1 under AVXFREQ);
    /// * `interrupt_ns`: 4.0 µs, the median of the same data for the whole way; the skid is 7 ns of
    ///   it, less than its last digit;
    /// * `look_ns`, `call_ns`: 1 µs each, assumed: an interrupt or a system call, and a write to a
    ///   model-specific register.
    fn default() -> Self {
        Self { skid_cycles: 28.6, interrupt_ns: 4000.0, look_ns: 1000.0, call_ns: 1000.0 }
    }
}

/// The state of a governor in software, for one core.
#[derive(Clone, Debug)]
pub(crate) enum Software {
    /// No governor in software.
    Absent,
    AvxFreq(AvxFreq),
    User(User),
    Oracle,
    Predictive(Predictive),
}

impl Software {
    /// The state for a processor with this highest level.
    pub(crate) fn new(governor: Governor, highest: LicenseLevel) -> Self {
        let parameters = Parameters { highest, ..Parameters::default() };
        match governor {
            Governor::Hardware => Self::Absent,
            Governor::AvxFreq => Self::AvxFreq(AvxFreq::new(parameters)),
            Governor::User => {
                let mut user = User::new(parameters);
                user.set_reclocking(false);
                Self::User(user)
            }
            Governor::Oracle => Self::Oracle,
            Governor::Predictive => Self::Predictive(Predictive::default()),
        }
    }
}

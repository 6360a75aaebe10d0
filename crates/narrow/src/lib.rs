//! How programs are made to choose narrower vector code: what has to be in their environment, and
//! what the CPUID instruction must not tell them.
//!
//! Decides only: [`plan()`] says which switches of which libraries apply to a program, [`masked`]
//! which feature bits vanish. Who starts the program, and who answers its CPUID instructions, is
//! somebody else's business.
#![forbid(unsafe_code)]

mod mask;
mod merge;
mod plan;
mod switch;
mod width;

pub use mask::{Registers, masked};
pub use merge::Merge;
pub use plan::{Advice, Choice, Kept, NarrowError, Plan, Program, Setting, choose, plan};
pub use switch::{Applies, Evidence, Means, SWITCHES, Switch, Variable};
pub use width::Width;

/// The environment variable that tells the preloaded library the width up to which the CPUID
/// instruction may show features, as [`Width`] is written.
pub const CPUID_WIDTH: &str = "DIMMER_CPUID_WIDTH";

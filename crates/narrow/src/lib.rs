//! How programs are made to choose narrower vector code: what their environment must contain, and
//! which features the CPUID instruction must hide from them.
//!
//! Decides only: [`plan()`] selects the switches of libraries that apply to a program, [`masked`]
//! the feature bits that disappear. The callers start the program, and answer its CPUID
//! instructions.
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

/// The environment variable that passes a [`Width`] to the preloaded library: the width up to which
/// the CPUID instruction may show features.
pub const CPUID_WIDTH: &str = "DIMMER_CPUID_WIDTH";

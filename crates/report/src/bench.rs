//! The results of `dimmer bench`; `docs/bench-json.md` describes the documents.

mod auto;
mod daemon;
mod hook;
mod hooked_moves;
mod lock;
mod moves;
mod nginx;
mod phases;
mod primesieve;
mod program;
mod server;
mod ways;

use dimmer_bench::pairs;

pub use auto::Report as AutoReport;
pub use daemon::Report as DaemonReport;
pub use hook::Report as HookReport;
pub use hooked_moves::Report as HookedMovesReport;
pub use lock::Report as LockReport;
pub use moves::{MovesReport, RegionReport};
pub use nginx::{Measured as NginxMeasured, Report as NginxReport};
pub use phases::Report as PhasesReport;
pub use primesieve::Report as PrimesieveReport;
pub use program::Report as ProgramReport;
pub use server::Report as ServerReport;
pub use ways::{AUTO, Account, NARROW, OBSERVE, PLAIN, Turns, lost};

use crate::estimate::Measured;
use crate::number::{self, percent};

/// A number with its sign, `+` included.
fn signed(value: f64) -> String {
    number::signed(value, 1)
}

/// A note on how reliable the intervals of this number of rounds are, if one is needed.
fn ratio_of_rounds(rounds: usize) -> String {
    if rounds >= pairs::ENOUGH {
        return String::new();
    }
    let holds = percent(pairs::range_holds_median_ratio(rounds));
    format!(
        "Intervals of {rounds} rounds are their range, which holds the true median in {holds} of cases.\n"
    )
}

/// A time in a line of its own; nothing if it was not measured.
fn line(what: &str, measured: Option<Measured>, decimals: usize) -> String {
    measured.map_or_else(String::new, |Measured { median, ci95: (low, high) }| {
        format!("{what:<52} {median:>7.decimals$} ns  [{low:.decimals$}, {high:.decimals$}]\n")
    })
}

//! Measures the cost of a marked region that is not moved, and of a request for a clock that is in
//! force.

use std::hint::black_box;
use std::time::Instant;

use dimmer_host::interrupt::Interrupt;
use dimmer_pace::Request;
use dimmer_runtime::{Decision, Site};

use crate::BenchError;

/// Entries per turn: some milliseconds.
const CALLS: u32 = 1_000_000;

/// One round, each kind in turn (ns per call).
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// A loop around a call of an empty function.
    pub plain_ns: f64,
    /// The same, with a region around the call.
    pub region_ns: f64,
    /// The same, with a region about which a policy server may decide.
    pub served_ns: f64,
    /// The plain loop, with a request for the clock that the thread has asked for before.
    pub request_ns: f64,
}

/// Measures `rounds` rounds, during which the thread asks for the fastest clock. Calls `done` after
/// each.
///
/// # Errors
/// [`BenchError::Interrupted`].
pub fn measure(
    rounds: usize,
    interrupt: &Interrupt,
    mut done: impl FnMut(),
) -> Result<Vec<Round>, BenchError> {
    static SITE: Site = Site::new("bench", file!(), line!());
    /// A site with the default decision: a server decides, whether there is one or not.
    static SERVED: Site = Site::new("served", file!(), line!());
    SITE.decide(Decision::Stay);
    let _fast = dimmer_pace::at(Request::TURBO);
    let measured = (0..rounds).map(|_| {
        if interrupt.is_set() {
            return Err(BenchError::Interrupted);
        }
        let plain_ns = turn(|| work(1));
        let region_ns = turn(|| {
            let _region = SITE.region();
            work(1)
        });
        let served_ns = turn(|| {
            let _region = SERVED.region();
            work(1)
        });
        let request_ns = turn(|| {
            dimmer_pace::request(Request::TURBO);
            work(1)
        });
        done();
        Ok(Round { plain_ns, region_ns, served_ns, request_ns })
    });
    measured.collect()
}

/// How threads ask for clocks here; `None` if there is no way.
#[must_use]
pub fn asks_by() -> Option<&'static str> {
    dimmer_pace::back_end().ok()
}

/// The function inside the region.
#[inline(never)]
fn work(number: u32) -> u32 {
    black_box(number)
}

fn turn(mut call: impl FnMut() -> u32) -> f64 {
    let begin = Instant::now();
    for _ in 0..CALLS {
        black_box(call());
    }
    begin.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

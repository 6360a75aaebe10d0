//! Finds the gaps in which a thread waited.
//!
//! The kernel reports for each interval between two looks how long the thread was on no CPU, and
//! how often it got a CPU back. The waits are taken to be the longest pieces of the interval, as
//! many as there were, and the code in each of those to have run for the same time. So the sum is
//! right, and so is a wait that is longer than the interval. That the longest pieces are the waits
//! is an estimate.

use super::events::Span;
use super::{Event, Sample};

/// Time off CPUs below which an interval is taken to have none (ns): looks are not more exact.
const NOTHING_NS: f64 = 2000.0;

/// An interval, and how long the thread was on no CPU in it (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Off {
    /// The interval (ns since tick 0).
    pub(super) span: Span,
    /// Time in which it waited.
    pub(super) waited_ns: f64,
    /// Time in which it could have run, but had no CPU.
    pub(super) queued_ns: f64,
    /// How often it got a CPU back.
    turns: usize,
}

/// How long a thread was on no CPU between each two samples.
///
/// The kernel's count of the time on CPUs may be old, but is never too long. So the time off CPUs
/// until a sample is at most what any later sample says.
pub(super) fn off_cpu(samples: &[Sample], ns_per_tick: f64) -> Vec<Off> {
    let Some(first) = samples.first() else { return Vec::new() };
    let at = |sample: &Sample| sample.ticks as f64 * ns_per_tick;
    let off = |sample: &Sample| {
        at(sample) - at(first) - sample.ran_ns.saturating_sub(first.ran_ns) as f64
    };
    let mut until: Vec<f64> = samples.iter().map(off).collect();
    let mut least = f64::INFINITY;
    for until in until.iter_mut().rev() {
        least = least.min(*until);
        *until = least;
    }
    let pairs = samples.windows(2).zip(until.windows(2));
    let interval = |(samples, until): (&[Sample], &[f64])| {
        let [before, after] = samples else { return None };
        let off = until.last()? - until.first()?.max(0.0);
        let queued = after.queued_ns.saturating_sub(before.queued_ns) as f64;
        let queued_ns = queued.min(off).max(0.0);
        let turns = after.turns.saturating_sub(before.turns);
        Some(Off {
            span: (at(before), at(after)),
            waited_ns: (off - queued_ns).max(0.0),
            queued_ns,
            turns: usize::try_from(turns).unwrap_or(usize::MAX),
        })
    };
    pairs.filter_map(interval).collect()
}

/// Takes the time off CPUs out of gaps and calls, and notes which part of it was waiting. `spans`
/// has the time of each event.
pub(super) fn divide(events: &mut [Event], spans: &[Span], off: &[Off]) {
    let mut first = 0;
    for off in off.iter().filter(|off| off.waited_ns + off.queued_ns > NOTHING_NS) {
        let (begin, end) = off.span;
        while spans.get(first).is_some_and(|span| span.1 <= begin) {
            first += 1;
        }
        let inside = spans.iter().enumerate().skip(first);
        let inside = inside.take_while(|(_, span)| span.0 < end);
        let length = |span: &Span| span.1.min(end) - span.0.max(begin);
        let mut pieces: Vec<(usize, f64)> = inside
            .map(|(index, span)| (index, length(span)))
            .filter(|(_, length)| *length > 0.0)
            .collect();
        pieces.sort_by(|a, b| b.1.total_cmp(&a.1));
        pieces.truncate(off.turns.max(1));
        let all = off.waited_ns + off.queued_ns;
        let code = level(&pieces, all);
        for (index, length) in pieces {
            let taken = (length - code).max(0.0);
            match events.get_mut(index) {
                Some(Event::Gap { code_ns, wait_ns }) => {
                    *code_ns = (*code_ns - taken).max(0.0);
                    *wait_ns += taken * off.waited_ns / all;
                }
                Some(Event::Call { lasted_ns, .. }) => *lasted_ns = (*lasted_ns - taken).max(0.0),
                _ => {}
            }
        }
    }
}

/// The length to which pieces, the longest first, must be cut so that they lose `all` together; 0
/// if they are shorter than that together.
fn level(pieces: &[(usize, f64)], all: f64) -> f64 {
    let mut sum = 0.0;
    let mut level: f64 = 0.0;
    for (number, (_, length)) in pieces.iter().enumerate() {
        if sum - length * number as f64 >= all {
            break;
        }
        sum += length;
        level = (sum - all) / (number + 1) as f64;
    }
    level.max(0.0)
}

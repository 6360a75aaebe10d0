//! From records of calls to what the thread did, in order.

use std::collections::BTreeSet;

use dimmer_hook::Overhead;

use super::{Event, Recorded};

/// Start and end of an event (ns since tick 0).
pub(super) type Span = (f64, f64);

/// What a thread did by these records, which were brought in the order of their starts, and when.
/// Gaps are not yet divided: all of a gap is code. `function` is the index of a function; calls of
/// functions without one are left out, with what is around them.
pub(super) fn of(
    ordered: &[Recorded],
    mut function: impl FnMut(u32) -> Option<usize>,
    overhead: Overhead,
    ns_per_tick: f64,
) -> (Vec<Event>, Vec<Span>) {
    let at = |ticks: u64| ticks as f64 * ns_per_tick;
    let less = |(begin, end): Span, added: u64| (end - begin - at(added)).max(0.0);
    let (mut events, mut spans) = (Vec::new(), Vec::new());
    let mut last: Option<u64> = None;
    for call in ordered {
        let begin = call.begin.saturating_sub(u64::from(call.chain_before));
        match last.filter(|last| call.follows && *last <= begin) {
            Some(last) => {
                let span = (at(last), at(begin));
                let gap = Event::Gap { code_ns: less(span, overhead.between), wait_ns: 0.0 };
                events.push(gap);
                spans.push(span);
            }
            None if last.is_some() => {
                events.push(Event::Unseen);
                spans.push((at(begin), at(begin)));
            }
            None => {}
        }
        let span = (at(call.begin), at(call.end));
        if call.is_request {
            events.push(Event::Request);
        } else if let Some(function) = function(call.site) {
            let lasted_ns = less(span, overhead.inside);
            let stands_for = f64::from(call.stands_for);
            events.push(Event::Call { function, lasted_ns, stands_for });
        } else {
            events.push(Event::Unseen);
        }
        spans.push(span);
        last = Some(call.end.saturating_add(u64::from(call.chain_after)));
    }
    (events, spans)
}

/// The records, which stand in the order of their ends, in the order of their starts. Calls within
/// others are left out, and noted in `inner_of` with the call around them. A call that starts a
/// request becomes a mark without a duration, and calls within it stay.
pub(super) fn ordered(recorded: &[Recorded], inner_of: &mut BTreeSet<(u32, u32)>) -> Vec<Recorded> {
    let mut all: Vec<Recorded> = Vec::with_capacity(recorded.len());
    for call in recorded {
        let within = all.iter().rposition(|one| one.begin < call.begin).map_or(0, |last| last + 1);
        if call.is_request {
            // The first call within it comes right after its start: the hooks look at that call,
            // and do not note that it follows.
            if let Some(first) = all.get_mut(within) {
                first.follows = true;
            }
            let mark = Recorded { end: call.begin, chain_after: 0, ..*call };
            all.insert(within, mark);
            continue;
        }
        let inner = all.drain(within..).filter(|inner| !inner.is_request);
        inner_of.extend(inner.map(|inner| (call.site, inner.site)));
        all.push(*call);
    }
    all
}

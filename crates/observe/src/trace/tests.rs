//! Tests of traces, on made-up records and samples.

use std::path::Path;

use super::*;

const NO_OVERHEAD: Overhead = Overhead { inside: 0, between: 0, counting_1000: 0 };

fn call(site: usize, begin: u64, end: u64, follows: bool) -> TimedCall {
    TimedCall {
        site,
        ended_in: site,
        begin,
        end,
        follows,
        interrupted: false,
        moved: false,
        chain_after: 0,
        chain_before: 0,
    }
}

fn place(site: usize) -> Option<FunctionPlace> {
    Some(FunctionPlace { file: Path::new("/lib/one.so").into(), address: site as u64 })
}

/// The trace of these calls, of which site 9 starts requests, with samples that are given as ticks,
/// ns on CPUs, ns queued and turns. A tick is a nanosecond.
fn trace(calls: &[TimedCall], samples: &[[u64; 4]]) -> ThreadTrace {
    let mut recorder = Recorder::default();
    let mut room = 100;
    for call in calls {
        recorder.add(*call, call.site == 9, &mut room);
    }
    let sample = |[ticks, ran_ns, queued_ns, turns]: &[u64; 4]| Sample {
        ticks: *ticks,
        ran_ns: *ran_ns,
        queued_ns: *queued_ns,
        turns: *turns,
    };
    recorder.samples = samples.iter().map(sample).collect();
    recorder.finish((1, 2), place, NO_OVERHEAD, (0, 1.0))
}

fn made(function: usize, lasted_ns: f64) -> Event {
    Event::Call { function, lasted_ns, stands_for: 1.0 }
}

fn gap(code_ns: f64, wait_ns: f64) -> Event {
    Event::Gap { code_ns, wait_ns }
}

#[test]
fn gaps_lie_between_calls_that_follow_each_other() {
    let calls = [
        call(3, 100, 200, false),
        call(4, 250, 300, true),
        call(3, 900, 950, false),
        call(3, 960, 970, true),
    ];
    let seen = trace(&calls, &[]);
    assert_eq!(
        seen.events,
        [
            made(0, 100.0),
            gap(50.0, 0.0),
            made(1, 50.0),
            Event::Unseen,
            made(0, 50.0),
            gap(10.0, 0.0),
            made(0, 10.0)
        ]
    );
    let spans = seen.timed.iter().map(|span| (span.function, span.begin_ns, span.end_ns));
    let expected = [(0, 100.0, 200.0), (1, 250.0, 300.0), (0, 900.0, 950.0), (0, 960.0, 970.0)];
    assert_eq!(spans.collect::<Vec<_>>(), expected);
    let functions = seen.functions.iter().map(|place| place.address);
    assert_eq!((functions.collect::<Vec<_>>(), seen.calls()), (vec![3, 4], 4));
}

#[test]
fn outermost_calls_count() {
    // Records stand in the order of their ends, and an inner call does not follow.
    let calls = [
        call(3, 100, 200, false),
        call(4, 310, 320, false),
        call(3, 300, 400, true),
        call(3, 450, 460, true),
    ];
    let seen = trace(&calls, &[]);
    let expected = [made(0, 100.0), gap(100.0, 0.0), made(0, 100.0), gap(50.0, 0.0)];
    assert_eq!(seen.events[..4], expected);
    let addresses: Vec<u64> = seen.functions.iter().map(|place| place.address).collect();
    assert_eq!((addresses, seen.within), (vec![3, 4], BTreeSet::from([(0, 1)])));
}

#[test]
fn requests_are_marks_between_calls() {
    let calls = [
        call(3, 100, 200, false),
        call(4, 310, 320, false),
        call(9, 300, 400, true),
        call(3, 450, 460, true),
    ];
    let expected = [
        made(0, 100.0),
        gap(100.0, 0.0),
        Event::Request,
        gap(10.0, 0.0),
        made(1, 10.0),
        gap(130.0, 0.0),
        made(0, 10.0),
    ];
    assert_eq!(trace(&calls, &[]).events, expected);
}

#[test]
fn chains_and_overhead_are_no_part_of_times() {
    let mut recorder = Recorder::default();
    let after = TimedCall { chain_after: 300, ..call(3, 1000, 1100, false) };
    let before = TimedCall { chain_before: 200, ..call(3, 2000, 2200, true) };
    [after, before].into_iter().for_each(|call| recorder.add(call, false, &mut 9));
    let overhead = Overhead { inside: 20, between: 50, counting_1000: 0 };
    let events = recorder.finish((1, 2), place, overhead, (0, 0.5)).events;
    // (2000 - 200 - 1100 - 300 - 50) / 2.
    assert_eq!(events, [made(0, 40.0), gap(175.0, 0.0), made(0, 90.0)]);
}

#[test]
fn longest_gaps_hold_the_waits() {
    let calls = [
        call(3, 10_000, 11_000, false),
        call(3, 13_000, 14_000, true),
        call(3, 64_000, 65_000, true),
        call(3, 95_000, 96_000, true),
        call(3, 99_000, 99_500, true),
    ];
    // Two waits, 60 us together: those of 50 and 30 us lose it, and keep 10 us of code each.
    let seen = trace(&calls, &[[0, 0, 0, 5], [100_000, 40_000, 0, 7]]);
    let gaps: Vec<Event> =
        seen.events.iter().copied().filter(|event| matches!(event, Event::Gap { .. })).collect();
    let expected =
        [gap(2000.0, 0.0), gap(10_000.0, 40_000.0), gap(10_000.0, 20_000.0), gap(3000.0, 0.0)];
    assert_eq!(gaps, expected);
    assert_eq!((seen.lasted, seen.waited), (Duration::from_micros(100), Duration::from_micros(60)));
}

#[test]
fn a_wait_may_be_longer_than_the_time_between_looks() {
    let calls = [call(3, 10_000, 11_000, false), call(3, 95_000, 96_000, true)];
    let samples =
        [[0, 0, 0, 1], [20_000, 15_000, 0, 1], [90_000, 15_000, 0, 1], [99_000, 20_000, 0, 2]];
    let events = trace(&calls, &samples).events;
    assert_eq!(events[1], gap(5000.0, 79_000.0));
}

#[test]
fn time_in_the_queue_is_neither_code_nor_a_wait() {
    let calls = [call(3, 10_000, 11_000, false), call(3, 61_000, 62_000, true)];
    let seen = trace(&calls, &[[0, 0, 0, 1], [100_000, 60_000, 30_000, 2]]);
    assert_eq!(seen.events[1], gap(10_000.0, 10_000.0));
    assert_eq!((seen.waited, seen.queued), (Duration::from_micros(10), Duration::from_micros(30)));
}

#[test]
fn an_old_count_of_a_running_thread_is_no_wait() {
    let calls = [call(3, 10_000, 11_000, false), call(3, 61_000, 62_000, true)];
    // The kernel's count is 50 us old in the middle.
    let seen = trace(&calls, &[[0, 0, 0, 1], [50_000, 0, 0, 1], [100_000, 100_000, 0, 1]]);
    assert_eq!((seen.events[1], seen.waited), (gap(50_000.0, 0.0), Duration::ZERO));
}

#[test]
fn timed_calls_stand_for_those_that_the_ring_had_no_room_for() {
    let mut recorder = Recorder::default();
    let mut room = 100;
    recorder.add(call(3, 100, 200, false), false, &mut room);
    recorder.look((0, 0), 1000, &mut room);
    recorder.add(call(3, 300, 400, false), false, &mut room);
    recorder.look((0, 0), 1, &mut room);
    let events = recorder.finish((1, 2), place, NO_OVERHEAD, (0, 1.0)).events;
    let first = Event::Call { function: 0, lasted_ns: 100.0, stands_for: 1000.0 };
    assert_eq!(events, [first, Event::Unseen, made(0, 100.0)]);
}

#[test]
fn what_does_not_fit_is_not_kept() {
    let mut recorder = Recorder::default();
    let mut room = 1;
    recorder.add(call(3, 100, 200, false), false, &mut room);
    recorder.add(call(3, 300, 400, true), false, &mut room);
    assert_eq!(recorder.finish((1, 2), place, NO_OVERHEAD, (0, 1.0)).calls(), 1);
}

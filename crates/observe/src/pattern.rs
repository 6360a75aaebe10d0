//! The pattern of threads that do alike: bursts of calls, and what lies between them.

use crate::distribution::Values;
use crate::trace::Event;

/// A gap of code at least this long ends a burst (ns). License levels are given back 500 to 700 µs
/// after the last call that asked for them (`models/`), and taken within 10 to 20 µs. So shorter
/// gaps act as none, whatever their order.
pub const BURST_ENDS_NS: f64 = 50_000.0;

/// A call that lasts this many times as long as 99 % of its kind was interrupted for most of it, by
/// the host of a virtual machine for example. A guess.
const INTERRUPTED: f64 = 20.0;

/// The pattern of calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pattern {
    /// Duration of the calls of each kind (ns).
    pub lasted: Vec<Values>,
    /// Code between two calls of a burst (ns).
    pub within: Values,
    /// Calls of a burst.
    pub calls: Values,
    /// Code from a burst to the next, if the thread does not wait there (ns); of a request, code
    /// after each burst.
    pub between: Values,
    /// Code from a burst to the next, if the thread waits there (ns).
    pub beside_wait: Values,
    /// Waits between bursts (ns).
    pub wait: Values,
    /// Calls of bursts whose start or end was not seen.
    pub calls_cut: f64,
    /// Requests, if a function starts them.
    pub requests: Requests,
}

/// The pattern of requests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Requests {
    /// Time from the start of a request to the next one on its thread, waits included (ns).
    pub every: Values,
    /// Code from the start of a request to its first call, or to its end if it makes none (ns).
    pub before: Values,
    /// Bursts of a request.
    pub bursts: Values,
    /// Waits of a request, together (ns).
    pub waits: Values,
}

impl Pattern {
    /// The pattern of these threads' events; `kind` is the kind of a call, by thread and function.
    /// If `of_requests`, what lies before the first request or after the last one is left out.
    pub fn of<'a>(
        threads: impl IntoIterator<Item = &'a [Event]>,
        kinds: usize,
        kind: impl Fn(usize, usize) -> usize,
        of_requests: bool,
    ) -> Self {
        let mut pattern = Self { lasted: vec![Values::default(); kinds], ..Self::default() };
        for (thread, events) in threads.into_iter().enumerate() {
            let kind = |function| kind(thread, function);
            for stretch in events.split(|event| *event == Event::Unseen) {
                pattern.cut();
                if !of_requests {
                    pattern.stretch(stretch, &kind);
                    continue;
                }
                let mut requests: Vec<&[Event]> =
                    stretch.split(|event| *event == Event::Request).collect();
                requests.pop();
                requests.iter().skip(1).for_each(|request| pattern.request(request, &kind));
            }
        }
        pattern.lasted.iter_mut().for_each(|lasted| lasted.cap(INTERRUPTED));
        pattern
    }

    /// The share of the calls that are of each kind.
    #[must_use]
    pub fn shares(&self) -> Vec<f64> {
        let all: f64 = self.lasted.iter().map(Values::times).sum();
        self.lasted.iter().map(|lasted| lasted.times() / all).collect()
    }

    /// The share of the time on CPUs that is in calls.
    #[must_use]
    pub fn share_in_calls(&self) -> f64 {
        let calls: f64 = self.lasted.iter().map(Values::sum).sum();
        let code = [&self.within, &self.between, &self.beside_wait, &self.requests.before];
        calls / (calls + code.into_iter().map(Values::sum).sum::<f64>())
    }

    /// Calls of all bursts whose start or end was not seen, as a share of all calls.
    #[must_use]
    pub fn share_cut(&self) -> f64 {
        self.calls_cut / (self.calls_cut + self.calls.sum())
    }

    /// Calls per end of a burst that was seen; all calls if none was.
    #[must_use]
    pub fn mean_calls(&self) -> f64 {
        let ends = self.between.times() + self.beside_wait.times();
        (self.calls_cut + self.calls.sum()) / ends.max(1.0)
    }

    /// What comes next does not follow what was seen last.
    fn cut(&mut self) {
        let Self { lasted, within, calls, between, beside_wait, wait, requests, .. } = self;
        let Requests { every, before, bursts, waits } = requests;
        let of_all = [within, calls, between, beside_wait, wait, every, before, bursts, waits];
        lasted.iter_mut().chain(of_all).for_each(Values::cut);
    }

    fn call(&mut self, kind: usize, lasted_ns: f64, stands_for: f64) {
        if let Some(lasted) = self.lasted.get_mut(kind) {
            lasted.add(lasted_ns, stands_for);
        }
    }

    /// Adds a stretch of events.
    fn stretch(&mut self, events: &[Event], kind: &impl Fn(usize) -> usize) {
        let (mut code, mut wait) = (0.0, 0.0);
        // Calls of the present burst, of how many the last stands, and whether the burst's start
        // was seen.
        let (mut calls, mut last, mut is_whole) = (0.0, 1.0, false);
        for event in events {
            match *event {
                Event::Gap { code_ns, wait_ns } => (code, wait) = (code + code_ns, wait + wait_ns),
                Event::Call { function, lasted_ns, stands_for } => {
                    if calls > 0.0 && wait == 0.0 && code < BURST_ENDS_NS {
                        self.within.add(code, last);
                    } else if calls > 0.0 {
                        self.burst(calls, is_whole);
                        (calls, is_whole) = (0.0, true);
                        if wait > 0.0 {
                            self.beside_wait.add(code, last);
                            self.wait.add(wait, last);
                        } else {
                            self.between.add(code, last);
                        }
                    }
                    self.call(kind(function), lasted_ns, stands_for);
                    (code, wait) = (0.0, 0.0);
                    (calls, last) = (calls + stands_for, stands_for);
                }
                Event::Unseen | Event::Request => {}
            }
        }
        self.burst(calls, false);
    }

    fn burst(&mut self, calls: f64, is_whole: bool) {
        if is_whole {
            self.calls.add(calls, 1.0);
        } else {
            self.calls_cut += calls;
        }
    }

    /// Adds a request, from its start to that of the next one.
    fn request(&mut self, events: &[Event], kind: &impl Fn(usize) -> usize) {
        let (mut code, mut waits, mut in_calls, mut all_code) = (0.0, 0.0, 0.0, 0.0);
        let (mut calls, mut bursts) = (0.0, 0.0);
        for event in events {
            match *event {
                Event::Gap { code_ns, wait_ns } => {
                    (code, waits, all_code) = (code + code_ns, waits + wait_ns, all_code + code_ns);
                }
                Event::Call { function, lasted_ns, stands_for } => {
                    if bursts == 0.0 {
                        self.requests.before.add(code, 1.0);
                        bursts = 1.0;
                    } else if code < BURST_ENDS_NS {
                        self.within.add(code, 1.0);
                    } else {
                        self.calls.add(calls, 1.0);
                        self.between.add(code, 1.0);
                        (calls, bursts) = (0.0, bursts + 1.0);
                    }
                    self.call(kind(function), lasted_ns, 1.0);
                    (code, calls, in_calls) = (0.0, calls + stands_for, in_calls + lasted_ns);
                }
                Event::Unseen | Event::Request => {}
            }
        }
        if bursts == 0.0 {
            self.requests.before.add(code, 1.0);
        } else {
            self.calls.add(calls, 1.0);
            self.between.add(code, 1.0);
        }
        self.requests.bursts.add(bursts, 1.0);
        self.requests.waits.add(waits, 1.0);
        self.requests.every.add(all_code + waits + in_calls, 1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(lasted_ns: f64) -> Event {
        Event::Call { function: 0, lasted_ns, stands_for: 1.0 }
    }

    fn gap(code_ns: f64, wait_ns: f64) -> Event {
        Event::Gap { code_ns, wait_ns }
    }

    fn of(events: &[Event], of_requests: bool) -> Pattern {
        Pattern::of([events], 1, |_, function| function, of_requests)
    }

    #[test]
    fn long_gaps_and_waits_end_bursts() {
        let events = [
            call(10.0),
            gap(100.0, 0.0),
            call(20.0),
            gap(60_000.0, 0.0),
            call(30.0),
            gap(200.0, 0.0),
            call(30.0),
            gap(300.0, 0.0),
            call(30.0),
            gap(40.0, 7000.0),
            call(60.0),
        ];
        let pattern = of(&events, false);
        assert_eq!((pattern.lasted[0].sum(), pattern.within.sum()), (180.0, 600.0));
        assert_eq!((pattern.between.sum(), pattern.beside_wait.sum()), (60e3, 40.0));
        assert_eq!(pattern.wait.sum(), 7000.0);
        // The first and the last burst are not known as a whole.
        assert_eq!((pattern.calls.sum(), pattern.calls_cut), (3.0, 3.0));
        assert_eq!((pattern.mean_calls(), pattern.share_cut()), (3.0, 0.5));
        assert!((pattern.share_in_calls() - 180.0 / 60_820.0).abs() < 1e-9);
    }

    #[test]
    fn what_was_not_seen_is_no_gap() {
        let events = [call(10.0), gap(60e3, 0.0), call(10.0), Event::Unseen, call(10.0)];
        let pattern = of(&events, false);
        assert_eq!((pattern.between.len(), pattern.within.len()), (1, 0));
        assert_eq!((pattern.calls.len(), pattern.calls_cut), (0, 3.0));
    }

    #[test]
    fn requests_run_from_one_start_to_the_next() {
        let events = [
            call(5.0),
            gap(1.0, 0.0),
            Event::Request,
            gap(100.0, 0.0),
            call(10.0),
            gap(50.0, 0.0),
            call(10.0),
            gap(60_000.0, 0.0),
            call(10.0),
            gap(30.0, 900.0),
            Event::Request,
            gap(300.0, 0.0),
            Event::Request,
            gap(2.0, 0.0),
            call(5.0),
        ];
        let pattern = of(&events, true);
        let requests = &pattern.requests;
        assert_eq!((requests.every.sum(), requests.every.len()), (61_110.0 + 300.0, 2));
        assert_eq!((requests.before.sum(), requests.bursts.sum()), (400.0, 2.0));
        assert_eq!((pattern.calls.sum(), pattern.calls.len()), (3.0, 2));
        assert_eq!((pattern.between.sum(), requests.waits.sum()), (60_030.0, 900.0));
        assert_eq!(pattern.lasted[0].len(), 3);
    }

    #[test]
    fn nothing_has_no_pattern() {
        let pattern = of(&[], true);
        assert!(pattern.calls.is_empty() && pattern.requests.every.is_empty());
    }
}

//! Hooks that bring nothing: functions that lose theirs in this run, and those that earlier runs
//! have found, which have none from the start. [`dimmer_policy::hooked`] decides.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use dimmer_host::usage::Usage;
use dimmer_observe::{FunctionPlace, Observer, Tally};
use dimmer_policy::hooked::{self, Hooked, NEARLY_ALL, Useless};
use dimmer_processor::units::nearest;

use super::{Moved, Takes};
use crate::account::Unhooked;
use crate::chosen::Key;
use crate::forms;
use crate::left_out::LeftOut;

/// What is known of hooks that bring nothing.
#[derive(Debug)]
pub(super) struct Unhooking {
    /// Whether functions may be without hooks. A trace shows all calls, and runs with narrower code
    /// are compared with others by calls.
    may_unhook: bool,
    left_out: LeftOut,
    begun: Instant,
    /// The tallies of all functions, and the time since the start, when the first hook was to be
    /// taken out. Up to then all calls were seen.
    whole: Option<(Vec<Tally>, Duration)>,
}

impl Unhooking {
    /// Takes over what earlier runs with this key have found, if `may_unhook`.
    pub(super) fn begin(
        key: Option<Key>,
        may_unhook: bool,
        functions: &mut [Moved],
        takes: Takes,
    ) -> Self {
        let left_out = LeftOut::read(key.filter(|_| may_unhook));
        for moved in functions {
            let round_trip_ns = takes.of(&moved.planned);
            let why = left_out.why(&moved.planned, round_trip_ns);
            moved.unhooked = why.map(|(why, nearly_all_ns)| Unhooked {
                why,
                by_earlier_run: true,
                nearly_all_ns,
                round_trip_ns,
            });
        }
        Self { may_unhook, left_out, begun: Instant::now(), whole: None }
    }

    /// Has the hooks taken out that bring nothing, by all calls so far. `elapsed`: since the last
    /// step.
    pub(super) fn step(
        &mut self,
        functions: &mut [Moved],
        observer: &mut Observer,
        tallies: &BTreeMap<FunctionPlace, Tally>,
        takes: Takes,
        elapsed: Duration,
    ) {
        if !self.may_unhook {
            return;
        }
        let of = |moved: &Moved| moved.tally(|place| tallies.get(place));
        let all: Vec<Tally> = functions.iter().map(of).collect();
        let (mut hooked, mut seen) = (Vec::new(), Vec::new());
        for (moved, all) in functions.iter_mut().zip(&all) {
            let recent = all.calls.saturating_sub(moved.counted);
            moved.counted = all.calls;
            if moved.unhooked.is_none() && !moved.is_wanted && recent > 0 {
                seen.push(Hooked {
                    calls: all.calls,
                    timed: all.lasted.measured(),
                    nearly_all_ns: all.lasted.quantile(NEARLY_ALL),
                    round_trip_ns: takes.of(&moved.planned),
                    recent,
                });
                hooked.push(moved);
            }
        }
        let elapsed_ns = elapsed.as_secs_f64() * 1e9;
        let useless = hooked::take_out(&seen, observer.hook_ns(), elapsed_ns);
        let mut places = Vec::new();
        for ((moved, seen), why) in hooked.into_iter().zip(seen).zip(useless) {
            let Some(why) = why else { continue };
            moved.unhooked = Some(Unhooked {
                why,
                by_earlier_run: false,
                nearly_all_ns: seen.nearly_all_ns.filter(|_| why == Useless::TooShort),
                round_trip_ns: seen.round_trip_ns,
            });
            places.extend(moved.planned.places());
        }
        if !places.is_empty() {
            self.whole.get_or_insert_with(|| (all, self.begun.elapsed()));
            observer.take_out(places);
        }
    }

    /// The part of the time on CPUs that narrower code would give back by the model, from and to.
    ///
    /// If hooks were taken out, the program is assumed to have gone on as it did before that; if
    /// functions had none at the start, to have run as in the run that found these.
    pub(super) fn forecast(
        &self,
        functions: &[Moved],
        tallies: &[Tally],
        usage: Usage,
    ) -> Option<(f64, f64)> {
        let was_left_out =
            |moved: &Moved| moved.unhooked.is_some_and(|unhooked| unhooked.by_earlier_run);
        if functions.iter().any(was_left_out) {
            return self.left_out.forecast();
        }
        let (tallies, usage) = match &self.whole {
            None => (tallies, usage),
            Some((tallies, lasted)) => {
                let all = self.begun.elapsed().max(*lasted).as_secs_f64();
                let part = if all > 0.0 { lasted.as_secs_f64() / all } else { 1.0 };
                let usage = Usage {
                    on_cpu: usage.on_cpu.mul_f64(part),
                    in_kernel: usage.in_kernel.mul_f64(part),
                    switches: nearest(usage.switches as f64 * part),
                };
                (tallies.as_slice(), usage)
            }
        };
        let costs = functions.iter().zip(tallies);
        let costs = costs.filter_map(|(moved, seen)| Some((moved.cost?, moved.has_zmm, seen)));
        forms::forecast(costs, usage)
    }

    /// Keeps what this run has found for the next ones.
    pub(super) fn finish(self, functions: &[Moved], forecast: Option<(f64, f64)>) {
        let unhooked = functions.iter().filter_map(|moved| Some((moved, moved.unhooked?)));
        let unhooked = unhooked.map(|(moved, why)| (&moved.planned, why.nearly_all_ns));
        self.left_out.keep(unhooked, forecast);
    }
}

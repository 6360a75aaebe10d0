//! The cost of a call of wide SIMD code for the code after it, according to a processor model.
//!
//! After the call the core holds the level for a while, at the lower clock, and releases it with a
//! stall. The next call asks for the level again and is throttled meanwhile. That is an *episode*.
//! If calls recur at short gaps, the level is *kept*: there is no stall and no throttling, but all
//! code in between runs at the lower clock. And between *long* calls that recur, code
//! runs slower on some processors, at gaps of milliseconds. (Paper 000 §3.3.4 for the hold.
//! `dimmer probe --mode recurrence` measures how recurring calls of a length slow code.)

use std::cmp::Ordering;

use dimmer_processor::model::{LongRecurrence, Missing, Model, Sourced};
use dimmer_processor::units::LicenseLevel;

/// What the model's values are needed for, in words for [`Missing`].
const NEEDED_FOR: &str = "what a call costs the code after it";

/// The cost of calls at one level on a processor.
#[derive(Clone, Debug, PartialEq)]
pub struct CallCost {
    /// The part of its time that code loses in a gap through which the level is kept.
    pub slower: f64,
    /// The level is kept through gaps that are shorter than this (ns).
    pub kept_below_ns: f64,
    /// The cost of an episode (ns).
    pub episode_ns: f64,
    /// How code is slowed between long calls.
    pub between_long: Vec<BetweenLong>,
}

/// A lower clock between long calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BetweenLong {
    /// Calls that last at least this long slow the code between them (ns).
    pub call_ns: f64,
    /// In gaps that are shorter than this (ns).
    pub gap_ns: f64,
    /// The part of its time that code loses then.
    pub slower: f64,
}

/// Time lost between the end of a call and the start of the next.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lost {
    /// In gaps through which the level was kept (ns).
    pub kept_ns: f64,
    /// In episodes (ns).
    pub episodes_ns: f64,
    /// Between long calls, beyond both (ns).
    pub between_long_ns: f64,
}

impl CallCost {
    /// No cost.
    pub const FREE: Self =
        Self { slower: 0.0, kept_below_ns: 0.0, episode_ns: 0.0, between_long: Vec::new() };

    /// The cost of calls that ask for `level`, with one core active; nothing at L0.
    ///
    /// If the model has measured costs (`recurrence_slowdown`, `episode_ns`), these apply. They
    /// were measured for the most demanding class, so they are scaled in proportion to what the
    /// level takes off the clock. Otherwise a kept gap costs what the level takes off the clock. An
    /// episode costs the same over the hold, plus the stall and the time lost to throttling. A
    /// stall or throttled time that is not in the model counts as zero.
    ///
    /// # Errors
    /// If the model lacks a level's clock, or how long a level is held.
    pub fn new(model: &Model, level: LicenseLevel) -> Result<Self, Missing> {
        if level == LicenseLevel::new(0) {
            return Ok(Self::FREE);
        }
        let (request, release) = (&model.request, &model.release);
        let hold_ns =
            *model.require(release.hold_ns.as_ref(), "release.hold_ns", NEEDED_FOR)? as f64;
        let lowered = |level| Ok(1.0 - model.clock_ratio(level, NEEDED_FOR)?.min(1.0));
        let slower: f64 = lowered(level)?;
        let mut most = slower;
        for index in 1..u32::try_from(model.levels.len()).unwrap_or(u32::MAX) {
            most = most.max(lowered(LicenseLevel::new(index))?);
        }
        let part = if most > 0.0 { slower / most } else { 0.0 };
        let time = |value: &Option<Sourced<u64>>| value.as_ref().map_or(0.0, |ns| ns.value as f64);
        let factor = request.throttle_factor.as_ref().map_or(1.0, |factor| factor.value);
        let throttled_ns = time(&request.throttled_ns) * (1.0 - factor.clamp(0.0, 1.0));
        let expected_ns = hold_ns * slower + time(&release.stall_ns) + throttled_ns;
        let measured = release.recurrence_slowdown.as_ref();
        let episode = release.episode_ns.as_ref();
        let long = model.long_recurrences.iter().filter(|long| long.level.value <= level);
        Ok(Self {
            slower: measured.map_or(slower, |share| part * share.value),
            kept_below_ns: time(&release.recurrence_ns).max(hold_ns),
            episode_ns: episode.map_or(expected_ns, |ns| part * ns.value as f64),
            between_long: long.map(BetweenLong::new).collect(),
        })
    }

    /// Whether calls cost nothing.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.most_ns(f64::INFINITY) <= 0.0
    }

    /// The time lost in a gap of this length after a call that lasted `call_ns` (ns), in which its
    /// thread ran for `ran_ns`: only running code loses time to a lower clock.
    #[must_use]
    pub fn in_gap(&self, call_ns: f64, gap_ns: f64, ran_ns: f64) -> Lost {
        let is_kept = gap_ns < self.kept_below_ns;
        let kept = if is_kept { self.slower } else { 0.0 };
        let recurring = self.between_long.iter();
        let recurring = recurring.filter(|long| call_ns >= long.call_ns && gap_ns < long.gap_ns);
        let between_long = recurring.map(|long| long.slower).fold(kept, f64::max);
        Lost {
            kept_ns: ran_ns * kept,
            episodes_ns: if is_kept { 0.0 } else { self.episode_ns },
            between_long_ns: ran_ns * (between_long - kept),
        }
    }

    /// The most that a call which lasts at most `call_ns` costs the code after it (ns), whatever
    /// the gap.
    #[must_use]
    pub fn most_ns(&self, call_ns: f64) -> f64 {
        let long = self.between_long.iter().filter(|long| call_ns >= long.call_ns);
        self.usual_most_ns() + long.map(|long| long.gap_ns * long.slower).fold(0.0, f64::max)
    }

    /// The most that a short call costs (ns).
    fn usual_most_ns(&self) -> f64 {
        self.episode_ns.max(self.kept_below_ns * self.slower)
    }

    /// The largest part of its time that the code between calls loses, whatever their gaps;
    /// infinite if an episode costs something however short the gap is.
    #[must_use]
    pub fn most_part(&self) -> f64 {
        let usual_ns = self.usual_most_ns();
        let usual = if usual_ns > 0.0 { usual_ns / self.kept_below_ns } else { 0.0 };
        usual + self.between_long.iter().map(|long| long.slower).fold(0.0, f64::max)
    }

    /// The time lost over many calls: `lasted` are their lengths, `gaps` those of the gaps after
    /// them, as pairs of length (ns) and number. Long calls are taken to be followed by the same
    /// gaps as short ones, and calls of which no length is known to be short.
    pub fn in_gaps(
        &self,
        lasted: impl IntoIterator<Item = (f64, f64)>,
        gaps: impl IntoIterator<Item = (f64, f64)>,
        running: &Running,
    ) -> Lost {
        let lengths = self.lengths(lasted);
        let mut sum = Lost::default();
        for (gap_ns, number) in gaps {
            for (call_ns, share) in &lengths {
                let one = self.in_gap(*call_ns, gap_ns, running.of(gap_ns));
                sum.add(one.times(number * share));
            }
        }
        sum
    }

    /// How long calls are, as far as it matters here: lengths (ns), each with the share of calls
    /// that last as long or longer, but not as long as the next one. `lasted`: lengths of calls
    /// (ns) and their numbers.
    fn lengths(&self, lasted: impl IntoIterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
        let mut steps: Vec<f64> = self.between_long.iter().map(|long| long.call_ns).collect();
        steps.push(0.0);
        steps.sort_by(f64::total_cmp);
        steps.dedup();
        let mut shares: Vec<(f64, f64)> = steps.into_iter().map(|ns| (ns, 0.0)).collect();
        for (call_ns, number) in lasted {
            let of = shares.iter_mut().rev().find(|(ns, _)| *ns <= call_ns);
            of.into_iter().for_each(|(_, sum)| *sum += number);
        }
        let all: f64 = shares.iter().map(|(_, number)| number).sum();
        if all > 0.0 {
            shares.iter_mut().for_each(|(_, number)| *number /= all);
            shares
        } else {
            vec![(0.0, 1.0)]
        }
    }
}

impl BetweenLong {
    fn new(of: &LongRecurrence) -> Self {
        // Code that takes `slowdown` longer loses less than that part of its longer time.
        let slowdown = of.slowdown.value;
        Self {
            call_ns: of.burst_ns.value as f64,
            gap_ns: of.gap_ns.value as f64,
            slower: slowdown / (1.0 + slowdown),
        }
    }
}

/// The costs of calls at L1, L2, ..., in this order.
///
/// # Errors
/// If the model lacks what [`CallCost::new`] needs.
pub fn of_levels(model: &Model) -> Result<Vec<CallCost>, Missing> {
    let levels = 1..u32::try_from(model.levels.len()).unwrap_or(u32::MAX);
    levels.map(|level| CallCost::new(model, LicenseLevel::new(level))).collect()
}

/// For how long threads ran in each stretch (a call, or a gap between two), rather than waited for
/// a CPU or for anything else.
///
/// Stretches are measured by the clock on the wall. If they are longer in all than the program's
/// time on CPUs, threads waited in some of them, but at most once for each switch that the kernel
/// counted. These are taken to be the longest ones, and each of them to have run equally long, or
/// from end to end if it is shorter. So a call that is longer than most waits is taken for a wait
/// where threads wait often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Running {
    /// Threads waited in all stretches that are longer than this (ns).
    waited_above_ns: f64,
    /// The part of the stretches of exactly that length in which they waited.
    waited_part: f64,
    /// For how long they ran in a stretch with a wait at most (ns).
    ran_ns: f64,
}

impl Running {
    /// Nothing waits.
    pub const ALWAYS: Self =
        Self { waited_above_ns: f64::INFINITY, waited_part: 0.0, ran_ns: f64::INFINITY };

    /// From all stretches of a program's threads, as pairs of length (ns) and number, its time on
    /// CPUs, and how often the kernel switched from one of its threads to another thread.
    pub fn new(
        stretches: impl IntoIterator<Item = (f64, f64)>,
        on_cpu_ns: f64,
        switches: u64,
    ) -> Self {
        let mut stretches: Vec<(f64, f64)> = stretches.into_iter().collect();
        stretches.sort_by(|(one, _), (other, _)| other.total_cmp(one));
        stretches.dedup_by(|next, kept| {
            let is_same = next.0.total_cmp(&kept.0).is_eq();
            kept.1 += if is_same { next.1 } else { 0.0 };
            is_same
        });
        let total_ns: f64 = stretches.iter().map(|(ns, number)| ns * number).sum();
        if total_ns <= on_cpu_ns {
            return Self::ALWAYS;
        }
        // The longest ones, and how many of each length had a wait. If the others leave no time
        // for these, there were more waits than switches: those of processes for which the program
        // did not wait are not counted.
        let (mut waited, mut waits, mut without_ns) = (Vec::new(), 0.0, total_ns);
        let mut running = Self::ALWAYS;
        for (ns, number) in stretches {
            let by_switches = (switches as f64 - waits).clamp(0.0, number);
            let by_time = ((without_ns - on_cpu_ns) / ns).clamp(0.0, number);
            let with_wait = by_switches.max(by_time);
            if with_wait == 0.0 {
                break;
            }
            waited.push((ns, with_wait));
            (waits, without_ns) = (waits + with_wait, without_ns - ns * with_wait);
            (running.waited_above_ns, running.waited_part) = (ns, with_wait / number);
        }
        // The shorter ones run to their end, and leave the others more.
        let (mut left, mut left_ns) = (waits, (on_cpu_ns - without_ns).max(0.0));
        for (ns, number) in waited.into_iter().rev() {
            if ns * left > left_ns {
                running.ran_ns = left_ns / left;
                break;
            }
            (left, left_ns) = (left - number, left_ns - ns * number);
        }
        running
    }

    /// For how long threads ran in a stretch of this length (ns), on average.
    #[must_use]
    pub fn of(&self, stretch_ns: f64) -> f64 {
        let waited = match stretch_ns.total_cmp(&self.waited_above_ns) {
            Ordering::Less => 0.0,
            Ordering::Equal => self.waited_part,
            Ordering::Greater => 1.0,
        };
        waited * stretch_ns.min(self.ran_ns) + (1.0 - waited) * stretch_ns
    }

    /// For how long threads ran in many stretches, given as pairs of length (ns) and number.
    #[must_use]
    pub fn of_all(&self, stretches: impl IntoIterator<Item = (f64, f64)>) -> f64 {
        stretches.into_iter().map(|(ns, number)| number * self.of(ns)).sum()
    }
}

impl Lost {
    /// Adds another loss.
    pub fn add(&mut self, other: Self) {
        self.kept_ns += other.kept_ns;
        self.episodes_ns += other.episodes_ns;
        self.between_long_ns += other.between_long_ns;
    }

    /// As often as this.
    fn times(self, number: f64) -> Self {
        Self {
            kept_ns: number * self.kept_ns,
            episodes_ns: number * self.episodes_ns,
            between_long_ns: number * self.between_long_ns,
        }
    }

    /// The sum of all (ns).
    #[must_use]
    pub fn total_ns(&self) -> f64 {
        self.kept_ns + self.episodes_ns + self.between_long_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A processor like the Xeon 6: hold 2.5 us at 6 % less clock, stall 1.4 us, kept below 240 us.
    fn xeon_6() -> Model {
        let mut model = Model::new(dimmer_processor::model::Identity {
            name: "made up".to_owned(),
            vendor: String::new(),
            microarchitecture: String::new(),
            note: None,
        });
        for ratio in [0.97, 0.94] {
            model.levels.push(dimmer_processor::model::Level {
                clock_ratio: Some(Sourced::new(ratio, "test")),
                ..dimmer_processor::model::Level::named("L")
            });
        }
        model.release.hold_ns = Some(Sourced::new(2500, "test"));
        model.release.stall_ns = Some(Sourced::new(1400, "test"));
        model.release.recurrence_ns = Some(Sourced::new(240_000, "test"));
        model.request.throttled_ns = Some(Sourced::new(1600, "test"));
        model.request.throttle_factor = Some(Sourced::new(0.25, "test"));
        model
    }

    fn cost(model: &Model) -> CallCost {
        CallCost::new(model, LicenseLevel::new(2)).unwrap()
    }

    #[test]
    fn calls_that_recur_slow_all_code_in_between() {
        // One call every 200 us: 6 % of it all.
        let lost = cost(&xeon_6()).in_gaps([], [(200_000.0, 5000.0)], &Running::ALWAYS);
        assert!((lost.total_ns() / 1e9 - 0.06).abs() < 1e-12, "{lost:?}");
        assert_eq!(lost.episodes_ns, 0.0);
    }

    #[test]
    fn no_gap_costs_more_than_the_most() {
        let cost = cost(&xeon_6());
        let gaps = (0..1000).map(|step| 500.0 * f64::from(step));
        let dearest = gaps.map(|gap| cost.in_gap(0.0, gap, gap).total_ns()).fold(0.0, f64::max);
        assert!(dearest <= cost.most_ns(0.0) && dearest > 0.99 * cost.most_ns(0.0), "{dearest}");
    }

    #[test]
    fn calls_apart_cost_an_episode_each() {
        // One every 400 us: 2750 ns each, 0.7 %.
        let lost = cost(&xeon_6()).in_gaps([], [(400_000.0, 2500.0)], &Running::ALWAYS);
        assert!((lost.total_ns() - 2500.0 * 2750.0).abs() < 1e-3, "{lost:?}");
    }

    /// As on the Emerald Rapids machine: 6.5 % longer at gaps below 80 us, 2.7 % below 1.4 ms.
    fn emerald_rapids() -> Model {
        let mut model = xeon_6();
        model.release.recurrence_slowdown = Some(Sourced::new(0.0, "test"));
        let long = |gap_ns, slowdown| LongRecurrence {
            level: Sourced::new(LicenseLevel::new(1), "test"),
            burst_ns: Sourced::new(3000, "test"),
            gap_ns: Sourced::new(gap_ns, "test"),
            slowdown: Sourced::new(slowdown, "test"),
        };
        model.long_recurrences = vec![long(1_400_000, 0.027), long(80_000, 0.065)];
        model
    }

    #[test]
    fn code_between_long_calls_is_slower_the_closer_they_are() {
        let cost = cost(&emerald_rapids());
        let [close, apart] = [0.065 / 1.065, 0.027 / 1.027];
        let lost = |call: f64, gap: f64| cost.in_gap(call, gap, gap).between_long_ns;
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found}");
        near(lost(2999.0, 1e6), 0.0);
        near(lost(3000.0, 50_000.0), 50_000.0 * close);
        near(lost(3000.0, 1e6), 1e6 * apart);
        near(lost(3000.0, 1.4e6), 0.0);
        // Half of the gap the thread waited.
        near(cost.in_gap(3000.0, 1e6, 5e5).between_long_ns, lost(3000.0, 1e6) / 2.0);
        near(cost.most_ns(3000.0) - cost.most_ns(2999.0), 1.4e6 * apart);
        // Nothing is counted twice where the level is kept, and slows code as well.
        let kept = CallCost { slower: 0.05, kept_below_ns: 2e6, ..cost.clone() };
        near(kept.in_gap(3000.0, 1e6, 1e6).total_ns(), 1e6 * 0.05);
        near(kept.in_gap(3000.0, 50_000.0, 50_000.0).total_ns(), 50_000.0 * close);
        assert!(cost.most_part() > close && !cost.is_free() && CallCost::FREE.is_free());
    }

    #[test]
    fn of_calls_of_many_lengths_the_long_ones_count() {
        let cost = cost(&emerald_rapids());
        let lost = |lasted: &[(f64, f64)]| {
            let lasted = lasted.iter().copied();
            cost.in_gaps(lasted, [(1e6, 100.0)], &Running::ALWAYS).between_long_ns
        };
        let all = lost(&[(10_000.0, 5.0)]);
        assert!((all - 100.0 * cost.in_gap(1e4, 1e6, 1e6).between_long_ns).abs() < 1e-6);
        assert!((lost(&[(10_000.0, 5.0), (100.0, 15.0)]) - all / 4.0).abs() < 1e-6);
        assert_eq!(lost(&[]), 0.0);
        assert_eq!(lost(&[(100.0, 7.0)]), 0.0);
    }

    #[test]
    fn a_server_that_waits_for_requests_ran_in_its_calls() {
        // 10,000 calls of 2 us; between them 9,900 gaps of 1 us and 100 of 100 ms, in which it ran
        // for 50 us each: it waited that often.
        let (calls, gaps) = ([(2000.0, 10_000.0)], [(1000.0, 9900.0), (1e8, 100.0)]);
        let on_cpu_ns = 20e6 + 9.9e6 + 100.0 * 50e3;
        let running = Running::new(calls.into_iter().chain(gaps), on_cpu_ns, 100);
        assert_eq!(running.of_all(calls), 20e6);
        assert!((running.of(1e8) - 50e3).abs() < 1e-3 && running.of(1000.0) == 1000.0);
        // Long calls, and longer waits between them. Two switches more than gaps: two of the ten
        // calls are taken for waits, so at most a fifth of the time in calls is missing.
        let (call, gap) = ((1e7, 10.0), (1e8, 10.0));
        let running = Running::new([call, gap], 10.0 * 1.05e7, 12);
        assert!((running.of(call.0) - 1e7).abs() < 2e6, "{running:?}");
        assert_eq!(Running::new([call, gap], 10.0 * 1.05e7, 10).of(call.0), 1e7);
    }

    #[test]
    fn threads_that_share_a_cpu_ran_for_their_part_of_it() {
        // Two threads on a CPU, each in calls for half of its time; 50 calls and 50 gaps last 4 ms
        // longer each, as the other thread had the CPU.
        let stretches = [(1000.0, 99_950.0), (4e6 + 1000.0, 50.0)];
        let total: f64 = stretches.iter().map(|(ns, number)| ns * number).sum();
        let running = Running::new(stretches.into_iter().chain(stretches), total, 100);
        let within = running.of_all(stretches);
        assert!((within / total - 0.5).abs() < 1e-9, "{running:?}");
    }

    #[test]
    fn without_switches_the_longest_stretches_waited() {
        let running = Running::new([(10.0, 10.0), (1000.0, 1.0)], 150.0, 0);
        assert!(running.of(10.0) == 10.0 && (running.of(1000.0) - 50.0).abs() < 1e-9);
        // Not even the short ones had the time to run to their end.
        let running = Running::new([(10.0, 10.0), (1000.0, 1.0)], 55.0, 0);
        assert!((running.of(10.0) - 5.5).abs() < 1e-9 && running.of(1000.0) == 0.0);
        assert_eq!(Running::new([], 1.0, 3), Running::ALWAYS);
        assert_eq!(Running::new([(5.0, 2.0)], 10.0, 7), Running::ALWAYS);
        assert_eq!(Running::new([(5.0, 2.0)], 0.0, 0).of_all([(5.0, 2.0)]), 0.0);
    }

    #[test]
    fn without_a_known_recurrence_gaps_within_the_hold_are_kept() {
        let mut skylake = xeon_6();
        skylake.release.recurrence_ns = None;
        skylake.release.hold_ns = Some(Sourced::new(670_000, "test"));
        assert!(cost(&skylake).in_gap(0.0, 600_000.0, 600_000.0).kept_ns > 0.0);
        assert!(cost(&skylake).in_gap(0.0, 700_000.0, 700_000.0).episodes_ns > 0.0);
    }

    #[test]
    fn what_was_measured_goes_before_what_is_expected() {
        let mut shared = xeon_6();
        shared.release.recurrence_slowdown = Some(Sourced::new(0.004, "test"));
        shared.release.episode_ns = Some(Sourced::new(200, "test"));
        let (most, less) = (cost(&shared), CallCost::new(&shared, LicenseLevel::new(1)).unwrap());
        assert_eq!((most.slower, most.episode_ns), (0.004, 200.0));
        assert!((less.slower - 0.002).abs() < 1e-9 && (less.episode_ns - 100.0).abs() < 1e-6);
    }

    #[test]
    fn models_that_come_with_the_project_give_costs_or_say_what_is_missing() {
        for (name, text) in dimmer_processor::model::BUILTIN {
            let model = Model::parse(std::path::Path::new(name), text).unwrap();
            for index in 0..model.levels.len() {
                let level = LicenseLevel::new(u32::try_from(index).unwrap());
                match CallCost::new(&model, level) {
                    Ok(cost) => assert!((0.0..1.0).contains(&cost.slower), "{name} {cost:?}"),
                    Err(missing) => assert!(missing.to_string().contains("costs"), "{missing}"),
                }
            }
        }
    }
}

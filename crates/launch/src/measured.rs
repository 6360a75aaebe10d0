//! What counters say of the sections of a site: means over those that were measured.

use dimmer_contention::counters::EVENTS;
use dimmer_contention::ledger::{Measure, NOT_READABLE};
use dimmer_contention::reader::{CountersFound, Sums};
use dimmer_host::cpuid::{Cpuid, Feature};
use dimmer_host::perf;
use dimmer_host::root::Root;
use dimmer_processor::units::{KiloHertz, Nanos, nearest};

/// The counters that measure sections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// How long it takes to read them, at the start and the end of a section together: the longest
    /// of all processes; `None` if no thread has ended a section.
    pub reading: Option<Nanos>,
    /// Whether the processor's events are counted in user mode only.
    pub is_user_only: bool,
    /// Why an event of the processor is not counted, in the order of [`names`]; `None` if it is.
    pub missing: [Option<String>; 5],
}

/// What was measured of the sections of a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// How many sections were measured.
    pub sampled: u64,
    /// How long they lasted in the mean (ns).
    pub time_ns: f64,
    /// What they did; `None` if half of them took less time than reading the counters does.
    pub means: Option<Means>,
}

/// What measured sections did, in the mean.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Means {
    /// Page faults.
    pub faults: f64,
    /// How often the thread gave up its CPU, to wait.
    pub sleeps: f64,
    /// For how many sections the processor's events were counted. What follows is of these.
    pub counted: u64,
    /// Cycles.
    pub cycles: Option<f64>,
    /// The clock: cycles by those of the reference clock, or else, if the kernel's are counted,
    /// too, by the time of the sections in which the thread kept its CPU.
    pub clock: Option<KiloHertz>,
    /// The part of the cycles that were stalled.
    pub stalled_ratio: Option<f64>,
    /// Misses of the last cache.
    pub misses: Option<f64>,
    /// Instructions.
    pub instructions: Option<f64>,
}

/// The names of the processor's events, as perf has them.
#[must_use]
pub fn names() -> [&'static str; 5] {
    EVENTS.map(|event| event.name)
}

/// Whether this processor has cores of several kinds, between which a thread may change just before
/// it reads a counter that only one kind has.
pub(crate) fn is_hybrid() -> bool {
    Cpuid::instruction().has(Feature::Hybrid)
}

impl Counters {
    /// * `root`: read only to explain what is missing.
    pub(crate) fn new(root: &Root, found: &CountersFound) -> Self {
        let missing = |at: usize| {
            let why = match found.refused[at] {
                _ if found.counts[at] => return None,
                0 if is_hybrid() => {
                    "threads change between cores with different counters (hybrid processor)"
                        .to_owned()
                }
                0 => "no thread has ended a section".to_owned(),
                NOT_READABLE => "the kernel lets no program execute rdpmc \
                                 (/sys/bus/event_source/devices/cpu/rdpmc)"
                    .to_owned(),
                error => {
                    let error = std::io::Error::from_raw_os_error(error.into());
                    perf::refused(root, EVENTS[at].name, &error).why
                }
            };
            Some(why)
        };
        Self {
            reading: (found.reading > 0)
                .then(|| Nanos::rounded(found.reading as f64 / dimmer_protocol::ticks_per_ns())),
            is_user_only: found.is_user_only,
            missing: std::array::from_fn(missing),
        }
    }
}

impl Measured {
    /// By the sums of a site; `None` if no section was measured. `per_ns`: ticks for each ns.
    pub(crate) fn new(sums: &Sums, counters: &CountersFound, per_ns: f64) -> Option<Self> {
        let sum = |measure| sums.measure(measure) as f64;
        let sampled = sums.measure(Measure::Sampled);
        if sampled == 0 {
            return None;
        }
        let ticks = sum(Measure::Time) / sampled as f64;
        let means = (sums.measure(Measure::Short) < sampled.div_ceil(2)).then(|| {
            let counted = sums.measure(Measure::Counted);
            let mean = |at: usize, measure| {
                (counters.counts[at] && counted > 0).then(|| sum(measure) / counted as f64)
            };
            let ratio = |of: f64, to: f64| (to > 0.0).then(|| of / to);
            let cycles = mean(0, Measure::Cycles);
            let reference = mean(1, Measure::Reference);
            let clock = match (cycles, reference) {
                (Some(cycles), Some(reference)) => ratio(cycles, reference),
                (Some(_), None) if !counters.is_user_only => {
                    ratio(sum(Measure::SteadyCycles), sum(Measure::SteadyTime))
                }
                _ => None,
            };
            Means {
                faults: sum(Measure::Faults) / sampled as f64,
                sleeps: sum(Measure::Sleeps) / sampled as f64,
                counted,
                cycles,
                // Ticks, and so cycles of the reference clock, by ms are kHz.
                clock: clock.map(|ratio| KiloHertz::from_khz(nearest(ratio * per_ns * 1e6))),
                stalled_ratio: mean(2, Measure::Stalled)
                    .and_then(|stalled| ratio(stalled, cycles?)),
                misses: mean(3, Measure::Misses),
                instructions: mean(4, Measure::Instructions),
            }
        });
        Some(Self { sampled, time_ns: ticks / per_ns, means })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sums(of: &[(Measure, u64)]) -> Sums {
        let mut sums = Sums::default();
        of.iter().for_each(|(measure, sum)| sums.measures[*measure as usize] = *sum);
        sums
    }

    fn counted() -> CountersFound {
        CountersFound { reading: 1000, counts: [true; 5], ..CountersFound::default() }
    }

    const ALL: [(Measure, u64); 13] = [
        (Measure::Sampled, 10),
        (Measure::Short, 4),
        (Measure::Time, 60_000),
        (Measure::Faults, 30),
        (Measure::Sleeps, 5),
        (Measure::Counted, 8),
        (Measure::Cycles, 80_000),
        (Measure::Reference, 40_000),
        (Measure::Stalled, 20_000),
        (Measure::Misses, 4),
        (Measure::Instructions, 8000),
        (Measure::SteadyTime, 20_000),
        (Measure::SteadyCycles, 30_000),
    ];

    #[test]
    fn a_site_has_the_means_of_what_was_measured() {
        let measured = Measured::new(&sums(&ALL), &counted(), 2.0).unwrap();
        assert_eq!((measured.sampled, measured.time_ns), (10, 3000.0));
        let means = Means {
            faults: 3.0,
            sleeps: 0.5,
            counted: 8,
            cycles: Some(10_000.0),
            clock: Some(KiloHertz::from_mhz(4000)),
            stalled_ratio: Some(0.25),
            misses: Some(0.5),
            instructions: Some(1000.0),
        };
        assert_eq!(measured.means, Some(means));
        assert_eq!(Measured::new(&sums(&[]), &counted(), 2.0), None);
    }

    #[test]
    fn without_a_reference_the_clock_is_by_the_time_if_the_kernel_s_cycles_count() {
        let clock = |counters: CountersFound| {
            Measured::new(&sums(&ALL), &counters, 2.0).unwrap().means.unwrap().clock
        };
        let counts = [true, false, true, true, true];
        let by_time = CountersFound { counts, ..counted() };
        assert_eq!(clock(by_time), Some(KiloHertz::from_mhz(3000)));
        assert_eq!(clock(CountersFound { is_user_only: true, ..by_time }), None);
    }

    #[test]
    fn sections_shorter_than_a_reading_have_no_numbers() {
        // One of them was interrupted for long.
        let all = |short| [(Measure::Sampled, 9), (Measure::Short, short), (Measure::Time, 90_000)];
        let measured = |short| Measured::new(&sums(&all(short)), &counted(), 2.0).unwrap();
        assert_eq!((measured(5).sampled, measured(5).time_ns), (9, 5000.0));
        assert_eq!(measured(5).means, None);
        assert!(measured(4).means.is_some());
    }

    #[test]
    fn what_is_not_counted_has_its_reason_and_no_number() {
        // ENOENT.
        let refused = [2, NOT_READABLE, 0, 0, 0];
        let counts = [false, false, false, true, true];
        let found = CountersFound { reading: 1000, counts, refused, ..CountersFound::default() };
        let counters = Counters::new(&Root::live(), &found);
        let [cycles, reference, stalled, misses, instructions] = &counters.missing;
        let has = |why: &Option<String>, what| why.as_ref().is_some_and(|why| why.contains(what));
        assert!(has(cycles, "perf_event_open: No such file"), "{cycles:?}");
        assert!(has(reference, "rdpmc"), "{reference:?}");
        assert!(stalled.is_some() && misses.is_none() && instructions.is_none());
        let means = Measured::new(&sums(&ALL), &found, 2.0).unwrap().means.unwrap();
        let some = [means.cycles, means.stalled_ratio, means.misses].map(|mean| mean.is_some());
        assert_eq!((some, means.clock), ([false, false, true], None));
    }
}

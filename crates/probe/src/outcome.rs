//! What a probe finds out: one [`Outcome`] per mode and kernel, plain data.
//!
//! Quantities that were measured repeatedly keep their samples, for histograms and raw output.
//! These types are no wire format; the command line converts them.

use dimmer_processor::class::InstructionClass;
use dimmer_processor::units::CpuId;

use crate::mode::Mode;
use crate::program::Counts;
use crate::stats::{Estimate, Samples};

/// Everything one probe run found.
#[derive(Clone, Debug)]
pub struct Findings {
    /// Ticks of the time-stamp counter per nanosecond.
    pub tsc_ghz: f64,
    /// The measuring instrument, as calibrated before the first mode.
    pub instrument: Instrument,
    /// What went on meanwhile; `None` if no mode that watches it was run.
    pub surroundings: Option<Surroundings>,
    /// What was measured, in order.
    pub outcomes: Vec<Outcome>,
    /// What was asked for and cannot be measured here, with the reason.
    pub skipped: Vec<Skipped>,
    /// Whether the run was ended before all was done; what is in `outcomes` is complete.
    pub interrupted: bool,
}

/// How well this machine can be measured by timing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Instrument {
    /// Core cycles of one 32-bit multiplication, as found by comparison with additions.
    pub multiplication_cycles: u32,
    /// Clock of the undisturbed core (GHz).
    pub nominal_ghz: f64,
    /// Independent additions per cycle: the issue width that scalar code reaches.
    pub issue_per_cycle: f64,
    /// Smallest step of the time-stamp counter (ns).
    pub resolution_ns: f64,
    /// What reading a time stamp adds to a window (ns).
    pub overhead_ns: f64,
    /// Length of one window of scalar code, chain and independent additions together (ns).
    pub window_ns: f64,
}

/// What went on around the measurements without their doing, as seen in the scalar code before each
/// burst (modes `episode`, `upclock`, `instructions`).
#[derive(Clone, Debug, PartialEq)]
pub struct Surroundings {
    /// Clock of the measured core (GHz).
    pub clock_ghz: Quantity,
    /// Share of the time in which another hardware thread of the core was busy (0 to 1); 0 also if
    /// it was busy all the time.
    pub busy_sibling_share: f64,
}

/// A kernel or mode that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Which mode; `None`: all.
    pub mode: Option<Mode>,
    /// Name of the kernel.
    pub kernel: String,
    /// Why not.
    pub reason: String,
}

/// The result of one mode on one kernel.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Which mode.
    pub mode: Mode,
    /// Name of the kernel.
    pub kernel: String,
    /// Its class.
    pub class: InstructionClass,
    /// The CPU that was measured.
    pub cpu: CpuId,
    /// How many CPUs ran the kernel at the same time.
    pub threads: usize,
    /// Repetitions that count, bursts and baselines in pairs.
    pub repetitions: usize,
    /// Windows left out because an interrupt fell into them.
    pub disturbed_windows: usize,
    /// Windows that took more than twice their time without an interrupt of this system, in the
    /// baseline: time that the hypervisor or the firmware took. Not part of any effect.
    pub stolen_windows: usize,
    /// Times the kernel took the core away within timed stretches.
    pub preemptions: u64,
    /// Whether there is an effect at all.
    pub effect: bool,
    /// The largest cost that an effect may have on average and stay unseen here, or the largest
    /// that this one has, both at 95 % (ns).
    pub bound_ns: f64,
    /// How long after the burst was looked at for that bound (ns).
    pub horizon_ns: f64,
    /// What performance counters said over the whole measurement, scalar code included, beside the
    /// timing; `None` where this process may not count or the machine cannot.
    pub counts: Option<Counts>,
    /// What the mode measures.
    pub detail: Detail,
}

/// What each mode measures.
#[derive(Clone, Debug)]
pub enum Detail {
    /// An isolated burst; `upclock` differs only in the burst's length.
    Episode(Episode),
    /// A long stretch of the kernel, from its first instruction on.
    Downclock(Downclock),
    /// What happens before throttling begins.
    Throttle(Throttle),
    /// How many instructions it takes.
    Instructions(Instructions),
    /// Bursts at regular gaps.
    Recurrence(Recurrence),
    /// The settled state.
    Levels(Levels),
}

/// A quantity with its samples.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantity {
    /// Median and interval.
    pub estimate: Estimate,
    /// One value a repetition, ascending.
    pub samples: Samples,
}

impl Quantity {
    /// The quantity that these samples measure; `None` without samples.
    #[must_use]
    pub fn new(samples: Samples) -> Option<Self> {
        Some(Self { estimate: samples.estimate()?, samples })
    }
}

/// One isolated burst and the scalar code after it.
#[derive(Clone, Debug)]
pub struct Episode {
    /// Instructions in the burst.
    pub burst_instructions: u32,
    /// Scalar code before each burst (ns).
    pub quiet_ns: f64,
    /// Duration of the burst (ns).
    pub burst_ns: Quantity,
    /// Share of the bursts that cost anything, where there are two kinds of them: on a shared
    /// machine the same burst may cost microseconds in one millisecond and nothing in the next.
    /// The quantities below are of the bursts that do. Without an effect: the share that may have
    /// one unseen, while the quantities are of all bursts. `None`: every burst has the effect.
    pub effect_share: Option<Estimate>,
    /// Total cost to the scalar code after it (ns).
    pub extra_ns: Quantity,
    /// The mean of that cost over all bursts, of both kinds, each up to a quarter of the horizon
    /// (ns).
    pub mean_extra_ns: Option<Estimate>,
    /// Clock right after the burst over the nominal one.
    pub clock_ratio_after: Quantity,
    /// Independent instructions per cycle right after the burst over the nominal number: below 1
    /// where issue is throttled rather than the clock.
    pub issue_ratio_after: Quantity,
    /// Time from the end of the burst to the nominal clock (ns); `None` without an effect.
    pub release_delay_ns: Option<Quantity>,
    /// The stall at the return to the nominal clock (ns); `None` if fewer than half of the
    /// repetitions have one.
    pub release_stall_ns: Option<Quantity>,
    /// How the burst itself was throttled; `None` if it was not.
    pub throttling: Option<Throttling>,
    /// Clock over time after the burst.
    pub curve: Vec<CurvePoint>,
    /// What other hardware threads lost meanwhile.
    pub neighbours: Vec<Neighbour>,
}

/// Throttled execution at the begin of a stretch of vector code.
#[derive(Clone, Debug)]
pub struct Throttling {
    /// How long (ns).
    pub throttled_ns: Quantity,
    /// Throughput per cycle meanwhile over the settled one; 1 is not throttled.
    pub throttle_factor: Estimate,
}

/// Clock and issue at one time, against the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Middle of the time bin, after the burst's end or the kernel's begin (ns).
    pub at_ns: f64,
    /// Clock over nominal: mean and its 95 % interval.
    pub clock_ratio: Estimate,
    /// Share of repetitions with a stall in this bin, above the baseline's.
    pub stall_share: f64,
}

/// The kind of another hardware thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Another core.
    OtherCore,
    /// The other hardware thread of the same core.
    Sibling,
}

/// Scalar code on another hardware thread during an episode.
#[derive(Clone, Debug)]
pub struct Neighbour {
    /// Where.
    pub cpu: CpuId,
    /// Which kind.
    pub relation: Relation,
    /// What the episode cost it (ns).
    pub extra_ns: Quantity,
    /// Whether that is an effect.
    pub effect: bool,
}

/// A step of the clock in a long stretch of vector code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// When the step begins, after the kernel's first instruction (ns).
    pub at_ns: f64,
    /// Clock over nominal from here on.
    pub clock_ratio: f64,
    /// Kernel instructions per cycle from here on.
    pub instructions_per_cycle: f64,
}

/// The lowest clock of a stretch that goes on at a higher one.
#[derive(Clone, Debug)]
pub struct Lowest {
    /// Time from the first instruction to it (ns).
    pub after_ns: Quantity,
    /// Clock over nominal.
    pub clock_ratio: Quantity,
}

/// A long stretch of the kernel.
#[derive(Clone, Debug)]
pub struct Downclock {
    /// How long it was run (ns).
    pub observed_ns: f64,
    /// Share of the stretches whose clock is lowered at all, where there are two kinds of them, as
    /// for [`Episode::effect_share`]. Everything below but throttling is of those.
    pub effect_share: Option<Estimate>,
    /// Time from the first instruction to the settled clock (ns); `None` if the clock stays.
    pub settle_ns: Option<Quantity>,
    /// The lowest clock on the way; `None` if that is the settled one.
    pub lowest: Option<Lowest>,
    /// Stall on the way there (ns); `None` if fewer than half of the repetitions have one.
    pub stall_ns: Option<Quantity>,
    /// Settled clock over nominal.
    pub clock_ratio: Quantity,
    /// Settled kernel instructions per core cycle.
    pub instructions_per_cycle: Quantity,
    /// Throttled execution at the begin.
    pub throttling: Option<Throttling>,
    /// Every level of the clock that is visited, in order; the first is the begin.
    pub steps: Vec<Step>,
    /// Clock over time.
    pub curve: Vec<CurvePoint>,
    /// Throughput over time: middle of the bin (ns), kernel instructions per cycle.
    pub throughput: Vec<(f64, f64)>,
}

/// The begin of the kernel, before throttling.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Time before throttled execution begins (ns); `None` if nothing is throttled.
    pub pre_throttle_ns: Option<Quantity>,
    /// Instructions executed before that; `None` if nothing is throttled.
    pub pre_throttle_instructions: Option<Quantity>,
    /// The throttled stretch.
    pub throttling: Option<Throttling>,
    /// Throughput at the begin: instruction count, kernel instructions per settled cycle.
    pub throughput: Vec<(f64, f64)>,
}

/// How many instructions it takes to cause the effect.
#[derive(Clone, Debug)]
pub struct Instructions {
    /// Share of bursts with an effect, by instructions in the burst: (instructions, share, bursts).
    pub response: Vec<(u32, f64, usize)>,
    /// Quantiles of the number required: (share of bursts, instructions). Empty without an effect.
    pub quantiles: Vec<(f64, f64)>,
    /// The number that suffices for half of the bursts; `None` without an effect.
    pub median: Option<Estimate>,
}

/// Bursts at regular gaps.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// Instructions in each burst.
    pub burst_instructions: u32,
    /// One entry per gap, ascending; around a change each is the mean of several, up to 21 % apart.
    pub gaps: Vec<Gap>,
    /// The gap at which the regime changes (us): from there on licenses are lost, or the clock
    /// returns. The interval is the range over stretches of the measurement. `None` if all gaps
    /// behave alike, or too nearly so.
    pub regime_change_us: Option<Estimate>,
    /// What changes there, in words.
    pub regime: String,
}

/// Bursts at one gap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Scalar work between two bursts, as long as it takes between scalar stand-ins (us).
    pub gap_us: f64,
    /// How much longer the scalar work takes (%).
    pub slowdown_pct: Estimate,
    /// Share of gaps with a stall, above the baseline's.
    pub stall_share: f64,
    /// Duration of a burst (ns).
    pub burst_ns: Estimate,
    /// Share of the bursts that ran at full speed, because the license was kept over the gap;
    /// `None` if isolated bursts are not throttled, so that it cannot be told.
    pub kept_share: Option<f64>,
    /// How long bursts recur before the first is kept (ms); `None` if none is, and beyond the
    /// change, where somebody else's wide code is what keeps them.
    pub kept_after_ms: Option<f64>,
    /// Clock at the end of the gap over nominal.
    pub clock_ratio: f64,
}

/// The settled state of one kernel on a number of CPUs.
#[derive(Clone, Debug)]
pub struct Levels {
    /// CPUs that ran the kernel.
    pub active: usize,
    /// Settled clock (GHz).
    pub clock_ghz: Estimate,
    /// Settled clock over that of scalar code on as many CPUs.
    pub clock_ratio: Estimate,
    /// Kernel instructions per core cycle.
    pub instructions_per_cycle: Estimate,
}

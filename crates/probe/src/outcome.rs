//! Results of a probe: one [`Outcome`] per mode and kernel, plain data.
//!
//! Quantities that were measured repeatedly keep their samples, for histograms and raw output.
//! These types are not a wire format; the command line converts them.

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
    /// Conditions during the run; `None` if no mode that observes them was run.
    pub surroundings: Option<Surroundings>,
    /// What was measured, in order.
    pub outcomes: Vec<Outcome>,
    /// Requested measurements that cannot be made here, with the reason.
    pub skipped: Vec<Skipped>,
    /// Whether the run was stopped early; the entries of `outcomes` are complete.
    pub interrupted: bool,
}

/// Quality of this machine as an instrument for timing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Instrument {
    /// Core cycles of one 32-bit multiplication, found by comparison with additions.
    pub multiplication_cycles: u32,
    /// Clock of the undisturbed core (GHz).
    pub nominal_ghz: f64,
    /// Independent additions per cycle: the issue width for scalar code.
    pub issue_per_cycle: f64,
    /// Smallest step of the time-stamp counter (ns).
    pub resolution_ns: f64,
    /// Time that reading a time stamp adds to a window (ns).
    pub overhead_ns: f64,
    /// Length of one pair of windows of scalar code: chain and independent additions together (ns).
    pub window_ns: f64,
}

/// Conditions around the measurements that the probe did not cause, as seen in the scalar code
/// before each burst (modes `episode`, `upclock`, `instructions`).
#[derive(Clone, Debug, PartialEq)]
pub struct Surroundings {
    /// Clock of the measured core (GHz).
    pub clock_ghz: Quantity,
    /// Share of the time in which another hardware thread of the core was busy (0 to 1); also 0 if
    /// it was busy all the time.
    pub busy_sibling_share: f64,
}

/// A kernel or mode that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The mode; `None` stands for all modes.
    pub mode: Option<Mode>,
    /// Name of the kernel.
    pub kernel: String,
    /// Reason, as a phrase.
    pub reason: String,
    /// Whether interrupts are the reason, so that another run may measure it.
    pub is_disturbed: bool,
}

/// The result of one mode on one kernel.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The mode.
    pub mode: Mode,
    /// Name of the kernel.
    pub kernel: String,
    /// The kernel's class.
    pub class: InstructionClass,
    /// The CPU that was measured.
    pub cpu: CpuId,
    /// Number of CPUs that ran the kernel at the same time.
    pub threads: usize,
    /// Number of repetitions that count, each a burst and a baseline.
    pub repetitions: usize,
    /// Windows left out because an interrupt fell into them.
    pub disturbed_windows: usize,
    /// Windows of the baseline that took more than twice their time without an interrupt of this
    /// system: the hypervisor or the firmware took that time. Not part of any effect.
    pub stolen_windows: usize,
    /// How often the kernel took the core away within timed stretches.
    pub preemptions: u64,
    /// Whether there is an effect.
    pub effect: bool,
    /// The largest mean cost that an effect may have here and stay unseen; if there is an effect,
    /// the largest cost that it may have. Both at 95 % (ns).
    pub bound_ns: f64,
    /// Length of the time after the burst that was examined for that bound (ns).
    pub horizon_ns: f64,
    /// Performance counters over the whole measurement, including scalar code, in addition to the
    /// timing; `None` if this process may not count or the machine cannot.
    pub counts: Option<Counts>,
    /// The measured quantities of the mode.
    pub detail: Detail,
}

/// The measured quantities of each mode.
#[derive(Clone, Debug)]
pub enum Detail {
    /// An isolated burst; `upclock` differs only in the burst's length.
    Episode(Episode),
    /// A long stretch of the kernel, from its first instruction on.
    Downclock(Downclock),
    /// The start of the kernel, up to throttling.
    Throttle(Throttle),
    /// The number of instructions that cause the effect.
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
    /// One value for each repetition, ascending.
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
    /// Length of the scalar code before each burst (ns).
    pub quiet_ns: f64,
    /// Duration of the burst (ns).
    pub burst_ns: Quantity,
    /// Share of the bursts with a cost, if there are two kinds of bursts: on a shared machine the
    /// same burst may cost microseconds in one millisecond and nothing in the next. The quantities
    /// below then describe the bursts with a cost. Without an effect: the share that may have one
    /// unseen, and the quantities describe all bursts. `None`: every burst has the effect.
    pub effect_share: Option<Estimate>,
    /// Total cost to the scalar code after the burst (ns).
    pub extra_ns: Quantity,
    /// The mean of that cost over all bursts of both kinds, each limited to a quarter of the
    /// horizon (ns).
    pub mean_extra_ns: Option<Estimate>,
    /// Clock right after the burst, over nominal.
    pub clock_ratio_after: Quantity,
    /// Independent instructions per cycle right after the burst, over the nominal number: below 1
    /// if issue is throttled rather than the clock.
    pub issue_ratio_after: Quantity,
    /// Time from the end of the burst to the nominal clock (ns); `None` without an effect.
    pub release_delay_ns: Option<Quantity>,
    /// The stall at the return to the nominal clock (ns); `None` if fewer than half of the
    /// repetitions have one.
    pub release_stall_ns: Option<Quantity>,
    /// Throttling of the burst itself; `None` if it was not throttled.
    pub throttling: Option<Throttling>,
    /// Clock over time after the burst.
    pub curve: Vec<CurvePoint>,
    /// Cost to other hardware threads in the meantime.
    pub neighbours: Vec<Neighbour>,
}

/// Throttled execution at the start of a stretch of vector code.
#[derive(Clone, Debug)]
pub struct Throttling {
    /// Duration (ns).
    pub throttled_ns: Quantity,
    /// Throughput per cycle during that time, over the settled one; 1 means not throttled.
    pub throttle_factor: Estimate,
}

/// Clock and issue at one time, against the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Middle of the time bin, after the end of the burst or the start of the kernel (ns).
    pub at_ns: f64,
    /// Clock over nominal: mean and its 95 % interval.
    pub clock_ratio: Estimate,
    /// Share of repetitions with a stall in this bin; after a burst, beyond the baseline's, and at
    /// least 0.
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
    /// The hardware thread.
    pub cpu: CpuId,
    /// Its relation to the measured one.
    pub relation: Relation,
    /// Cost of the episode to it (ns).
    pub extra_ns: Quantity,
    /// Whether that cost is an effect.
    pub effect: bool,
}

/// A step of the clock in a long stretch of vector code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Start of the step, after the kernel's first instruction (ns).
    pub at_ns: f64,
    /// Clock over nominal from here on.
    pub clock_ratio: f64,
    /// Kernel instructions per cycle from here on.
    pub instructions_per_cycle: f64,
}

/// The lowest clock of a stretch that continues at a higher one.
#[derive(Clone, Debug)]
pub struct Lowest {
    /// Time from the first instruction to the lowest clock (ns).
    pub after_ns: Quantity,
    /// Clock over nominal.
    pub clock_ratio: Quantity,
}

/// A long stretch of the kernel.
#[derive(Clone, Debug)]
pub struct Downclock {
    /// Duration of the stretch (ns).
    pub observed_ns: f64,
    /// Share of the stretches whose clock is lowered at all, if there are two kinds, as in
    /// [`Episode::effect_share`]. All quantities below, except throttling, describe those.
    pub effect_share: Option<Estimate>,
    /// Time from the first instruction to the settled clock (ns); `None` if the clock does not
    /// change.
    pub settle_ns: Option<Quantity>,
    /// The lowest clock before that; `None` if it is the settled one.
    pub lowest: Option<Lowest>,
    /// Stall before that (ns); `None` if fewer than half of the repetitions have one.
    pub stall_ns: Option<Quantity>,
    /// Settled clock, over nominal.
    pub clock_ratio: Quantity,
    /// Settled kernel instructions per core cycle.
    pub instructions_per_cycle: Quantity,
    /// Throttled execution at the start.
    pub throttling: Option<Throttling>,
    /// Every level of the clock, in order of time; the first is the level at the start.
    pub steps: Vec<Step>,
    /// Clock over time.
    pub curve: Vec<CurvePoint>,
    /// Throughput over time: middle of the bin (ns), kernel instructions per cycle.
    pub throughput: Vec<(f64, f64)>,
}

/// The start of the kernel, before throttling.
#[derive(Clone, Debug)]
pub struct Throttle {
    /// Time before throttled execution starts (ns); `None` if nothing is throttled.
    pub pre_throttle_ns: Option<Quantity>,
    /// Instructions executed before throttled execution; `None` if nothing is throttled.
    pub pre_throttle_instructions: Option<Quantity>,
    /// The throttled stretch.
    pub throttling: Option<Throttling>,
    /// Throughput at the start: instruction count, kernel instructions per settled cycle.
    pub throughput: Vec<(f64, f64)>,
}

/// The number of instructions that cause the effect.
#[derive(Clone, Debug)]
pub struct Instructions {
    /// Bursts by their length: instructions, the share of bursts with an effect over that of the
    /// longest bursts, which were tried in turn with them (at most 1), and the number of bursts.
    pub response: Vec<(u32, f64, usize)>,
    /// Quantiles of the required number: (share of bursts, instructions). Empty without an effect.
    pub quantiles: Vec<(f64, f64)>,
    /// The number that is enough for half of the bursts; `None` without an effect.
    pub median: Option<Estimate>,
}

/// Bursts at regular gaps.
#[derive(Clone, Debug)]
pub struct Recurrence {
    /// Instructions in each burst.
    pub burst_instructions: u32,
    /// One entry for each gap, ascending; around a change, each entry is the mean of several gaps
    /// up to 21 % apart.
    pub gaps: Vec<Gap>,
    /// The gap at which the regime changes (us): from there on licenses are lost, or the clock
    /// returns. The interval is the range over stretches of the measurement. `None` if all gaps
    /// behave alike, or nearly so.
    pub regime_change_us: Option<Estimate>,
    /// The change, in words.
    pub regime: String,
}

/// Bursts at one gap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gap {
    /// Scalar work between two bursts, as the time that it takes between scalar stand-ins (us).
    pub gap_us: f64,
    /// Slow-down of the scalar work (%).
    pub slowdown_pct: Estimate,
    /// Share of gaps with a stall of their own, beyond what the baseline's share explains; 0 where
    /// the difference may be chance or is below 0.05.
    pub stall_share: f64,
    /// Duration of a burst (ns).
    pub burst_ns: Estimate,
    /// Share of the bursts that ran at full speed because the license was kept over the gap; `None`
    /// if isolated bursts are not throttled, so that it cannot be measured.
    pub kept_share: Option<f64>,
    /// Time for which bursts recur before the first one is kept (ms). `None` if none is kept, and
    /// beyond the change, where wide code of other programs keeps them.
    pub kept_after_ms: Option<f64>,
    /// Clock at the end of the gap, over nominal.
    pub clock_ratio: f64,
}

/// The settled state of one kernel on a number of CPUs.
#[derive(Clone, Debug)]
pub struct Levels {
    /// Number of CPUs that ran the kernel.
    pub active: usize,
    /// Settled clock (GHz).
    pub clock_ghz: Estimate,
    /// Settled clock, over that of scalar code on as many CPUs.
    pub clock_ratio: Estimate,
    /// Kernel instructions per core cycle.
    pub instructions_per_cycle: Estimate,
}

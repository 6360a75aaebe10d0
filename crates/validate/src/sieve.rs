//! Paper 001, "Constructing a library for mitigating AVX-induced performance degradation" on the
//! i9-7940X: its first measurements of wide code mixed into scalar code (§3.1, §3.2).
//!
//! All cores are busy, because idle states were off: the clocks are those with 14 active cores.

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::{Extent, Machine, Moment, Picos, Script, Segment, Settings, SimError, Step};

use crate::inputs::Inputs;
use crate::modes::MS;
use crate::row::{Draft, words};
use crate::{Class, Experiment, Left, Row};

/// Number of busy cores.
const CORES: u32 = 14;

/// Instructions of an iteration of the sieve: 64.54 s for 40 000 of them (§3.2), at 3.8 GHz and one
/// instruction per cycle.
const SIEVE: f64 = 6_131_000.0;

/// The reason why no times are compared.
const FIGURE: &str = "the paper has the times in a figure alone";

/// Number of iterations that are simulated.
const ITERATIONS: u64 = 200;

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left { id: "R001-03", what: "multiply-adds with stores", why: "only in a figure" },
    Left {
        id: "R001-04",
        what: "time of the sieve alone",
        why: "what an iteration is made of here",
    },
];

/// The experiments of the paper that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] =
    &[Experiment { name: "bursts in a sieve (§3.2)", rows: recreate }];

pub(crate) fn recreate(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let model = &inputs.model;
    let [scalar, ymm, zmm] = [
        Segment { class: InstructionClass::Heavy128, ..Segment::SCALAR },
        Segment { class: InstructionClass::Heavy256, ..Segment::FMA_512 },
        Segment::FMA_512,
    ];
    let clock = |code: Segment| settled_ghz(model, code);
    // A multiply-add on eight numbers, as the paper's code does it: one addition and one
    // multiplication for each number, two multiply-adds on four numbers, or one on eight.
    let lanes = |code: Segment, lanes: f64| Ok::<f64, SimError>(clock(code)? * code.ipc * lanes);
    let (short, long) = (Bursts::new(13, model)?, Bursts::new(20, model)?);
    Ok(vec![
        Draft::new(
            "R001-01",
            Class::SeenAgain,
            "Fig. 6.1",
            "settled clock under scalar, heavy 256-bit and heavy 512-bit code",
            "GHz",
        )
        .value("L0", 3.8, clock(scalar)?)
        .value("L1", 3.3, clock(ymm)?)
        .value("L2", 2.5, clock(zmm)?)
        .row("parameters of the model; that each code settles at its level is the governor's"),
        Draft::new(
            "R001-02",
            Class::SeenAgain,
            "Fig. 3.1c, derived",
            "multiply-adds of doubles a second, in registers",
            "billion",
        )
        .value("scalar", 3.8, lanes(scalar, 1.0)?)
        .value("256 bit", 26.4, lanes(ymm, 4.0)?)
        .value("512 bit", 40.0, lanes(zmm, 8.0)?)
        .row("settled clock times what the units do in a cycle"),
        words(
            "R001-05",
            Class::Predicted,
            "Fig. 3.2a",
            "short wide bursts in the sieve: slower than one after the other, slower than scalar bursts",
            "yes, yes",
            short.verdict().as_str(),
            FIGURE,
        ),
        words(
            "R001-06",
            Class::Predicted,
            "Fig. 3.2b",
            "long wide bursts in the sieve, likewise",
            "yes, no",
            long.verdict().as_str(),
            FIGURE,
        ),
    ])
}

/// Times of an iteration with its burst (ms).
struct Bursts {
    /// Wide bursts, one before each iteration of the sieve.
    mixed: f64,
    /// The same number of scalar operations instead.
    mixed_scalar: f64,
    /// All iterations, then all wide bursts.
    apart: f64,
}

impl Bursts {
    /// Bursts of 2^(`pow` - 1) loops of 16 multiply-adds (§3.2), or of as many scalar additions,
    /// one a cycle.
    fn new(pow: u32, model: &Model) -> Result<Self, SimError> {
        let instructions = 2.0_f64.powf(f64::from(pow) - 1.0) * 16.0;
        let extent = Extent::Instructions(instructions);
        let wide = Segment { extent, ..Segment::FMA_512 };
        let scalar = Segment { extent, ..Segment::SCALAR };
        let sieve = Segment { extent: Extent::Instructions(SIEVE), ..Segment::SCALAR };
        let iteration = |steps: &[Segment]| time(model, steps);
        let apart = iteration(&[sieve])? + iteration(&[wide])?;
        Ok(Self {
            mixed: iteration(&[wide, sieve])?,
            mixed_scalar: iteration(&[scalar, sieve])?,
            apart,
        })
    }

    /// Whether mixing wide bursts in is slower than one after the other, and slower than mixing
    /// scalar bursts in.
    fn verdict(&self) -> String {
        let yes = |slower| if slower { "yes" } else { "no" };
        format!("{}, {}", yes(self.mixed > self.apart), yes(self.mixed > self.mixed_scalar))
    }
}

/// Time of an iteration of this code (ms), while the other cores are busy.
fn time(model: &Model, code: &[Segment]) -> Result<f64, SimError> {
    let steps = code.iter().map(|code| (Step::Run(*code), LicenseLevel::new(0))).collect();
    let mut machine = busy(model)?;
    let thread = machine.spawn("measured", Box::new(Script::new(steps, ITERATIONS)), Some(0));
    machine.run(Moment::START + 10_000 * MS)?;
    let finished = machine.threads().nth(thread).and_then(|totals| totals.finished);
    Ok(finished.map_or(f64::NAN, |at| at.since_start().as_f64() / (MS * ITERATIONS).as_f64()))
}

/// The clock at which this code settles, computed from what it executes (GHz).
fn settled_ghz(model: &Model, code: Segment) -> Result<f64, SimError> {
    let part = |counter| Step::Run(Segment { counter, extent: Extent::Time(10 * MS), ..code });
    let mut machine = busy(model)?;
    let thread = machine.spawn("measured", Box::new(Script::once([part(0), part(1)])), Some(0));
    machine.run(Moment::START + 30 * MS)?;
    let done = machine.threads().nth(thread).and_then(|totals| totals.instructions.get(1).copied());
    Ok(done.map_or(f64::NAN, |done| done / code.ipc / (10 * MS).ns()))
}

/// A machine on which all cores except the first run scalar code.
fn busy(model: &Model) -> Result<Machine<()>, SimError> {
    let mut machine = Machine::new(model, Settings { cores: CORES, ..Settings::default() }, ())?;
    for core in 1..usize::try_from(CORES).unwrap_or(1) {
        let code = Segment { extent: Extent::Time(Picos::MAX), ..Segment::SCALAR };
        machine.spawn("busy", Box::new(Script::once([Step::Run(code)])), Some(core));
    }
    Ok(machine)
}

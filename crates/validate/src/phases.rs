//! The multi-phase runs of paper 000 (§5.1.2, §5.2.2).

use dimmer_policy::license::Chance as _;
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::{
    Extent, Governor, Machine, Moment, Picos, Random, Script, Segment, Settings, SimError, Step,
};

use crate::inputs::Inputs;
use crate::modes::US;

/// How much longer a phase is than requested, on average: the main thread sleeps, and Linux lets it
/// sleep 50 µs longer if no other timer wakes the CPU (`PR_SET_TIMERSLACK`, prctl(2)).
const SLACK: Picos = Picos::from_ps(50 * US.ps());

/// Runs scalar code, heavy code, and scalar code again, for these durations (µs). Returns the
/// instructions that each phase executed.
pub(crate) fn run(
    inputs: &Inputs<'_>,
    governor: Governor,
    seed: u64,
    durations: [u64; 3],
) -> Result<[f64; 3], SimError> {
    let mut chance = Random::new(seed);
    let lasted = durations.map(|us| {
        let late = SLACK.as_f64() + inputs.late_sd_us * US.as_f64() * chance.normal();
        us * US + Picos::rounded(late.max(0.0))
    });
    let mut machine = machine(inputs, governor, seed, lasted)?;
    // What the governors do after the last phase does not matter.
    machine.run(Moment::START + durations.iter().sum::<u64>() * US + 6 * SLACK)?;
    let done = machine.threads().next().map(|thread| thread.instructions.clone());
    let done = done.unwrap_or_default();
    Ok([0, 1, 2].map(|phase| done.get(phase).copied().unwrap_or(f64::NAN)))
}

/// How often the governor interrupts heavy code, or is called, until the core is at L2.
pub(crate) fn interrupts(inputs: &Inputs<'_>, governor: Governor) -> Result<f64, SimError> {
    let before = 1000 * US;
    let mut machine = machine(inputs, governor, 1, [before, 1000 * US, Picos::ZERO])?;
    let count = |machine: &Machine<()>| machine.cores().map(|core| core.interrupts).sum::<u64>();
    let begins = Moment::START + before;
    machine.run(begins - Picos::from_ps(1))?;
    let before = count(&machine);
    // Longer than AVXFREQ takes to reach L2, but too short for its next look.
    machine.run(begins + 150 * US)?;
    Ok((count(&machine) - before) as f64)
}

fn machine(
    inputs: &Inputs<'_>,
    governor: Governor,
    seed: u64,
    [before, heavy, after]: [Picos; 3],
) -> Result<Machine<()>, SimError> {
    let costs = inputs.costs;
    let settings = Settings { governor, costs, seed, ..Settings::default() };
    let mut machine = Machine::new(&inputs.model, settings, ())?;
    let scalar = |span| Segment { extent: Extent::Time(span), ..Segment::SCALAR };
    let heavy = Segment { extent: Extent::Time(heavy), ..Segment::FMA_512 };
    let phases = [scalar(before), heavy, scalar(after)];
    let levels = [0, 2, 0].map(LicenseLevel::new);
    let numbered = phases.into_iter().enumerate();
    let steps =
        numbered.map(|(counter, phase)| Step::Run(Segment { counter, ..phase })).zip(levels);
    let script = Script::new(steps.collect(), 1).under(governor);
    machine.spawn("phases", Box::new(script), Some(0));
    Ok(machine)
}

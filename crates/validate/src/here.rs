//! Predicts the slow-down of scalar code interleaved with bursts from a processor's model, for a
//! comparison with what the processor does.
//!
//! A prediction uses the model and the program, but no measurement of such programs.

use dimmer_policy::license::hardware::Rules;
use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Missing, Model, Rule, Sourced, Upper};
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::{
    Clocks, Extent, Machine, Moment, Program, Random, Segment, Settings, SimError, Step,
};

/// Instructions of a burst per cycle: two units, as in paper 000 §5.1.2, assumed for all kernels;
/// of tiles, a row of 16 a cycle (Intel's optimization manual, "TMUL").
const fn ipc(class: InstructionClass) -> f64 {
    match class {
        InstructionClass::Tile => 1.0 / 16.0,
        _ => 2.0,
    }
}

/// Number of runs of which the median is taken, because a model may contain randomness.
const SEEDS: u64 = 3;

/// Cycles of bursts and scalar code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pattern {
    /// The class of the bursts' instructions.
    pub class: InstructionClass,
    /// Number of instructions of a burst.
    pub burst: u32,
    /// How long the scalar code of a cycle takes at the clock of the first level (ns).
    pub scalar_ns: f64,
    /// Number of cycles before those that count.
    pub learning: usize,
    /// Number of cycles that count.
    pub measured: usize,
}

/// How much longer the scalar code takes than without bursts, as a share of its time.
///
/// # Errors
/// If the model lacks what the simulator needs.
pub fn slowdown(model: &Model, pattern: &Pattern) -> Result<f64, SimError> {
    let ghz = Clocks::new(model, 1)?.ghz(LicenseLevel::new(0), 1);
    let cycles = pattern.scalar_ns * ghz;
    let one = |seed| {
        let mut machine = Machine::new(model, Settings { seed, ..Settings::default() }, ())?;
        machine.spawn("interleaved", Box::new(Interleaved::new(pattern, cycles)), Some(0));
        machine.run(Moment::MAX)?;
        let time = machine.threads().next().and_then(|thread| thread.time.get(COUNTED).copied());
        Ok(time.unwrap_or_default().as_f64())
    };
    let mut times: Vec<f64> = (1..=SEEDS).map(one).collect::<Result<_, SimError>>()?;
    times.sort_by(f64::total_cmp);
    let without_ps = pattern.scalar_ns * 1000.0 * pattern.measured as f64;
    // Times are whole picoseconds: without any slow-down, what remains is rounding.
    let share = times[times.len() / 2] / without_ps - 1.0;
    Ok((share * 1e6).round() / 1e6)
}

/// The counter of the scalar code that counts; all other code has 0.
const COUNTED: usize = 1;

/// The program of bursts and scalar code.
#[derive(Clone, Debug)]
struct Interleaved {
    burst: Segment,
    scalar: Segment,
    learning: usize,
    cycles: usize,
    step: usize,
}

impl Interleaved {
    fn new(pattern: &Pattern, scalar_cycles: f64) -> Self {
        let extent = Extent::Instructions(f64::from(pattern.burst));
        let class = pattern.class;
        Self {
            burst: Segment { class, ipc: ipc(class), extent, ..Segment::SCALAR },
            scalar: Segment { extent: Extent::Instructions(scalar_cycles), ..Segment::SCALAR },
            learning: pattern.learning,
            cycles: pattern.learning + pattern.measured,
            step: 0,
        }
    }
}

impl Program for Interleaved {
    fn next(&mut self, _: Moment, _: &mut Random) -> Step {
        let (cycle, is_scalar) = (self.step / 2, self.step % 2 == 1);
        self.step += 1;
        if cycle == self.cycles {
            return Step::End;
        }
        let counter = if is_scalar && cycle >= self.learning { COUNTED } else { 0 };
        let segment = if is_scalar { self.scalar } else { self.burst };
        Step::Run(Segment { counter, ..segment })
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}

/// Whether code of this class asks for a level above L0, according to the model.
///
/// # Errors
/// If the model's rules are not complete.
pub fn asks_for_level(model: &Model, class: InstructionClass) -> Result<bool, Missing> {
    let demand = Segment { class, ipc: ipc(class), ..Segment::SCALAR }.demand();
    Ok(Rules::new(model)?.level_of(&demand) > LicenseLevel::new(0))
}

/// Whether the model has a rule for this class.
#[must_use]
pub fn has_rule(model: &Model, class: InstructionClass) -> bool {
    rules(model, class).next().is_some()
}

/// The model's rules for code of this class that leaves no upper register halves dirty.
fn rules(model: &Model, class: InstructionClass) -> impl Iterator<Item = &Rule> {
    let is_clean = |rule: &&Rule| rule.upper == Upper::Any;
    model.rules.iter().filter(move |rule| rule.class == class).filter(is_clean)
}

/// A value on which predictions rest, and which the model lacks or guesses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lack {
    /// The value's key.
    pub key: String,
    /// Whether the model has a guess, rather than nothing.
    pub is_guess: bool,
}

/// The values that the model lacks for predicting code of these classes.
#[must_use]
pub fn lacks(model: &Model, classes: &[InstructionClass]) -> Vec<Lack> {
    let mut lacks = Vec::new();
    let mut look = |key: &str, is_guess: Option<bool>| {
        if is_guess != Some(false) {
            lacks.push(Lack { key: key.to_owned(), is_guess: is_guess.is_some() });
        }
    };
    let mut has_levels = false;
    let mut all_granted = true;
    for class in classes {
        if !has_rule(model, *class) {
            look(&format!("rule.level of {class}"), None);
        }
        for rule in rules(model, *class) {
            look(&format!("rule.level of {class}"), Some(rule.level.guess));
            if rule.level.value > LicenseLevel::new(0) {
                has_levels = true;
                all_granted &= rule.grant_ns.is_some();
                look(&format!("rule.instructions of {class}"), guess(&rule.instructions));
            }
        }
    }
    if !has_levels {
        return lacks;
    }
    for level in model.levels.iter().skip(1) {
        let clock = level.bins.first().map(|bin| bin.mhz.guess);
        look(&format!("level.clock_ratio of {}", level.name), clock.or(guess(&level.clock_ratio)));
    }
    let (request, release) = (&model.request, &model.release);
    if !all_granted {
        let throttled = guess(&request.throttled_ns).or(guess(&request.voltage_ns));
        look("request.throttled_ns", throttled);
    }
    look("request.throttle_factor", guess(&request.throttle_factor));
    look("request.stall_ns", guess(&request.stall_ns));
    look("release.hold_ns", guess(&release.hold_ns));
    look("release.stall_ns", guess(&release.stall_ns));
    look("release.recurrence_ns", guess(&release.recurrence_ns));
    if release.recurrence_ns.is_some() {
        look("release.recurrence_after_ns", guess(&release.recurrence_after_ns));
    }
    look("long_recurrence", model.long_recurrences.first().map(|long| long.slowdown.guess));
    lacks
}

/// Whether a value is a guess; `None` if there is none.
fn guess<T>(value: &Option<Sourced<T>>) -> Option<bool> {
    value.as_ref().map(|sourced| sourced.guess)
}

#[cfg(test)]
mod tests {
    use super::*;
    use dimmer_processor::model::builtin;

    fn model(name: &str) -> Model {
        Model::parse(std::path::Path::new(name), builtin(name).unwrap()).unwrap()
    }

    fn pattern(class: InstructionClass, burst: u32, scalar_ns: f64) -> Pattern {
        Pattern { class, burst, scalar_ns, learning: 200, measured: 100 }
    }

    #[test]
    fn code_that_asks_for_no_level_slows_nothing() {
        let model = model("i9-7940x");
        let light = pattern(InstructionClass::Light256, 100, 1000.0);
        assert_eq!(slowdown(&model, &light).unwrap(), 0.0);
        assert!(!asks_for_level(&model, light.class).unwrap());
    }

    #[test]
    fn a_level_that_is_held_until_the_next_burst_slows_all_scalar_code() {
        let model = model("i9-7940x");
        let heavy = pattern(InstructionClass::Heavy512, 1000, 10_000.0);
        let level = Rules::new(&model).unwrap().level_of(
            &Segment { class: heavy.class, ipc: ipc(heavy.class), ..Segment::SCALAR }.demand(),
        );
        let clocks = Clocks::new(&model, 1).unwrap();
        let expected = clocks.ghz(LicenseLevel::new(0), 1) / clocks.ghz(level, 1) - 1.0;
        let found = slowdown(&model, &heavy).unwrap();
        assert!((found - expected).abs() < 1e-4, "{found} is not {expected}");
        assert!(asks_for_level(&model, heavy.class).unwrap());
    }

    /// A processor like the Xeon 6, as the tests of `dimmer-probe` make it up and measure it.
    fn xeon_6(release: &str) -> Model {
        let text = format!(
            "schema = \"dimmer/model/1\"\nname = \"x\"\nvendor = \"x\"\nmicroarchitecture = \"x\"\n\
             clock = {{ max_mhz = {{ value = 4000, source = \"x\" }} }}\n\
             level = [{{ name = \"L0\" }}, {{ name = \"L1\", clock_ratio = {{ value = 0.94, source = \"x\" }} }}]\n\
             rule = [{{ class = \"heavy-512\", level = {{ value = \"L1\", source = \"x\" }}, \
             instructions = {{ value = 30, source = \"x\" }} }}]\n\
             request = {{ throttle_factor = {{ value = 0.25, source = \"x\" }}, \
             throttled_ns = {{ value = 600, source = \"x\" }} }}\n\
             release = {{ hold_ns = {{ value = 2500, source = \"x\" }}, \
             stall_ns = {{ value = 1400, source = \"x\" }}{release} }}\n"
        );
        Model::parse(std::path::Path::new("x.toml"), &text).unwrap()
    }

    #[test]
    fn a_level_given_back_between_bursts_costs_its_hold_and_a_halt() {
        // The level comes after the burst, and is held from the end of the burst on.
        let found =
            slowdown(&xeon_6(""), &pattern(InstructionClass::Heavy512, 100, 100e3)).unwrap();
        let cost_ns = 1400.0 + 2500.0 * 0.06;
        assert!((found * 100e3 / cost_ns - 1.0).abs() < 0.05, "{} ns", found * 100e3);
    }

    #[test]
    fn a_level_kept_between_recurring_bursts_slows_by_its_clock() {
        let kept = ", recurrence_ns = { value = 240000, source = \"x\" }, \
                    recurrence_after_ns = { value = 5000000, source = \"x\" }";
        let heavy = pattern(InstructionClass::Heavy512, 100, 30e3);
        let found = slowdown(&xeon_6(kept), &heavy).unwrap();
        assert!((found - (1.0 / 0.94 - 1.0)).abs() < 1e-4, "{found}");
    }

    /// As on an Emerald Rapids: bursts keep the level, but only long stretches lower the clock.
    #[test]
    fn a_level_kept_between_recurring_bursts_slows_as_measured_if_that_is_known() {
        let kept = ", recurrence_ns = { value = 240000, source = \"x\" }, \
                    recurrence_slowdown = { value = 0.001, source = \"x\" }";
        let heavy = pattern(InstructionClass::Heavy512, 100, 30e3);
        let found = slowdown(&xeon_6(kept), &heavy).unwrap();
        assert!((found - 0.001).abs() < 1e-4, "{found}");
    }

    #[test]
    fn what_is_missing_or_guessed_is_named() {
        let mut model = model("i9-7940x");
        let classes = [InstructionClass::Heavy512];
        let is_lacking = |model: &Model, key: &str| {
            lacks(model, &classes).iter().any(|lack| lack.key == key && !lack.is_guess)
        };
        assert!(!is_lacking(&model, "release.hold_ns"));
        model.release.hold_ns = None;
        assert!(is_lacking(&model, "release.hold_ns"));
        model.rules.clear();
        assert!(!has_rule(&model, classes[0]));
        let none = [Lack { key: "rule.level of heavy-512".to_owned(), is_guess: false }];
        assert_eq!(lacks(&model, &classes), none);
    }
}

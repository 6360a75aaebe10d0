//! Workloads and models drawn at random, each from a number.
//!
//! Long because it has each key of scenarios and models that is drawn, and how it is written.

use std::fmt::Write as _;
use std::path::Path;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{self, Model, Sourced, builtin};
use dimmer_sim::Governor;
use dimmer_sim::scenario::Scenario;

/// A small generator (Marsaglia, "Xorshift RNGs", 2003).
#[derive(Debug)]
pub(crate) struct Draws(u64);

impl Draws {
    pub(crate) fn new(number: u64) -> Self {
        let mut draws = Self(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        (0..8).for_each(|_| _ = draws.next());
        draws
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// From 0 up to, not including, 1.
    pub(crate) fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// From 0 up to, not including, `below`.
    pub(crate) fn below(&mut self, below: usize) -> usize {
        usize::try_from(self.next() % below as u64).unwrap()
    }

    pub(crate) fn is(&mut self, share: f64) -> bool {
        self.share() < share
    }

    /// Spread evenly over orders of magnitude.
    pub(crate) fn size(&mut self, least: f64, most: f64) -> f64 {
        least * (most / least).powf(self.share())
    }
}

/// A kind of code, with the keys of a scenario's `[[code]]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Code {
    pub(crate) class: InstructionClass,
    pub(crate) per_cycle: f64,
    pub(crate) share: f64,
    pub(crate) is_chained: bool,
    pub(crate) is_dirty: bool,
    pub(crate) memory_ns: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Length {
    Us(f64),
    Instructions(f64),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    Run {
        code: usize,
        length: Length,
    },
    Sleep {
        us: f64,
    },
    Lock(usize),
    Unlock(usize),
    /// Requests the P-state of this number of the model.
    Pstate(usize),
    Repeat {
        passes: usize,
        steps: Vec<Step>,
    },
    /// The shares are such that this branch is taken.
    Choose {
        taken: usize,
        branches: Vec<Vec<Step>>,
    },
}

impl Step {
    /// These steps, with each step in the place of which `change` puts others, also in blocks.
    pub(crate) fn changed(steps: &[Self], change: &impl Fn(&Self) -> Vec<Self>) -> Vec<Self> {
        let one = |step: &Self| match step {
            Self::Repeat { passes, steps } => {
                vec![Self::Repeat { passes: *passes, steps: Self::changed(steps, change) }]
            }
            Self::Choose { taken, branches } => {
                let branches = branches.iter().map(|steps| Self::changed(steps, change));
                vec![Self::Choose { taken: *taken, branches: branches.collect() }]
            }
            step => change(step),
        };
        steps.iter().flat_map(one).collect()
    }

    /// These steps without those that are blocks, but with what is in these, in order.
    pub(crate) fn single(steps: &[Self]) -> Vec<&Self> {
        fn one(step: &Step) -> Vec<&Step> {
            match step {
                Step::Repeat { steps, .. } => Step::single(steps),
                Step::Choose { branches, .. } => {
                    branches.iter().flat_map(|steps| Step::single(steps)).collect()
                }
                step => vec![step],
            }
        }
        steps.iter().flat_map(one).collect()
    }

    /// What a round of these steps is, with blocks written out: numbers of the steps of
    /// [`Step::single`].
    pub(crate) fn written_out(steps: &[Self]) -> Vec<usize> {
        let mut first = 0;
        let one = |step: &Self| {
            let (passes, numbers) = match step {
                Self::Repeat { passes, steps } => (*passes, Self::written_out(steps)),
                Self::Choose { taken, branches } => {
                    let before = Self::single(&branches[..*taken].concat()).len();
                    let numbers = Self::written_out(&branches[*taken]).into_iter();
                    (1, numbers.map(|number| before + number).collect())
                }
                _ => (1, vec![0]),
            };
            let start = first;
            first += Self::single(std::slice::from_ref(step)).len();
            vec![numbers; passes].concat().into_iter().map(move |number| start + number)
        };
        steps.iter().flat_map(one).collect()
    }

    /// These steps, some of them with a lock held, also in blocks. Locks within locks have higher
    /// numbers, so that no threads wait for each other.
    fn locked(steps: &[Self], draws: &mut Draws, deep: usize) -> Vec<Self> {
        let mut locked: Vec<Self> = steps.to_vec();
        for step in &mut locked {
            match step {
                Self::Repeat { steps, .. } => *steps = Self::locked(steps, draws, deep + 1),
                Self::Choose { branches, .. } => {
                    for steps in branches {
                        *steps = Self::locked(steps, draws, deep + 1);
                    }
                }
                _ => {}
            }
        }
        if !locked.is_empty() && draws.is(0.7) {
            let number = 2 * deep + draws.below(2);
            let from = draws.below(locked.len());
            let to = from + 1 + draws.below(locked.len() - from);
            locked.insert(to, Self::Unlock(number));
            locked.insert(from, Self::Lock(number));
        }
        locked
    }

    /// Adds choices to these steps, also in blocks, and steps that are skipped: those of no time,
    /// or of less than an instruction, that distributions have drawn.
    fn with_chance(steps: &[Self], draws: &mut Draws, codes: usize) -> Vec<Self> {
        let mut with: Vec<Self> = Vec::new();
        for step in steps {
            let step = match step {
                Self::Repeat { passes, steps } => {
                    let steps = Self::with_chance(steps, draws, codes);
                    Self::Repeat { passes: *passes, steps }
                }
                step => step.clone(),
            };
            if draws.is(0.2) {
                let code = draws.below(codes);
                let length = Length::Us(draws.size(1.0, 1000.0));
                let other = vec![Self::Run { code, length }];
                let mut branches = vec![Vec::new(), other];
                let taken = draws.below(3);
                branches.insert(taken, vec![step]);
                with.push(Self::Choose { taken, branches });
            } else {
                with.push(step);
            }
            if draws.is(0.2) {
                let code = draws.below(codes);
                with.push(match draws.below(4) {
                    0 => Self::Sleep { us: 0.0 },
                    1 => Self::Run { code, length: Length::Us(0.0) },
                    2 => Self::Run { code, length: Length::Instructions(0.75) },
                    _ => Self::Run { code, length: Length::Instructions(1.25) },
                });
            }
        }
        with
    }

    /// The values of these steps that a distribution can stand for.
    fn values(steps: &[Self]) -> Vec<f64> {
        let one = |step: &Self| match step {
            Self::Sleep { us: value }
            | Self::Run { length: Length::Us(value) | Length::Instructions(value), .. } => {
                vec![*value]
            }
            Self::Lock(_) | Self::Unlock(_) | Self::Pstate(_) => Vec::new(),
            Self::Repeat { passes, steps } => [vec![*passes as f64], Self::values(steps)].concat(),
            Self::Choose { branches, .. } => {
                branches.iter().flat_map(|steps| Self::values(steps)).collect()
            }
        };
        steps.iter().flat_map(one).collect()
    }

    /// `drawn`: the values in the place of which the name of a distribution stands.
    fn toml(&self, drawn: &[f64], text: &mut String) {
        let number = |value: f64| {
            if drawn.contains(&value) { format!("\"{value:?}\"") } else { format!("{value:?}") }
        };
        _ = match self {
            Self::Sleep { us } => writeln!(text, "  {{ sleep_us = {} }},", number(*us)),
            Self::Lock(number) => writeln!(text, "  {{ lock = {number} }},"),
            Self::Unlock(number) => writeln!(text, "  {{ unlock = {number} }},"),
            Self::Pstate(number) => writeln!(text, "  {{ pstate = \"P{number}\" }},"),
            Self::Run { code, length: Length::Us(us) } => {
                writeln!(text, "  {{ run = \"{code}\", us = {} }},", number(*us))
            }
            Self::Run { code, length: Length::Instructions(n) } => {
                writeln!(text, "  {{ run = \"{code}\", instructions = {} }},", number(*n))
            }
            Self::Repeat { passes, steps } => {
                let name = format!("\"about {passes}\"");
                let is_drawn = drawn.contains(&(*passes as f64));
                let passes = if is_drawn { name } else { passes.to_string() };
                _ = writeln!(text, "  {{ repeat = {passes}, steps = [");
                steps.iter().for_each(|step| step.toml(drawn, text));
                writeln!(text, "  ] }},")
            }
            Self::Choose { taken, branches } => {
                text.push_str("  { choose = [\n");
                for (index, steps) in branches.iter().enumerate() {
                    let share = if index == *taken { 1e9 } else { 1e-9 };
                    _ = writeln!(text, "  {{ share = {share:?}, steps = [");
                    steps.iter().for_each(|step| step.toml(drawn, text));
                    text.push_str("  ] },\n");
                }
                writeln!(text, "  ] }},")
            }
        };
    }
}

/// A thread that stays on a CPU of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thread {
    pub(crate) cpu: usize,
    pub(crate) begin_us: f64,
    pub(crate) times: u64,
    pub(crate) steps: Vec<Step>,
}

/// A workload.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Work {
    pub(crate) cores: usize,
    pub(crate) threads_per_core: usize,
    pub(crate) smt_share: f64,
    pub(crate) codes: Vec<Code>,
    pub(crate) threads: Vec<Thread>,
    pub(crate) end_us: Option<f64>,
    /// Numbers of the steps that are drawn from distributions, which have no others, or none that
    /// is not rounded to it.
    pub(crate) drawn: Vec<f64>,
    /// The P-state that all cores request at the start.
    pub(crate) pstate: Option<usize>,
}

impl Code {
    pub(crate) const SCALAR: Self = Self {
        class: InstructionClass::Scalar,
        per_cycle: 1.0,
        share: 1.0,
        is_chained: false,
        is_dirty: false,
        memory_ns: 0.0,
    };

    pub(crate) fn draw(draws: &mut Draws, class: InstructionClass) -> Self {
        let is_chained = draws.is(0.3);
        let per_cycle = if is_chained { 0.25 } else { 0.8 + 1.6 * draws.share() };
        Self {
            class,
            per_cycle,
            share: if draws.is(0.3) { 0.1 + 0.9 * draws.share() } else { 1.0 },
            is_chained,
            is_dirty: draws.is(0.15),
            memory_ns: if draws.is(0.2) { 0.2 * draws.share() } else { 0.0 },
        }
    }
}

impl Thread {
    fn draw(draws: &mut Draws, cpu: usize, codes: usize) -> Self {
        let count = 2 + draws.below(6);
        let mut steps: Vec<Step> = (0..count)
            .map(|_| match draws.below(8) {
                0 => Step::Sleep { us: draws.size(1.0, 10_000.0) },
                1 | 2 => Step::Run { code: 0, length: Length::Us(draws.size(1.0, 10_000.0)) },
                kind => {
                    let code = draws.below(codes);
                    let length = if kind < 4 {
                        Length::Us(draws.size(1.0, 1000.0))
                    } else {
                        Length::Instructions(draws.size(1.0, 1e6).round())
                    };
                    Step::Run { code, length }
                }
            })
            .collect();
        // The last ones become a block, of which the last ones become a block.
        for most in [4, 6] {
            if draws.is(0.3) {
                let block = steps.split_off(1 + draws.below(steps.len() - 1).min(steps.len() - 2));
                steps.push(Step::Repeat { passes: draws.below(most), steps: block });
                let after = draws.below(2);
                steps.extend((0..after).map(|_| Step::Sleep { us: draws.size(1.0, 1000.0) }));
            }
        }
        Self {
            cpu,
            begin_us: if draws.is(0.5) { 0.001 } else { draws.size(1.0, 500.0) },
            times: 1 + draws.below(20) as u64,
            steps,
        }
    }
}

impl Work {
    /// On cores of one CPU each, until all is done.
    pub(crate) fn new(cores: usize, codes: Vec<Code>, threads: Vec<Thread>) -> Self {
        Self {
            cores,
            threads_per_core: 1,
            smt_share: 1.0,
            codes,
            threads,
            end_us: None,
            drawn: Vec::new(),
            pstate: None,
        }
    }

    /// A workload on up to four cores: bursts of some kinds of code, and gaps from a microsecond to
    /// ten milliseconds between them.
    pub(crate) fn draw(draws: &mut Draws) -> Self {
        use InstructionClass::{Heavy256, Heavy512, Light256, Light512, Scalar};
        let classes = [Scalar, Light256, Heavy256, Light512, Heavy512, Heavy256, Heavy512];
        let mut codes = vec![Code::SCALAR];
        for class in classes.iter().cycle().take(4 + draws.below(6)) {
            codes.push(Code::draw(draws, *class));
        }
        if draws.is(0.3) {
            // The same code, a little slower: it asks for the same.
            let code = codes[draws.below(codes.len())];
            codes.push(Code { per_cycle: 0.95 * code.per_cycle, ..code });
        }
        let cores = 1 + draws.below(4);
        let threads = (0..cores).map(|cpu| Thread::draw(draws, cpu, codes.len())).collect();
        let end_us = draws.is(0.3).then(|| draws.size(1000.0, 50_000.0));
        Self { end_us, ..Self::new(cores, codes, threads) }
    }

    /// Cores become ones of several CPUs, of which some have no thread.
    fn add_siblings(&mut self, draws: &mut Draws) {
        self.threads_per_core = 2 + draws.below(3);
        self.smt_share = 0.3 + 0.7 * draws.share();
        for thread in &mut self.threads {
            thread.cpu *= self.threads_per_core;
        }
        for cpu in 0..self.cores * self.threads_per_core {
            if !cpu.is_multiple_of(self.threads_per_core) && draws.is(0.7) {
                self.threads.push(Thread::draw(draws, cpu, self.codes.len()));
            }
        }
    }

    /// Adds choices and distributions, with one possible outcome.
    fn add_chance(&mut self, draws: &mut Draws) {
        for thread in &mut self.threads {
            thread.steps = Step::with_chance(&thread.steps, draws, self.codes.len());
            // A thread's steps must take time for certain, and some branches have none.
            thread.steps.push(Step::Sleep { us: 1.0 });
        }
        let mut values: Vec<f64> =
            self.threads.iter().flat_map(|thread| Step::values(&thread.steps)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        // Steps cannot be skipped that have numbers.
        values.retain(|value| *value < 1.0 || draws.is(0.3));
        self.drawn = values;
    }

    /// Adds requests for P-states, of which there is this number.
    fn add_requests(&mut self, pstates: usize, draws: &mut Draws) {
        self.pstate = draws.is(0.5).then(|| draws.below(pstates));
        for thread in &mut self.threads {
            if draws.is(0.7) {
                for _ in 0..1 + draws.below(3) {
                    let at = draws.below(thread.steps.len());
                    thread.steps.insert(at, Step::Pstate(draws.below(pstates)));
                }
            }
        }
    }

    /// The scenario as a file.
    pub(crate) fn toml(&self) -> String {
        let mut text = format!(
            "schema = \"dimmer/scenario/1\"\nname = \"drawn\"\nsource = \"drawn\"\n\
             model = \"i9-7940x\"\ncores = {}\n\
             threads_per_core = {}\nsmt_share = {:?}\n",
            self.cores, self.threads_per_core, self.smt_share
        );
        if let Some(number) = self.pstate {
            _ = writeln!(text, "pstate = \"P{number}\"");
        }
        if let Some(us) = self.end_us {
            _ = writeln!(text, "end_us = {us:?}");
        }
        for (index, code) in self.codes.iter().enumerate() {
            let Code { class, per_cycle, share, is_chained, is_dirty, memory_ns } = code;
            _ = writeln!(
                text,
                "[[code]]\nname = \"{index}\"\nclass = \"{}\"\nper_cycle = {per_cycle:?}\n\
                 share = {share:?}\nchained = {is_chained}\ndirty_upper = {is_dirty}\n\
                 memory_ns = {memory_ns:?}",
                class.name()
            );
        }
        for value in &self.drawn {
            _ = writeln!(
                text,
                "[[distribution]]\nname = \"{value:?}\"\n\
                 quantiles = [[0, {value:?}], [1, {value:?}]]\n\
                 [[distribution]]\nname = \"about {value}\"\ncorrelation = 0.5\n\
                 quantiles = [[0, {:?}], [0.5, {value:?}], [1, {:?}]]",
                (value - 0.4).max(0.0),
                value + 0.4
            );
        }
        for thread in &self.threads {
            let Thread { cpu, begin_us, times, steps } = thread;
            _ = writeln!(
                text,
                "[[thread]]\nname = \"on {cpu}\"\ncpu = {cpu}\nbegin_us = {begin_us:?}\n\
                 times = {times}\nsteps = ["
            );
            steps.iter().for_each(|step| step.toml(&self.drawn, &mut text));
            text.push_str("]\n");
        }
        text
    }

    pub(crate) fn scenario(&self) -> Scenario {
        Scenario::parse(Path::new("drawn.toml"), &self.toml()).unwrap()
    }
}

/// A model that comes with Dimmer.
pub(crate) fn shipped(name: &str) -> Model {
    Model::parse(Path::new(name), builtin(name).unwrap()).unwrap()
}

pub(crate) fn made_up<T>(value: T) -> Option<Sourced<T>> {
    Some(Sourced { value, source: "made up".to_owned(), guess: true, ci95: None })
}

/// The model with nothing left to chance.
pub(crate) fn certain(mut model: Model) -> Model {
    for rule in &mut model.rules {
        (rule.instructions_log_sd, rule.grant_log_sd) = (None, None);
    }
    model.request.missed_share = None;
    model.release.extended_share = None;
    model
}

/// The model with the same clocks whatever number of cores is active.
pub(crate) fn flat(mut model: Model) -> Model {
    for level in &mut model.levels {
        level.bins.truncate(1);
        for bin in &mut level.bins {
            (bin.from_cores, bin.cores) = (1, 64);
        }
    }
    model
}

/// A model and a workload with all that the two may have: several CPUs of a core, locks, choices,
/// distributions and P-states, or a governor in software.
pub(crate) fn draw_all(draws: &mut Draws) -> (Model, Work, Governor) {
    let (mut model, mut work) = (draw_model(draws), Work::draw(draws));
    if draws.is(0.4) {
        work.add_siblings(draws);
    }
    if draws.is(0.3) {
        work.add_chance(draws);
    }
    if draws.is(0.5) {
        for thread in &mut work.threads {
            thread.steps = Step::locked(&thread.steps, draws, 0);
        }
    }
    if draws.is(0.4) {
        add_pstates(&mut model, draws);
        work.add_requests(model.pstates.len(), draws);
        return (model, work, Governor::Hardware);
    }
    let governor = [Governor::Hardware, Governor::AvxFreq, Governor::User][draws.below(3)];
    if governor != Governor::Hardware {
        for level in &mut model.levels[1..] {
            level.reduced_mhz =
                draws.is(0.7).then(|| made_up(2000 + draws.below(2000) as u64)).flatten();
        }
        let period = made_up(1000 + draws.below(700_000) as u64);
        model.clock.raise_period_ns = draws.is(0.7).then_some(period).flatten();
    }
    (model, work, governor)
}

/// Adds P-states to a model, and what changing between them takes.
fn add_pstates(model: &mut Model, draws: &mut Draws) {
    let mhz = [4000, 3000, 2200, 1200];
    let pstate = |number: usize| model::PState {
        name: format!("P{number}"),
        mhz: made_up(mhz[number]).unwrap(),
        mv: None,
    };
    model.pstates = (0..2 + draws.below(3)).map(pstate).collect();
    for from in &model.pstates {
        for to in &model.pstates {
            if from != to {
                let request_ns = draws.below(20_000) as u64;
                let total_ns = request_ns + draws.below(20_000) as u64;
                model.transitions.push(model::Transition {
                    from: from.name.clone(),
                    to: to.name.clone(),
                    request_ns: draws.is(0.9).then(|| made_up(request_ns)).flatten(),
                    total_ns: draws.is(0.9).then(|| made_up(total_ns)).flatten(),
                });
            }
        }
    }
    let domains = [model::Domain::Core, model::Domain::Package];
    model.clock.domain = made_up(domains[draws.below(2)]);
}

/// A model of which something is different than in those that come with Dimmer, with nothing left
/// to chance.
pub(crate) fn draw_model(draws: &mut Draws) -> Model {
    let name = ["i9-7940x", "xeon-gold-6130"][draws.below(2)];
    let mut model = certain(shipped(name));
    if draws.is(0.3) {
        model = flat(model);
    }
    let request = &mut model.request;
    if draws.is(0.3) {
        request.path = made_up(model::Path::Directly);
    }
    if draws.is(0.4) {
        request.slot_ns = None;
    }
    if draws.is(0.2) {
        request.stall_ns = draws.is(0.5).then(|| made_up(3_000)).flatten();
    }
    if draws.is(0.3) {
        request.chained_throttle_factor = draws.is(0.5).then(|| made_up(0.5)).flatten();
    }
    let release = &mut model.release;
    if draws.is(0.2) {
        release.stall_ns = None;
    }
    if draws.is(0.3) {
        release.hold_ns = made_up(20_000 + draws.below(800_000) as u64);
    }
    if draws.is(0.2) {
        release.recurrence_ns = made_up(50_000 + draws.below(2_000_000) as u64);
        release.recurrence_after_ns = draws.is(0.7).then(|| made_up(3_000_000)).flatten();
    }
    if draws.is(0.2) {
        model.levels[2].issue_ratio = made_up(0.5);
    }
    if draws.is(0.2) {
        let level = &mut model.levels[1];
        (level.bins, level.clock_ratio) = (Vec::new(), made_up(0.9));
    }
    if draws.is(0.2) {
        model.rules[0].grant_ns = None;
    }
    if draws.is(0.3) {
        (model.shape.packages, model.shape.cores) = (made_up(4), made_up(2));
    }
    model
}

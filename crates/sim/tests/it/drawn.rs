//! Workloads and models drawn at random, each from a number.

mod models;
mod steps;

use std::fmt::Write as _;
use std::path::Path;

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::Model;
use dimmer_sim::Governor;
use dimmer_sim::scenario::Scenario;

use self::models::{add_moves, add_pstates};
pub(crate) use self::models::{certain, draw_model, flat, made_up, shipped};
pub(crate) use self::steps::{Length, Step};

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

/// A thread that stays on a CPU, or is free to change it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Thread {
    /// The CPU that it stays on, if it is not free.
    pub(crate) cpu: usize,
    pub(crate) is_free: bool,
    pub(crate) cached_kib: usize,
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
    pub(crate) is_muqss: bool,
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
    /// One that stays on a CPU.
    pub(crate) fn new(cpu: usize, begin_us: f64, times: u64, steps: Vec<Step>) -> Self {
        Self { cpu, is_free: false, cached_kib: 0, begin_us, times, steps }
    }

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
        let begin_us = if draws.is(0.5) { 0.001 } else { draws.size(1.0, 500.0) };
        Self::new(cpu, begin_us, 1 + draws.below(20) as u64, steps)
    }
}

impl Work {
    /// On cores of one CPU each, until all is done.
    pub(crate) fn new(cores: usize, codes: Vec<Code>, threads: Vec<Thread>) -> Self {
        Self {
            cores,
            threads_per_core: 1,
            smt_share: 1.0,
            is_muqss: false,
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

    /// Adds threads, and makes some free, under one of the two schedulers.
    fn crowd(&mut self, draws: &mut Draws) {
        self.is_muqss = draws.is(0.5);
        let cpus = self.cores * self.threads_per_core;
        for _ in 0..draws.below(2 * cpus + 2) {
            let cpu = draws.below(cpus);
            self.threads.push(Thread::draw(draws, cpu, self.codes.len()));
        }
        let free = [0.2, 0.7, 1.0][draws.below(3)];
        for thread in &mut self.threads {
            thread.is_free = draws.is(free);
            if draws.is(0.3) {
                thread.cached_kib = draws.below(2000);
            }
            if draws.is(0.3) {
                // It computes for turns at a time.
                thread.steps = Step::changed(&thread.steps, &|step| match *step {
                    Step::Run { code, length: Length::Instructions(n) } => {
                        vec![Step::Run { code, length: Length::Instructions(40.0 * n) }]
                    }
                    ref step => vec![step.clone()],
                });
            }
        }
    }

    /// Adds choices and distributions, with one possible outcome.
    fn add_chance(&mut self, draws: &mut Draws, is_crowded: bool) {
        for thread in &mut self.threads {
            thread.steps = Step::with_chance(&thread.steps, draws, self.codes.len());
            // A thread's steps must take time for certain, and some branches have none.
            let us = if is_crowded { draws.size(0.5, 2.0) } else { 1.0 };
            thread.steps.push(Step::Sleep { us });
        }
        let mut values: Vec<f64> =
            self.threads.iter().flat_map(|thread| Step::values(&thread.steps)).collect();
        values.sort_by(f64::total_cmp);
        values.dedup();
        // Steps cannot be skipped that have numbers.
        values.retain(|value| *value < 1.0 || draws.is(0.3));
        self.drawn = values;
    }

    /// Times become multiples of this one, and long steps end by time.
    fn round(&mut self, unit_us: f64) {
        // What is shorter than any unit is there for its own sake.
        let round = |us: f64| if us < 1.0 { us } else { (us / unit_us).round().max(1.0) * unit_us };
        for thread in &mut self.threads {
            thread.begin_us = round(thread.begin_us);
            thread.steps = Step::changed(&thread.steps, &|step| {
                vec![match *step {
                    Step::Sleep { us } => Step::Sleep { us: round(us) },
                    Step::Run { code, length: Length::Us(us) } => {
                        Step::Run { code, length: Length::Us(round(us)) }
                    }
                    Step::Run { code, length: Length::Instructions(n) } if n > 1000.0 => {
                        Step::Run { code, length: Length::Us(round(n / 3000.0)) }
                    }
                    ref step => step.clone(),
                }]
            });
        }
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
             threads_per_core = {}\nsmt_share = {:?}\nscheduler = \"{}\"\n",
            self.cores,
            self.threads_per_core,
            self.smt_share,
            if self.is_muqss { "muqss" } else { "fair" }
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
        for (index, thread) in self.threads.iter().enumerate() {
            let Thread { cpu, is_free, cached_kib, begin_us, times, steps } = thread;
            _ = writeln!(
                text,
                "[[thread]]\nname = \"{index}\"\ncached_kib = {cached_kib}\n\
                 begin_us = {begin_us:?}\n\
                 times = {times}\nsteps = ["
            );
            steps.iter().for_each(|step| step.toml(&self.drawn, &mut text));
            text.push_str("]\n");
            if !is_free {
                _ = writeln!(text, "cpu = {cpu}");
            }
        }
        text
    }

    pub(crate) fn scenario(&self) -> Scenario {
        Scenario::parse(Path::new("drawn.toml"), &self.toml()).unwrap()
    }
}

/// A model and a workload with all that the two may have, but with each thread alone on its CPU:
/// several CPUs of a core, locks, choices, distributions and P-states, or a governor in software.
pub(crate) fn draw_all(draws: &mut Draws) -> (Model, Work, Governor) {
    draw(draws, false)
}

/// The same with threads that share CPUs and change them.
pub(crate) fn draw_crowded(draws: &mut Draws) -> (Model, Work, Governor) {
    draw(draws, true)
}

/// The same where most times are multiples of 10 µs, so that much falls on one moment.
pub(crate) fn draw_at_once(draws: &mut Draws) -> (Model, Work, Governor) {
    let (mut model, mut work, governor) = draw(draws, true);
    work.round(10.0);
    for price in &mut model.moves {
        price.ns.value = (price.ns.value / 1e3).round() * 1e3;
    }
    (model, work, governor)
}

fn draw(draws: &mut Draws, is_crowded: bool) -> (Model, Work, Governor) {
    let (mut model, mut work) = (draw_model(draws), Work::draw(draws));
    if draws.is(0.4) {
        work.add_siblings(draws);
    }
    if is_crowded {
        work.crowd(draws);
        add_moves(&mut model, draws);
    }
    if draws.is(0.3) {
        work.add_chance(draws, is_crowded);
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

//! One lock that all threads want all the time, under a strategy: the benchmark of paper 002 (§4.2,
//! §4.3).
//!
//! What is put in: the P-states with their power, and the times of requests, idle states and
//! migrations, all by the model; and system calls. The lock itself costs nothing. By rated power,
//! the simulator allows P0 only once the last owner's module is at P6 (§4.3).

use dimmer_policy::boost::{Act, Point, Speed, Strategy};
use dimmer_policy::break_even::{Boosts, Lacks};
use dimmer_processor::model::{Missing, Model, PState, Sourced, Transition};
use dimmer_processor::units::{LicenseLevel, whole};
use dimmer_sim::{
    Extent, Machine, Moment, Observer, Picos, Script, Segment, Settings, SimError, Step,
};

use super::power::Modules;
use crate::causes::set_price;

/// Sections of each thread in a run, and those of the first thread from whose starts its speed is
/// computed.
const ROUNDS: u64 = 30;
const WINDOW: [usize; 2] = [5, 25];

/// The system call that waits in the kernel until another thread wakes this one (ns), by the name
/// of the processor: paper 002, tables 4 and 5. Waking a thread is assumed to take as long.
const FUTEX_NS: [(&str, u64); 2] = [("AMD FX-8120", 330), ("Intel Core i7-4770", 366)];

/// The move of a thread that migrates.
const MIGRATION: &str = "thread by the kernel";

/// What the benchmark takes as given beside the model. A cause is tested by changing some of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Locks {
    /// Whether modules take turns: each takes the lock by one core, then each by the other one. By
    /// default, threads take it in the order of their cores.
    pub(crate) modules_take_turns: bool,
    /// What a request takes beyond the model's time (ns at the base clock): see [`by_driver`].
    pub(crate) call_ns: f64,
    /// What the lock takes from its last owner to the next (ns).
    pub(crate) hand_over_ns: u64,
    /// Whether sections count in cycles of the time-stamp counter at the base clock rather than in
    /// executed ones.
    pub(crate) in_tsc_cycles: bool,
    /// Whether a migration's time is that of code at the base clock, which takes longer at a slow
    /// one, rather than the same at each clock.
    pub(crate) migrates_in_code: bool,
    /// Whether an owner that migrates releases the lock when it is back.
    pub(crate) releases_at_home: bool,
    /// Whether the thread that had the lock before makes the owner's requests.
    pub(crate) asks_remotely: bool,
    /// Whether a module with a core at work takes the least power that the model's loads leave.
    pub(crate) is_least_power: bool,
}

impl Locks {
    /// The benchmark of §4.3. With manual control of all P-states the time-stamp counter runs at
    /// 4 GHz (§3.1, table 4), and an effective clock is base times the quotient of two of its
    /// counts (§4.2). Requests are calls of a driver (§3.2; table 4, `ioctl(trb)`). A migration
    /// that begins at a slow clock is executed slowly (§4.3).
    pub(crate) const PAPER: Self = Self {
        modules_take_turns: false,
        call_ns: 230.0,
        hand_over_ns: 0,
        in_tsc_cycles: true,
        migrates_in_code: true,
        releases_at_home: false,
        asks_remotely: false,
        is_least_power: false,
    };
}

/// The speed of a run: cycles of sections a nanosecond, which is the effective clock of the paper
/// (GHz); and the power of the package, if the model has it (W).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) ghz: f64,
    pub(crate) watts: f64,
}

impl Found {
    /// Energy of a cycle of a section (nJ).
    pub(crate) fn nj(self) -> f64 {
        self.watts / self.ghz
    }
}

/// The benchmark on a processor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contended<'a> {
    pub(crate) model: &'a Model,
    pub(crate) locks: Locks,
}

/// The boosts of the model, which is one of ours: it lacks nothing.
pub(crate) fn boosts(model: &Model) -> Result<Boosts<'_>, SimError> {
    Boosts::new(model).map_err(|lacks| {
        let Lacks { model, .. } = lacks;
        Missing { model, key: "transition", needed_for: "a boost" }.into()
    })
}

/// The model with requests by system calls: each takes `call_ns` at the base clock, and longer at a
/// slower one from which it changes (§4.1: the time of a call "scales with the selected
/// frequency"). The change from P0 to P6, which was not measured, is one request as well, and takes
/// as long as by the base. A request for what is set is none: the library knows it (§3.2).
pub(crate) fn by_driver(model: &Model, call_ns: f64) -> Model {
    let mut model = model.clone();
    let mhz = |name: &str| {
        let state = model.pstates.iter().find(|state| state.name == name);
        state.map_or(f64::NAN, |state| state.mhz.value as f64)
    };
    let base_mhz = model.clock.base_mhz.as_ref().map_or(f64::NAN, |mhz| mhz.value as f64);
    let is_down = |one: &Transition| mhz(&one.to) == base_mhz && mhz(&one.from) > base_mhz;
    let fastest = model.pstates.first().map_or("", |state| &state.name);
    let slowest = model.pstates.last().map_or("", |state| &state.name);
    let mut ways = model.transitions.iter();
    let first = ways.clone().find(|one| one.from == fastest && is_down(one));
    let second = ways.find(|one| one.to == slowest && mhz(&one.from) == base_mhz);
    let sum = |one: &Option<Sourced<u64>>, other: &Option<Sourced<u64>>| {
        let (one, other) = (one.as_ref()?, other.as_ref()?);
        Some(Sourced { value: one.value + other.value, ..one.clone() })
    };
    let by_base = first.zip(second).map(|(first, second)| Transition {
        from: first.from.clone(),
        to: second.to.clone(),
        request_ns: sum(&first.request_ns, &second.request_ns),
        // The second request is made when the first is over.
        total_ns: sum(&first.request_ns, &second.total_ns),
    });
    let call = |from: &str| whole(call_ns * base_mhz / mhz(from));
    let calls: Vec<u64> =
        model.transitions.iter().chain(&by_base).map(|one| call(&one.from)).collect();
    model.transitions.extend(by_base);
    for (one, call) in model.transitions.iter_mut().zip(calls) {
        for ns in [&mut one.request_ns, &mut one.total_ns].into_iter().flatten() {
            ns.value += call;
        }
    }
    model
}

/// The steps of requests that bring a core to this speed. A model that lacks the change from P0 to
/// P6 makes it in two steps, by the base.
pub(crate) fn requests(speed: Speed, boosts: &Boosts<'_>, model: &Model) -> Vec<usize> {
    let is_known = |from: &PState, to: &PState| {
        model.transitions.iter().any(|one| one.from == from.name && one.to == to.name)
    };
    let by_base = speed == Speed::Slow && !is_known(boosts.turbo, boosts.slow);
    let by_base = by_base.then_some(boosts.base);
    let states = by_base.into_iter().chain([state(speed, boosts)]);
    let place = |name: &str| model.pstates.iter().position(|state| state.name == name);
    states.filter_map(|state| place(&state.name)).collect()
}

/// The P-state of a speed.
fn state<'a>(speed: Speed, boosts: &Boosts<'a>) -> &'a PState {
    match speed {
        Speed::Slow => boosts.slow,
        Speed::Base => boosts.base,
        Speed::Turbo => boosts.turbo,
    }
}

/// Scalar code of one instruction a cycle.
pub(crate) fn code(extent: Extent) -> Step {
    Step::Run(Segment { extent, ..Segment::SCALAR })
}

/// Code that is no section: it is counted apart.
fn other(extent: Extent) -> Step {
    Step::Run(Segment { extent, counter: 1, ..Segment::SCALAR })
}

/// When sections of the first thread start, and the clocks of cores (GHz), 0 for one that executes
/// nothing.
#[derive(Debug, Default)]
struct Seen {
    starts: Vec<Moment>,
    clocks: Vec<(Moment, usize, f64)>,
}

impl Observer for Seen {
    fn runs(&mut self, now: Moment, _core: usize, thread: usize, segment: &Segment) {
        if thread == 0 && segment.counter == 0 {
            self.starts.push(now);
        }
    }

    fn clock(&mut self, now: Moment, core: usize, ghz: f64) {
        self.clocks.push((now, core, ghz));
    }
}

/// A core's part in a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// Its thread takes the lock. `before`: the core whose thread takes it before.
    Worker { before: usize },
    /// It executes and does not take the lock, at this speed or as the hardware has it.
    Executes,
    /// It has nothing to do but what migrates to it.
    Waits,
}

impl Contended<'_> {
    /// Speed and power of sections of this many cycles, one after the other.
    ///
    /// # Errors
    /// If the model lacks what the strategy needs.
    pub(crate) fn run(&self, strategy: Strategy, section: f64) -> Result<Found, SimError> {
        let (window, ghz, seen) = self.window(strategy, section)?;
        let modules = (strategy == Strategy::Futex)
            .then(|| Modules::new(self.model, self.locks.is_least_power))
            .flatten();
        if let Some(modules) = modules {
            return Ok(Found { ghz, watts: modules.watts(&seen.clocks, window) });
        }
        let [from, to] = window;
        let (mut machine, _) = self.machine(strategy, section, ())?;
        // Before that, clocks may be higher than power is known for.
        machine.run(from)?;
        machine.measures_energy_from_now();
        machine.run(to)?;
        let joules = machine.energy().map_or(f64::NAN, |energy| {
            energy.packages.iter().map(|package| package.joules).sum::<f64>()
        });
        Ok(Found { ghz, watts: 1e9 * joules / (to - from).ns() })
    }

    /// The effective clock alone (GHz).
    ///
    /// # Errors
    /// As [`Contended::run`].
    pub(crate) fn ghz(&self, strategy: Strategy, section: f64) -> Result<f64, SimError> {
        Ok(self.window(strategy, section)?.1)
    }

    /// The time from one start of a section of the first thread to a later one, when the order of
    /// threads has settled and none has finished; the effective clock meanwhile (GHz); and what was
    /// seen in the whole run.
    fn window(
        &self,
        strategy: Strategy,
        section: f64,
    ) -> Result<([Moment; 2], f64, Seen), SimError> {
        let (mut machine, workers) = self.machine(strategy, section, Seen::default())?;
        // Those that only execute have no end, and no event.
        machine.run(Moment::MAX)?;
        let seen = machine.into_observer();
        let at = |round: usize| seen.starts.get(round).copied().unwrap_or(Moment::START);
        let window = [at(WINDOW[0]), at(WINDOW[1])];
        let done = section * ((WINDOW[1] - WINDOW[0]) * workers) as f64;
        let ghz = done / (window[1] - window[0]).ns();
        Ok((window, ghz, seen))
    }

    /// The benchmark, ready to run, and how many of its threads take the lock.
    fn machine<O: Observer>(
        &self,
        strategy: Strategy,
        section: f64,
        observer: O,
    ) -> Result<(Machine<O>, usize), SimError> {
        let cores = self.model.shape.cores.as_ref().map_or(1, |cores| cores.value);
        let is_automatic = matches!(strategy, Strategy::Spin | Strategy::Mwait | Strategy::Futex);
        let boosts = if is_automatic { None } else { Some(boosts(self.model)?) };
        let roles = self.roles(strategy, cores as usize);
        let pstates = boosts.iter().flat_map(|boosts| {
            let of = |(_, role): &(usize, Role)| self.starts(strategy, *role, boosts);
            let mut by_core = roles.clone();
            by_core.sort_by_key(|(core, _)| *core);
            by_core.iter().map(of).collect::<Vec<_>>()
        });
        let settings = Settings {
            cores,
            core_pstates: pstates.collect(),
            idle_states: is_automatic,
            ..Settings::default()
        };
        let mut model = self.model.clone();
        if self.locks.migrates_in_code {
            set_price(&mut model, MIGRATION, 0.0);
        }
        let mut machine = Machine::new(&model, settings, observer)?;
        let mut workers = 0;
        for (core, role) in roles {
            let steps = match role {
                Role::Waits => continue,
                Role::Executes => vec![other(Extent::Time(Picos::MAX))],
                Role::Worker { before } => {
                    workers += 1;
                    self.round(strategy, section, (core, before), boosts.as_ref())
                }
            };
            let steps = steps.into_iter().map(|step| (step, LicenseLevel::new(0))).collect();
            machine.spawn("thread", Box::new(Script::new(steps, ROUNDS)), Some(core));
        }
        Ok((machine, workers))
    }

    /// What each core does under a strategy, in the order in which threads first take the lock.
    fn roles(&self, strategy: Strategy, cores: usize) -> Vec<(usize, Role)> {
        let is_first = |core: usize| core.is_multiple_of(2);
        let works = |core: usize| match strategy {
            Strategy::One(_) => core == 0,
            Strategy::Delegate => is_first(core),
            Strategy::Migrate => core + 2 < cores,
            _ => true,
        };
        let mut order: Vec<usize> = (0..cores).filter(|core| works(*core)).collect();
        if self.locks.modules_take_turns {
            order.sort_by_key(|core| (!is_first(*core), *core));
        }
        let last = order.last().copied().unwrap_or(0);
        let before = std::iter::once(last).chain(order.iter().copied());
        let workers =
            order.iter().zip(before).map(|(core, before)| (*core, Role::Worker { before }));
        let rest = if strategy == Strategy::Migrate { Role::Waits } else { Role::Executes };
        let others = (0..cores).filter(|core| !works(*core)).map(|core| (core, rest));
        workers.chain(others).collect()
    }

    /// The name of the P-state that a core requests before all.
    fn starts(&self, strategy: Strategy, role: Role, boosts: &Boosts<'_>) -> String {
        let first = strategy.acts(Point::Starts).first();
        let speed = match (role, strategy, first) {
            (Role::Waits, ..) => Speed::Turbo,
            (Role::Executes, Strategy::One(_), _) => Speed::Slow,
            (_, _, Some(Act::Request(speed) | Act::RequestByNeighbour(speed))) => *speed,
            _ => Speed::Base,
        };
        state(speed, boosts).name.clone()
    }

    /// A thread's steps for one section of this many cycles.
    fn round(
        &self,
        strategy: Strategy,
        section: f64,
        (core, before): (usize, usize),
        boosts: Option<&Boosts<'_>>,
    ) -> Vec<Step> {
        const LOCK: usize = 0;
        let Locks { hand_over_ns, releases_at_home, .. } = self.locks;
        let steps = |point| {
            let acts = strategy.acts(point).iter();
            acts.flat_map(|act| match act {
                Act::Request(speed) if self.locks.asks_remotely => {
                    self.asks(*speed, core, before, boosts)
                }
                Act::Request(speed) => self.asks(*speed, core, core, boosts),
                Act::RequestByNeighbour(speed) => {
                    // The module's clock follows the faster request: the worker's is the slowest.
                    self.asks(*speed, core ^ 1, core ^ 1, boosts)
                }
                Act::Spin => vec![Step::Spin(LOCK, Segment { counter: 1, ..Segment::SCALAR })],
                Act::Monitor => vec![Step::Mwait(LOCK)],
                Act::Block => vec![self.futex(), Step::Lock(LOCK)],
                Act::GoToFastCore => self.goes(self.fast_core()),
                Act::GoHome => self.goes(core),
            })
            .collect::<Vec<_>>()
        };
        let mut round = steps(Point::Waits);
        if hand_over_ns > 0 && before != core {
            round.push(other(Extent::Time(Picos::from_ps(1000 * hand_over_ns))));
        }
        round.extend(steps(Point::Acquires));
        round.push(code(Extent::Instructions(section)));
        let release = match strategy {
            // The owner wakes the next thread.
            Strategy::Futex => vec![self.futex(), Step::Unlock(LOCK)],
            _ => vec![Step::Unlock(LOCK)],
        };
        let after = steps(Point::Releases);
        let at_home = releases_at_home && strategy == Strategy::Migrate;
        let (first, then) = if at_home { (after, release) } else { (release, after) };
        round.extend(first.into_iter().chain(then));
        round
    }

    /// Core `by` brings a core to this speed.
    fn asks(&self, speed: Speed, core: usize, by: usize, boosts: Option<&Boosts<'_>>) -> Vec<Step> {
        let wishes = boosts.map(|boosts| requests(speed, boosts, self.model)).unwrap_or_default();
        wishes.into_iter().map(|wish| Step::AskBy { core, by, wish }).collect()
    }

    /// A migration to a core.
    fn goes(&self, to: usize) -> Vec<Step> {
        let in_code = self.locks.migrates_in_code;
        let price = self.model.price(MIGRATION).map_or(0.0, |price| price.value);
        let executes = in_code.then(|| other(Extent::Instructions(self.base_cycles(price))));
        executes.into_iter().chain([Step::Go(to)]).collect()
    }

    /// The core that is always fast: one of the last module.
    fn fast_core(&self) -> usize {
        let cores = self.model.shape.cores.as_ref().map_or(1, |cores| cores.value);
        (cores as usize).saturating_sub(2)
    }

    /// A time at the base clock as cycles.
    fn base_cycles(&self, ns: f64) -> f64 {
        let base = self.model.clock.base_mhz.as_ref().map_or(0.0, |mhz| mhz.value as f64 / 1e3);
        ns * base
    }

    fn futex(&self) -> Step {
        let name = &self.model.identity.name;
        let ns = FUTEX_NS.iter().find(|(of, _)| of == name).map_or(0, |(_, ns)| *ns);
        other(Extent::Time(Picos::from_ps(1000 * ns)))
    }

    /// How the length of a section is shown (cycles), for one of this many executed cycles.
    pub(crate) fn shown(&self, section: f64) -> f64 {
        let mhz = |mhz: &Option<dimmer_processor::model::Sourced<u64>>| {
            mhz.as_ref().map_or(1.0, |mhz| mhz.value as f64)
        };
        let clock = &self.model.clock;
        let ratio = mhz(&clock.tsc_mhz) / mhz(&clock.base_mhz);
        if self.locks.in_tsc_cycles { section * ratio } else { section }
    }
}

/// The sections between which a crossing is searched (cycles), by how much apart they are looked at
/// first, and how near it is found.
const SECTIONS: [f64; 2] = [1e3, 1e8];
const APART: f64 = 2.154_434_690_031_884;
const NEAR: f64 = 1.0005;

/// The section (cycles) from which on all longer ones have a gain of 0 or more: 0 if all of
/// [`SECTIONS`] do, not a number if the longest does not, or if the gain of one that was looked at
/// is not known.
pub(crate) fn shortest(gain: impl Fn(f64) -> Result<f64, SimError>) -> Result<f64, SimError> {
    let [shortest, mut high] = SECTIONS;
    let longest = gain(high)?;
    if longest.is_nan() || longest < 0.0 {
        return Ok(f64::NAN);
    }
    let mut low = loop {
        if high <= shortest {
            return Ok(0.0);
        }
        let next = (high / APART).max(shortest);
        match gain(next)? {
            found if found.is_nan() => return Ok(f64::NAN),
            found if found < 0.0 => break next,
            _ => high = next,
        }
    };
    while high / low > NEAR {
        let middle = (low * high).sqrt();
        match gain(middle)? {
            found if found.is_nan() => return Ok(f64::NAN),
            found if found < 0.0 => low = middle,
            _ => high = middle,
        }
    }
    Ok(high)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Paper;

    /// Table 4: 230 ns at P2 are 230 * 3.1 / 1.4 at P6 and 230 * 3.1 / 4 at P0.
    #[test]
    fn a_request_takes_a_system_call_at_the_clock_that_it_leaves() {
        let times = |from: &str, to: &str| {
            let model = by_driver(&Paper::Turbo.model().unwrap(), 230.0);
            let mut ways = model.transitions.into_iter();
            let way = ways.find(|one| one.from == from && one.to == to).unwrap();
            [way.request_ns, way.total_ns].map(|ns| ns.unwrap().value)
        };
        assert_eq!(times("P2", "P1"), [234 + 230, 23_660 + 230]);
        assert_eq!(times("P6", "P0"), [471 + 509, 56_747 + 509]);
        // By P2, and by one call.
        assert_eq!(times("P0", "P6"), [5800 + 7021 + 178, 5800 + 7445 + 178]);
    }
}

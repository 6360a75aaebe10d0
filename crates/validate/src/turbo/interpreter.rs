//! Python's interpreter lock (paper 002, section 5.1), from what one thread does.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_policy::boost::Speed;
use dimmer_policy::license::Chance as _;
use dimmer_processor::model::Model;
use dimmer_sim::{Extent, Machine, Moment, Program, Random, Segment, Settings, SimError, Step};

use super::lock::{boosts, by_driver, requests};
use super::studies::{base_ghz, ghz};
use crate::inputs::Inputs;
use crate::row::{Draft, words};
use crate::{Class, Row};

/// A task of Python's `ccbench`, and what table 6 has of it (µs).
struct Task {
    name: &'static str,
    /// Of one thread: time in the interpreter and outside of it in an iteration.
    python: f64,
    native: f64,
    /// With 2 and with 4 threads, each time a thread has the lock: wait and time in the
    /// interpreter.
    paper: [[f64; 2]; 2],
    id: &'static str,
    what: &'static str,
    reason: &'static str,
}

/// Why short sections miss.
const SHORT: &str = "as R002-30. The lock itself takes longer here than the sections, whose time with it grows from one thread to two as well; what it takes is not published";

const TASKS: [Task; 4] = [
    Task {
        name: "Pi",
        python: 72_694.0,
        native: 160.0,
        paper: [[4919.0, 4933.0], [14_735.0, 4958.0]],
        id: "R002-30",
        what: "Pi, in Python: wait for the interpreter lock, and time with it",
        reason: "put in: the times of one thread, and the interval of 5 ms after which a waiting thread gets the lock, which the time with the lock shows again. Waits follow",
    },
    Task {
        name: "Regex",
        python: 116_593.0,
        native: 160.0,
        paper: [[5533.0, 5556.0], [16_763.0, 5600.0]],
        id: "R002-31",
        what: "regular expressions, in C with the lock: the same",
        reason: "as R002-30. In the paper, threads keep the lock for longer than the interval",
    },
    Task {
        name: "bz2",
        python: 17.0,
        native: 991.0,
        paper: [[10.0, 24.0], [34.0, 25.0]],
        id: "R002-32",
        what: "bz2, in C without the lock: the same",
        reason: SHORT,
    },
    Task {
        name: "SHA1",
        python: 6.0,
        native: 386.0,
        paper: [[8.0, 12.0], [11.0, 12.0]],
        id: "R002-33",
        what: "SHA1, in C without the lock: the same",
        reason: SHORT,
    },
];

/// The interval after which a thread gives the interpreter lock to another one that waits (µs):
/// paper 002 §5.1.
const SWITCH_US: f64 = 5000.0;

/// Iterations of each thread in a run, and counters of code with and without the lock.
const ITERATIONS: u64 = 200;
const PYTHON: usize = 0;
const NATIVE: usize = 1;

/// How a thread of the interpreter sets its clock (§5.1). The names are the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    /// All at the base.
    Base,
    /// Slow while waiting, fastest with the lock, then the base. A thread that finds the lock free
    /// does not wait, and goes from the base to the fastest clock.
    Dyn,
    /// One step above the base with the lock.
    Own,
    /// Fastest, slow while waiting. A thread that finds the lock free makes no request.
    Wait,
}

/// A thread whose time without the lock varies evenly from half to one and a half of its mean, so
/// that threads do not keep in step.
#[derive(Clone, Debug)]
struct Interpreted {
    steps: Arc<[Step]>,
    next: usize,
    times: u64,
    /// The request that it makes before it waits for the lock, if it makes one.
    before_wait: Option<Step>,
    has_asked: bool,
    /// Threads that have the lock or wait for it, for all threads of a run.
    in_line: Arc<AtomicUsize>,
}

impl Interpreted {
    /// The request before the thread waits, if the lock is not free and it has not made it yet.
    fn asks_before_wait(&mut self) -> Option<Step> {
        // One thread runs the machine, so accesses of all programs have one order.
        let is_free = self.in_line.load(Ordering::Relaxed) == 0;
        let asks = self.before_wait.filter(|_| !is_free && !self.has_asked)?;
        self.has_asked = true;
        Some(asks)
    }
}

impl Program for Interpreted {
    fn next(&mut self, _now: Moment, chance: &mut Random) -> Step {
        if self.next == self.steps.len() {
            self.next = 0;
            self.times -= 1;
        }
        if self.times == 0 {
            return Step::End;
        }
        let step = self.steps[self.next];
        if let Some(asks) = matches!(step, Step::Lock(_)).then(|| self.asks_before_wait()).flatten()
        {
            return asks;
        }
        self.next += 1;
        match step {
            Step::Lock(_) => {
                self.has_asked = false;
                self.in_line.fetch_add(1, Ordering::Relaxed);
                step
            }
            Step::Unlock(_) => {
                self.in_line.fetch_sub(1, Ordering::Relaxed);
                step
            }
            Step::Run(code @ Segment { extent: Extent::Instructions(mean), .. })
                if code.counter == NATIVE =>
            {
                let extent = Extent::Instructions(mean * (0.5 + chance.uniform()));
                Step::Run(Segment { extent, ..code })
            }
            step => step,
        }
    }

    fn copy(&self) -> Box<dyn Program> {
        Box::new(self.clone())
    }
}

/// What a run of a task gives, for each time that a thread has the lock (µs); iterations a second
/// while all threads run; and the mean clock (GHz).
struct Ran {
    wait: f64,
    python: f64,
    rate: f64,
    ghz: f64,
}

/// Runs a task with this many threads.
///
/// * `pstate`: what all cores request at the start; `None`: the processor decides.
fn run_task(
    model: &Model,
    task: &Task,
    threads: usize,
    clocks: Clocks,
    pstate: Option<&str>,
) -> Result<Ran, SimError> {
    const LOCK: usize = 0;
    let boosts = boosts(model);
    let asks = |speed| -> Result<Vec<Step>, SimError> {
        let boosts = boosts.as_ref().map_err(Clone::clone)?;
        Ok(requests(speed, boosts, model).into_iter().map(Step::Ask).collect())
    };
    let step_up = || -> Result<Vec<Step>, SimError> {
        let step = &boosts.as_ref().map_err(Clone::clone)?.step.name;
        Ok(model
            .pstates
            .iter()
            .position(|state| state.name == *step)
            .map(Step::Ask)
            .into_iter()
            .collect())
    };
    let base = base_ghz(model);
    let code = |counter, us: f64| {
        let extent = Extent::Instructions(1e3 * us * base);
        Step::Run(Segment { counter, extent, ..Segment::SCALAR })
    };
    let (mut with, mut after, mut before_wait) = (Vec::new(), Vec::new(), None);
    match clocks {
        Clocks::Base => {}
        Clocks::Dyn => (with, after) = (asks(Speed::Turbo)?, asks(Speed::Base)?),
        Clocks::Own => (with, after) = (step_up()?, asks(Speed::Base)?),
        Clocks::Wait => with = asks(Speed::Turbo)?,
    }
    if matches!(clocks, Clocks::Dyn | Clocks::Wait) {
        before_wait = asks(Speed::Slow)?.pop();
    }
    let (mut steps, mut left, mut holds) = (Vec::new(), task.python, 0);
    while left > 0.0 {
        // A thread alone is never asked for the lock.
        let holds_us = if threads > 1 { left.min(SWITCH_US) } else { left };
        left -= holds_us;
        holds += 1;
        steps.push(Step::Lock(LOCK));
        steps.extend(with.iter().copied());
        steps.extend([code(PYTHON, holds_us), Step::Unlock(LOCK)]);
        steps.extend(after.iter().copied());
    }
    steps.push(code(NATIVE, task.native));
    let cores = model.shape.cores.as_ref().map_or(1, |cores| cores.value);
    // On modules of their own, while there are as many.
    let apart = if threads * 2 <= cores as usize { 2 } else { 1 };
    let steps: Arc<[Step]> = steps.into();
    let machine = || -> Result<Machine<()>, SimError> {
        let settings = Settings { cores, pstate: pstate.map(str::to_owned), ..Settings::default() };
        let mut machine = Machine::new(model, settings, ())?;
        let in_line = Arc::new(AtomicUsize::new(0));
        for thread in 0..threads {
            let program = Interpreted {
                steps: Arc::clone(&steps),
                next: 0,
                times: ITERATIONS,
                before_wait,
                has_asked: false,
                in_line: Arc::clone(&in_line),
            };
            machine.spawn(task.name, Box::new(program), Some(thread * apart));
        }
        Ok(machine)
    };
    // A thread that is left alone at the end would run at another clock.
    let mut together = machine()?;
    let mut machine = machine()?;
    machine.run(Moment::MAX)?;
    let first = machine.threads().filter_map(|thread| thread.finished).min();
    let first = first.unwrap_or(Moment::START);
    together.run(first)?;
    let done: f64 = together.threads().map(|thread| thread.instructions[PYTHON]).sum();
    let rate = done / (1e3 * task.python * base) / (first.since_start().ns() / 1e9);
    let (mut wait, mut python, mut cycles, mut busy) = (0.0, 0.0, 0.0, 0.0);
    for thread in machine.threads() {
        let [in_python, in_native] =
            [PYTHON, NATIVE].map(|counter| thread.time[counter].ns() / 1e3);
        let end = thread.finished.map_or(f64::NAN, |end| end.since_start().ns() / 1e3);
        wait += end - in_python - in_native;
        python += in_python;
        busy += in_python + in_native;
        cycles += thread.cycles.iter().sum::<f64>();
    }
    let holds = (threads as u64 * ITERATIONS) as f64 * f64::from(holds);
    Ok(Ran { wait: wait / holds, python: python / holds, rate, ghz: cycles / busy / 1e3 })
}

/// The rows of the interpreter lock.
pub(crate) fn rows(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let amd = &by_driver(&inputs.model, inputs.locks.call_ns);
    let mut rows = Vec::new();
    for task in &TASKS {
        let [two, four] =
            [2, 4].map(|threads| run_task(amd, task, threads, Clocks::Base, Some("P2")));
        let (two, four) = (two?, four?);
        let [[wait_2, python_2], [wait_4, python_4]] = task.paper;
        rows.push(
            Draft::new(task.id, Class::Mixed, "Table 6, §5.1", task.what, "µs")
                .value("2 threads: wait", wait_2, two.wait)
                .value("python", python_2, two.python)
                .value("4 threads: wait", wait_4, four.wait)
                .value("python", python_4, four.python)
                .row(task.reason),
        );
    }
    let gains = |clocks: Clocks, task: &Task, threads: usize| -> Result<bool, SimError> {
        let start = if clocks == Clocks::Wait { "P0" } else { "P2" };
        let with = run_task(amd, task, threads, clocks, Some(start))?;
        Ok(with.rate > run_task(amd, task, threads, Clocks::Base, Some("P2"))?.rate)
    };
    let mut told = Vec::new();
    for (name, clocks, threads) in [
        ("Dyn", Clocks::Dyn, 4),
        ("Dyn, 8 threads", Clocks::Dyn, 8),
        ("Own", Clocks::Own, 4),
        ("Wait", Clocks::Wait, 4),
    ] {
        let mut gain = Vec::new();
        for task in &TASKS {
            if gains(clocks, task, threads)? {
                gain.push(task.name);
            }
        }
        told.push(format!("{name}: {}", gain.join(", ")));
    }
    rows.push(words(
        "R002-34",
        Class::Predicted,
        "Fig. 6, §5.1",
        "tasks that gain, of 4 threads where no number is given",
        "Dyn: Pi, Regex, bz2, SHA1; Dyn, 8 threads: Pi, Regex; Own: Pi, Regex; Wait: Pi, Regex",
        told.join("; ").as_str(),
        "bz2 and SHA1 lose with `Dyn` here: the request for P2 after a section keeps the thread for 6 µs, and rated power allows P0 only beside modules that are idle or at P6, where they run at P2 outside of the \
         lock. Without both, they gain, but then also where they do not in the paper (below). Threads that wait for the lock execute nothing",
    ));
    let intel = inputs.second()?;
    let mut fastest = Vec::new();
    for task in &TASKS {
        let found = run_task(intel, task, 4, Clocks::Base, None)?;
        if found.ghz > 0.99 * ghz(intel, "P39") {
            fastest.push(task.name);
        }
    }
    rows.push(words(
        "R002-35",
        Class::Mixed,
        "Fig. 7, §5.1",
        "i7-4770: tasks of 4 threads that reach the fastest P-state by the processor's own boost",
        "Pi, Regex",
        fastest.join(", ").as_str(),
        "which clock a number of active cores gets is a value of the model, partly a guess: predicted is only how many are active",
    ));
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// §4.3, §5.1: the slow clock is that of a thread that waits.
    #[test]
    fn a_thread_slows_down_before_it_waits_and_not_if_the_lock_is_free() {
        let in_line = Arc::new(AtomicUsize::new(0));
        let mut program = Interpreted {
            steps: [Step::Lock(0), Step::Ask(0), Step::Unlock(0)].into(),
            next: 0,
            times: 2,
            before_wait: Some(Step::Ask(6)),
            has_asked: false,
            in_line: Arc::clone(&in_line),
        };
        let mut chance = Random::new(1);
        let mut next = || program.next(Moment::START, &mut chance);
        assert_eq!([next(), next(), next()], [Step::Lock(0), Step::Ask(0), Step::Unlock(0)]);
        in_line.store(1, Ordering::Relaxed);
        assert_eq!([next(), next()], [Step::Ask(6), Step::Lock(0)]);
        assert_eq!(in_line.load(Ordering::Relaxed), 2);
        assert_eq!([next(), next(), next()], [Step::Ask(0), Step::Unlock(0), Step::End]);
        assert_eq!(in_line.load(Ordering::Relaxed), 1);
    }
}

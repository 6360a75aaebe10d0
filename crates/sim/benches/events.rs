//! Measures how many segments per second the machine runs, with few cores and with many, compared
//! with the cost of the queue alone.
//!
//! Five rates, in turn, five rounds: the machine with code that asks for no level, of which up to
//! 17 segments share an event, and with a change of the level in each second segment, which takes
//! more events than segments; push and pop of a binary heap that holds as many events as there are
//! cores, writes to as many cache lines as an event touches, and as many events of a public library
//! for discrete-event simulation. The results are medians.
//!
//! An event touches some 21 lines of its core and thread. Those of a few cores stay in the
//! first-level cache, those of 512 do not, and no processor could foresee which core is next. The
//! lines alone cost more with many cores than with few. That difference is the least by which the
//! machine costs more: all of these writes are independent, while an event reads from one line
//! which line is next.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Model, builtin};
use dimmer_processor::units::LicenseLevel;
use dimmer_sim::{Extent, Machine, Moment, Script, Segment, Settings, Step};
use nexosim::model::{Context, schedulable};

/// Segments in each measurement.
const SEGMENTS: u64 = 2_000_000;

/// Rounds; odd, for the median.
const ROUNDS: usize = 5;

fn main() {
    println!("million a second, one thread; median of {ROUNDS} rounds");
    println!(
        "{:>6} {:>18} {:>14} {:>14} {:>12} {:>18}",
        "cores", "Dimmer, segments", "with levels", "binary heap", "lines alone", "NeXosim, events"
    );
    for cores in [2_u32, 8, 32, 128, 512] {
        let mut rates = [const { Vec::new() }; 5];
        for _ in 0..ROUNDS {
            let work = [run, run_with_levels, push_and_pop, write_lines, in_nexosim];
            for (rates, work) in rates.iter_mut().zip(work) {
                rates.push(rate(|| work(cores)));
            }
        }
        let [machine, levels, heap, lines, nexosim] = rates.map(|rates| median(rates) / 1e6);
        println!(
            "{cores:>6} {machine:>18.1} {levels:>14.1} {heap:>14.1} {lines:>12.1} {nexosim:>18.1}"
        );
    }
}

/// The rate of the work per second.
fn rate(work: impl FnOnce() -> u64) -> f64 {
    let begin = Instant::now();
    let done = work();
    done as f64 / begin.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// A thread on each core runs bursts of light 256-bit code in scalar code. Returns the number of
/// segments.
fn run(cores: u32) -> u64 {
    run_bursts(cores, InstructionClass::Light256)
}

/// The same with heavy 512-bit code, which asks for a level.
fn run_with_levels(cores: u32) -> u64 {
    run_bursts(cores, InstructionClass::Heavy512)
}

fn run_bursts(cores: u32, class: InstructionClass) -> u64 {
    let text = builtin("xeon-gold-6130").unwrap_or_default();
    let Ok(mut model) = Model::parse(std::path::Path::new("xeon-gold-6130"), text) else {
        return 0;
    };
    if let Some(number) = &mut model.shape.cores {
        number.value = cores;
    }
    for level in &mut model.levels {
        if let Some(last) = level.bins.last_mut() {
            last.cores = 512;
        }
    }
    let settings = Settings { cores, ..Settings::default() };
    let Ok(mut machine) = Machine::new(&model, settings, ()) else { return 0 };
    for core in 0..usize::try_from(cores).unwrap_or(0) {
        // Lengths differ so that events do not coincide.
        let length = 3000.0 + core as f64;
        let scalar = Segment { extent: Extent::Instructions(length), ..Segment::SCALAR };
        let burst = Segment { class, extent: Extent::Instructions(700.0), ..scalar };
        let times = SEGMENTS / 2 / u64::from(cores);
        let steps = [scalar, burst].map(|code| (Step::Run(code), LicenseLevel::new(0))).to_vec();
        machine.spawn("t", Box::new(Script::new(steps, times)), Some(core));
    }
    let _ = machine.run(Moment::MAX);
    machine.segments()
}

/// A heap holds as many events as there are cores. Returns how many were taken and put back.
fn push_and_pop(cores: u32) -> u64 {
    let mut heap: BinaryHeap<Reverse<(u64, u64, u32)>> =
        (0..cores).map(|core| Reverse((u64::from(core), 0, core))).collect();
    for added in 0..SEGMENTS {
        if let Some(Reverse((time, _, core))) = heap.pop() {
            heap.push(Reverse((time + 3000 + u64::from(core), added, core)));
        }
    }
    std::hint::black_box(heap.len());
    SEGMENTS
}

/// A cache line.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Line(u64);

/// Writes to as many lines of one core after the other as an event does, in a random order of
/// cores. Returns the number of such events.
///
/// Seven places of three lines stand for the core, its threads, and what these point to. 21 misses
/// an event is what Valgrind's cachegrind counts with 512 cores and a first-level cache of 48 KiB,
/// twelve ways.
fn write_lines(cores: u32) -> u64 {
    const PLACES: usize = 7;
    const OF_PLACE: usize = 3;
    let mut order: Vec<usize> = (0..cores).filter_map(|core| usize::try_from(core).ok()).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut places = vec![vec![[Line(0); OF_PLACE]; order.len()]; PLACES];
    let times = SEGMENTS / u64::from(cores);
    for _ in 0..times {
        for core in &order {
            for place in &mut places {
                for line in &mut place[*core] {
                    line.0 += 1;
                }
            }
        }
    }
    std::hint::black_box(&places);
    times * u64::from(cores)
}

/// A model that wakes itself up.
#[derive(serde::Serialize, serde::Deserialize)]
struct Sleeper {
    period: Duration,
    left: u64,
}

#[nexosim::model::Model]
impl Sleeper {
    #[nexosim(init)]
    async fn init(&mut self, cx: &Context<Self>) {
        self.wake((), cx).await;
    }

    #[nexosim(schedulable)]
    async fn wake(&mut self, _: (), cx: &Context<Self>) {
        if self.left > 0 {
            self.left -= 1;
            let _ = cx.schedule_event(self.period, schedulable!(Self::wake), ());
        }
    }
}

/// A model for each core schedules one event after the other for itself. Returns the number of all
/// events.
fn in_nexosim(cores: u32) -> u64 {
    let times = SEGMENTS / 2 / u64::from(cores);
    let mut bench = nexosim::simulation::SimInit::with_num_threads(1);
    for core in 0..cores {
        let period = Duration::from_nanos(3000 + u64::from(core));
        let model = Sleeper { period, left: times };
        bench = bench.add_model(model, nexosim::simulation::Mailbox::new(), "core");
    }
    let Ok(mut simulation) = bench.init(nexosim::time::MonotonicTime::EPOCH) else { return 0 };
    let _ = simulation.run();
    times * u64::from(cores)
}

//! How many segments a second the machine runs, with few cores and with many, beside what the queue alone costs.
//!
//! Three rates on the same load, in turn, five rounds: the machine (a segment is an event, and more where levels change), push and pop of a
//! binary heap that holds as many events, and the same load as events of a public library for discrete-event simulation. Medians.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use dimmer_processor::class::InstructionClass;
use dimmer_processor::model::{Model, builtin};
use dimmer_processor::units::LicenceLevel;
use dimmer_sim::{Extent, Machine, Moment, Script, Segment, Settings, Step};
use nexosim::model::{Context, schedulable};

/// Segments of each measurement.
const SEGMENTS: u64 = 2_000_000;

/// Rounds; odd, for the median.
const ROUNDS: usize = 5;

fn main() {
    println!("million a second, one thread; median of {ROUNDS} rounds");
    println!(
        "{:>6} {:>18} {:>14} {:>18}",
        "cores", "Dimmer, segments", "binary heap", "NeXosim, events"
    );
    for cores in [2_u32, 8, 32, 128, 512] {
        let (mut machine, mut heap, mut nexosim) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            machine.push(rate(|| run(cores)));
            heap.push(rate(|| push_and_pop(cores)));
            nexosim.push(rate(|| in_nexosim(cores)));
        }
        let [machine, heap, nexosim] = [machine, heap, nexosim].map(|rates| median(rates) / 1e6);
        println!("{cores:>6} {machine:>18.1} {heap:>14.1} {nexosim:>18.1}");
    }
}

/// How many a second.
fn rate(work: impl FnOnce() -> u64) -> f64 {
    let begin = Instant::now();
    let done = work();
    done as f64 / begin.elapsed().as_secs_f64()
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// A thread on each core, bursts of light 256-bit code in scalar code; how many segments.
fn run(cores: u32) -> u64 {
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
        // Of different lengths, so that events do not fall together.
        let length = 3000.0 + core as f64;
        let scalar = Segment { extent: Extent::Instructions(length), ..Segment::SCALAR };
        let class = InstructionClass::Light256;
        let burst = Segment { class, extent: Extent::Instructions(700.0), ..scalar };
        let times = SEGMENTS / 2 / u64::from(cores);
        let steps = [scalar, burst].map(|code| (Step::Run(code), LicenceLevel::new(0))).to_vec();
        machine.spawn("t", Box::new(Script::new(steps, times)), Some(core));
    }
    let _ = machine.run(Moment::MAX);
    machine.segments()
}

/// As many events as cores in a heap; how many were taken and put back.
fn push_and_pop(cores: u32) -> u64 {
    let mut heap: BinaryHeap<Reverse<(Moment, u64, u32)>> =
        (0..cores).map(|core| Reverse((u64::from(core), 0, core))).collect();
    for added in 0..SEGMENTS {
        if let Some(Reverse((time, _, core))) = heap.pop() {
            heap.push(Reverse((time + 3000 + u64::from(core), added, core)));
        }
    }
    std::hint::black_box(heap.len());
    SEGMENTS
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

/// A model for each core that schedules one event after the other for itself; how many in all.
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

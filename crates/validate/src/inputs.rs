//! What the experiments take as given.

use std::thread;

use dimmer_policy::server::loops::thresholds;
use dimmer_processor::model::{Bin, Missing, Model};
use dimmer_processor::units::{Nanos, whole};
use dimmer_sim::{Costs, Picos, Scheduling, SimError};

use crate::migration::Turns;
use crate::server::{Load, X265};
use crate::turbo::Locks;
use crate::{Follower, taken};

/// What experiments take as given. A [`Cause`](crate::Cause) is tested by changing some of it.
#[derive(Clone)]
pub(crate) struct Inputs<'a> {
    /// The processor.
    pub(crate) model: Model,
    /// The other processor of paper 002.
    pub(crate) second: Option<Model>,
    /// What paper 002's lock takes as given.
    pub(crate) locks: Locks,
    /// Whether paper 002's resizer waits between bulks, in the time of its request.
    pub(crate) waits_between_bulks: bool,
    /// What governors in software cost.
    pub(crate) costs: Costs,
    /// How long before a core has its level paper 000's code ends, if an interrupt is to end it.
    pub(crate) ends_early: Picos,
    /// The standard deviation of the end of a phase of a multi-phase run (µs).
    pub(crate) late_sd_us: f64,
    /// The time of a hand-over of paper 001 §3.3, there and back (ns); `None`: the scenario's.
    pub(crate) hand_over_ns: Option<f64>,
    /// The constants of paper 001's loop.
    pub(crate) thresholds: thresholds::Settings,
    /// How long paper 001's server keeps the core when nothing is to be moved; `None`: by its use.
    pub(crate) keeps_core: Option<Nanos>,
    /// The scheduler under which paper 001's server runs.
    pub(crate) scheduler: Scheduling,
    /// Whether paper 001's server moves all calls of the web server, whatever its loop decides.
    pub(crate) moves_all: bool,
    /// Whether paper 001's server has one more core for what it moves in each experiment.
    pub(crate) has_extra_core: bool,
    /// The part of a round trip's cycles in table 9 of paper 002 that is at the worker's clock.
    pub(crate) at_worker: f64,
    /// A change to all workloads of paper 001's server.
    pub(crate) edit: fn(Load) -> Load,
    /// How long a page of the paper's web server takes, of the measured one.
    pub(crate) page: f64,
    /// How busy paper 003's video encoder is.
    pub(crate) x265: X265,
    /// How long the way from P6 to P0 takes at paper 002's lock (ns).
    pub(crate) rise_ns: u64,
    /// How the functions of paper 004's mixed microbenchmark take turns.
    pub(crate) turns: Turns,
    /// The part of the wait of paper 004's database that is work of the kernel.
    pub(crate) kernel_share: f64,
    /// The data that a migration of paper 004's database fetches (KiB).
    pub(crate) cached_kib: u32,
    /// The voltage in paper 004 with P0 set to 3125 MHz (mV).
    pub(crate) lowered_mv: f64,
    /// The part of memory's time in paper 004's microbenchmark that grows as the fastest core of a
    /// cluster becomes slower.
    pub(crate) memory_by_l3: f64,
    /// How often paper 001's experiments run, each time with another seed.
    pub(crate) seeds: u64,
    /// Says when the experiment is to end.
    pub(crate) follower: &'a dyn Follower,
}

impl<'a> Inputs<'a> {
    /// The inputs as they are known, for this processor.
    pub(crate) fn new(model: Model, follower: &'a dyn Follower) -> Self {
        Self {
            model,
            second: None,
            locks: Locks::PAPER,
            waits_between_bulks: false,
            costs: Costs::default(),
            // §3.2.5: the first cycle at the level raises the interrupt.
            ends_early: Picos::ZERO,
            // The author's published raw data of paper 000 (§5.2.2): the last phase under AVXFREQ,
            // whose clock is the same to its end, varies by 2303 of 293 518 iterations in 716 µs.
            late_sd_us: 5.6,
            hand_over_ns: None,
            // A guess: the paper does not say which windows §6.2.1 has. §6.2.3 tries some up to
            // this one, which was best (figure 6.7).
            thresholds: thresholds::Settings {
                window: Nanos::from_ms(800),
                ..thresholds::Settings::PAPER
            },
            keeps_core: None,
            // §6.1.
            scheduler: Scheduling::MuQss,
            edit: |load| load,
            page: 1.0,
            moves_all: false,
            has_extra_core: false,
            lowered_mv: taken::value("R004-38b"),
            at_worker: 0.5,
            x265: X265 {
                dense: taken::value("R003-02"),
                waits: taken::value("R003-07"),
                every_ms: 5.0,
            },
            rise_ns: whole(taken::value("R002-08")),
            turns: Turns { overlap: false },
            kernel_share: 0.0,
            cached_kib: 0,
            memory_by_l3: 0.0,
            seeds: 3,
            follower,
        }
    }

    /// The other processor of paper 002.
    ///
    /// # Errors
    /// If the paper has none.
    pub(crate) fn second(&self) -> Result<&Model, SimError> {
        self.second.as_ref().ok_or_else(|| {
            let model = self.model.identity.name.clone();
            Missing { model, key: "second", needed_for: "the other processor" }.into()
        })
    }

    /// The same with the clocks that the model has with all cores active, for any number of them:
    /// in paper 001 the cores of the load generator were active (figure 6.1).
    pub(crate) fn all_busy(&self) -> Model {
        let mut model = self.model.clone();
        for level in &mut model.levels {
            level.bins =
                level.bins.pop().map(|last| Bin { from_cores: 1, ..last }).into_iter().collect();
        }
        model
    }

    /// The results of this run with each of the seeds, all at the same time.
    pub(crate) fn each_seed<T: Send>(
        &self,
        run: impl Fn(u64) -> Result<T, SimError> + Sync,
    ) -> Result<Vec<T>, SimError> {
        thread::scope(|scope| {
            let runs: Vec<_> = (1..=self.seeds)
                .map(|seed| {
                    scope.spawn({
                        let run = &run;
                        move || run(seed)
                    })
                })
                .collect();
            runs.into_iter()
                .map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        })
    }
}

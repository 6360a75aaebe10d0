//! Paper 001's policy server at work (§3.3, §4.2.1, chapter 6): workloads, and runs of them with
//! and without it.
//!
//! Of its web server the paper describes what was marked, which cores there were and which
//! libraries did what, but not the contents of a request. These are in the scenarios, with what is
//! guessed.

use std::collections::BTreeMap;
use std::path::Path;

use dimmer_policy::server::loops::{Chosen, thresholds};
use dimmer_sim::scenario::{Outcome, Scenario};
use dimmer_sim::{Course, Decider, Governor, Moment, Moving, Picos, SimError};

use crate::inputs::Inputs;
use crate::modes::MS;

/// A simulated second.
pub(crate) const SECOND: Picos = Picos::from_ps(1000 * MS.ps());

/// The instructions with which nginx encrypts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    Avx512,
    Avx2,
    Sse,
}

impl Vectors {
    /// Class, and instructions per record. AVX2 takes 1.8 times as long as AVX-512 (measured with
    /// OpenSSL's ChaCha20-Poly1305, see `policy::ways`). SSE takes twice as long as AVX2, because
    /// its registers are half as wide; that is a guess.
    const fn code(self) -> (&'static str, &'static str) {
        match self {
            Self::Avx512 => ("heavy-512", "22_700"),
            Self::Avx2 => ("heavy-256", "40_900"),
            Self::Sse => ("heavy-128", "81_800"),
        }
    }
}

/// A workload.
#[derive(Clone, Debug)]
pub(crate) struct Load(String);

impl Load {
    /// The web server.
    pub(crate) fn nginx(vectors: Vectors) -> Self {
        Self(include_str!("../../../scenarios/nginx-avx512.toml").to_owned()).with(vectors)
    }

    /// Removes the video encoder's marks: its calls stay.
    pub(crate) fn without_encoders_marks(self) -> Self {
        let mark = |verb: &str| format!("    {{ {verb} = \"macroblock_analyse\" }},\n");
        self.replacing(&mark("enter"), "").replacing(&mark("leave"), "")
    }

    /// One thread of the video encoder.
    pub(crate) fn encoder() -> Self {
        Self(include_str!("../../../scenarios/video-encoder.toml").to_owned())
    }

    /// The web server and the encoder, the encoder for about so many seconds.
    pub(crate) fn both(vectors: Vectors, seconds: u64) -> Self {
        // A macroblock takes some 50 µs, more beside others.
        let times = format!("times = {}\n", seconds * 10_000);
        Self(include_str!("../../../scenarios/nginx-and-video-encoder.toml").to_owned())
            .with(vectors)
            .replacing("times = 100_000\n", &times)
    }

    /// The sieve with its bursts.
    pub(crate) fn sieve() -> Self {
        Self(include_str!("../../../scenarios/primesieve-moved.toml").to_owned())
    }

    /// The server whose workers change their habits.
    pub(crate) fn habits() -> Self {
        Self(include_str!("../../../scenarios/changing-habits.toml").to_owned())
    }

    /// Replaces the routine that encrypts, which is 512-bit code in the file.
    fn with(self, vectors: Vectors) -> Self {
        let (class, instructions) = vectors.code();
        let code = |class: &str| format!("name = \"encrypt\"\nclass = \"{class}\"");
        self.replacing(&code("heavy-512"), &code(class)).replacing("22_700", instructions)
    }

    /// Replaces `this` by `by`.
    pub(crate) fn replacing(self, this: &str, by: &str) -> Self {
        Self(self.0.replace(this, by))
    }

    /// With `cores` cores, and two workers each.
    pub(crate) fn on(self, cores: u32) -> Self {
        self.replacing("cores = 8\n", &format!("cores = {cores}\n"))
            .replacing("count = 8\n", &format!("count = {cores}\n"))
    }
}

/// What decides, and with which constants.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// As the mechanism defines it.
    As(Moving),
    /// The paper's loop with these constants.
    Paper(thresholds::Settings),
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) course: Course,
    seconds: u64,
}

/// How a workload is run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) way: Way,
    pub(crate) seconds: u64,
    /// The time of a hand-over there and back (ns), if it is not the scenario's.
    pub(crate) hand_over_ns: Option<f64>,
    /// Whether there is one more core, for moved regions only.
    pub(crate) has_extra_core: bool,
}

impl Plan {
    pub(crate) fn new(way: Way, seconds: u64) -> Self {
        Self { way, seconds, hand_over_ns: None, has_extra_core: false }
    }

    /// Runs a workload by this plan, until the inputs say that it is to end.
    pub(crate) fn run(&self, load: &Load, inputs: &Inputs<'_>, seed: u64) -> Result<Run, SimError> {
        let model = inputs.all_busy();
        let load = (inputs.edit)(load.clone());
        let scenario = Scenario::parse(Path::new("scenario"), &load.0)?;
        let scenario = scenario.until(Moment::START + self.seconds * SECOND);
        let mechanism = match self.way {
            Way::As(mechanism) => mechanism,
            Way::Paper(_) => Moving::Loop(&thresholds::DEFINITION),
        };
        let mut settings = scenario.settings(&model, Governor::Hardware, mechanism, seed)?;
        if let Some(region_moves) = &mut settings.region_moves {
            region_moves.is_last_extra = self.has_extra_core;
            if let Some(both) = self.hand_over_ns {
                region_moves.hand_over_ns = both / 2.0;
            }
            if let (Way::Paper(thresholds), Decider::Server(server)) =
                (&self.way, &mut region_moves.decider)
            {
                server.decides = Chosen::new(*thresholds);
                server.cores.unused = inputs.keeps_core.unwrap_or(server.cores.unused);
            }
        }
        if self.has_extra_core {
            settings.cores += 1;
        }
        let (outcome, course) =
            scenario.run_on(&model, settings, Course::default(), &|_| inputs.follower.stops())?;
        Ok(Run { outcome, course, seconds: self.seconds })
    }
}

impl Run {
    /// Number of requests that were served.
    pub(crate) fn served(&self) -> f64 {
        self.by_program().values().sum()
    }

    /// Number of requests that were served in a second.
    pub(crate) fn a_second(&self) -> f64 {
        self.served() / self.seconds as f64
    }

    /// Number of requests that were served, for each program.
    pub(crate) fn by_program(&self) -> BTreeMap<&str, f64> {
        let mut served = BTreeMap::new();
        for thread in &self.outcome.threads {
            let requests = thread.latencies.map_or(0.0, |latencies| latencies.requests as f64);
            *served.entry(thread.program.as_str()).or_default() += requests;
        }
        served
    }

    /// The part of each program's calls that was moved.
    pub(crate) fn moved(&self) -> BTreeMap<&str, f64> {
        let mut calls = BTreeMap::<_, (u64, u64)>::new();
        for thread in &self.outcome.threads {
            let (all, moved) = calls.entry(thread.program.as_str()).or_default();
            *all += thread.calls;
            *moved += thread.moved;
        }
        let part = |(all, moved)| moved as f64 / u64::max(all, 1) as f64;
        calls.into_iter().map(|(program, calls)| (program, part(calls))).collect()
    }

    /// How often a majority of `clients` started to be moved (`is_begin`), or ceased to be.
    pub(crate) fn changes(&self, clients: usize, is_begin: bool) -> usize {
        let are_most = |moved: usize| 2 * moved > clients;
        let sides = self
            .course
            .0
            .windows(2)
            .map(|two| (are_most(two[0].1.moved), are_most(two[1].1.moved)));
        sides.filter(|sides| *sides == (!is_begin, is_begin)).count()
    }

    /// The part of `clients` that is moved, on average from one second to another.
    pub(crate) fn moved_share(&self, clients: usize, from: u64, to: u64) -> f64 {
        let at = |seconds: u64| Moment::START + seconds * SECOND;
        let part = self.course.mean(at(from), at(to), |served| served.moved as f64);
        part / clients as f64
    }
}

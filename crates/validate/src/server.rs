//! Paper 001's policy server at work (§3.3, §4.2.1, chapter 6): workloads, and runs of them with
//! and without it.
//!
//! Of its web server the paper describes what was marked, which cores there were and which
//! libraries did what, but not the contents of a request. These are in the scenarios, with what is
//! guessed.

use std::collections::BTreeMap;
use std::path::Path;

use dimmer_policy::server::loops::{Chosen, thresholds};
use dimmer_processor::model::Assumed;
use dimmer_sim::scenario::{Outcome, Scenario, ScenarioError};
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
    /// The scenario of nginx with them.
    const fn file(self) -> &'static str {
        match self {
            Self::Avx512 => "nginx-avx512.toml",
            Self::Avx2 => "nginx-avx2.toml",
            Self::Sse => "nginx-sse.toml",
        }
    }
}

/// The files of `scenarios/` from which workloads are made.
const FILES: [(&str, &str); 15] = [
    ("nginx-brotli-page.toml", include_str!("../../../scenarios/nginx-brotli-page.toml")),
    ("nginx-avx512.toml", include_str!("../../../scenarios/nginx-avx512.toml")),
    ("nginx-avx2.toml", include_str!("../../../scenarios/nginx-avx2.toml")),
    ("nginx-sse.toml", include_str!("../../../scenarios/nginx-sse.toml")),
    ("video-encoder.toml", include_str!("../../../scenarios/video-encoder.toml")),
    ("primesieve-moved.toml", include_str!("../../../scenarios/primesieve-moved.toml")),
    ("changing-habits.toml", include_str!("../../../scenarios/changing-habits.toml")),
    ("nginx-specialised.toml", include_str!("../../../scenarios/nginx-specialised.toml")),
    ("nginx-specialised-avx2.toml", include_str!("../../../scenarios/nginx-specialised-avx2.toml")),
    ("nginx-specialised-sse.toml", include_str!("../../../scenarios/nginx-specialised-sse.toml")),
    ("x265-avx512.toml", include_str!("../../../scenarios/x265-avx512.toml")),
    ("batch-beside-x265.toml", include_str!("../../../scenarios/batch-beside-x265.toml")),
    ("pipeline-beside-x265.toml", include_str!("../../../scenarios/pipeline-beside-x265.toml")),
    ("build-beside-x265.toml", include_str!("../../../scenarios/build-beside-x265.toml")),
    ("c-build.toml", include_str!("../../../scenarios/c-build.toml")),
];

/// How busy paper 003's video encoder is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct X265 {
    /// The part of its stretches between waits with code dense enough for the level of its width.
    pub(crate) dense: f64,
    /// The part of the time for which a thread waits.
    pub(crate) waits: f64,
    /// The mean time from one wait to the next (ms). Paper 003, footnote 2, if each call of the
    /// kernel is a wait: 5.
    pub(crate) every_ms: f64,
}

/// The quantiles of a distribution, times this.
fn scaled(quantiles: &str, by: f64) -> String {
    let scale = |line: &str| {
        let pairs = line.split("], [").map(|pair| {
            let Some((share, value)) = pair.split_once(", ") else { return pair.to_owned() };
            let digits = value.trim_end_matches(['[', ']', ',']);
            let (value, end) = (digits.replace('_', ""), &value[digits.len()..]);
            let value = value.parse().unwrap_or(f64::NAN) * by;
            format!("{share}, {value:.3}{end}")
        });
        pairs.collect::<Vec<_>>().join("], [")
    };
    quantiles.lines().map(scale).collect::<Vec<_>>().join("\n") + "\n"
}

/// Number of workers of nginx.
pub(crate) const WORKERS: usize = 16;

/// A workload: the files that it includes, and what is its own.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    files: Vec<&'static str>,
    own: String,
    cores: Option<u32>,
    /// What is replaced in the files.
    replaced: Vec<(&'static str, String)>,
}

impl Load {
    pub(crate) fn of(files: &[&'static str]) -> Self {
        Self { files: files.to_vec(), own: String::new(), cores: None, replaced: Vec::new() }
    }

    /// The web server.
    pub(crate) fn nginx(vectors: Vectors) -> Self {
        Self::of(&[vectors.file()])
    }

    /// Workers on this many cores that hardly do anything in their marked routine.
    pub(crate) fn idle_routine(cores: u32) -> Self {
        let own = format!(
            "name = \"workers\"
source = \"made up\"
model = \"i9-7940x\"
end_us = 1_000_000
hand_over_us = 0.002
code = [{{ name = \"scalar\", class = \"scalar\", per_cycle = 1.0 }}]
[[thread]]
name = \"worker\"
count = {}
times = 0
requests = \"closed\"
steps = [
    {{ run = \"scalar\", instructions = 1_000_000 }},
    {{ enter = \"routine\" }},
    {{ run = \"scalar\", instructions = 20 }},
    {{ leave = \"routine\" }},
]
",
            2 * cores
        );
        Self { cores: Some(cores), own, ..Self::of(&[]) }
    }

    /// One thread of the video encoder.
    pub(crate) fn encoder() -> Self {
        Self::of(&["video-encoder.toml"])
    }

    /// The web server and the encoder; the encoder runs for about `seconds`.
    pub(crate) fn both(vectors: Vectors, seconds: u64) -> Self {
        // A macroblock takes some 50 µs, more beside others.
        let times = format!("name = \"encoder\"\ntimes = {}\n", seconds * 10_000);
        let both = Self::of(&[vectors.file(), "video-encoder.toml"]);
        Self { own: SHARED.to_owned(), ..both }.replacing("name = \"encoder\"\ntimes = 0\n", &times)
    }

    /// Removes the video encoder's marks: its calls stay.
    pub(crate) fn without_encoders_marks(self) -> Self {
        self.replacing("    { enter = \"macroblock_analyse\" },\n", "")
            .replacing("    { leave = \"macroblock_analyse\" },\n", "")
    }

    /// The sieve with its bursts.
    pub(crate) fn sieve() -> Self {
        Self::of(&["primesieve-moved.toml"])
    }

    /// The server whose workers change their habits.
    pub(crate) fn habits() -> Self {
        Self::of(&["changing-habits.toml"])
    }

    /// Replaces `this` by `by` in all files.
    pub(crate) fn replacing(mut self, this: &'static str, by: &str) -> Self {
        self.replaced.push((this, by.to_owned()));
        self
    }

    /// With `cores` cores, and two workers each.
    pub(crate) fn on(self, cores: u32) -> Self {
        let workers = format!("count = {}\n", 2 * cores);
        Self { cores: Some(cores), ..self }.replacing("count = 16\n", &workers)
    }

    /// With pages of the web server that take this many times as long.
    pub(crate) fn with_pages(self, times: f64) -> Self {
        // Instructions are cycles, which are executed slower or faster.
        const SCALAR: &str = "name = \"scalar\"\nclass = \"scalar\"\nper_cycle = ";
        let scaled = format!("{SCALAR}{:?}", 1.0 / times);
        self.replacing("name = \"scalar\"\nclass = \"scalar\"\nper_cycle = 1.0", scaled.as_str())
    }

    /// With pages before each of which 256-bit code of a library runs, of 20 000 cycles.
    pub(crate) fn with_library(self) -> Self {
        const PAGE: &str = "    { run = \"scalar\", instructions = \"nginx: before the first call of a request\" },\n";
        const CODE: &str = "[[code]]\nname = \"ChaCha20\"\n";
        const LIBRARY: &str =
            "[[code]]\nname = \"library\"\nclass = \"heavy-256\"\nper_cycle = 1.0\n\n";
        let page = format!("    {{ run = \"library\", instructions = 20_000 }},\n{PAGE}");
        self.replacing(PAGE, &page).replacing(CODE, &format!("{LIBRARY}{CODE}"))
    }

    /// With workers of paper 003's web server that have 60 KiB in their core's caches, and as many
    /// in their encryption.
    pub(crate) fn with_cached_data(self) -> Self {
        const SERVER: &str = "times = 0\nrequests = \"closed\"\n";
        self.replacing(SERVER, &format!("{SERVER}cached_kib = 60\n"))
            .replacing("data_kib = 0\n", "data_kib = 60\n")
    }

    /// With Poly1305 that asks for L1 alone.
    pub(crate) fn with_short_sections(self) -> Self {
        self.replacing("per_cycle = 1.0\nshare = 0.56\n", "per_cycle = 1.0\nshare = 0.49\n")
    }

    /// With x265's functions that have wide code at half the speed. They take 65.5 % of its time.
    pub(crate) fn with_slow_x265(self) -> Self {
        self.replacing("per_cycle = 1.0\nshare = 0.12\n", "per_cycle = 0.604\nshare = 0.12\n")
    }

    /// With x265 this busy, its dense stretches in code of this class.
    pub(crate) fn with_x265(self, x265: X265, class: &str) -> Self {
        const CODE: &str = "per_cycle = 1.0\nshare = 0.12\n";
        const DENSE: &str = "per_cycle = 1.0\nshare = 0.655\n";
        const RUN: &str = "    { run = \"x265\", instructions = \"x265: between waits\" },\n";
        const WAIT: &str = "    { sleep_us = \"x265: a wait\" },\n";
        const RUNS: &str = "quantiles = [
    [0, 1], [0.1, 801_000], [0.2, 1_700_000], [0.3, 2_710_000], [0.4, 3_880_000],
    [0.5, 5_270_000], [0.6, 6_960_000], [0.7, 9_150_000], [0.8, 12_200_000], [0.9, 17_500_000],
    [0.95, 22_800_000], [0.98, 29_700_000], [0.99, 35_000_000], [0.999, 52_500_000],
    [1, 76_000_000],
]
";
        const WAITS: &str = "quantiles = [
    [0, 0.001], [0.1, 105], [0.2, 223], [0.3, 357], [0.4, 511], [0.5, 693], [0.6, 916],
    [0.7, 1_204], [0.8, 1_609], [0.9, 2_303], [0.95, 2_996], [0.98, 3_912], [0.99, 4_605],
    [0.999, 6_908], [1, 10_000],
]
";
        // The scenario's threads wait for a fifth of the time, every 5 ms.
        let longer = x265.every_ms / 5.0;
        let runs = self.replacing(RUNS, &scaled(RUNS, longer * (1.0 - x265.waits) / 0.8));
        let waits = match x265.waits {
            0.0 => runs.replacing(WAIT, ""),
            waits => runs.replacing(WAITS, &scaled(WAITS, longer * waits / 0.2)),
        };
        let dense =
            format!("{CODE}\n[[code]]\nname = \"dense x265\"\nclass = \"{class}\"\n{DENSE}");
        let of = |share: f64, code: &str| {
            format!(
                "{{ share = {share:?}, steps = [{{ run = \"{code}\", instructions = \"x265: between waits\" }}] }}"
            )
        };
        match x265.dense {
            0.0 => waits,
            1.0 => waits.replacing(CODE, DENSE),
            dense_part => waits.replacing(CODE, &dense).replacing(
                RUN,
                &format!(
                    "    {{ choose = [{}, {}] }},\n",
                    of(1.0 - dense_part, "x265"),
                    of(dense_part, "dense x265")
                ),
            ),
        }
    }

    /// With frames of the video that take half as long, as long or twice as long.
    pub(crate) fn with_uneven_frames(self) -> Self {
        const STEPS: &str = "steps = [
    { enter = \"macroblock_analyse\" },
    { run = \"search and compare\", instructions = 20_000 },
    { run = \"decide\", instructions = 20_000 },
    { run = \"search and compare\", instructions = 20_000 },
    { run = \"decide\", instructions = 10_000 },
    { leave = \"macroblock_analyse\" },
    { run = \"transform\", instructions = 20_000 },
    { run = \"write bits\", instructions = 40_000 },
]
";
        // A frame of 1920 times 1088 has 8160 macroblocks.
        let frame = |halves: u32| {
            let run = |code, instructions: u32| {
                let instructions = instructions * halves / 2;
                format!("{{ run = \"{code}\", instructions = {instructions} }}")
            };
            let analysis = [
                run("search and compare", 20_000),
                run("decide", 20_000),
                run("search and compare", 20_000),
                run("decide", 10_000),
            ];
            format!(
                "{{ share = 1, steps = [{{ repeat = 8160, steps = [{{ enter = \"macroblock_analyse\" }}, {}, {{ leave = \"macroblock_analyse\" }}, {}, {}] }}] }}",
                analysis.join(", "),
                run("transform", 20_000),
                run("write bits", 40_000)
            )
        };
        let frames = [1, 2, 4].map(frame).join(", ");
        self.replacing(STEPS, &format!("steps = [{{ choose = [{frames}] }}]\n"))
    }

    /// With a lock that all workers of the web server share, for 20 µs a request at 3.8 GHz.
    pub(crate) fn with_a_lock(self) -> Self {
        const PAGE: &str = "    { run = \"scalar\", instructions = \"nginx: before the first call of a request\" },\n";
        let locked = format!(
            "{PAGE}    {{ lock = 0 }}, {{ run = \"scalar\", instructions = 76_000 }}, {{ unlock = 0 }},\n"
        );
        self.replacing(PAGE, &locked)
    }

    /// The scenario.
    pub(crate) fn scenario(&self) -> Result<Scenario, ScenarioError> {
        let quoted: Vec<String> = self.files.iter().map(|file| format!("\"{file}\"")).collect();
        let cores = self.cores.map_or(String::new(), |cores| format!("cores = {cores}\n"));
        let text = format!(
            "schema = \"dimmer/scenario/1\"\ninclude = [{}]\n{cores}{}",
            quoted.join(", "),
            self.own
        );
        let read = |path: &Path| {
            let found = FILES.iter().find(|(name, _)| Path::new(name) == path);
            let (_, text) = found.ok_or_else(|| "no such scenario".to_owned())?;
            let replaced = self.replaced.iter();
            let is_there =
                |(this, _): &(&str, String)| FILES.iter().any(|(_, text)| text.contains(this));
            if let Some((this, _)) = replaced.clone().find(|one| !is_there(one)) {
                return Err(format!("no scenario contains what is to be replaced: {this}"));
            }
            Ok(replaced.fold((*text).to_owned(), |text, (this, by)| text.replace(this, by)))
        };
        Scenario::parse_with(Path::new("workload.toml"), &text, &read)
    }
}

/// What workloads assume where the model lacks values.
pub(crate) fn assumed(inputs: &Inputs<'_>) -> Result<Vec<Assumed>, SimError> {
    let all = [
        Load::nginx(Vectors::Avx512),
        Load::nginx(Vectors::Avx2),
        Load::nginx(Vectors::Sse),
        Load::encoder(),
        Load::sieve(),
        Load::habits(),
    ];
    let model = inputs.all_busy();
    let mut assumed: Vec<Assumed> = Vec::new();
    for load in all {
        for one in load.scenario()?.assumed(&model, &[Governor::Hardware])? {
            if !assumed.contains(&one) {
                assumed.push(one);
            }
        }
    }
    Ok(assumed)
}

/// The keys that differ between the web server and the encoder: those of the server.
const SHARED: &str = "name = \"nginx and x264\"
source = \"paper 001 §6.2.2, figure 6.5\"
model = \"i9-7940x\"
cores = 8
end_us = 20_000_000
hand_over_us = 6.0
";

/// What decides, and with which constants.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// As the mechanism defines it.
    As(Moving),
    /// The paper's loop with these constants.
    Paper(thresholds::Settings),
    /// The paper's server with its policy that always moves (§6.2.1), to its one core (§4.3.3).
    PaperAlways,
}

/// The results of a run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) outcome: Outcome,
    pub(crate) course: Course,
    seconds: u64,
    /// The time for which a call that is handed over occupies the dedicated core before it runs.
    hand_over: Picos,
    /// Number of hardware threads of a core.
    threads_per_core: u32,
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
        let has_extra_core = self.has_extra_core || inputs.has_extra_core;
        let model = inputs.all_busy();
        let load = (inputs.edit)(load.clone());
        let scenario = load.scenario()?;
        let scenario = scenario.until(Moment::START + self.seconds * SECOND);
        let mechanism = match self.way {
            Way::As(mechanism) => mechanism,
            Way::Paper(_) => Moving::Loop(&thresholds::DEFINITION),
            Way::PaperAlways => Moving::Always,
        };
        let mut settings = scenario.settings(&model, Governor::Hardware, mechanism, seed)?;
        settings.scheduler = inputs.scheduler;
        if let Some(region_moves) = &mut settings.region_moves {
            region_moves.is_last_extra = has_extra_core;
            if let Some(both) = self.hand_over_ns {
                region_moves.hand_over_ns = both / 2.0;
            }
            if let (Way::Paper(thresholds), Decider::Server(server)) =
                (&self.way, &mut region_moves.decider)
            {
                server.decides = Chosen::new(*thresholds);
                server.cores.unused = inputs.keeps_core.or(server.cores.unused);
            }
            if let (Way::PaperAlways, Decider::Always(cores)) =
                (&self.way, &mut region_moves.decider)
            {
                cores.most = 1;
            }
        }
        if has_extra_core {
            settings.cores += 1;
        }
        let hand_over_ns = settings.region_moves.as_ref().map_or(0.0, |moves| moves.hand_over_ns);
        let threads_per_core = settings.threads_per_core;
        let (outcome, course) =
            scenario.run_on(&model, settings, Course::default(), &|_| inputs.follower.stops())?;
        let hand_over = Picos::from_ns(hand_over_ns);
        Ok(Run { outcome, course, seconds: self.seconds, hand_over, threads_per_core })
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

    /// The utilisation of the dedicated core, on average over its hardware threads, in a run in
    /// which all calls of the web server run there.
    pub(crate) fn utilisation(&self) -> f64 {
        let is_marked = |code: &str| matches!(code, "ChaCha20" | "Poly1305");
        let busy: f64 = self
            .outcome
            .threads
            .iter()
            .map(|thread| {
                let marked = thread.phases.iter().filter(|phase| is_marked(&phase.code));
                let ran: f64 = marked.map(|phase| phase.time.as_f64()).sum();
                ran + thread.moved as f64 * self.hand_over.as_f64()
            })
            .sum();
        busy / ((self.seconds * SECOND).as_f64() * f64::from(self.threads_per_core))
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

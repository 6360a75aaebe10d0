//! Paper 003's results, row by row: what 512-bit code costs a web server, and programs beside a
//! video encoder, and what remains of that if cores are specialised.
//!
//! The web server's requests are measured ones (`scenarios/nginx-specialised.toml`). Parsec is not
//! packaged, so made-up programs stand for it: one that always has work and one whose threads wait
//! for each other. The build was measured. How busy the encoder is, is taken from two of the
//! paper's figures ([`crate::taken`]).

use dimmer_processor::model::Assumed;
use dimmer_processor::units::Nanos;
use dimmer_sim::scenario::Outcome;
use dimmer_sim::{
    Course, Decider, Governor, Moment, Moving, RegionMoves, Scheduling, SimError, Specialise,
    Specialising, WideCores,
};

use crate::inputs::Inputs;
use crate::row::{Draft, words};
use crate::server::{Load, SECOND};
use crate::{Class, Experiment, Left, Row};

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left {
        id: "R003-11",
        what: "instructions per cycle of nginx, with specialised cores and without",
        why: "put in: 1.6 % more with them, of which the paper says that two effects cancel each other out, so moves cost the server nothing in caches (nginx-specialised.toml)",
    },
    Left {
        id: "R003-12",
        what: "instructions per cycle of Parsec",
        why: "shared caches and branch predictors are not simulated",
    },
    Left { id: "R003-13", what: "cache misses of vips", why: "likewise" },
    Left { id: "R003-15", what: "which code asks for which level", why: "parameters of the model" },
    Left {
        id: "R003-16",
        what: "clocks of AVX-512 and other code with all cores active",
        why: "likewise",
    },
    Left {
        id: "R003-17",
        what: "how often x265 calls the kernel",
        why: "put in (x265-avx512.toml)",
    },
    Left {
        id: "R003-19",
        what: "migration under MuQSS against CFS",
        why: "what a move takes is put in, and the same for all schedulers",
    },
    Left {
        id: "R003-20",
        what: "the gain of x265 by AVX-512",
        why: "cited from elsewhere, as background",
    },
    Left { id: "R003-21", what: "losses that others have seen", why: "likewise" },
];

/// The experiments that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "nginx (§2, §4.1)", rows: web },
    Experiment { name: "programs beside x265 (§2)", rows: unmodified },
    Experiment { name: "programs beside x265 on specialised cores (§4.2, §4.3)", rows: beside },
    Experiment { name: "cores without work (§4.2)", rows: without_work },
    Experiment { name: "phases that end by time (§3.3)", rows: by_time },
];

/// How long a run is (s).
const LENGTH: u64 = 2;

/// The instructions with which x265 and nginx work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vectors {
    Avx512,
    Avx2,
    /// AVX2, and x265's functions with wide code take twice as long with it: the most that Dimmer
    /// assumes of narrower code ([`dimmer_policy::ways`]).
    SlowAvx2,
    /// Neither.
    Avx,
}

impl Vectors {
    /// The web server with them.
    pub(crate) fn nginx(self) -> Load {
        Load::of(&[match self {
            Self::Avx512 => "nginx-specialised.toml",
            Self::Avx2 | Self::SlowAvx2 => "nginx-specialised-avx2.toml",
            Self::Avx => "nginx-specialised-sse.toml",
        }])
    }

    /// A program beside x265, which works with them.
    pub(crate) fn beside(self, file: &'static str) -> Load {
        let class = self.class();
        let load = Load::of(&[file]);
        let load = load.replacing("class = \"heavy-512\"", &format!("class = \"{class}\""));
        if self == Self::SlowAvx2 { load.with_slow_x265() } else { load }
    }

    /// The class of x265's wide code with them.
    const fn class(self) -> &'static str {
        match self {
            Self::Avx512 => "heavy-512",
            Self::Avx2 | Self::SlowAvx2 => "heavy-256",
            Self::Avx => "heavy-128",
        }
    }

    /// A program beside x265, which is as busy as it is taken from the paper.
    fn beside_busy(self, file: &'static str, inputs: &Inputs<'_>) -> Load {
        self.beside(file).with_x265(inputs.x265, self.class())
    }
}

/// The programs that stand for those of Parsec, and their files.
pub(crate) const PARSEC: [(&str, &str); 2] =
    [("batch", "batch-beside-x265.toml"), ("pipeline", "pipeline-beside-x265.toml")];

pub(crate) const BUILD: (&str, &str) = ("build", "build-beside-x265.toml");

/// As in the paper.
const PAPER: How = How::By(Moving::Specialise(Specialising::Paper));

/// What decides where threads run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// Linux's own scheduler, in the manner of CFS.
    Fair,
    /// MuQSS.
    MuQss,
    /// MuQSS with this mechanism.
    By(Moving),
    /// As in the paper, but no phase ends by time.
    NeverByTime,
    /// MuQSS, and all calls of marked regions run on dedicated cores. The way there and back takes
    /// this long.
    Away(Nanos),
    /// MuQSS, and this governor.
    Governed(Governor),
}

impl How {
    pub(crate) fn run(
        self,
        load: &Load,
        inputs: &Inputs<'_>,
        seed: u64,
    ) -> Result<Outcome, SimError> {
        let load = (inputs.edit)(load.clone());
        let scenario = load.scenario()?.until(Moment::START + LENGTH * SECOND);
        let mechanism = match self {
            Self::Fair | Self::MuQss | Self::Governed(_) => Moving::None,
            Self::By(mechanism) => mechanism,
            Self::NeverByTime => Moving::Specialise(Specialising::Paper),
            Self::Away(_) => Moving::Always,
        };
        let governor = match self {
            Self::Governed(governor) => governor,
            _ => Governor::Hardware,
        };
        let settings_of = |mechanism| scenario.settings(&inputs.model, governor, mechanism, seed);
        let mut settings = settings_of(mechanism)?;
        if self == Self::Fair {
            settings.scheduler = Scheduling::Fair;
        }
        if let Some(specialise) = settings.specialise.as_mut().filter(|_| self == Self::NeverByTime)
        {
            specialise.phases.timeout = Nanos::from_ms(3_600_000);
        }
        if let (Self::Away(takes), Some(moves)) = (self, &mut settings.region_moves) {
            moves.hand_over_ns = takes.as_f64() / 2.0;
            hurry(moves, settings_of(Moving::Specialise(Specialising::Paper))?.specialise);
        }
        let (outcome, _) = scenario
            .run_on(&inputs.model, settings, Course::default(), &|_| inputs.follower.stops())?;
        Ok(outcome)
    }
}

/// Dedicates at most as many cores as the paper has wide ones. Their number follows the load a
/// hundred times as fast as under `dimmerd`, which adds one core a second: a run lasts two seconds.
fn hurry(moves: &mut RegionMoves, paper: Option<Specialise>) {
    const FASTER: u64 = 100;
    moves.update_calls /= FASTER;
    if let (Decider::Always(cores), Some(WideCores::Fixed(most))) =
        (&mut moves.decider, paper.map(|paper| paper.wide_cores))
    {
        cores.most = usize::try_from(most).unwrap_or(usize::MAX);
        cores.period = Nanos::from_ns(cores.period.ns() / FASTER);
    }
}

/// What a program got and did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Program {
    /// Time on CPUs (ns).
    cpu_ns: f64,
    pub(crate) instructions: f64,
    pub(crate) requests: f64,
    /// Cycles at all levels, and at the last one.
    cycles: f64,
    at_last: f64,
}

impl Program {
    pub(crate) fn of(outcome: &Outcome, name: &str) -> Self {
        let mut program = Self::default();
        for thread in outcome.threads.iter().filter(|thread| thread.program == name) {
            for phase in &thread.phases {
                program.cpu_ns += phase.time.ns();
                program.instructions += phase.instructions;
            }
            program.cycles += thread.cycles.iter().sum::<f64>();
            program.at_last += thread.cycles.last().copied().unwrap_or_default();
            program.requests += thread.latencies.map_or(0.0, |served| served.requests as f64);
        }
        program
    }

    /// CPU time of an instruction (ns). All have the same code in all runs.
    pub(crate) fn each_ns(&self) -> f64 {
        self.cpu_ns / self.instructions
    }

    fn ghz(&self) -> f64 {
        self.cycles / self.cpu_ns
    }

    /// Cycles at the clock of the last level, for each instruction: for the same work.
    fn at_last(&self) -> f64 {
        self.at_last / self.instructions
    }
}

/// How much more `one` is than `other` (%).
pub(crate) fn more(one: f64, other: f64) -> f64 {
    100.0 * (one / other - 1.0)
}

/// The part of a loss that is not left (%).
fn removed(without: f64, with: f64) -> f64 {
    100.0 * (1.0 - with / without)
}

pub(crate) fn mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.into_iter().collect();
    values.iter().sum::<f64>() / values.len() as f64
}

fn each<T>(runs: &[T], of: impl Fn(&T) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

/// What a program gets and does beside x265, which works with these instructions.
fn beside_x265(
    (name, file): (&'static str, &'static str),
    how: How,
    vectors: Vectors,
    inputs: &Inputs<'_>,
    seed: u64,
) -> Result<Program, SimError> {
    Ok(Program::of(&how.run(&vectors.beside_busy(file, inputs), inputs, seed)?, name))
}

/// The web server: §2, §4.1.
pub(crate) fn web(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    struct Run {
        /// More CPU time for each request with AVX-512, under Linux's own scheduler (%).
        slower: f64,
        /// CPU time in OpenSSL (%).
        encryption: f64,
        /// Throughput that AVX-512 costs, without and with specialised cores (%).
        plain: f64,
        specialised: f64,
    }
    let runs = inputs.each_seed(|seed| {
        let run = |how: How, vectors: Vectors| {
            how.run(&vectors.nginx().with_pages(inputs.page), inputs, seed)
        };
        let of = |outcome: &Outcome| Program::of(outcome, "nginx");
        let (fair, without) = (run(How::Fair, Vectors::Avx512)?, run(How::Fair, Vectors::Avx)?);
        let time = |outcome: &Outcome| of(outcome).cpu_ns / of(outcome).requests;
        let encrypts = |code: &str| code == "ChaCha20" || code == "Poly1305";
        let phases = fair.threads.iter().flat_map(|thread| &thread.phases);
        let encryption: f64 =
            phases.filter(|phase| encrypts(&phase.code)).map(|phase| phase.time.ns()).sum();
        let best = of(&run(How::MuQss, Vectors::Avx)?).requests;
        let loss = |how| {
            let served = of(&run(how, Vectors::Avx512)?).requests;
            Ok::<_, SimError>(-more(served, best))
        };
        Ok(Run {
            slower: more(time(&fair), time(&without)),
            encryption: 100.0 * encryption / of(&fair).cpu_ns,
            plain: loss(How::MuQss)?,
            specialised: loss(PAPER)?,
        })
    })?;
    Ok(vec![
        Draft::new(
            "R003-01",
            Class::SeenAgain,
            "Fig. 2, §2",
            "nginx: more CPU time for each request with AVX-512 than with neither AVX2 nor AVX-512",
            "%",
        )
        .value("", 10.7, each(&runs, |run| run.slower))
        .row("measured requests, published cycles of encryption; how long a page takes is taken from it (below), under two assumptions of R003-03 and R003-04: the scheduler, and that the first multiplication asks for L2"),
        Draft::new(
            "R003-01b",
            Class::Predicted,
            "§2",
            "nginx: CPU time in OpenSSL with AVX-512",
            "%",
        )
        .value("", 1.0, each(&runs, |run| run.encryption))
        .at_most("of the same runs"),
        Draft::new(
            "R003-04",
            Class::Predicted,
            "§4.1, Fig. 5",
            "nginx under MuQSS: throughput that AVX-512 costs",
            "%",
        )
        .value("", 6.0, each(&runs, |run| run.plain))
        .row("as R003-01. In the paper the server often had the level of AVX2 without OpenSSL's (§4.3), here never: if it has it once a page, this comes out as in the paper (below). Here the first \
            512-bit multiplication asks for L2, which §5 contradicts: very short sections do not reach it. How long they must be, no source says"),
        Draft::new(
            "R003-05",
            Class::Predicted,
            "§4.1, Fig. 5",
            "nginx with three cores for AVX-512: throughput that it costs",
            "%",
        )
        .value("", 1.7, each(&runs, |run| run.specialised))
        .row("wide cores that are never idle run other code at the clock of L2: three of 16 at 1.9 GHz, not 2.8, are 6 %. Moves cost nothing in caches, as the paper's instructions per cycle say \
            (R003-11)"),
        Draft::new(
            "R003-14",
            Class::Predicted,
            "abstract, §4.1",
            "web server: the part of the loss that specialised cores remove",
            "%",
        )
        .value("", 71.0, each(&runs, |run| removed(run.plain, run.specialised)))
        .row("R003-04 and R003-05 in other words"),
    ])
}

/// More CPU time for each request with AVX-512 than without (%), the figure of R003-01.
pub(crate) fn nginx_slower(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let runs = inputs.each_seed(|seed| {
        let time = |vectors: Vectors| {
            let load = vectors.nginx().with_pages(inputs.page);
            let nginx = Program::of(&How::Fair.run(&load, inputs, seed)?, "nginx");
            Ok::<_, SimError>(nginx.cpu_ns / nginx.requests)
        };
        Ok(more(time(Vectors::Avx512)?, time(Vectors::Avx)?))
    })?;
    Ok(mean(runs))
}

/// More CPU time of programs beside x265 if that has these instructions rather than AVX alone (%).
fn slower(vectors: Vectors, inputs: &Inputs<'_>, seed: u64) -> Result<f64, SimError> {
    let mut all = Vec::new();
    for program in PARSEC.into_iter().chain([BUILD]) {
        let at = |vectors| beside_x265(program, How::Fair, vectors, inputs, seed);
        all.push(more(at(vectors)?.each_ns(), at(Vectors::Avx)?.each_ns()));
    }
    Ok(mean(all))
}

/// The figure of R003-02 (%).
pub(crate) fn avx2_slower(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    Ok(mean(inputs.each_seed(|seed| slower(Vectors::Avx2, inputs, seed))?))
}

/// The part of a program's cycles at the last level, for the same work, that is left on specialised
/// cores (%). The paper counts the cycles of a benchmark, which is the same work in both cases.
fn left_at_last(plain: &Program, specialised: &Program) -> f64 {
    100.0 * specialised.at_last() / plain.at_last()
}

/// The figure of R003-07 (%).
pub(crate) fn vips_left(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let runs = inputs.each_seed(|seed| {
        let at = |how| beside_x265(PARSEC[1], how, Vectors::Avx512, inputs, seed);
        Ok(left_at_last(&at(How::MuQss)?, &at(PAPER)?))
    })?;
    Ok(mean(runs))
}

/// Programs beside x265 under Linux's own scheduler: §2, figure 2.
pub(crate) fn unmodified(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let runs = inputs.each_seed(|seed| {
        let of = |vectors| slower(vectors, inputs, seed);
        Ok((of(Vectors::Avx2)?, of(Vectors::Avx512)?))
    })?;
    const STAND_INS: &str = "the mean of a program that always has work, of a pipeline, and of a build, which stand for the paper's programs. Not simulated: the scheduler of Linux 4.18, where \
        threads that wake up preempt others (here they wait for the end of a turn, as since 6.6); and that light 512-bit code with enough heavy 256-bit code asks for L2, too (§2)";
    Ok(vec![
        Draft::new(
            "R003-02",
            Class::SeenAgain,
            "Fig. 2, §2",
            "programs beside x265: more CPU time if that has AVX2, not only AVX",
            "%",
        )
        .value("", 4.1, each(&runs, |run| run.0))
        .row("how much of x265's code is dense is taken from it (below)"),
        Draft::new(
            "R003-03",
            Class::Predicted,
            "Fig. 2, §2",
            "programs beside x265: more CPU time if that has AVX-512, not only AVX",
            "%",
        )
        .value("", 11.3, each(&runs, |run| run.1))
        .row(STAND_INS),
    ])
}

/// What a program got beside x265 with AVX; with AVX-512; and that on specialised cores.
fn three(
    program: (&'static str, &'static str),
    inputs: &Inputs<'_>,
    seed: u64,
) -> Result<[Program; 3], SimError> {
    let at = |how, vectors| beside_x265(program, how, vectors, inputs, seed);
    Ok([
        at(How::MuQss, Vectors::Avx)?,
        at(How::MuQss, Vectors::Avx512)?,
        at(PAPER, Vectors::Avx512)?,
    ])
}

/// The CPU time that AVX-512 costs a program, without and with specialised cores (%).
fn losses([avx, plain, specialised]: &[Program; 3]) -> (f64, f64) {
    let loss = |program: &Program| more(program.each_ns(), avx.each_ns());
    (loss(plain), loss(specialised))
}

/// §4.2 and §4.3, figures 5 and 6.
pub(crate) fn beside(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    struct Run {
        parsec: Vec<[Program; 3]>,
        build: [Program; 3],
    }
    let runs = inputs.each_seed(|seed| {
        let parsec: Result<Vec<_>, SimError> =
            PARSEC.into_iter().map(|program| three(program, inputs, seed)).collect();
        Ok(Run { parsec: parsec?, build: three(BUILD, inputs, seed)? })
    })?;
    let parsec = |run: &Run, of: fn((f64, f64)) -> f64| {
        mean(run.parsec.iter().map(|program| of(losses(program))))
    };
    let clock = |of: usize| {
        let all = |run: &Run| mean(run.parsec.iter().map(|program| program[of].ghz()));
        each(&runs, all)
    };
    Ok(vec![
        Draft::new(
            "R003-06",
            Class::Predicted,
            "§4.2, Fig. 5",
            "Parsec beside x265: more CPU time if that has AVX-512",
            "%",
        )
        .value("MuQSS", 12.3, each(&runs, |run| parsec(run, |losses| losses.0)))
        .value("specialised", 3.7, each(&runs, |run| parsec(run, |losses| losses.1)))
        .row("a program that always has work and a pipeline stand for Parsec. MuQSS runs with `interactive` at 0, of which the paper says nothing (its default is 1), and x265's light 512-bit code \
            beside heavy 256-bit code asks for L1, where the paper has it ask for L2 (§2)"),
        Draft::new(
            "R003-07",
            Class::SeenAgain,
            "§4.2",
            "vips: cycles at the clock of L2 that are left on specialised cores",
            "%",
        )
        .value(
            "",
            30.0,
            each(&runs, |run| {
                let [_, plain, specialised] = run.parsec[1];
                left_at_last(&plain, &specialised)
            }),
        )
        .row("for the same work. For how long x265 waits is taken from it (below); the pipeline stands for vips"),
        Draft::new(
            "R003-08",
            Class::Predicted,
            "§4.2",
            "a build beside x265: more CPU time if that has AVX-512",
            "%",
        )
        .value("MuQSS", 9.4, each(&runs, |run| losses(&run.build).0))
        .value("specialised", 1.6, each(&runs, |run| losses(&run.build).1))
        .row("what compilers do was measured, in two jobs; here are 32. Otherwise as R003-06"),
        Draft::new(
            "R003-10",
            Class::Mixed,
            "§4.3, Fig. 6",
            "mean clock of programs beside x265",
            "GHz",
        )
        .value("AVX", 2.77, clock(0))
        .value("AVX-512", 2.47, clock(1))
        .value("specialised", 2.7, clock(2))
        .row("the first one is the model's clock with all cores active; the others are predicted. The paper's are means over its benchmarks, nginx among them; ours over the two programs that stand \
            for Parsec"),
        Draft::new(
            "R003-14b",
            Class::Predicted,
            "abstract, §4.2",
            "Parsec: the part of the loss that specialised cores remove",
            "%",
        )
        .value("", 70.0, each(&runs, |run| removed(parsec(run, |of| of.0), parsec(run, |of| of.1))))
        .row("R003-06 in other words"),
    ])
}

/// §4.2: programs that cannot use the cores that are left for them.
pub(crate) fn without_work(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    // Half as many threads as CPUs outside x265's half.
    let few = |vectors: Vectors| {
        let (_, file) = PARSEC[0];
        vectors
            .beside_busy(file, inputs)
            .replacing("program = \"batch\"\ncount = 32", "program = \"batch\"\ncount = 8")
    };
    let answers = inputs.each_seed(|seed| {
        let outcome = PAPER.run(&few(Vectors::Avx512), inputs, seed)?;
        let clock = Program::of(&outcome, "batch").ghz();
        let all_busy = inputs.model.levels.first().and_then(|level| level.bins.last());
        let turbo = all_busy.map_or(f64::NAN, |bin| bin.mhz.value as f64 / 1000.0);
        Ok(if clock > turbo { "yes" } else { "no" }.to_owned())
    })?;
    Ok(vec![words(
        "R003-09",
        Class::Predicted,
        "§4.2",
        "a program with few threads on specialised cores runs above the clock with all cores active",
        "yes",
        answers,
        "8 threads, made up; the clocks with fewer active cores are recollected",
    )])
}

/// §3.3: whether it matters that phases end after 2 ms.
pub(crate) fn by_time(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let answers = inputs.each_seed(|seed| {
        // What the paper calls sufficient, in its own measure: CPU time.
        let mut is_worse = false;
        for program in PARSEC.into_iter().chain([BUILD]) {
            let at = |how| beside_x265(program, how, Vectors::Avx512, inputs, seed);
            let by = more(at(How::NeverByTime)?.each_ns(), at(PAPER)?.each_ns());
            is_worse |= by > 0.5;
        }
        Ok(if is_worse { "no" } else { "yes" }.to_owned())
    })?;
    Ok(vec![words(
        "R003-18",
        Class::Predicted,
        "§3.3",
        "beside x265, programs do as well if wide phases end by system calls alone (to half a point)",
        "yes",
        answers,
        "the timeout of 2 ms off and on; threads of x265 wait every 5 ms, and call the kernel for nothing else",
    )])
}

/// What the experiments assume where the model lacks values.
pub(crate) fn assumed(inputs: &Inputs<'_>) -> Result<Vec<Assumed>, SimError> {
    let files = PARSEC.iter().chain([&BUILD]).map(|(_, file)| Vectors::Avx512.beside(file));
    let mut assumed: Vec<Assumed> = Vec::new();
    for load in files.chain([Vectors::Avx512.nginx(), Vectors::Avx.nginx()]) {
        for one in load.scenario()?.assumed(&inputs.model, &[Governor::Hardware])? {
            if !assumed.contains(&one) {
                assumed.push(one);
            }
        }
    }
    Ok(assumed)
}

//! Paper 001's results with its library and policy server, row by row (§3.3, §4.2.1, chapter 6).

use dimmer_policy::server::loops::thresholds;
use dimmer_processor::model::Model;
use dimmer_processor::units::Nanos;
use dimmer_sim::{Moving, SimError};

use crate::row::{Draft, words};
use crate::server::{FOLLOWED, Load, Plan, Run, SECOND, Vectors, Way};
use crate::{Class, Experiment, Left, Row};

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left {
        id: "R001-08",
        what: "ways to hand work over",
        why: "a hand-over is a time here, whatever takes it",
    },
    Left { id: "R001-10", what: "Intel's delays", why: "the same as R000-23" },
    Left {
        id: "R001-21",
        what: "efficiency with an update every 100 calls",
        why: "the cost of reports to the server is not simulated: it would come out as it was put in",
    },
    Left { id: "R001-22", what: "the same for the shortest work", why: "likewise" },
    Left { id: "R001-23", what: "the sieve with and without a server", why: "likewise" },
    Left {
        id: "R001-24",
        what: "losses that core specialisation and a web service have seen",
        why: "cited from elsewhere, as background",
    },
    Left {
        id: "R001-25",
        what: "latency of a semaphore with shared memory",
        why: "cited from elsewhere; it is put in where hand-overs need it (R001-07)",
    },
    Left {
        id: "R001-26",
        what: "the cores that were used, of which at most one is dedicated",
        why: "the set-up, not a result",
    },
];

/// The experiments with the policy server that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "the sieve, moved (§3.3)", rows: sieve },
    Experiment { name: "utilisation (§4.2.1)", rows: utilisation },
    Experiment { name: "nginx (§6.2.1)", rows: nginx },
    Experiment { name: "the policy's course (§6.2.1, §6.2.2)", rows: course },
    Experiment { name: "numbers of cores (§6.2.3)", rows: cores },
    Experiment { name: "windows and exciter (§6.2.3)", rows: studies },
];

/// The reason of rows that depend on the guessed contents of a request.
const GUESSED: &str = "no source says what a request is made up of: in the scenario the share of encryption is recollected from the post that the paper recreates, and the length of a page is a guess";

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn sieve(model: &Model) -> Result<Vec<Row>, SimError> {
    // §2.5: an exchange between processes takes less than 3 µs, so there and back take less than 6
    // µs.
    let way = |mechanism| Plan { hand_over_ns: Some(6000.0), ..Plan::new(Way::As(mechanism), 4) };
    let time = |load: &Load, mechanism| {
        Ok::<f64, SimError>(1.0 / way(mechanism).run(load, model)?.served())
    };
    const BURST: &str = "    { run = \"burst\", instructions = 65_536 },\n";
    const SIEVE: &str = "    { run = \"sieve\", instructions = 6_131_000 },\n";
    let mixed = Load::sieve();
    let part = |other| time(&mixed.clone().replacing(other, ""), Moving::None);
    // The paper's baseline is all iterations, and all bursts after them (§3.2).
    let apart = part(BURST)? + part(SIEVE)?;
    let more = |mechanism| Ok::<f64, SimError>(100.0 * (time(&mixed, mechanism)? / apart - 1.0));
    let (moved, mixed) = (more(Moving::Always)?, more(Moving::None)?);
    Ok(vec![
        Draft::new(
            "R001-07",
            Class::Predicted,
            "Fig. 3.3",
            "sieve with short bursts, moved: more time than sieve and bursts one after the other",
            "%",
        )
        .value("", 0.8, moved)
        .row("the hand-over is put in: 3 µs each way, the most that §2.5 says. The simulated core that bursts move to has given the level back when the next comes, 1.6 ms later, \
             throttles it, and stands still for each change",
        ),
        words(
            "R001-07b",
            Class::Predicted,
            "Fig. 3.3",
            "moving takes nearly all of the loss away (nine tenths)",
            "yes",
            yes(moved < 0.1 * mixed),
            "R001-07 in other words: what is left, against what bursts cost where they are. The paper gives no number; nine tenths is ours",
        ),
    ])
}

/// Scalar work on all CPUs, and one thread that has a dedicated core and hardly uses it.
fn utilisation(model: &Model) -> Result<Vec<Row>, SimError> {
    let mut row = Draft::new(
        "R001-09",
        Class::SeenAgain,
        "§4.2.1",
        "least utilisation with one dedicated core",
        "",
    );
    for (name, cores) in [("of 2", 2_u32), ("of 4", 4), ("of 8", 8)] {
        // Workers do hardly anything in their marked routine.
        let load = Load::nginx(Vectors::Sse)
            .replacing("81_800", "20")
            .replacing("threads_per_core = 2", "threads_per_core = 1")
            .replacing("smt_share = 0.6", "smt_share = 1.0")
            .on(cores);
        let served = |mechanism| {
            let plan = Plan { hand_over_ns: Some(2.0), ..Plan::new(Way::As(mechanism), 1) };
            Ok::<f64, SimError>(plan.run(&load, model)?.served())
        };
        let (with, without) = (served(Moving::Always)?, served(Moving::None)?);
        row = row.value(name, f64::from(cores - 1) / f64::from(cores), with / without);
    }
    Ok(vec![row.row(
        "a core that does nothing is missing; what can miss is that the others are shared evenly",
    )])
}

fn nginx(model: &Model) -> Result<Vec<Row>, SimError> {
    let served =
        |vectors, mechanism| Plan::new(Way::As(mechanism), 8).run(&Load::nginx(vectors), model);
    let all = [Vectors::Sse, Vectors::Avx2, Vectors::Avx512];
    let mut none = Vec::new();
    let mut paper = Vec::new();
    for vectors in all {
        none.push(served(vectors, Moving::None)?.served());
        paper.push(served(vectors, Moving::Loop(&thresholds::DEFINITION))?);
    }
    let with: Vec<f64> = paper.iter().map(Run::served).collect();
    let less = |served: f64, than: f64| 100.0 * (1.0 - served / than);
    let spread = |served: &[f64]| {
        let most = served.iter().copied().fold(0.0, f64::max);
        let least = served.iter().copied().fold(f64::INFINITY, f64::min);
        less(least, most)
    };
    let (without, left) = (less(none[2], none[0]), less(with[2], none[0]));
    let moved: u64 = paper[0].outcome.threads.iter().map(|thread| thread.moved).sum();
    Ok(vec![
        Draft::new("R001-11", Class::Predicted, "Fig. 6.2, §6.3", "throughput that 512-bit code loses against SSE", "%")
            .value("without the server", 17.0, without)
            .value("with it", 8.5, left)
            .row(GUESSED),
        words(
            "R001-11b", Class::Predicted,
            "§6.3",
            "the server takes away more than half of it, though a core of eight is dedicated",
            "yes",
            yes(left < without / 2.0),
            "what is left with the server is as in the paper; without it, 512-bit code loses less here. Bursts are placed at the end of a page, and what that leaves of the \
             lower clock to the next page depends on how long a page takes, which is guessed",
        ),
        Draft::new("R001-12", Class::Predicted, "Fig. 6.2", "AVX2: what the server changes", "%")
            .value("", 0.0, -less(with[1], none[1]))
            .row("the loop moves calls until its exciter fires, as the paper's does (R001-16), and a core is missing meanwhile: 512-bit code loses more than that core, 256-bit code less",
            ),
        Draft::new("R001-13", Class::SeenAgain, "Fig. 6.2", "SSE: calls that are moved, and throughput lost", "")
            .value("calls", 0.0, moved as f64)
            .value("lost %", 0.0, less(with[0], none[0]))
            .row("no time at a level, so nothing moves; the cost of reports to the server is not simulated"),
        Draft::new(
            "R001-14", Class::Predicted,
            "Fig. 6.2b",
            "throughput between the best and the worst of SSE, AVX2 and AVX-512, with the server over without",
            "",
        )
        .value("", 1.0, spread(&with) / spread(&none))
        .at_most("smaller in the paper's figure, without numbers; see R001-12"),
    ])
}

/// The courses of figures 6.3 to 6.5.
fn course(model: &Model) -> Result<Vec<Row>, SimError> {
    let run = |load: Load, seconds| Plan::new(FOLLOWED, seconds).run(&load, model);
    let wide = run(Load::nginx(Vectors::Avx512), 50)?;
    let at = |run: &Run, from, to| run.moved_share(16, from, to);
    let stops = wide.changes(16, false);
    let halves = run(Load::nginx(Vectors::Avx2), 60)?;
    let avx2 =
        [at(&halves, 2, 20), at(&halves, 25, 40), at(&halves, 48, 60)].map(|part| part > 0.5);
    let scalar = run(Load::nginx(Vectors::Sse), 25)?;
    let encoder = run(Load::encoder(), 35)?;
    let both = run(Load::both(Vectors::Avx512), 30)?;
    let ended = both.outcome.threads.last().and_then(|thread| thread.finished);
    let ended = ended.map_or(15, |at| at.since_start().times(SECOND));
    let beside = run(Load::both(Vectors::Sse), 20)?;
    let encoder_ended = beside.outcome.threads.last().and_then(|thread| thread.finished);
    let encoder_ended = encoder_ended.map_or(15, |at| at.since_start().times(SECOND));
    Ok(vec![
        words(
            "R001-15",
            Class::Mixed,
            "Fig. 6.3a",
            "AVX-512: moved at once; left once each time the exciter fires (twice here); moved for most of the time",
            "yes, yes, yes",
            &format!(
                "{}, {}, {}",
                yes(at(&wide, 1, 2) > 0.9),
                yes(stops == 2),
                yes(at(&wide, 1, 50) > 0.8)
            ),
            "that it moves at once, and leaves when the exciter fires, is put in: the loop's first threshold, and the strength of its exciter. That it comes back is predicted, with windows of 800 ms and \
             the exciter every 20 s: the paper does not say what they were here. With shorter windows it leaves more often (R001-20b)",
        ),
        words(
            "R001-16",
            Class::Predicted,
            "Fig. 6.3b, c",
            "AVX2: moved until the exciter, not until the next, then again; SSE never",
            "yes, no, yes, never",
            &format!(
                "{}, {}, {}, {}",
                yes(avx2[0]),
                yes(avx2[1]),
                yes(avx2[2]),
                if scalar.course.0.iter().all(|(_, served)| served.moved == 0) {
                    "never"
                } else {
                    "some"
                }
            ),
            "leaving AVX2 loses here, as the core stays dedicated for 10 s after it was used last (a guess: the paper does not say when it goes back), so the loop turns back at once. With the core given back at once it stays left, as in the paper until the next exciter, but then for good, as it gains a core",
        ),
        words(
            "R001-17",
            Class::Predicted,
            "Fig. 6.4",
            "x264 alone: moved for most of the time",
            "no",
            yes(encoder.moved_share(1, 2, 35) > 0.5),
            "moving a macroblock's analysis takes longer than it gives back. The simulated loop finds that out when its exciter fires, after 20 s, and leaves from then on; until then it stays where \
             it began. The paper's metric varies more, which makes its loop explore before",
        ),
        words(
            "R001-18",
            Class::Predicted,
            "Fig. 6.5a",
            "nginx with AVX-512 and x264: most clients moved while x264 runs; after it",
            "no, yes",
            &format!(
                "{}, {}",
                yes(both.moved_share(17, 2, ended) > 0.5),
                yes(both.moved_share(16, ended + 2, 30) > 0.5)
            ),
            "leaving gives back a core, but takes from x264 the one that it has to itself while it is moved; it shares one with two of nginx's \
             workers otherwise: the advantage in scheduling of which §6.3 speaks, on the other side",
        ),
        words(
            "R001-18b",
            Class::Predicted,
            "Fig. 6.5c",
            "nginx with SSE and x264: most clients moved while x264 runs",
            "yes",
            yes(beside.moved_share(17, 2, encoder_ended) > 0.5),
            "most clients are nginx's: x264's levels count as theirs where they follow it on a core, the paper's false positives",
        ),
    ])
}

fn cores(model: &Model) -> Result<Vec<Row>, SimError> {
    let served = |cores, way, has_extra_core| {
        let plan = Plan { has_extra_core, ..Plan::new(way, 3) };
        Ok::<f64, SimError>(plan.run(&Load::nginx(Vectors::Avx512).on(cores), model)?.served())
    };
    let mut gains = Vec::new();
    let mut each = Vec::new();
    for cores in [4, 6, 8, 10] {
        let stock = served(cores, Way::As(Moving::None), false)?;
        let with = served(cores, FOLLOWED, false)?;
        gains.push((with / stock, served(cores, FOLLOWED, true)? / stock));
        each.push(with / f64::from(cores));
    }
    let rises = gains.windows(2).all(|two| two[1].0 > two[0].0);
    let is_level = gains.iter().all(|gain| (gain.1 - gains[0].1).abs() < 0.03);
    Ok(vec![
        words(
            "R001-19",
            Class::Predicted,
            "Fig. 6.6b",
            "4 to 10 cores: moving always helps; its gain grows; with an extra core it stays about the same, and is more",
            "yes, yes, yes, yes",
            &format!(
                "{}, {}, {}, {}",
                yes(gains.iter().all(|gain| gain.0 > 1.0)),
                yes(rises),
                yes(is_level),
                yes(gains.iter().all(|gain| gain.1 > gain.0))
            ),
            "one core of four or six is more than is lost to 512-bit code here (R001-11); the paper does not say how many cores it began with",
        ),
        words(
            "R001-19b",
            Class::Predicted,
            "Fig. 6.6c",
            "throughput of each core falls with their number",
            "yes",
            yes(each.windows(2).all(|two| two[1] < two[0])),
            "in the paper because the workload is not perfectly parallel; here it is, and the part that is dedicated falls with the number",
        ),
    ])
}

/// Exciter period and window size, paired as in figure 6.8; the exciter fires ten times as often.
fn studies(model: &Model) -> Result<Vec<Row>, SimError> {
    let load = Load::nginx(Vectors::Avx512).on(4);
    let run = |seconds: u64, window_ms: u64| {
        let way = Way::Paper {
            exciter: Nanos::from_ms(seconds * 1000),
            window: Nanos::from_ms(window_ms),
        };
        Plan { has_extra_core: true, ..Plan::new(way, 30) }.run(&load, model)
    };
    let [short, middle, long] = [run(10, 100)?, run(20, 400)?, run(80, 800)?];
    let rises = |of: &[f64]| yes(of.windows(2).all(|two| two[1] >= two[0]));
    let both = [short.served(), middle.served(), long.served()];
    let periods = [short.served(), run(20, 100)?.served(), run(80, 100)?.served()];
    let windows = [short.served(), run(10, 400)?.served(), run(10, 800)?.served()];
    let changes = [&short, &middle, &long].map(|run| run.changes(8, true) + run.changes(8, false));
    Ok(vec![
        words(
            "R001-20",
            Class::Predicted,
            "Fig. 6.7",
            "throughput rises from 100/100 to 200/400 to 800/800; with the exciter's period alone; with the window alone",
            "yes, yes, yes",
            &format!("{}, {}, {}", rises(&both), rises(&periods), rises(&windows)),
            "on four cores and an extra one. The exciter's periods are a tenth of the paper's and the windows are not, so that the way back after the exciter, some windows, weighs ten times what it does there",
        ),
        words(
            "R001-20b",
            Class::SeenAgain,
            "Fig. 6.8",
            "the policy changes sides less often from 100/100 to 200/400 to 800/800",
            "yes",
            yes(changes.windows(2).all(|two| two[1] < two[0])),
            "the longest of the exciter's periods, 80 s, is longer than the run, so that it cannot fire; and over short windows clients that tell something every 100 calls do not say the same twice",
        ),
    ])
}

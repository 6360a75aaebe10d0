//! Paper 001's results with its library and policy server, row by row (§3.3, §4.2.1, chapter 6).

use dimmer_policy::server::loops::thresholds;
use dimmer_processor::units::Nanos;
use dimmer_sim::{Moving, SimError};

use crate::inputs::Inputs;
use crate::row::{Draft, words};
use crate::server::{Load, Plan, Run, SECOND, Vectors, WORKERS, Way};
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
    Experiment { name: "x264 (§6.2.1, §6.2.2)", rows: x264 },
    Experiment { name: "numbers of cores (§6.2.3)", rows: cores },
    Experiment { name: "windows and exciter (§6.2.3)", rows: studies },
];

/// How long the server's loop is at work in an experiment (s): "five minutes" (§6.2.1).
const LENGTH: u64 = 300;

/// How long it is at work with each number of cores (s): the exciter fires once.
const WITH_CORES: u64 = 120;

/// How long it is at work with x264 (s): the exciter fires once.
const WITH_X264: u64 = 160;

/// How long a run is in which nothing changes but requests (s).
const STEADY: u64 = 20;

/// Throughput that 512-bit code loses against SSE where nothing moves (%), the figure of R001-11.
pub(crate) fn loses_without(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    let runs = inputs.each_seed(|seed| {
        let served = |vectors| {
            let load = Load::nginx(vectors).with_pages(inputs.page);
            let run = Plan::new(Way::As(Moving::None), STEADY).run(&load, inputs, seed)?;
            Ok::<_, SimError>(run.a_second())
        };
        Ok(less(served(Vectors::Avx512)?, served(Vectors::Sse)?))
    })?;
    Ok(runs.iter().sum::<f64>() / runs.len() as f64)
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

/// One value of each run.
fn each<T>(runs: &[T], of: impl Fn(&T) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

/// One answer of each run.
fn answers<T>(runs: &[T], of: impl Fn(&T) -> String) -> Vec<String> {
    runs.iter().map(of).collect()
}

/// The part of throughput that is missing (%).
fn less(served: f64, than: f64) -> f64 {
    100.0 * (1.0 - served / than)
}

pub(crate) fn sieve(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    const BURST: &str = "    { run = \"burst\", instructions = 65_536 },\n";
    const SIEVE: &str = "    { run = \"sieve\", instructions = 6_131_000 },\n";
    let hand_over_ns = Some(inputs.hand_over_ns);
    let runs = inputs.each_seed(|seed| {
        let time = |load: &Load, mechanism| {
            let plan = Plan { hand_over_ns, ..Plan::new(Way::As(mechanism), 4) };
            Ok::<f64, SimError>(1.0 / plan.run(load, inputs, seed)?.served())
        };
        let mixed = Load::sieve();
        let part = |other| time(&mixed.clone().replacing(other, ""), Moving::None);
        // The paper's baseline is all iterations, and all bursts after them (§3.2).
        let apart = part(BURST)? + part(SIEVE)?;
        let more =
            |mechanism| Ok::<f64, SimError>(100.0 * (time(&mixed, mechanism)? / apart - 1.0));
        Ok((more(Moving::Always)?, more(Moving::None)?))
    })?;
    Ok(vec![
        Draft::new(
            "R001-07",
            Class::Predicted,
            "Fig. 3.3",
            "sieve with short bursts, moved: more time than sieve and bursts one after the other",
            "%",
        )
        .value("", 0.8, each(&runs, |(moved, _)| *moved))
        .row("the hand-over is put in, a cache line there and one back: the thread that takes bursts polls (§3.4). The simulated core that bursts move to has given the level back when the next comes, \
             1.6 ms later, throttles it, and stands still for each change. With 6 µs, which §2.5 has as the most for semaphores, it would be 1.36 %",
        ),
        words(
            "R001-07b",
            Class::Predicted,
            "Fig. 3.3",
            "moving takes nearly all of the loss away (nine tenths)",
            "yes",
            answers(&runs, |(moved, mixed)| yes(*moved < 0.1 * mixed).to_owned()),
            "R001-07 in other words: what is left, against what bursts cost where they are. The paper gives no number; nine tenths is ours",
        ),
    ])
}

/// Scalar work on all CPUs, and one thread that has a dedicated core and hardly uses it.
fn utilisation(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let mut row = Draft::new(
        "R001-09",
        Class::SeenAgain,
        "§4.2.1",
        "least utilisation with one dedicated core",
        "",
    );
    for (name, cores) in [("of 2", 2_u32), ("of 4", 4), ("of 8", 8)] {
        // Workers do hardly anything in their marked routine.
        let load = Load::idle_routine(cores);
        let used = inputs.each_seed(|seed| {
            let served = |mechanism| {
                let plan = Plan { hand_over_ns: Some(2.0), ..Plan::new(Way::As(mechanism), 1) };
                Ok::<f64, SimError>(plan.run(&load, inputs, seed)?.served())
            };
            Ok(served(Moving::Always)? / served(Moving::None)?)
        })?;
        row = row.value(name, f64::from(cores - 1) / f64::from(cores), used);
    }
    Ok(vec![row.row(
        "a core that does nothing is missing; what can miss is that the others are shared evenly",
    )])
}

/// The web server with one kind of instructions, without paper 001's server and with it.
struct Served {
    without: f64,
    with: Run,
}

/// NGINX under SSE, AVX2 and AVX-512: figures 6.2 and 6.3.
pub(crate) fn nginx(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let exciter = inputs.thresholds.exciter.ns() / 1_000_000_000;
    let runs = inputs.each_seed(|seed| {
        let served = |vectors| {
            let load = Load::nginx(vectors).with_pages(inputs.page);
            let without = Plan::new(Way::As(Moving::None), STEADY).run(&load, inputs, seed)?;
            let way = match inputs.moves_all {
                true => Way::As(Moving::Always),
                false => Way::Paper(inputs.thresholds),
            };
            let with = Plan::new(way, LENGTH).run(&load, inputs, seed)?;
            Ok::<_, SimError>(Served { without: without.a_second(), with })
        };
        Ok([served(Vectors::Sse)?, served(Vectors::Avx2)?, served(Vectors::Avx512)?])
    })?;
    let spread = |served: [f64; 3]| {
        let most = served.iter().copied().fold(0.0, f64::max);
        less(served.iter().copied().fold(f64::INFINITY, f64::min), most)
    };
    let loses = |[sse, _, wide]: &[Served; 3]| less(wide.without, sse.without);
    let left = |[sse, _, wide]: &[Served; 3]| less(wide.with.a_second(), sse.without);
    let moved_in_all =
        |run: &Run| -> u64 { run.outcome.threads.iter().map(|thread| thread.moved).sum() };
    let share = |run: &Run, from, to| run.moved_share(WORKERS, from, to);
    // From one firing of the exciter to the next, less some windows.
    let (second, third) = (exciter + exciter / 20, 2 * exciter + exciter / 10);
    Ok(vec![
        Draft::new("R001-11", Class::SeenAgain, "Fig. 6.2, §6.3", "throughput that 512-bit code loses against SSE", "%")
            .value("", 17.0, each(&runs, loses))
            .row("how long a page takes is taken from it (below)"),
        Draft::new("R001-11b", Class::Predicted, "Fig. 6.2, §6.3", "the same with the server", "%")
            .value("", 8.5, each(&runs, left))
            .row("the loop does not stay on the better side here, and a core of eight is missing (below)"),
        words(
            "R001-11c", Class::Predicted,
            "§6.3",
            "the server takes away more than half of it, though a core of eight is dedicated",
            "yes",
            answers(&runs, |run| yes(left(run) < loses(run) / 2.0).to_owned()),
            "as R001-11b",
        ),
        Draft::new("R001-12", Class::Predicted, "Fig. 6.2", "AVX2: what the server changes", "%")
            .value("", 0.0, each(&runs, |[_, avx2, _]| -less(avx2.with.a_second(), avx2.without)))
            .row("the core that is dedicated is missing for a part of the time (R001-16)",
            ),
        Draft::new("R001-13", Class::SeenAgain, "Fig. 6.2", "SSE: calls that are moved", "")
            .value("calls", 0.0, each(&runs, |[sse, ..]| moved_in_all(&sse.with) as f64))
            .row("no time at a level, so nothing moves; the cost of reports to the server is not simulated"),
        Draft::new(
            "R001-14", Class::Predicted,
            "Fig. 6.2b",
            "throughput between the best and the worst of SSE, AVX2 and AVX-512, with the server over without",
            "",
        )
        .value("", 1.0, each(&runs, |run| {
            spread(run.each_ref().map(|one| one.with.a_second())) / spread(run.each_ref().map(|one| one.without))
        }))
        .at_most("smaller in the paper's figure, without numbers"),
        words(
            "R001-15",
            Class::Mixed,
            "Fig. 6.3a",
            "AVX-512: moved at once; left once each time the exciter fires (twice here); moved for most of the time",
            "yes, yes, yes",
            answers(&runs, |[.., wide]| format!(
                "{}, {}, {}",
                yes(share(&wide.with, 1, 2) > 0.9),
                yes(wide.with.changes(WORKERS, false) == 2),
                yes(share(&wide.with, 1, LENGTH) > 0.8)
            )),
            "that it moves at once is put in: the loop's first threshold. The loop does not stay on the better side (R001-11b)",
        ),
        words(
            "R001-16",
            Class::Predicted,
            "Fig. 6.3b, c",
            "AVX2: moved until the exciter, not until the next, then again; SSE never",
            "yes, no, yes, never",
            answers(&runs, |[sse, avx2, _]| {
                let is_moved = [(2, exciter), (second, 2 * exciter), (third, LENGTH)]
                    .map(|(from, to)| yes(share(&avx2.with, from, to) > 0.5));
                let never = sse.with.course.0.iter().all(|(_, served)| served.moved == 0);
                format!("{}, {}", is_moved.join(", "), if never { "never" } else { "some" })
            }),
            "a core is missing while few calls are moved, and the loop leaves for good what loses by it. By their number of multiplications (R000-08), few records ask for L1 at all",
        ),
    ])
}

/// x264 alone and beside NGINX: figures 6.4 and 6.5.
pub(crate) fn x264(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let exciter = inputs.thresholds.exciter.ns() / 1_000_000_000;
    let plan = Plan::new(Way::Paper(inputs.thresholds), WITH_X264);
    let alone = inputs.each_seed(|seed| plan.run(&Load::encoder(), inputs, seed))?;
    let beside = |vectors| {
        let load = Load::both(vectors, WITH_X264 / 2).with_pages(inputs.page);
        inputs.each_seed(|seed| plan.run(&load, inputs, seed))
    };
    let (wide, scalar) = (beside(Vectors::Avx512)?, beside(Vectors::Sse)?);
    let ended = |run: &Run| {
        let finished = run.outcome.threads.last().and_then(|thread| thread.finished);
        finished.map_or(WITH_X264 / 2, |at| at.since_start().times(SECOND))
    };
    Ok(vec![
        words(
            "R001-17",
            Class::Predicted,
            "Fig. 6.4",
            "x264 alone: moved until the exciter first fires; for most of the time",
            "no, no",
            answers(&alone, |run| {
                let share = |to| yes(run.moved_share(1, 2, to) > 0.5);
                format!("{}, {}", share(exciter), share(WITH_X264))
            }),
            "moving a macroblock's analysis takes longer than it gives back. The simulated loop finds that out when its exciter fires, and leaves from then on; until then it stays where \
             it began. That the paper's metric varies more is not enough: with uneven frames it is the same (below)",
        ),
        words(
            "R001-18",
            Class::Predicted,
            "Fig. 6.5a",
            "nginx with AVX-512 and x264: most clients moved while x264 runs; after it",
            "no, yes",
            answers(&wide, |run| {
                format!(
                    "{}, {}",
                    yes(run.moved_share(WORKERS + 1, 2, ended(run)) > 0.5),
                    yes(run.moved_share(WORKERS, ended(run) + 2, WITH_X264) > 0.5)
                )
            }),
            "the loop does not stay on the better side (R001-11b)",
        ),
        words(
            "R001-18b",
            Class::Predicted,
            "Fig. 6.5c",
            "nginx with SSE and x264: most clients moved while x264 runs",
            "yes",
            answers(&scalar, |run| {
                yes(run.moved_share(WORKERS + 1, 2, ended(run)) > 0.5).to_owned()
            }),
            "the loop does not stay on the better side (R001-11b)",
        ),
    ])
}

pub(crate) fn cores(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    const CORES: [u32; 4] = [4, 6, 8, 10];
    // Of each number of cores: what the server gains, what it gains with an extra core, and the
    // throughput of a core with the server.
    let runs = inputs.each_seed(|seed| {
        CORES
            .iter()
            .map(|&cores| {
                let load = Load::nginx(Vectors::Avx512).with_pages(inputs.page).on(cores);
                let served = |way, seconds, has_extra_core| {
                    let plan = Plan { has_extra_core, ..Plan::new(way, seconds) };
                    Ok::<f64, SimError>(plan.run(&load, inputs, seed)?.a_second())
                };
                let stock = served(Way::As(Moving::None), STEADY, false)?;
                let paper = || Way::Paper(inputs.thresholds);
                let with = served(paper(), WITH_CORES, false)?;
                Ok([
                    with / stock,
                    served(paper(), WITH_CORES, true)? / stock,
                    with / f64::from(cores),
                ])
            })
            .collect::<Result<Vec<[f64; 3]>, SimError>>()
    })?;
    Ok(vec![
        words(
            "R001-19",
            Class::Predicted,
            "Fig. 6.6b",
            "4 to 10 cores: moving always helps; its gain grows; with an extra core it stays about the same, and is more",
            "yes, yes, yes, yes",
            answers(&runs, |gains| {
                format!(
                    "{}, {}, {}, {}",
                    yes(gains.iter().all(|gain| gain[0] > 1.0)),
                    yes(gains.windows(2).all(|two| two[1][0] > two[0][0])),
                    yes(gains.iter().all(|gain| (gain[1] - gains[0][1]).abs() < 0.03)),
                    yes(gains.iter().all(|gain| gain[1] > gain[0]))
                )
            }),
            "one core of four is more than is lost to 512-bit code here (R001-11)",
        ),
        words(
            "R001-19b",
            Class::Predicted,
            "Fig. 6.6c",
            "throughput of each core falls with their number",
            "yes",
            answers(&runs, |gains| {
                yes(gains.windows(2).all(|two| two[1][2] < two[0][2])).to_owned()
            }),
            "in the paper because the workload is not perfectly parallel. Here it is, and the part that is dedicated falls with the number. A lock of 20 µs a request is not enough to change that (below)",
        ),
    ])
}

/// Exciter period and window size, paired as in figure 6.8.
pub(crate) fn studies(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    /// Exciter's period (s) and window (ms).
    const TRIED: [(u64, u64); 7] =
        [(100, 100), (200, 400), (800, 800), (200, 100), (800, 100), (100, 400), (100, 800)];
    let load = Load::nginx(Vectors::Avx512).with_pages(inputs.page).on(4);
    // Of each pair: the throughput, and how often the policy changes sides.
    let runs = inputs.each_seed(|seed| {
        TRIED
            .iter()
            .map(|&(seconds, window_ms)| {
                let way = Way::Paper(thresholds::Settings {
                    exciter: Nanos::from_ms(seconds * 1000),
                    window: Nanos::from_ms(window_ms),
                    ..inputs.thresholds
                });
                let plan = Plan { has_extra_core: true, ..Plan::new(way, LENGTH) };
                let run = plan.run(&load, inputs, seed)?;
                Ok((run.served(), run.changes(8, true) + run.changes(8, false)))
            })
            .collect::<Result<Vec<(f64, usize)>, SimError>>()
    })?;
    Ok(vec![
        words(
            "R001-20",
            Class::Predicted,
            "Fig. 6.7",
            "throughput rises from 100/100 to 200/400 to 800/800; with the exciter's period alone; with the window alone",
            "yes, yes, yes",
            answers(&runs, |tried| {
                let rises = |of: [usize; 3]| {
                    yes(of.windows(2).all(|two| tried[two[1]].0 > tried[two[0]].0))
                };
                [[0, 1, 2], [0, 3, 4], [0, 5, 6]].map(rises).join(", ")
            }),
            "on four cores and an extra one. The loop changes sides so often that the exciter makes no difference (R001-11b)",
        ),
        words(
            "R001-20b",
            Class::SeenAgain,
            "Fig. 6.8",
            "the policy changes sides less often from 100/100 to 200/400 to 800/800",
            "yes",
            answers(&runs, |tried| {
                yes(tried[0].1 > tried[1].1 && tried[1].1 > tried[2].1).to_owned()
            }),
            "in five minutes an exciter of 100 s fires twice, one of 200 s once, and one of 800 s never",
        ),
    ])
}

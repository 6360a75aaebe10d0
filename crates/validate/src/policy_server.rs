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

/// How long the server's loop is at work with the web server (s): "five minutes" (§6.2.1).
const LENGTH: u64 = 300;

/// How long it is at work with x264 (s). The paper does not say; the exciter fires once.
const WITH_X264: u64 = 160;

/// The utilisation of a dedicated core from which it counts as fully utilised. A guess: that from
/// which `policy` adds another core.
const FULL: f64 = dimmer_policy::server::cores::Settings::of(0).saturated;

/// By how much throughput with AVX2 may change if the server "did not make a big difference" (%,
/// §6.2.1). Ours: more than the 0.8 % that the paper calls close to the baseline
/// (§3.3), and less than the 3.7 % that it calls a degradation (§6.3).
const NO_BIG: f64 = 2.0;

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
    let hand_over_ns = inputs.hand_over_ns;
    let runs = inputs.each_seed(|seed| {
        let time = |load: &Load, mechanism| {
            let plan = Plan { hand_over_ns, ..Plan::new(Way::As(mechanism), 4) };
            Ok::<f64, SimError>(1.0 / plan.run(load, inputs, seed)?.served())
        };
        let mixed = Load::sieve();
        let part = |other| time(&mixed.clone().replacing(other, ""), Moving::None);
        // The paper does not say what its baseline is. Assumed is what §3.2 compares with: all
        // iterations, and all bursts after them.
        let apart = part(BURST)? + part(SIEVE)?;
        Ok(100.0 * (time(&mixed, Moving::Always)? / apart - 1.0))
    })?;
    Ok(vec![
        Draft::new(
            "R001-07",
            Class::Predicted,
            "Fig. 3.3",
            "sieve with short bursts, moved: more time than sieve and bursts one after the other",
            "%",
        )
        .value("", 0.8, runs)
        .row("6 µs for a hand-over, as for the web server: a futex wakes threads of the pool (§4.3.2), and §2.5 has less than 3 µs each way, by semaphores. The paper does not say what its baseline \
             is; assumed are all iterations, and all bursts after them. The simulated core that bursts move to has given the level back when the next comes, 1.6 ms later, throttles it, and stands \
             still for each change. That the slowdown is nearly gone, as the figure's caption has it, is the same result in words"),
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
                true => Way::PaperAlways,
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
            .row("most of it is left if all calls are moved, too (below): a core of eight is missing"),
        words(
            "R001-11c", Class::Predicted,
            "§6.3",
            "the server takes away more than half of it, though a core of eight is dedicated",
            "yes",
            answers(&runs, |run| yes(left(run) < loses(run) / 2.0).to_owned()),
            "as R001-11b",
        ),
        Draft::new(
            "R001-12", Class::Predicted,
            "Fig. 6.2, §6.2.1",
            "AVX2: by how much the server changes throughput, either way",
            "%",
        )
        .value("", NO_BIG, each(&runs, |[_, avx2, _]| less(avx2.with.a_second(), avx2.without).abs()))
        .at_most("the paper says that it makes no big difference; 2 % is ours. While calls are moved, a core of eight is missing, and few records ask for L1 at all, by their number of multiplications (R000-08)"),
        Draft::new("R001-13", Class::SeenAgain, "Fig. 6.2", "SSE: calls that are moved", "")
            .value("calls", 0.0, each(&runs, |[sse, ..]| moved_in_all(&sse.with) as f64))
            .row("no time at a level, so nothing moves; the cost of reports to the server is not simulated"),
        words(
            "R001-14", Class::Mixed,
            "Fig. 6.2b",
            "throughput varies less between SSE, AVX2 and AVX-512 with the server than without",
            "yes",
            answers(&runs, |run| {
                let with = spread(run.each_ref().map(|one| one.with.a_second()));
                yes(with < spread(run.each_ref().map(|one| one.without))).to_owned()
            }),
            "no result of its own: without the server, R001-11 read back; with it, mostly what R001-11b and R001-12 come to",
        ),
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
            "that it moves at once is put in: the loop's first threshold. How often it is left is not up to the exciter alone: any fall of performance from window to window turns the loop, by chance too",
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
            "any fall of performance turns the loop, by chance too: no two of the runs are alike. In the paper the server makes no difference; here a core is missing while calls are moved (R001-12)",
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
            "the loop begins with the calls moved, and takes most of the exciter's first period to leave: moving a macroblock's analysis takes longer than it gives back",
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
            "in the 80 s for which x264 runs here, most clients stay where the loop's first threshold puts them",
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
            "time at a level that x264 has asked for counts as nginx's, as the paper supposes of its own server; so the loop's first threshold moves nginx, too",
        ),
    ])
}

/// The web server on a number of cores.
struct OnCores {
    /// What the server gains; also with an extra core.
    gain: f64,
    with_extra: f64,
    /// The throughput of a core with the server.
    of_core: f64,
    /// Whether the dedicated core is not fully utilised if all calls are moved; also the extra one.
    has_room: bool,
    extra_has_room: bool,
}

/// Whether this holds of each two neighbours among those numbers of cores at which the dedicated
/// core is not fully utilised; in words.
fn with_room(
    runs: &[OnCores],
    has_room: fn(&OnCores) -> bool,
    holds: impl Fn(&[&OnCores]) -> bool,
) -> &'static str {
    let runs: Vec<&OnCores> = runs.iter().filter(|run| has_room(run)).collect();
    if runs.len() < 2 { "full" } else { yes(runs.windows(2).all(holds)) }
}

pub(crate) fn cores(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    // A guess: the figure alone has the numbers. §6.1 leaves benchmarks ten cores.
    const CORES: [u32; 4] = [4, 6, 8, 10];
    let runs = inputs.each_seed(|seed| {
        CORES
            .iter()
            .map(|&cores| {
                let load = Load::nginx(Vectors::Avx512).with_pages(inputs.page).on(cores);
                let run = |way, seconds, has_extra_core| {
                    Plan { has_extra_core, ..Plan::new(way, seconds) }.run(&load, inputs, seed)
                };
                let stock = run(Way::As(Moving::None), STEADY, false)?.a_second();
                let paper = |is_extra| {
                    let run = run(Way::Paper(inputs.thresholds), LENGTH, is_extra)?;
                    Ok::<f64, SimError>(run.a_second())
                };
                let has_room = |is_extra| {
                    let run = run(Way::PaperAlways, STEADY, is_extra)?;
                    Ok::<bool, SimError>(run.utilisation() < FULL)
                };
                let with = paper(false)?;
                Ok(OnCores {
                    gain: with / stock,
                    with_extra: paper(true)? / stock,
                    of_core: with / f64::from(cores),
                    has_room: has_room(false)?,
                    extra_has_room: has_room(true)?,
                })
            })
            .collect::<Result<Vec<OnCores>, SimError>>()
    })?;
    Ok(vec![
        words(
            "R001-19",
            Class::Predicted,
            "Fig. 6.6, §6.2.3",
            "4 to 10 cores (a guess): moving always helps; its gain grows until the dedicated core is fully utilised; with an extra core it stays about the same until then (3 points, ours), and is \
             more",
            "yes, yes, yes, yes",
            answers(&runs, |of| {
                let first = of[0].with_extra;
                format!(
                    "{}, {}, {}, {}",
                    yes(of.iter().all(|one| one.gain > 1.0)),
                    with_room(of, |one| one.has_room, |two| two[1].gain > two[0].gain),
                    with_room(
                        of,
                        |one| one.extra_has_room,
                        |two| { two.iter().all(|one| (one.with_extra - first).abs() < 0.03) }
                    ),
                    yes(of.iter().all(|one| one.with_extra > one.gain))
                )
            }),
            "one core of four is more than is lost to 512-bit code here (R001-11). With an extra core, the gain at one number of cores is not within 3 points of that at four",
        ),
        words(
            "R001-19b",
            Class::Predicted,
            "Fig. 6.6c",
            "throughput of each core falls with their number",
            "yes",
            answers(&runs, |of| {
                yes(of.windows(2).all(|two| two[1].of_core < two[0].of_core)).to_owned()
            }),
            "in the paper because the workload is not perfectly parallel. Here it is, and the part that is dedicated falls with the number. With a lock of 20 µs a request it is not (below)",
        ),
    ])
}

/// Exciter period and window size, paired as in figure 6.8.
pub(crate) fn studies(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    /// Exciter's period (s) and window (ms).
    const TRIED: [(u64, u64); 7] =
        [(100, 100), (200, 400), (800, 800), (200, 100), (800, 100), (100, 400), (100, 800)];
    let load = Load::nginx(Vectors::Avx512).with_pages(inputs.page);
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
                let run = Plan::new(way, LENGTH).run(&load, inputs, seed)?;
                Ok((run.served(), run.changes(WORKERS, true) + run.changes(WORKERS, false)))
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
            "in five minutes the exciter fires twice, once or never (R001-20b), and any fall of performance turns the loop, too (R001-15)",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_cores_count_while_the_dedicated_core_has_room() {
        let grows = |of: &[(f64, bool)]| {
            let of: Vec<OnCores> = of
                .iter()
                .map(|&(gain, has_room)| OnCores {
                    gain,
                    with_extra: gain,
                    of_core: gain,
                    has_room,
                    extra_has_room: false,
                })
                .collect();
            with_room(&of, |one| one.has_room, |two| two[1].gain > two[0].gain)
        };
        assert_eq!(grows(&[(1.0, true), (1.1, true), (1.0, false)]), "yes");
        assert_eq!(grows(&[(1.0, true), (1.1, true), (1.0, true)]), "no");
        assert_eq!(grows(&[(1.0, true), (1.1, false)]), "full");
    }
}

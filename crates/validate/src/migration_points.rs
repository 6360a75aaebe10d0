//! Paper 004's microbenchmark at fixed clocks and with migration, point by point (§5.3.5 and
//! appendix A): time and power.

use dimmer_sim::SimError;

use crate::asymmetric::{Memory, Part, Setup, run};
use crate::inputs::Inputs;
use crate::row::Draft;
use crate::{Class, Row};

/// A point: the ids of its rows (time, power), what it is, and the paper's values of indirect
/// access and of pointer chasing (s, W) with the classes.
struct Point {
    ids: Texts,
    place: &'static str,
    what: &'static str,
    setup: Setup,
    seconds: Values,
    watts: Values,
    classes: [Class; 2],
    why: Texts,
}

const APART: &str = "the parts alone, put in (R004-43, R004-44), and migrations";
const FITTED: &str = "the parts alone and a core in MWAIT, all of them fitted to published data (R004-43, R004-44, R004-49)";
const AT_BOTH: &str = "cycles an instruction at this clock are put in";
const CLOCK: &str = "cycles and nanoseconds from the clocks of 3600 and 1440 MHz, at 3600 MHz divided by steps of 1/4 (R004-01b)";
const RAIL: &str = "all at the voltage of the fast core, and a core in MWAIT";
const SLOW_CORE: &str = "a rerun, which kept the benchmark on core 2, whose clock is the divided one of core 1 (R004-01b); the figure's run is that of R004-50 to R004-53. The L3 cache has the \
    fast core's clock, which makes memory slower here than at 3600 MHz: the model has one memory time for all clocks";
const VOLTAGE: &str = "the voltage lies between that of R004-38b, taken from there, and that of P2";

/// A core at a P-state P1 of this clock, beside a fast one (table 5.3, asymmetric).
pub(crate) fn beside(mhz: u64) -> Setup {
    Setup {
        pstates: ["P0", "P1", "P2", "P2", "P2", "P2"],
        redefined: Some(("P1", mhz)),
        ..Setup::on(1)
    }
}

/// P0 redefined, the benchmark on the second core, as in the rerun of 2018-02-27. Table 5.3 has the
/// benchmark on the first core.
pub(crate) fn lowered(mhz: u64) -> Setup {
    Setup { redefined: Some(("P0", mhz)), ..Setup::on(1) }
}

/// Two texts, such as the ids of a point's rows; the values of both functions.
type Texts = [&'static str; 2];
type Values = [f64; 2];

/// Makes points that stand at a place of the paper.
fn points_at(
    place: &'static str,
) -> impl Fn(Texts, &'static str, Setup, Values, Values, [Class; 2], Texts) -> Point {
    move |ids, what, setup, seconds, watts, classes, why| Point {
        ids,
        place,
        what,
        setup,
        seconds,
        watts,
        classes,
        why,
    }
}

fn asymmetric() -> [Point; 7] {
    use Class::{Mixed, Predicted, SeenAgain};
    let point = points_at("Fig. 5.9, appendix A, published data");
    [
        point(
            ["R004-30", "R004-30b"],
            "migration between 3600 and 1440 MHz",
            Setup::MIGRATION,
            [21.70, 19.45],
            [11.9, 8.8],
            [SeenAgain; 2],
            [APART, FITTED],
        ),
        point(
            ["R004-31", "R004-31b"],
            "fixed at 3600 MHz",
            Setup::on(0),
            [14.08, 17.12],
            [13.1, 9.0],
            [SeenAgain, Predicted],
            [
                AT_BOTH,
                "memory-bound code at 3600 MHz, from its power at 1440 MHz; and a core in MWAIT, which the paper's values hardly leave room for",
            ],
        ),
        point(
            ["R004-32", "R004-32b"],
            "3125 MHz beside 3600",
            beside(3125),
            [16.78, 19.09],
            [12.4, 9.3],
            [Predicted; 2],
            [CLOCK, RAIL],
        ),
        point(
            ["R004-33", "R004-33b"],
            "2650 MHz beside 3600",
            beside(2650),
            [19.79, 21.12],
            [11.7, 8.9],
            [Predicted; 2],
            [CLOCK, RAIL],
        ),
        point(
            ["R004-34", "R004-34b"],
            "2200 MHz beside 3600",
            beside(2200),
            [22.74, 23.21],
            [11.2, 8.7],
            [Predicted; 2],
            [CLOCK, RAIL],
        ),
        point(
            ["R004-35", "R004-35b"],
            "1725 MHz beside 3600",
            beside(1725),
            [31.75, 29.40],
            [9.7, 7.5],
            [Predicted; 2],
            ["here it runs at 1600 MHz, in the paper at 1440 (R004-01b)", RAIL],
        ),
        point(
            ["R004-36", "R004-36b"],
            "fixed at 1440 MHz beside 3600",
            Setup::on(1),
            [31.72, 29.41],
            [9.9, 7.6],
            [SeenAgain, Mixed],
            [
                AT_BOTH,
                "the memory part is fitted (R004-44b) and 45 % of the time; the CPU part at this clock and a core in MWAIT are predicted",
            ],
        ),
    ]
}

/// A rerun of the symmetric set-up.
fn rerun() -> [Point; 6] {
    use Class::{Predicted, SeenAgain};
    let at = points_at("published data of 2018-02-27, in no figure");
    let point = |ids, what, setup, seconds, watts| {
        at(ids, what, setup, seconds, watts, [Predicted; 2], [SLOW_CORE, VOLTAGE])
    };
    [
        Point {
            classes: [SeenAgain; 2],
            why: [APART, FITTED],
            ..point(
                ["R004-37", "R004-37b"],
                "migration, repeated",
                Setup::MIGRATION,
                [21.70, 19.44],
                [11.9, 8.6],
            )
        },
        Point {
            classes: [Predicted, SeenAgain],
            why: [SLOW_CORE, "the voltage is taken from it (below)"],
            ..point(
                ["R004-38", "R004-38b"],
                "P0 at 3125 MHz, on core 2",
                lowered(3125),
                [36.49, 32.11],
                [6.6, 5.1],
            )
        },
        point(
            ["R004-39", "R004-39b"],
            "P0 at 2650 MHz, on core 2",
            lowered(2650),
            [44.70, 38.43],
            [5.5, 4.1],
        ),
        point(
            ["R004-40", "R004-40b"],
            "P0 at 2200 MHz, on core 2",
            lowered(2200),
            [47.88, 40.81],
            [4.4, 4.2],
        ),
        point(
            ["R004-41", "R004-41b"],
            "P0 at 1725 MHz, on core 2",
            lowered(1725),
            [56.81, 46.90],
            [4.2, 3.9],
        ),
        point(
            ["R004-42", "R004-42b"],
            "P0 at 1250 MHz, on core 2",
            lowered(1250),
            [55.01, 47.21],
            [4.3, 3.5],
        ),
    ]
}

fn parts() -> [Point; 5] {
    use Class::{Predicted, SeenAgain};
    let point = points_at("as Fig. 5.8, published data of 2018-02-25");
    let all_slow = Setup { pstates: ["P2"; 6], ..Setup::alone(1, Part::Memory) };
    let across = Setup { slow: Some(3), mwait: &[0, 3], ..Setup::on(0) };
    const FIT: &str = "fitted: the power of a busy core and of what is awake";
    [
        point(
            ["R004-43", "R004-43b"],
            "CPU part alone on the fast core",
            Setup::alone(0, Part::Cpu),
            [6.75, 7.02],
            [10.6, 10.7],
            [SeenAgain; 2],
            [
                "instructions and cycles are put in; what a process of chase does before, some 0.3 s, is not simulated",
                FIT,
            ],
        ),
        point(
            ["R004-44", "R004-44b"],
            "memory part alone on the slow core",
            Setup::alone(1, Part::Memory),
            [14.73, 12.52],
            [9.6, 5.6],
            [SeenAgain; 2],
            [
                "how many instructions the parts have is computed from these",
                "fitted: the same, and the power of indirect access outside the cores",
            ],
        ),
        point(
            ["R004-45", "R004-45b"],
            "migration within the CCX",
            Setup::MIGRATION,
            [21.68, 19.61],
            [11.4, 8.6],
            [SeenAgain; 2],
            [APART, FITTED],
        ),
        point(
            ["R004-46", "R004-46b"],
            "migration to the other CCX",
            across,
            [33.13, 23.53],
            [8.8, 7.1],
            [Predicted; 2],
            [
                "at 833 MHz, with the price of the author's logs for a migration; data in caches do not move here",
                "the CPU part has the smaller share of the time",
            ],
        ),
        point(
            ["R004-47", "R004-47b"],
            "memory part alone, all cores at P2",
            all_slow,
            [26.48, 19.49],
            [4.3, 2.6],
            [Predicted; 2],
            [
                "at 833 MHz; the L3 cache is as slow as the cores then, and memory slower than beside a fast core: the model has one memory time for all clocks",
                "by RAPL's readings at 1440 MHz, clock and voltage",
            ],
        ),
    ]
}

/// The rows of the symmetric set-up: P0 redefined, the benchmark on the first core, another one in
/// MWAIT. Times are by the log of the figure's run (2018-02-21); its power was not at hand, because
/// archives of the published data lack the file for its size.
fn symmetric(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    const ON_CORE_1: [(&str, &str, u64, Values); 4] = [
        ("R004-50", "P0 at 3125 MHz, on core 1", 3125, [16.07, 18.47]),
        ("R004-51", "P0 at 2650 MHz, on core 1", 2650, [18.62, 19.50]),
        ("R004-52", "P0 at 2200 MHz, on core 1", 2200, [22.05, 22.85]),
        ("R004-53", "P0 at 1725 MHz, on core 1", 1725, [27.89, 27.05]),
    ];
    const PLACE: &str = "Fig. 5.9, appendix A, published data";
    const WHY: &str = "cycles and nanoseconds from the clocks of 3600 and 1440 MHz. Means of ten runs of a whole process, which for chase takes some 0.3 s before, not simulated; one of chase at \
        2650 MHz took 11.9 s, the others 20.3";
    let row = |(id, what, mhz, paper): (&'static str, &'static str, u64, Values)| {
        let setup = Setup { core: 0, ..lowered(mhz) };
        let [indirect, chase] = Memory::BOTH.map(|memory| run(memory, &setup, inputs));
        Ok(Draft::new(id, Class::Predicted, PLACE, what, "s")
            .value("indirect", paper[0], indirect?.seconds)
            .value("chase", paper[1], chase?.seconds)
            .row(WHY))
    };
    ON_CORE_1.into_iter().map(row).collect()
}

/// The figure of R004-38b (W), of indirect access.
pub(crate) fn first_lowered(inputs: &Inputs<'_>) -> Result<f64, SimError> {
    Ok(run(Memory::Indirect, &lowered(3125), inputs)?.watts)
}

/// The rows of all points.
pub(crate) fn points(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let mut rows = Vec::new();
    for point in asymmetric().into_iter().chain(rerun()).chain(parts()) {
        let [indirect, chase] = Memory::BOTH.map(|memory| run(memory, &point.setup, inputs));
        let (indirect, chase) = (indirect?, chase?);
        let row = |index: usize, unit, paper: [f64; 2], ours: [f64; 2]| {
            Draft::new(point.ids[index], point.classes[index], point.place, point.what, unit)
                .value("indirect", paper[0], ours[0])
                .value("chase", paper[1], ours[1])
                .row(point.why[index])
        };
        rows.push(row(0, "s", point.seconds, [indirect.seconds, chase.seconds]));
        rows.push(row(1, "W", point.watts, [indirect.watts, chase.watts]));
    }
    rows.extend(symmetric(inputs)?);
    Ok(rows)
}

/// A fixed clock, and what the microbenchmark takes there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fixed {
    pub(crate) ghz: f64,
    pub(crate) seconds: f64,
    pub(crate) watts: f64,
}

/// The microbenchmark at fixed clocks, fastest first: with a fast core beside, or none.
pub(crate) fn curve(
    memory: Memory,
    is_asymmetric: bool,
    inputs: &Inputs<'_>,
) -> Result<Vec<Fixed>, SimError> {
    let of = |mhz: u64| -> Result<Fixed, SimError> {
        let setup = if is_asymmetric { beside(mhz) } else { Setup { core: 0, ..lowered(mhz) } };
        let found = run(memory, &setup, inputs)?;
        Ok(Fixed { ghz: mhz as f64 / 1000.0, seconds: found.seconds, watts: found.watts })
    };
    // Quotients of 3600 MHz by steps of 1/4.
    [3600, 2880, 2400, 2058, 1800, 1600, 1440].into_iter().map(of).collect()
}

/// Power at a fixed clock at which it takes so long (W).
pub(crate) fn interpolated(seconds: f64, curve: &[Fixed]) -> f64 {
    let between = curve.windows(2).find_map(|pair| match *pair {
        [fast, slow] if (fast.seconds..=slow.seconds).contains(&seconds) => {
            let part = (seconds - fast.seconds) / (slow.seconds - fast.seconds);
            Some(fast.watts + part * (slow.watts - fast.watts))
        }
        _ => None,
    });
    between.unwrap_or(f64::NAN)
}

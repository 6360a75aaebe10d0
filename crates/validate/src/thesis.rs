//! Paper 000, "AVX-induced reclocking" on the i9-7940X: its results about the hardware (§3.3),
//! AVXFREQ (§5.2.1), and the multi-phase runs (§5.2.2).

use dimmer_processor::model::{Assumed, Model};
use dimmer_sim::scenario;
use dimmer_sim::{Extent, Governor, Moment, Segment, SimError, Step};

use crate::inputs::Inputs;
use crate::modes::{
    self, BEGIN, CHAINED_256, DIRTY_256, FMA_256, LIGHT_512, MS, RUNS, US, median, quantile,
    share_below, us,
};
use crate::phases;
use crate::row::{Draft, words};
use crate::{Class, Experiment, Left, Row};

/// The results that are not recreated.
pub(crate) const LEFT: &[Left] = &[
    Left {
        id: "R000-06",
        what: "instructions until throttling begins: at most one",
        why: "the simulated core throttles the first one already: it could not come out otherwise",
    },
    Left {
        id: "R000-10",
        what: "instructions needed for L1 on three cores: more",
        why: "the most of three draws cannot but rise, and the thesis gives no numbers: it could not come out otherwise",
    },
    Left {
        id: "R000-11",
        what: "instructions needed for L1 beside a core that runs wide code",
        why: "nothing in the model makes the need depend on other cores: it could not come out otherwise",
    },
    Left {
        id: "R000-23",
        what: "Intel's figures for the longest way up, and back, which the thesis shows to be too large",
        why: "eight times what was measured, and the model's parameters are what was measured: it could not come out otherwise",
    },
    Left {
        id: "R000-24",
        what: "frequency switch of an i7-3770",
        why: "cited from elsewhere; that processor has no licenses and no model here",
    },
    Left {
        id: "R000-25",
        what: "nginx with AVX-512",
        why: "cited from elsewhere; what that server served is not said. Paper 001's server is R001-11",
    },
    Left {
        id: "R000-26",
        what: "chips of one model differ by up to 5 %",
        why: "cited from elsewhere; a model describes one chip",
    },
    Left {
        id: "R000-47",
        what: "most that better governing gains scalar code",
        why: "the same number as R000-43",
    },
    Left {
        id: "R000-40",
        what: "scalar phase of 2 s, over hardware",
        why: "no governor does anything in that phase: it could not come out otherwise",
    },
];

/// The reason of a row that shows parameters of the model again.
const SEEN_AGAIN: &str = "median and spread are parameters of the model, the latter from the same 5th and 95th percentile; what can miss is the way there, and \
    the form of the distribution";

/// The experiments of the paper that are recreated.
pub(crate) const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "what asks for which level (§3.3.3)", rows: order },
    Experiment { name: "the instructions needed (§3.3.3)", rows: required },
    Experiment { name: "how long levels take (§3.3.3)", rows: times },
    Experiment { name: "the release (§3.3.4)", rows: release },
    Experiment { name: "AVXFREQ (§5.2.1)", rows: avxfreq },
    Experiment { name: "the multi-phase runs (§5.2.2)", rows: multi_phase },
];

/// What the experiments assume where the model lacks values.
pub(crate) fn assumed(inputs: &Inputs<'_>) -> Result<Vec<Assumed>, SimError> {
    let code = [
        Segment::SCALAR,
        Segment::FMA_512,
        Segment::CHAINED_512,
        LIGHT_512,
        FMA_256,
        CHAINED_256,
        DIRTY_256,
    ];
    let governors = [Governor::Hardware, Governor::AvxFreq, Governor::User];
    Ok(scenario::assumed(&inputs.model, &code, MOST_CORES, &governors)?)
}

/// Cores that ask at the same time (figure 3.10).
const MOST_CORES: u32 = 3;

/// The order of events, and which code asks for which level.
pub(crate) fn order(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let forever = |code: Segment| [Step::Run(Segment { extent: Extent::Time(MS), ..code })];
    let kind = (Governor::Hardware, 1);
    let log = modes::run(inputs, kind, 1, &[], &forever(Segment::FMA_512), MS)?.into_observer();
    let mut events: Vec<String> = Vec::new();
    for seen in &log.0 {
        let event = if seen.is_throttled { "throttled".into() } else { format!("L{}", seen.level) };
        if event != "L0" && events.last() != Some(&event) {
            events.push(event);
        }
    }
    let throughput = |code: Segment| -> Result<f64, SimError> {
        // The first 10 us: throttled, before the core stands still.
        let code = Segment { counter: 1, extent: Extent::Time(10 * US), ..code };
        let machine = modes::run(inputs, kind, 1, &[], &[Step::Run(code)], 10 * US)?;
        let done = machine.threads().next().and_then(|thread| thread.instructions.get(1).copied());
        Ok(done.unwrap_or(f64::NAN) / (4.3 * 10_000.0))
    };
    let single = |code: Segment| -> Result<u32, SimError> {
        let one = Segment { extent: Extent::Instructions(1.0), ..code };
        let spin = Segment { extent: Extent::Time(MS), ..Segment::SCALAR };
        let steps = [Step::Run(one), Step::Run(spin)];
        let log = modes::run(inputs, kind, 1, &[], &steps, MS)?.into_observer();
        Ok(log.0.iter().map(|seen| seen.level).max().unwrap_or(0))
    };
    let highest = |codes: &[Segment]| -> Result<String, SimError> {
        let levels: Result<Vec<String>, SimError> =
            codes.iter().map(|code| Ok(format!("L{}", modes::highest(inputs, *code)?))).collect();
        Ok(levels?.join(", "))
    };
    let by_rule = "what the model's rules say, carried out by the governor";
    let factor =
        "a parameter of the model times what the units can do; the thesis printed two digits";
    Ok(vec![
        words(
            "R000-01",
            Class::SeenAgain,
            "§3.3.3",
            "order of events under heavy 512-bit code",
            "throttled, L1, L2",
            events.join(", ").as_str(),
            by_rule,
        ),
        Draft::new(
            "R000-02",
            Class::SeenAgain,
            "Fig. 3.6",
            "512-bit multiply-adds per cycle while throttled, not unrolled",
            "",
        )
        .value("", 0.21, throughput(Segment::CHAINED_512)?)
        .row(factor),
        Draft::new("R000-03", Class::SeenAgain, "Fig. 3.6", "the same, unrolled", "")
            .value("", 0.42, throughput(Segment::FMA_512)?)
            .row(factor),
        words(
            "R000-04",
            Class::SeenAgain,
            "§3.3.3",
            "highest level of multiply-adds: 512 bit not unrolled and unrolled, 256 bit likewise",
            "L1, L2, L0, L1",
            highest(&[Segment::CHAINED_512, Segment::FMA_512, CHAINED_256, FMA_256])?.as_str(),
            by_rule,
        ),
        words(
            "R000-05",
            Class::SeenAgain,
            "§3.3.3",
            "highest level of 256-bit multiply-adds with dirty upper halves, and without",
            "L2, L1",
            highest(&[DIRTY_256, FMA_256])?.as_str(),
            by_rule,
        ),
        words(
            "R000-07",
            Class::SeenAgain,
            "§3.3.3",
            "level after one 512-bit instruction: heavy, light",
            "L1, L1",
            format!("L{}, L{}", single(Segment::FMA_512)?, single(LIGHT_512)?).as_str(),
            by_rule,
        ),
    ])
}

/// The number of instructions that are needed for a level.
pub(crate) fn required(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let on = modes::required(inputs, FMA_256)?;
    let inputs = Inputs { model: without_turbo(inputs.model.clone()), ..inputs.clone() };
    let off = modes::required(&inputs, FMA_256)?;
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    Ok(vec![
        Draft::new("R000-08", Class::SeenAgain, "Fig. 3.7, 3.8", "256-bit multiply-adds needed for L1", "")
            .value("p5", 5981.0, quantile(&on, 0.05))
            .value("p25", 9385.0, quantile(&on, 0.25))
            .value("median", 12_431.0, median(&on))
            .value("mean", 12_982.8, mean(&on))
            .value("p75", 15_934.0, quantile(&on, 0.75))
            .value("p95", 22_413.0, quantile(&on, 0.95))
            .row("a log-normal fit to the same data: what can miss is its form. 1000 draws are known to some percent in the tails. The thesis lets bursts grow by 31 instructions until one is long enough: that is what a single burst needs only if the need is the same for all bursts of a run. \
                The row supposes so, and draws once a run; elsewhere the simulator draws for each burst. If the processor does that too, only about 0.5 % of single bursts of 12 431 would be long enough"),
        Draft::new("R000-09", Class::Predicted, "§3.3.3", "the same with turbo off", "")
            .value("median", 8137.5, median(&off))
            .value("mean", 8642.49, mean(&off))
            .value("most", 21_793.0, quantile(&off, 1.0))
            .row("no clock is above the base here, and the model draws the need from the same distribution at any. The thesis supposes that at a lower clock, and so at a lower voltage, the voltage falls below what is critical earlier; nothing says by how much"),
    ])
}

/// The processor with turbo off: no level has a clock above the base.
fn without_turbo(mut model: Model) -> Model {
    let base = model.clock.base_mhz.as_ref().map_or(u64::MAX, |base| base.value);
    for bin in model.levels.iter_mut().flat_map(|level| &mut level.bins) {
        bin.mhz.value = bin.mhz.value.min(base);
    }
    model
}

/// How long the way to a level takes.
pub(crate) fn times(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let of_first =
        |runs: Vec<Vec<f64>>| -> Vec<f64> { runs.into_iter().map(|run| run[0]).collect() };
    // Figures 3.9 and 3.10 are of the code that is not unrolled, as the names of their published
    // data say.
    let chained = Segment::CHAINED_512;
    let l1 = of_first(modes::downclock(inputs, chained, 1, 1, &[])?);
    let l1_256 = of_first(modes::downclock(inputs, FMA_256, 1, 1, &[])?);
    let l2 = of_first(modes::downclock(inputs, Segment::FMA_512, 2, 1, &[])?);
    let beside = of_first(modes::downclock(inputs, chained, 1, 1, &[chained; 2])?);
    let three = modes::downclock(inputs, chained, 1, MOST_CORES, &[])?;
    let of_core = |core: usize| three.iter().map(|run| run[core]).collect::<Vec<_>>();
    let of_cores = |part: f64| (0..3).map(|core| quantile(&of_core(core), part)).sum::<f64>() / 3.0;
    let spread = |run: &Vec<f64>| quantile(run, 1.0) - quantile(run, 0.0);
    let together = three.iter().filter(|run| spread(run) < 1.0).count() as f64 / three.len() as f64;
    let slower = "fitted: the share of wishes that miss a slot is computed from this number";
    let row = |id, place, what, paper: [f64; 3], ours: &[f64]| {
        Draft::new(id, Class::SeenAgain, place, what, "µs")
            .value("p5", paper[0], quantile(ours, 0.05))
            .value("median", paper[1], median(ours))
            .value("p95", paper[2], quantile(ours, 0.95))
            .row(SEEN_AGAIN)
    };
    Ok(vec![
        row("R000-12", "Fig. 3.9", "L0 to L1, 512 bit, one core", [23.3, 24.59, 28.8], &l1),
        Draft::new("R000-13", Class::Mixed, "Fig. 3.10", "the same on three cores at once, means over them", "µs")
            .value("median", 27.39, of_cores(0.5))
            .value("p95", 63.3, of_cores(0.95))
            .row("cores that miss the slot of the first wait for the next, and all of one slot for the slowest wish: the thesis supposes that deciding several takes longer. How long a slot is and the share that misses it are from the data of this figure, and that form was chosen when the median was off by 8 %. In the data more samples are late, and later, than one slot makes them"),
        Draft::new("R000-14", Class::SeenAgain, "§3.3.3", "the same beside two cores at L1, over alone", "")
            .value("median", 1.0, median(&beside) / median(&l1))
            .row("a core that asks alone waits for no other"),
        Draft::new("R000-15", Class::SeenAgain, "published data", "runs in which all three switch within 1 µs", "")
            .value("share", 0.685, together)
            .row(slower),
        row("R000-16", "Fig. 3.11", "L0 to L1, 256 bit, one core", [47.4, 51.52, 60.1], &l1_256),
        row("R000-17", "Fig. 3.12", "L0 to L2, 512 bit, one core", [48.5, 51.43, 60.6], &l2),
        Draft::new("R000-18", Class::SeenAgain, "§3.3.3", "L1 to L2: difference of the medians", "µs")
            .value("", 26.84, median(&l2) - median(&l1))
            .row("the difference of two parameters"),
    ])
}

/// How long levels are held.
pub(crate) fn release(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let after_256 = modes::upclock(inputs, FMA_256, 1, &[])?;
    // Figures 3.14 and 3.15 are of unrolled code, as the names of their published data say.
    let after_512 = modes::upclock(inputs, Segment::FMA_512, 1, &[])?;
    let beside = modes::upclock(inputs, Segment::FMA_512, 1, &[Segment::FMA_512])?;
    let from_l2 = modes::upclock(inputs, Segment::FMA_512, 2, &[])?;
    let hold = "a parameter of the model: hold and standstill";
    Ok(vec![
        Draft::new("R000-19", Class::SeenAgain, "Fig. 3.13", "L1 to L0 after 256-bit code", "ms")
            .value("p1", 0.668, quantile(&after_256, 0.01))
            .value("median", 0.675, median(&after_256))
            .value("p99", 0.690, quantile(&after_256, 0.99))
            .row(hold),
        Draft::new("R000-20", Class::Mixed, "Fig. 3.14", "L1 to L0 after unrolled 512-bit code", "")
            .value("share below 0.7 ms", 0.694, share_below(&after_512, 0.7))
            .value("median ms", 0.674, median(&after_512))
            .value("p77 ms", 0.82, quantile(&after_512, 0.77))
            .value("p85 ms", 1.048, quantile(&after_512, 0.85))
            .value("p92 ms", 1.172, quantile(&after_512, 0.92))
            .value("longest ms", 1.333, quantile(&after_512, 1.0))
            .row("the simulated code asks for L2 at the moment at which it has L1 (§5.2.1), before the interrupt ends it, and its request stays: the core goes on to L2, from which no release is extended, as in the thesis (R000-22). If the code ends just before (below), share and longest are parameters, and an even spread in between is the model's form"),
        Draft::new("R000-21", Class::Mixed, "Fig. 3.15", "the same beside a core that runs that code", "")
            .value("share below 0.7 ms", 0.947, share_below(&beside, 0.7))
            .value("p95 ms", 0.71, quantile(&beside, 0.95))
            .value("p99 ms", 1.197, quantile(&beside, 0.99))
            .value("longest ms", 1.317, quantile(&beside, 1.0))
            .row("as R000-20. If the code ends just before (below), the share is a parameter, and that the others are spread as they are alone is the model's form. The 95th percentile lies where they start"),
        Draft::new("R000-22", Class::SeenAgain, "§3.3.4", "L2 to L0", "ms")
            .value("p1", 0.667, quantile(&from_l2, 0.01))
            .value("median", 0.667, median(&from_l2))
            .value("p99", 0.667, quantile(&from_l2, 0.99))
            .row(hold),
    ])
}

/// AVXFREQ's own behaviour.
pub(crate) fn avxfreq(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    let kind = (Governor::AvxFreq, 1);
    let until = |code: Segment, end, extent| {
        let spin = Segment { extent: Extent::Time(5 * MS), ..Segment::SCALAR };
        let code = Segment { extent, ..code };
        modes::run(inputs, kind, 1, &[], &[Step::Run(code), Step::Run(spin)], end)
    };
    let log = until(Segment::FMA_512, 4 * MS, Extent::Time(MS))?.into_observer();
    let (l1, l2) =
        (log.reached(0, 1, BEGIN).unwrap_or(BEGIN), log.reached(0, 2, BEGIN).unwrap_or(BEGIN));
    let counted = |code: Segment| -> Result<f64, SimError> {
        let code = Segment { counter: 1, extent: Extent::Time(l1 - BEGIN), ..code };
        let machine = modes::run(inputs, kind, 1, &[], &[Step::Run(code)], l1 - BEGIN)?;
        let done = machine.threads().next().and_then(|thread| thread.instructions.get(1).copied());
        Ok(2.0 * done.unwrap_or(f64::NAN))
    };
    let single = until(Segment::FMA_512, 4 * MS, Extent::Instructions(1.0))?.into_observer();
    // Wide code ends when the level is reached. Returns the time from then to L0, and how long the
    // core stands still in that time.
    let back = |code: Segment, level| -> Result<(f64, f64), SimError> {
        let log = until(code, 4 * MS, Extent::Time(MS))?.into_observer();
        let reached = log.reached(0, level, BEGIN).unwrap_or(BEGIN);
        let code_for = Extent::Time(reached - BEGIN);
        let log = until(code, 4 * MS, code_for)?.into_observer();
        let Some(back) = log.reached(0, 0, reached) else { return Ok((f64::NAN, f64::NAN)) };
        let still = |end: Moment| -> Result<f64, SimError> {
            let machine = until(code, end - BEGIN, code_for)?;
            Ok(machine.cores().next().map_or(f64::NAN, |core| us(core.still)))
        };
        Ok((us(back - reached), still(back)? - still(reached)?))
    };
    let (from_l1, still_l1) = back(Segment::CHAINED_512, 1)?;
    let (from_l1_unrolled, still_l1_unrolled) = back(Segment::FMA_512, 1)?;
    let (from_l2, still_l2) = back(Segment::FMA_512, 2)?;
    Ok(vec![
        Draft::new("R000-30", Class::Mixed, "§5.2.1", "operations until L1; time to it", "")
            .value("unrolled", 26.0, counted(Segment::FMA_512)?)
            .value("not unrolled", 12.0, counted(Segment::CHAINED_512)?)
            .value("µs", 4.0, us(l1 - BEGIN))
            .row("unrolled, 18 to 34 in the thesis (± 31 %), is predicted from the other: how many cycles after the instruction its interrupt comes is a parameter from the runs \
                that are not unrolled (10 to 14, here their middle) and R000-02; that more fit into them unrolled is R000-03. The time is a parameter"),
        words("R000-31", Class::SeenAgain, "§5.2.1", "instructions that make it go to L1", "1",
            if single.reached(0, 1, BEGIN).is_some() { "1" } else { "more" }, "its counter interrupts at the first"),
        Draft::new("R000-32", Class::SeenAgain, "§5.2.1", "L1 to L2", "µs")
            .value("median", 103.8, us(l2 - l1))
            .row("a period of its timer, and what handling it takes: the simulated look takes effect at its start"),
        Draft::new("R000-33", Class::SeenAgain, "§5.2.1", "to L0", "µs")
            .value("from L1", 664.7, from_l1)
            .value("unrolled", 665.2, from_l1_unrolled)
            .value("from L2", 665.2, from_l2)
            .row("six periods and a rest: its algorithm, carried out"),
        Draft::new("R000-34", Class::Predicted, "published data", "standing still on the way from a level to L0", "µs")
            .value("L1", 30.3, still_l1)
            .value("L1, unrolled", 16.1, still_l1_unrolled)
            .value("L2", 9.5, still_l2)
            .row("the one standstill here is the first: software has just lowered the clock, which is granted at once. It raises the clock at the end, and the core stands still for that only when the power control grants it, after the end. The processor's own levels change in between, at clocks above software's, and stop nothing. \
                In the published data the times lie around 8, 16 and 31 µs, as of one, two and four standstills of 8 µs: which changes stop the core is not known"),
    ])
}

/// Cycles of an iteration of the thesis's scalar loop: 1261.44 million in 2 s at 4.3 GHz, by the
/// published data of R000-40. Simulated scalar code executes an instruction a cycle.
const SCALAR_ITERATION: f64 = 2.0 * 4.3e9 / 1261.44e6;

/// Instructions of an iteration of its heavy loop: 15.5 cycles, two instructions each.
const HEAVY_ITERATION: f64 = 31.0;

/// All rows with governors in software.
pub(crate) fn governed(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    Ok([avxfreq(inputs)?, multi_phase(inputs)?].concat())
}

/// The multi-phase runs.
pub(crate) fn multi_phase(inputs: &Inputs<'_>) -> Result<Vec<Row>, SimError> {
    const PHASES: [u64; 3] = [2_000_000, 200_000, 666];
    let of = |governor| -> Result<Vec<[f64; 3]>, SimError> {
        (0..RUNS).map(|seed| phases::run(inputs, governor, seed, PHASES)).collect()
    };
    let (hardware, avxfreq, user) =
        (of(Governor::Hardware)?, of(Governor::AvxFreq)?, of(Governor::User)?);
    let shorter = |seed| phases::run(inputs, Governor::Hardware, seed, [100_000, 150_000, 666]);
    let shorter: Vec<[f64; 3]> = (0..RUNS).map(shorter).collect::<Result<_, SimError>>()?;
    let done = |runs: &[[f64; 3]], phase: usize, at| {
        quantile(&runs.iter().map(|run| run[phase]).collect::<Vec<_>>(), at)
    };
    let percent = |runs: &[[f64; 3]], over: &[[f64; 3]], phase, at| {
        100.0 * (done(runs, phase, at) / done(over, phase, at) - 1.0)
    };
    Ok(vec![
        Draft::new("R000-41", Class::SeenAgain, "Fig. 5.2", "heavy phase of 200 ms", "%")
            .value("AVXFREQ over hardware", -0.91, percent(&avxfreq, &hardware, 1, 0.5))
            .value("user over AVXFREQ", 0.98, percent(&user, &avxfreq, 1, 0.5))
            .row("what a look at the counter costs is assumed, 1 µs each 100 µs: that is both values, and little else is in them"),
        Draft::new("R000-42", Class::Predicted, "Fig. 5.3", "scalar phase of 666 µs after it, over hardware", "%")
            .value("AVXFREQ", -1.83, percent(&avxfreq, &hardware, 2, 0.5))
            .value("user", 8.05, percent(&user, &hardware, 2, 0.5))
            .row("AVXFREQ: a look at its counter takes 1 µs, as assumed, seven times in this phase; without it, it is as in the thesis (below). User: the power control decides every 500 µs about clocks \
                that software raises, which is a guess; with 2/3 ms, it is as in the thesis. How much the ends of phases vary, 5.6 µs, is from the spread of the thesis's own runs of this phase under AVXFREQ"),
        Draft::new("R000-43", Class::Predicted, "§5.2.2", "the same, 99th percentile", "%")
            .value("user", 14.9, percent(&user, &hardware, 2, 0.99))
            .row("the fastest runs are those in which the power control decides right after the call: what is left of their gain is what the processor's own level holds back. How much the ends of phases vary is from R000-42's runs; without that, it would be 17.48 %"),
        Draft::new("R000-44", Class::Predicted, "published data", "scalar phase of 666 µs after a heavy one of 150 ms, iterations", "thousand")
            .value("", 298.764, done(&shorter, 2, 0.5) / SCALAR_ITERATION / 1e3)
            .row("the cycles of an iteration are those of the scalar phase of 2 s (R000-40); clocks and times are the model's, from other experiments"),
        Draft::new("R000-45", Class::SeenAgain, "published data", "heavy phase of 200 ms, iterations", "million")
            .value("", 35.978, done(&hardware, 1, 0.5) / HEAVY_ITERATION / 1e6)
            .row("200 ms at the model's clock of L2, and 15.5 cycles an iteration"),
        Draft::new("R000-46", Class::SeenAgain, "§5.2.2", "interrupts and calls on the way from L0 to L2", "")
            .value("AVXFREQ", 2.0, phases::interrupts(inputs, Governor::AvxFreq)?)
            .value("user", 1.0, phases::interrupts(inputs, Governor::User)?)
            .row("the algorithms, carried out"),
    ])
}

#[cfg(test)]
mod tests {
    use dimmer_sim::Picos;

    use super::*;
    use crate::Paper;
    use crate::causes::set;

    fn inputs() -> Inputs<'static> {
        Inputs::new(Paper::Avxfreq.model().unwrap(), &|| false)
    }

    fn value(rows: &[Row], id: &str, at: usize) -> f64 {
        rows.iter().find(|row| row.id == id).unwrap().numbers.1[at].ours
    }

    /// The reason of R000-20 says so.
    #[test]
    fn code_that_is_ended_at_l1_asks_for_l2_first_which_gives_no_long_hold() {
        let share = |ps| {
            let inputs = Inputs { ends_early: Picos::from_ps(ps), ..inputs() };
            value(&release(&inputs).unwrap(), "R000-20", 0)
        };
        let before = share(1000);
        assert!((0.65..0.74).contains(&before), "{before}");
        assert!(share(0) > 0.999);
    }

    /// The reason of R000-43 gives the number without.
    #[test]
    fn the_fastest_runs_need_phases_that_end_at_various_times() {
        let inputs = Inputs { late_sd_us: 0.0, ..inputs() };
        let fastest = value(&multi_phase(&inputs).unwrap(), "R000-43", 0);
        assert!((fastest - 17.48).abs() < 0.005, "{fastest}");
    }

    #[test]
    fn bursts_grow_by_copies_until_they_are_long_enough() {
        let copies = |needed| {
            let mut inputs = inputs();
            for rule in &mut inputs.model.rules {
                set(&mut rule.instructions, needed);
                rule.instructions_log_sd = None;
            }
            modes::required(&inputs, FMA_256).unwrap()
        };
        assert!(copies(401 * 31).iter().all(|number| *number == 401.0 * 31.0));
        assert!(copies(401 * 31 + 1).iter().all(|number| *number == 402.0 * 31.0));
    }

    /// The reason of R000-08 and docs/model.md give this number.
    #[test]
    fn if_bursts_drew_each_one_of_the_median_would_be_enough_in_half_a_percent() {
        let runs = modes::required(&inputs(), FMA_256).unwrap();
        let (from, copies) = (12_431.0 - 10.0 * 31.0, 20.0);
        let left = runs.iter().filter(|number| **number >= from).count() as f64;
        let after = |copies: f64| runs.iter().filter(|n| **n >= from + copies * 31.0).count();
        let each = 1.0 - (after(copies) as f64 / left).powf(1.0 / copies);
        assert!((0.004..0.006).contains(&each), "{each}");
    }
}

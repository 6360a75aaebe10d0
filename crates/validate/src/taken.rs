//! Quantities of a paper's experiments that it does not publish, taken from some of its figures and
//! checked on others.
//!
//! Each is one number, and one figure of the paper determines it: the first that the paper gives
//! which depends on it, or the most direct measurement of it. The row of that figure is then *seen
//! again*: a number read back is no prediction. All other rows that depend on the number stay
//! predictions. Which figure determines which number is written down here before any value is
//! searched, and is not chosen by what it does to other rows.

use std::collections::BTreeMap;

use dimmer_processor::units::whole;
use dimmer_sim::SimError;

use crate::inputs::Inputs;
use crate::row::{short, with_unit};
use crate::server::X265;
use crate::{Paper, ValidateError, migration_points, policy_server, specialised, turbo};

/// A quantity that is taken from a paper's figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Taken {
    /// The paper.
    pub paper: Paper,
    /// What it is.
    pub what: &'static str,
    /// Its unit, if it has one.
    pub unit: &'static str,
    /// The value with which the row comes out as in the paper.
    pub value: f64,
    /// The values that the rounding of the figure leaves open.
    pub interval: [f64; 2],
    /// Between which values it is searched.
    pub range: [f64; 2],
    /// Why others are not plausible.
    pub plausible: &'static str,
    /// The row that determines it.
    pub row: &'static str,
    /// The paper's figure in that row, and by how much its rounding leaves it open.
    pub figure: [f64; 2],
    /// Why this row: the order of the paper, or the most direct measurement.
    pub why: &'static str,
    /// The rows on which it is checked.
    pub checked: &'static [&'static str],
}

/// Which number is taken from which figure.
pub const TAKEN: [Taken; 8] = [
    Taken {
        paper: Paper::Library,
        what: "how long a page of the web server takes, of the measured one",
        unit: "",
        value: 0.4904,
        interval: [0.468, 0.5153],
        range: [0.1, 4.0],
        plausible: "a page of 75 KiB at level 6 was measured; brotli's levels and usual pages are a tenth to four times of that",
        row: "R001-11",
        figure: [17.0, 0.5],
        why: "the first figure of the server in the paper, without anything moved",
        checked: &[
            "R001-11b", "R001-11c", "R001-12", "R001-14", "R001-15", "R001-16", "R001-18",
            "R001-18b", "R001-19", "R001-19b", "R001-20",
        ],
    },
    Taken {
        paper: Paper::Turbo,
        what: "leaving mwait on the FX-8120",
        unit: "ns",
        value: 114.0,
        interval: [100.0, 128.9],
        range: [20.0, 2000.0],
        plausible: "from a cache line that the core waits for to the shallow idle states of that time",
        row: "R002-01",
        figure: [4.0, 0.5],
        why: "the paper's first figure of waiting, and the only one of mwait alone",
        checked: &["R002-02b"],
    },
    Taken {
        paper: Paper::Turbo,
        what: "leaving the deep idle state of the FX-8120",
        unit: "ns",
        value: 108_500.0,
        interval: [104_900.0, 112_200.0],
        range: [10_000.0, 200_000.0],
        plausible: "table 5 has 22 µs for the i7-4770, and Linux assumes 133 µs there at worst",
        row: "R002-02",
        figure: [1500.0, 50.0],
        why: "the first figure that depends on it",
        checked: &["R002-02b", "R002-04", "R002-05"],
    },
    Taken {
        paper: Paper::Turbo,
        what: "the way from P6 to P0 while another module has just been at P0",
        unit: "ns",
        value: 7267.0,
        interval: [471.0, 15_910.0],
        range: [471.0, 56_747.0],
        plausible: "table 4: the request alone, and with all modules at P6; §4.1 says that what takes long is the voltage, and that it is shorter if that has not dropped",
        row: "R002-08",
        figure: [200.0, 50.0],
        why: "the strategy whose owner makes no request",
        checked: &["R002-07"],
    },
    Taken {
        paper: Paper::Specialisation,
        what: "how long a page of the web server takes, of the measured one",
        unit: "",
        value: 0.7521,
        interval: [0.7462, 0.7606],
        range: [0.1, 4.0],
        plausible: "as paper 001's",
        row: "R003-01",
        figure: [10.7, 0.05],
        why: "the first figure of the server in the paper",
        checked: &["R003-01b", "R003-04", "R003-05", "R003-14"],
    },
    Taken {
        paper: Paper::Specialisation,
        what: "the part of x265's stretches between waits whose code is dense enough for the level of its width",
        unit: "",
        value: 0.4593,
        interval: [0.4474, 0.4604],
        range: [0.0, 1.0],
        plausible: "a part",
        row: "R003-02",
        figure: [4.1, 0.05],
        why: "the first figure of x265 in the paper; with AVX2 nothing else asks for a level",
        checked: &["R003-03", "R003-06", "R003-08", "R003-10", "R003-14b", "R003-18"],
    },
    Taken {
        paper: Paper::Specialisation,
        what: "the part of the 5 ms from one wait of an x265 thread to the next for which it waits",
        unit: "",
        value: 0.6953,
        interval: [0.6915, 0.7012],
        range: [0.05, 0.9],
        plausible: "the paper says that x265 often cannot use its cores fully",
        row: "R003-07",
        figure: [30.0, 0.5],
        why: "the paper measures it to show that x265 cannot use its cores fully",
        checked: &["R003-03", "R003-06", "R003-08", "R003-09", "R003-10", "R003-14b", "R003-18"],
    },
    Taken {
        paper: Paper::Migration,
        what: "voltage with P0 set to 3125 MHz; lower clocks lie between it and P2",
        unit: "mV",
        value: 1009.5,
        interval: [1005.5, 1013.5],
        range: [800.0, 1200.0],
        plausible: "the voltages of P2 and of P0 at 3600 MHz",
        row: "R004-38b",
        figure: [6.6, 0.05],
        why: "the first point of that set-up whose power was at hand, in a rerun; its value of indirect access",
        checked: &["R004-16b", "R004-39b", "R004-40b", "R004-41b", "R004-42b"],
    },
];

/// The value of what is taken from a row; not a number if nothing is.
pub(crate) fn value(row: &str) -> f64 {
    TAKEN.iter().find(|taken| taken.row == row).map_or(f64::NAN, |taken| taken.value)
}

/// Values, by the rows from which they are taken.
pub type Values = BTreeMap<&'static str, f64>;

/// All values as they are stored.
#[must_use]
pub fn stored() -> Values {
    TAKEN.iter().map(|taken| (taken.row, taken.value)).collect()
}

/// What a search gives: the value with which the row has the paper's figure, those with which it
/// has the least and the most figure that its rounding allows, and the figure with the first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    /// The value.
    pub value: f64,
    /// From where to where it can be.
    pub interval: [f64; 2],
    /// The row's figure with it.
    pub figure: f64,
}

/// Steps of the range, and how often one of them is halved.
const STEPS: u32 = 9;
const HALVINGS: u32 = 9;

impl Taken {
    /// The value and its interval, with the unit.
    #[must_use]
    pub fn shown(&self) -> String {
        let [least, most] = self.interval.map(short);
        format!("{} [{least}, {most}]", with_unit(self.value, self.unit))
    }

    /// The range in which it is searched.
    #[must_use]
    pub fn shown_range(&self) -> String {
        let [low, high] = self.range;
        format!("{} to {}", short(low), with_unit(high, self.unit))
    }

    /// The row's figure with these values.
    fn figure(&self, values: &Values) -> Result<f64, ValidateError> {
        let never = || false;
        let value = |row| values.get(row).copied().unwrap_or(f64::NAN);
        let mut inputs = Inputs::new(self.paper.model()?, &never);
        inputs.page = value("R001-11");
        inputs.x265 = X265 { dense: value("R003-02"), waits: value("R003-07"), ..inputs.x265 };
        inputs.rise_ns = whole(value("R002-08"));
        inputs.lowered_mv = value("R004-38b");
        if self.paper == Paper::Turbo {
            inputs.model = turbo::with_exits(inputs.model, value("R002-01"), value("R002-02"));
        }
        let figure: fn(&Inputs<'_>) -> Result<f64, SimError> = match self.row {
            "R001-11" => policy_server::loses_without,
            "R002-01" => turbo::mwait_over_spinning,
            "R002-02" => turbo::futex_over_spinning,
            "R002-08" => turbo::delegation_over_base,
            "R003-01" => {
                inputs.page = value("R003-01");
                specialised::nginx_slower
            }
            "R003-02" => specialised::avx2_slower,
            "R003-07" => specialised::vips_left,
            _ => migration_points::first_lowered,
        };
        figure(&inputs).map_err(|error| ValidateError::Sim { experiment: self.what, error })
    }

    /// Searches the value: looks at it in steps all along its range, and halves the first one that
    /// has the paper's figure between its ends. If none has, the nearest of these values is found.
    ///
    /// * `values`: those of all rows, of which all but its own hold.
    ///
    /// # Errors
    /// If the model lacks what the experiment needs.
    pub fn search(&self, values: &Values) -> Result<Found, ValidateError> {
        let figure = |value: f64| {
            let mut values = values.clone();
            values.insert(self.row, value);
            self.figure(&values)
        };
        let mut looked = Vec::new();
        for step in 0..=STEPS {
            let value = self.range[0]
                + (self.range[1] - self.range[0]) * f64::from(step) / f64::from(STEPS);
            looked.push((value, figure(value)?));
        }
        let at = |wanted: f64| -> Result<f64, ValidateError> {
            let is_between = |two: &&[(f64, f64)]| (two[0].1 < wanted) != (two[1].1 < wanted);
            let Some([(mut low, first), (mut high, _)]) =
                looked.windows(2).find(is_between).map(|two| [two[0], two[1]])
            else {
                let off = |one: &&(f64, f64)| (one.1 - wanted).abs();
                let nearest = looked.iter().min_by(|one, other| off(one).total_cmp(&off(other)));
                return Ok(nearest.map_or(f64::NAN, |one| one.0));
            };
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(low, high);
                let is_low = (figure(middle)? < wanted) == (first < wanted);
                if is_low { low = middle } else { high = middle }
            }
            Ok(f64::midpoint(low, high))
        };
        let [wanted, open] = self.figure;
        let value = at(wanted)?;
        let ends = [at(wanted - open)?, at(wanted + open)?];
        let interval = if ends[0] < ends[1] { ends } else { [ends[1], ends[0]] };
        Ok(Found { value, interval, figure: figure(value)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those whose experiments take a second: `dimmer sim validate` shows the rows of the others.
    #[test]
    fn a_row_from_which_a_value_is_taken_has_the_papers_figure_with_it() {
        for taken in
            TAKEN.iter().filter(|taken| matches!(taken.paper, Paper::Turbo | Paper::Migration))
        {
            let [wanted, open] = taken.figure;
            let figure = taken.figure(&stored()).unwrap();
            assert!((figure - wanted).abs() < open, "{}: {figure}", taken.row);
            let [low, high] = taken.interval;
            assert!(low < taken.value && taken.value < high, "{}", taken.row);
            assert!(taken.range[0] <= low && high <= taken.range[1], "{}", taken.row);
        }
    }

    #[test]
    fn a_search_finds_what_is_stored() {
        let taken = TAKEN.iter().find(|taken| taken.row == "R002-01").unwrap();
        let found = taken.search(&stored()).unwrap();
        assert!((found.value / taken.value - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn no_row_is_checked_with_a_value_taken_from_it() {
        let rows: Vec<&str> = TAKEN.iter().map(|taken| taken.row).collect();
        assert!(TAKEN.iter().all(|taken| !taken.checked.is_empty()));
        assert!(TAKEN.iter().flat_map(|taken| taken.checked).all(|row| !rows.contains(row)));
    }
}

//! Quantities of a paper's experiments that it does not publish, taken from some of its figures and
//! checked on others.
//!
//! Each is one number, and one figure of the paper determines it: the first that the paper gives
//! which depends on it, or the most direct measurement of it. The row of that figure is then *seen
//! again*: a number read back is no prediction. All other rows that depend on the number stay
//! predictions. Which figure determines which number is written down here before any value is
//! searched, and is not chosen by what it does to other rows.

use crate::Paper;

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
    /// Between which values it is searched, and why others are not plausible.
    pub range: [f64; 2],
    /// Why others are not plausible.
    pub plausible: &'static str,
    /// The row that determines it, and the paper's figure there.
    pub row: &'static str,
    /// The paper's figure in that row, and by how much its rounding leaves it open.
    pub figure: [f64; 2],
    /// Why this row: the order of the paper, or the most direct measurement.
    pub why: &'static str,
    /// The rows on which it is checked.
    pub checked: &'static [&'static str],
}

/// Which number is taken from which figure.
pub const TAKEN: [Taken; 7] = [
    Taken {
        paper: Paper::Library,
        what: "how long a page of the web server takes, of the measured one",
        unit: "",
        value: 1.0,
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
        value: 454.0,
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
        value: 22_021.0,
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
        value: 56_747.0,
        range: [23_664.0, 56_747.0],
        plausible: "table 4: from P2, and from P6 with all modules at P6; §4.1 says that it is shorter if the voltage has not dropped",
        row: "R002-08",
        figure: [200.0, 50.0],
        why: "the strategy whose owner pays for nothing but that way",
        checked: &["R002-07"],
    },
    Taken {
        paper: Paper::Specialisation,
        what: "how long a page of the web server takes, of the measured one",
        unit: "",
        value: 1.0,
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
        value: 0.0,
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
        value: 0.2,
        range: [0.0, 0.9],
        plausible: "a part",
        row: "R003-07",
        figure: [30.0, 0.5],
        why: "the paper measures it to show that x265 cannot use its cores fully",
        checked: &["R003-03", "R003-06", "R003-08", "R003-09", "R003-10", "R003-14b", "R003-18"],
    },
];

//! The pictures of README.md: the page's main plot for a processor with an effect and for one
//! without. `make pictures` writes them; this test fails if they are out of date.
//!
//! The first is made up by the constants published for Skylake-SP (paper 000), because no machine
//! with an effect has stored its curves; the second is a measurement in `machines/`.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::{CurvePoint, Detail};
use dimmer_probe::stats::Estimate;
use expect_test::expect_file;
use serde_json::Value;

use super::fixtures::{HEAVY_512, skylake};
use crate::plot;

const MEASURED: &str =
    include_str!("../../../../../machines/epyc-zen5-vm-linux-6.18-2026-11-27/probe-quick.json");

/// Size of a plot of the clock, in units of the page.
const PLOT: (u32, u32) = (430, 300);
/// Height of the titles.
const TITLES: u32 = 50;

/// Colors of text, grid, line, stalls and marks, as the plots have them.
const DRAWN: [&str; 5] = ["#5A6066", "#DDDFE1", "#2B5C8A", "#B45F06", "#8A2F4F"];
/// Paper and titles, then those of [`DRAWN`], on a light page, as in `style.css`.
const LIGHT: [&str; 7] =
    ["#FCFCFB", "#1D2125", "#5A6066", "#DDDFE1", "#2B5C8A", "#B45F06", "#8A2F4F"];
/// The same on a dark page.
const DARK: [&str; 7] =
    ["#16181B", "#E3E4E1", "#A0A6AB", "#35393D", "#7FB2E5", "#E5A04C", "#E08AA8"];

fn made_up() -> String {
    let findings = skylake().findings;
    let downclock = findings.outcomes.iter().find_map(|outcome| match &outcome.detail {
        Detail::Downclock(downclock) => Some(downclock),
        _ => None,
    });
    let downclock = downclock.expect("a downclock");
    let settle = downclock.settle_ns.as_ref().expect("a settled clock");
    drawn(&downclock.curve, &[("settled after", settle)])
}

fn measured() -> String {
    let document: Value = serde_json::from_str(MEASURED).expect("JSON");
    let results = document["results"].as_array().expect("results");
    let is_wanted = |result: &&Value| {
        result["kernel"] == HEAVY_512 && result["mode"] == Mode::Downclock.to_string()
    };
    let result = results.iter().find(is_wanted).expect("a downclock");
    let number = |value: &Value| value.as_f64().expect("a number");
    let point = |point: &Value| {
        let ratio = &point["clock_ratio"];
        CurvePoint {
            at_ns: number(&point["at_ns"]),
            clock_ratio: Estimate {
                median: number(&ratio["median"]),
                ci95: (number(&ratio["ci95"][0]), number(&ratio["ci95"][1])),
            },
            stall_share: number(&point["stall_share"]),
        }
    };
    let curve: Vec<CurvePoint> =
        result["curve"].as_array().expect("a curve").iter().map(point).collect();
    drawn(&curve, &[])
}

fn drawn(curve: &[CurvePoint], marks: &[(&str, &dimmer_probe::outcome::Quantity)]) -> String {
    let figure = plot::clock(curve, "after the first instruction", marks).expect("a plot");
    figure.expect("points").plot.into_string()
}

fn picture(colors: [&str; 7]) -> String {
    let [paper, ink, drawn @ ..] = colors;
    let (width, height) = PLOT;
    let plots = [
        ("An effect: Skylake-SP", "made up by published constants", made_up()),
        ("No effect: AMD EPYC, Zen 5", "measured; another scale", measured()),
    ];
    let mut inside = String::new();
    for (number, (title, source, plot)) in (0..).zip(plots) {
        let left = number * width;
        let x = left + 56;
        let place =
            format!("<svg x=\"{left}\" y=\"{TITLES}\" width=\"{width}\" height=\"{height}\"");
        inside += &format!(
            "<text x=\"{x}\" y=\"24\" font-size=\"15\" font-weight=\"600\">{title}</text>\n\
             <text x=\"{x}\" y=\"42\" font-size=\"13\">{source}</text>\n{}\n",
            plot.replacen("<svg class=\"plot\"", &place, 1)
        );
    }
    for (from, to) in DRAWN.into_iter().zip(drawn) {
        inside = inside.replace(from, to);
    }
    let (width, height) = (2 * width, TITLES + height);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
         font-family=\"system-ui, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif\" fill=\"{ink}\">\n\
         <title>Clock after the first 512-bit multiply-add, on two processors</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"{paper}\"/>\n{inside}</svg>\n"
    )
}

#[test]
fn picture_of_readme_is_up_to_date() {
    expect_file!["../../../../../docs/img/probe-light.svg"].assert_eq(&picture(LIGHT));
    expect_file!["../../../../../docs/img/probe-dark.svg"].assert_eq(&picture(DARK));
}

#[test]
fn picture_has_the_colors_of_the_page() {
    let style = include_str!("../../style.css");
    for color in LIGHT.iter().chain(&DARK) {
        assert!(style.contains(&color.to_lowercase()), "{color}");
    }
}

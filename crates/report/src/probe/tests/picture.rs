//! The pictures of README.md: the page's main plot for a processor with an effect and for one
//! without. `make pictures` writes them; this test fails if they are out of date.
//!
//! Both are measurements in `machines/`.

use dimmer_probe::mode::Mode;
use dimmer_probe::outcome::CurvePoint;
use dimmer_probe::stats::Estimate;
use expect_test::expect_file;
use serde_json::Value;

use super::fixtures::HEAVY_512;
use crate::plot;

/// The probe of a machine with an effect, and that of one without.
const PROBES: [&str; 2] = [
    include_str!("../../../../../machines/xeon-unknown-vm-linux-6.18-2026-11-27/probe-quick.json"),
    include_str!("../../../../../machines/epyc-zen5-vm-linux-6.18-2026-11-27/probe-quick.json"),
];

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

/// The clock in a probe's long stretch of 512-bit multiply-adds.
fn clock(probe: &str) -> String {
    let document: Value = serde_json::from_str(probe).expect("JSON");
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
    let figure = plot::clock(&curve, "after the first instruction", &[]).expect("a plot");
    figure.expect("points").plot.into_string()
}

fn picture(colors: [&str; 7]) -> String {
    let [paper, ink, drawn @ ..] = colors;
    let (width, height) = PLOT;
    let titles = [
        ("An effect: Intel Xeon with AMX", "a virtual machine"),
        ("No effect: AMD EPYC, Zen 5", "a virtual machine; another scale"),
    ];
    let mut inside = String::new();
    for (number, ((title, source), probe)) in (0..).zip(titles.into_iter().zip(PROBES)) {
        let plot = clock(probe);
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

//! The page: well-formed, self-contained, and saying what was found.

use quick_xml::Reader;
use quick_xml::events::Event;

use super::fixtures::{Fixture, skylake, xeon_6, zen_5};
use crate::report::html::render;

/// Elements that have no end tag in HTML.
const VOID: [&str; 1] = ["meta"];

fn page(fixture: &Fixture) -> String {
    render(&fixture.findings, &fixture.machine).unwrap()
}

/// The text that a reader sees, white space folded.
fn text(page: &str) -> String {
    let mut reader = Reader::from_str(page);
    reader.config_mut().check_end_names = false;
    let mut text = String::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => break,
            Event::Text(part) => text.push_str(&part),
            Event::GeneralRef(_) => text.push('&'),
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[track_caller]
fn check(fixture: &Fixture, sentences: &[&str]) {
    let page = page(fixture);
    check_nesting(&page);
    let text = text(&page);
    for sentence in sentences {
        assert!(text.contains(sentence), "no `{sentence}` in: {text}");
    }
}

/// Every element ends where it should.
#[track_caller]
fn check_nesting(page: &str) {
    let mut reader = Reader::from_str(page);
    reader.config_mut().check_end_names = false;
    let mut open = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => break,
            Event::Start(tag) => {
                let name = tag.name().as_ref().to_owned();
                if !VOID.contains(&name.as_str()) {
                    open.push(name);
                }
            }
            Event::End(tag) => {
                let name = tag.name().as_ref().to_owned();
                assert_eq!(open.pop(), Some(name));
            }
            _ => {}
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn machine_with_brief_effects() {
    check(
        &xeon_6(),
        &[
            "Wide-vector code slows this machine down.",
            "The costliest isolated burst, 64 instructions of tdpbf16ps-tile-unrolled, costs the \
             code after it 2 301 ns [2 251, 2 329].",
            "the regime changes when they are 250 µs apart",
            "Bursts of fewer than 34 instructions are over before they are throttled.",
            "tdpbssd-tile-unrolled: the kernel refuses tile data to this process.",
        ],
    );
}

#[test]
fn interrupted_run_with_lasting_effects() {
    check(
        &skylake(),
        &[
            "Wide-vector code slows this machine down.",
            "After a long stretch of vfmadd231pd-512-unrolled the nominal clock is back",
            "An effect was found in 1 of 2 kernels; in the others it is absent, below 210 ns.",
            "The run was ended before all was done; what is here is complete.",
            "Counters: 4.158 GHz over",
        ],
    );
}

#[test]
fn machine_without_effects() {
    check(
        &zen_5(),
        &[
            "Wide-vector code costs nothing on this machine.",
            "In all 4 kernels measured an effect is absent, below 31 ns.",
            "It costs nothing to what runs after it here: leave it as it is.",
            "tdpbf16ps-tile-unrolled: the processor lacks amx_tile.",
        ],
    );
}

#[test]
fn nothing_measured() {
    let mut fixture = zen_5();
    fixture.findings.outcomes.clear();
    check(&fixture, &["Nothing was measured."]);
}

#[test]
fn names_are_escaped() {
    let page = page(&zen_5());
    assert!(page.contains("a&lt;b&gt;&amp;&quot;c&quot;"));
    assert!(!page.contains("a<b>"));
}

#[test]
fn page_fetches_and_executes_nothing() {
    for fixture in [xeon_6(), skylake(), zen_5()] {
        let page = page(&fixture);
        for forbidden in ["http", "//", "url(", "@import", "<script", "<link", "src=", "href="] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
    }
}

#[test]
fn plots_scale_and_say_what_they_show() {
    let page = page(&xeon_6());
    let plots: Vec<&str> =
        page.split("<svg").skip(1).map(|rest| rest.split('>').next().unwrap()).collect();
    assert!(plots.len() > 10);
    for plot in plots {
        assert!(plot.contains("viewBox") && plot.contains("aria-label"), "{plot}");
        assert!(!plot.contains(" width="), "{plot}");
    }
}

#[test]
fn every_plot_colour_has_a_role_in_the_style_sheet() {
    let page = page(&xeon_6());
    let (style, body) = page.split_once("</style>").unwrap();
    for attribute in ["fill", "stroke"] {
        for part in body.split(&format!(" {attribute}=\"#")).skip(1) {
            let colour = part.split('"').next().unwrap();
            assert!(
                style.contains(&format!("[{attribute}=\"#{colour}\"]")),
                "{attribute} {colour}"
            );
        }
    }
}

//! The page must be well-formed and self-contained, and contain the findings.

use dimmer_probe::outcome::{Detail, Episode, Recurrence};
use dimmer_probe::stats::Estimate;
use quick_xml::Reader;
use quick_xml::events::Event;

use super::fixtures::{Fixture, skylake, xeon_6, zen_5};
use crate::probe;

/// Elements without an end tag in HTML.
const VOID: [&str; 1] = ["meta"];

fn page(fixture: &Fixture) -> String {
    probe::page(&fixture.findings, &fixture.machine).unwrap()
}

/// The text that a reader sees, with white space folded.
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

/// Checks that every element ends where it should.
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
            "Wide SIMD code slows this machine down.",
            "The costliest isolated burst, 64 instructions of tdpbf16ps-tile-unrolled, costs the \
             code after it 2 301 ns [2 251, 2 337].",
            "At gaps of 250 µs [242, 258] the behaviour changes: below,",
            "The license is not kept at once: at gaps of 158 µs bursts recur for 3.20 ms",
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
            "Wide SIMD code slows this machine down.",
            "After a long stretch of vfmadd231pd-512-unrolled the nominal clock is back",
            "An effect was found in 1 of 2 kernels; in the rest it is absent, below 210 ns.",
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
            "Wide SIMD code costs nothing on this machine.",
            "In all 4 kernels measured an effect is absent, below 31 ns.",
            "It costs nothing to what runs after it here: leave it as it is.",
            "tdpbf16ps-tile-unrolled and tdpbssd-tile-unrolled: the processor lacks amx_tile.",
        ],
    );
}

#[test]
fn bursts_of_two_kinds() {
    let fixture = with_episode(|episode| {
        episode.effect_share = Some(Estimate { median: 0.683, ci95: (0.557, 0.81) });
    });
    check(
        &fixture,
        &[
            "The costliest isolated burst, 800 instructions of vfmadd231pd-512-unrolled, costs the \
             code after it 1 631 ns [1 581, 1 667] in 68.3 % of the cases, and too little to \
             tell in the others.",
            "Only 68.3 % [55.7, 81.0] of the bursts cost anything that can be told, as it may \
             be on a shared machine.",
        ],
    );
}

#[test]
fn bursts_that_cannot_be_told_from_chance() {
    let mut fixture = with_episode(|episode| {
        episode.effect_share = Some(Estimate { median: 0.062, ci95: (0.031, 0.093) });
    });
    let outcome = &mut fixture.findings.outcomes[0];
    (outcome.effect, outcome.bound_ns) = (false, 97.0);
    check(
        &fixture,
        &[
            "Whether wide SIMD code slows this machine down remains open.",
            "Open, below 97 ns: nothing larger was seen",
            "of which 6.2 % [3.1, 9.3] cost something, but no more than any code does as often \
             by chance.",
            "probe again at another time.",
        ],
    );
}

#[test]
fn cost_that_may_be_nothing_is_not_called_costly() {
    let fixture = with_episode(|episode| {
        episode.extra_ns.estimate = Estimate { median: 12.0, ci95: (-9.0, 31.0) };
    });
    check(
        &fixture,
        &[
            "What one burst of 800 instructions (1 506 ns) costs the code after it cannot be told \
             from nothing: 12 ns [−9, 31].",
            "What the code after it loses is too little to tell from nothing",
        ],
    );
    assert!(!text(&page(&fixture)).contains("costliest"));
}

#[test]
fn clock_that_is_low_only_on_the_way() {
    let mut fixture = skylake();
    let Detail::Downclock(downclock) = &mut fixture.findings.outcomes[0].detail else {
        unreachable!("the first outcome is a downclock")
    };
    downclock.settle_ns = None;
    downclock.clock_ratio.estimate = Estimate { median: 1.0, ci95: (0.999, 1.001) };
    downclock.curve.retain(|point| point.at_ns < 50_000.0);
    check(
        &fixture,
        &[
            "In the end the clock stands at 100.0 % [99.9, 100.1] of nominal.",
            "On the way it is lower: 79.0 % [78.7, 79.3] at 26.3 µs after the first instruction.",
            "takes the clock 21.0 % down within 26.3 µs, but not for long.",
        ],
    );
}

#[test]
fn one_instruction_may_be_enough() {
    let mut fixture = xeon_6();
    let mut details = fixture.findings.outcomes.iter_mut().map(|outcome| &mut outcome.detail);
    let instructions = details.find_map(|detail| match detail {
        Detail::Instructions(instructions) => Some(instructions),
        _ => None,
    });
    let instructions = instructions.unwrap();
    instructions.median = Some(Estimate { median: 1.0, ci95: (1.0, 1.0) });
    instructions.quantiles = vec![(0.05, 1.0), (0.5, 1.0), (0.95, 4.0)];
    check(
        &fixture,
        &["Most bursts have an effect from the first instruction on. 95.0 % have one from 4 \
           instructions on."],
    );
}

#[test]
fn uncertain_gaps_do_not_blow_up_the_axis() {
    let mut fixture = xeon_6();
    let recurrence = recurrence_of(&mut fixture);
    let longest = recurrence.gaps.last_mut().unwrap();
    longest.slowdown_pct = Estimate { median: -12.0, ci95: (-60.0, 40.0) };
    check(
        &fixture,
        &["is cut off at the ends of its axis at 1 gap: with all intervals it would reach from \
           −60.0 % to 40.0 %."],
    );
    assert!(!page(&fixture).contains("\n40 %"));
}

#[test]
fn kept_bursts_have_a_panel_where_they_can_be_told() {
    let mut fixture = xeon_6();
    assert!(text(&page(&fixture)).contains("bursts at full speed"));
    for gap in &mut recurrence_of(&mut fixture).gaps {
        (gap.kept_share, gap.kept_after_ms) = (None, None);
    }
    let text = text(&page(&fixture));
    assert!(!text.contains("bursts at full speed") && !text.contains("A burst is at full speed"));
}

#[test]
fn lone_gap_that_stands_out_is_not_the_worst() {
    let mut fixture = xeon_6();
    let gaps = &mut recurrence_of(&mut fixture).gaps;
    let outlier = gaps.len() - 2;
    gaps[outlier].slowdown_pct = Estimate { median: 9.0, ci95: (8.9, 9.1) };
    check(&fixture, &["up to 6.1 % [6.0, 6.2] slower"]);
}

/// The first outcome of [`xeon_6`], an episode, alone and changed.
fn with_episode(change: impl FnOnce(&mut Episode)) -> Fixture {
    let mut fixture = xeon_6();
    fixture.findings.outcomes.truncate(1);
    match &mut fixture.findings.outcomes[0].detail {
        Detail::Episode(episode) => change(episode),
        _ => unreachable!("the first outcome is an episode"),
    }
    fixture
}

fn recurrence_of(fixture: &mut Fixture) -> &mut Recurrence {
    let mut details = fixture.findings.outcomes.iter_mut().map(|outcome| &mut outcome.detail);
    let recurrence = details.find_map(|detail| match detail {
        Detail::Recurrence(recurrence) => Some(recurrence),
        _ => None,
    });
    recurrence.unwrap()
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

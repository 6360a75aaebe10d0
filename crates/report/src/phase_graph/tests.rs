//! The graph of the paper, and graphs that are not what a program has.

use dimmer_policy::phases::{Assessment, Counters};

use super::*;

/// Run 2017-11-30-2 of paper 004: MySQL 5.7 under TPC-C.
const MYSQL: &str = include_str!("../../../policy/src/phases/tests/mysql.txt");

const SCREEN: Screen = Screen::file(100);

fn shown(text: &str, migration: Option<Nanos>) -> PhaseGraph {
    let graph = Graph::from_text(text).unwrap();
    let metric = Metric::L3MissRate;
    let profile = Profile::weighted(&graph, |_, _, counts| metric.printed(counts));
    let threshold = Threshold::largest_gap(&profile);
    let shortest = migration.unwrap_or(Nanos::ZERO);
    let findings = Assessment { metric, threshold, shortest }.of(&graph, &profile);
    let by = By::Gap;
    PhaseGraph::new(Found { graph, metric, profile, threshold, by, migration, findings })
}

fn machine() -> MachineDescription {
    MachineDescription {
        vendor: String::new(),
        brand: String::new(),
        microarchitecture: String::new(),
        microcode: None,
        hypervisor: None,
        kernel: None,
        cpus: 2,
        time: "2026-01-01T00:00:00Z".to_owned(),
        version: "0.1.0".to_owned(),
        command: "dimmer phases <graph>".to_owned(),
    }
}

/// The texts of an SVG document. Fails if it is not well-formed.
#[track_caller]
fn texts(svg: &str) -> Vec<String> {
    use quick_xml::events::Event;

    let mut reader = quick_xml::Reader::from_str(svg);
    let mut texts = vec![String::new()];
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => return texts.into_iter().filter(|text| !text.is_empty()).collect(),
            Event::Text(text) => texts.last_mut().unwrap().push_str(&text),
            Event::GeneralRef(_) => texts.last_mut().unwrap().push('&'),
            _ => texts.push(String::new()),
        }
    }
}

/// A graph with times only.
fn timed(edges: &[(&str, &str, u64)]) -> String {
    let edge = |(start, end, ns): &(&str, &str, u64)| {
        format!("{start} -> {end}\n  calls = 2\n  time = {ns} ns\n")
    };
    edges.iter().map(edge).collect()
}

#[test]
fn the_papers_graph_is_shown_in_tables_and_sentences() {
    let text = shown(MYSQL, None).text(SCREEN);
    for line in [
        "start                  end                    calls  share of cycles  miss rate       CPI",
        "mysql_execute_command  execute [insert]       12683            1.6 %   0.023227  5.598001",
        "mysql_execute_command  0.022687  slow",
        "The threshold 0.012420, in the largest gap: 3 marks slow, 4 marks fast.",
        "1 of 11 edges should be looked at.",
        "No edge has a time: none was compared with a migration.",
        "- `do_command` -> `send_statement_status` is unexpected: 1 of 62743 calls from its start.",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
}

#[test]
fn the_papers_graph_is_drawn_with_all_marks_and_edges() {
    let svg = shown(MYSQL, None).svg();
    let texts = texts(&svg);
    for text in ["mysql_execute_command", "insert", "12\u{a0}683 calls", "0.022687, slow"] {
        assert!(texts.iter().any(|one| one == text), "{text}: {texts:?}");
    }
    assert_eq!(svg.matches("<polygon").count(), 11);
    assert_eq!(svg.matches("class=\"mark slow\"").count(), 3);
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

#[test]
fn a_graph_without_counters_is_gray_and_says_so() {
    let shown = shown(&timed(&[("a", "b", 30_000), ("b", "a", 10_000)]), None);
    let (text, svg) = (shown.text(SCREEN), shown.svg());
    assert!(text.contains("a      b        2         75.0 %  no counters  no counters"), "{text}");
    assert!(text.contains("no counts of L3 misses per instruction, so no mark has a value"));
    assert!(text.contains("The time of a migration is not known"), "{text}");
    assert!(texts(&svg).iter().any(|one| one.starts_with("Gray: the graph has no counts")));
    assert_eq!(svg.matches("stroke=\"#8a8f94\"").count(), 2);
}

#[test]
fn each_finding_has_its_sentence() {
    let edge = |end: &str, calls: u64, ns: u64, misses: u64| {
        let instructions = 1000 * calls;
        let (l3miss, rate) = (misses * calls, misses as f64 / 1000.0);
        format!(
            "A -> {end}\n calls = {calls}\n miss rate = {rate:.6} (l3miss = {l3miss} / instr = {instructions})\n time = {} ns\n",
            ns * calls
        )
    };
    let text = [
        edge("fast", 10_000, 50_000, 1),
        edge("rare", 9, 50_000, 12),
        edge("short", 200, 7000, 12),
        edge("slow", 300, 50_000, 80),
        "slow -> A\n calls = 1\n miss rate = 0.080000 (l3miss = 80 / instr = 1000)\n".to_owned(),
    ];
    let text = shown(&text.concat(), Some(Nanos::from_us(8))).text(SCREEN);
    for line in [
        "- `A` -> `rare` is unexpected: 9 of 10509 calls from its start.",
        "- `A` -> `short` is too short: 7000 ns a call, a migration there and back takes 8000 ns.",
        "- `A` -> `slow` is diverse: 0.080000, the mean of the edges from its start is 0.003474; add a mark",
        "between `A` and `slow`.",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}\n{text}");
    }
}

#[test]
fn names_are_text_in_drawings_and_pages() {
    let evil = "<script>alert('x')</script>&amp; [\u{ffff}</title>]";
    let shown = shown(&timed(&[(evil, "b", 5), (evil, evil, 7)]), None);
    let page = shown.page(&machine());
    for text in [&page, &shown.svg()] {
        assert!(!text.contains("<script") && text.contains("&lt;script&gt;"), "{text}");
        assert_eq!(text.matches("<polygon").count(), 2);
    }
    texts(&shown.svg());
}

#[test]
fn pages_fetch_and_execute_nothing_and_boxes_lead_to_their_marks() {
    let page = shown(MYSQL, None).page(&machine());
    for part in ["<script", "src=", "url(", "@import", "<link", "href=\"http"] {
        assert!(!page.contains(part), "{part}");
    }
    for place in 1..=7 {
        let (link, row) = (format!("href=\"#mark-{place}\""), format!("id=\"mark-{place}\""));
        assert!(page.contains(&link) && page.matches(&row).count() == 1, "{place}");
    }
    assert!(page.contains("prefers-color-scheme: dark"));
}

#[test]
fn loops_and_unconnected_parts_are_drawn() {
    for (edges, marks) in
        [(&[("a", "a", 5)][..], 1), (&[("a", "b", 5), ("c", "d", 5), ("d", "d", 1)][..], 4)]
    {
        let svg = shown(&timed(edges), None).svg();
        texts(&svg);
        assert_eq!(svg.matches("<polygon").count(), edges.len());
        assert_eq!(svg.matches("<rect class=\"mark").count(), marks);
    }
}

#[test]
fn of_many_edges_those_with_the_most_time_are_drawn() {
    let mut graph = Graph::default();
    let mark = |at: u64| Mark::new(&format!("mark {at}")).unwrap();
    for at in 0..100_000 {
        let spent = Counters { time: Some(Nanos::from_ns(at + 1)), ..Counters::default() };
        graph.add(&mark(at % 1000), &mark(at / 1000), &Counts { calls: 1, spent });
    }
    let shown = shown(&graph.to_text(), None);
    let svg = shown.svg();
    assert_eq!(svg.matches("<polygon").count(), 200);
    let left_out = "99\u{a0}800 edges that take the least time are not drawn.";
    assert!(texts(&svg).iter().any(|one| one == left_out));
    assert_eq!(
        shown.longest(1),
        [(&mark(999), &mark(99), graph.edge(&mark(999), &mark(99)).unwrap())]
    );
    let page = shown.page(&machine());
    assert!(page.contains("Not on this page: 99\u{a0}800 edges; the JSON has all."));
}

#[test]
fn the_document_has_all_that_was_counted() {
    let document = serde_json::to_value(shown(MYSQL, None).document()).unwrap();
    assert_eq!(document["schema"], "dimmer/phases/1");
    assert_eq!(document["share_of"], "cycles");
    assert_eq!(document["edges"].as_array().unwrap().len(), 11);
    assert_eq!(document["edges"][0]["l3_misses"], 9_610_536);
    assert_eq!(document["edges"][0]["time_ns"], serde_json::Value::Null);
    assert_eq!(document["marks"][5]["core"], "slow");
    assert_eq!(format!("{:.7}", document["marks"][5]["value"].as_f64().unwrap()), "0.0226868");
    assert_eq!(document["findings"][0]["finding"], "unexpected");
    assert_eq!(document["findings"][0]["add_mark"], false);
}

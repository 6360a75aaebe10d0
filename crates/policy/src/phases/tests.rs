//! Tests of the paper's own data, and of the text formats.

use super::any::Any;
use super::*;

/// Run 2017-11-30-2 of paper 004: MySQL 5.7 under TPC-C, as the measuring library printed it.
const MYSQL: &str = include_str!("tests/mysql.txt");

/// Listing 5.2, sorted.
const LISTING: &str = include_str!("tests/listing.txt");

fn mark(name: &str) -> Mark {
    Mark::new(name).unwrap()
}

#[test]
fn the_papers_counts_give_the_papers_profile_to_the_digit() {
    let graph = Graph::from_text(MYSQL).unwrap();
    assert_eq!(graph.to_text(), MYSQL);
    let profile = Profile::weighted(&graph, |_, _, counts| Metric::L3MissRate.printed(counts));
    assert_eq!(profile.to_text(), LISTING);
    let value = profile.value(&mark("mysql_execute_command")).unwrap();
    assert_eq!(format!("{value:.7}"), "0.0226868");
    // The rates that are printed are rounded. With the counts themselves it is a little more.
    let exact = Profile::of(&graph, Metric::L3MissRate);
    let value = exact.value(&mark("mysql_execute_command")).unwrap();
    assert_eq!(format!("{value:.7}"), "0.0226871");
}

#[test]
fn the_largest_gap_divides_the_papers_marks_as_its_threshold_does() {
    let profile = Profile::from_text(LISTING).unwrap();
    let gap = Threshold::largest_gap(&profile).unwrap();
    let by_hand = Threshold::parse("0.01").unwrap();
    let slow = |threshold: Threshold| -> Vec<&str> {
        let slow = profile.values().filter(|(_, value)| threshold.core(*value) == Core::Slow);
        slow.map(|(mark, _)| mark.name()).collect()
    };
    assert_eq!(
        slow(gap),
        ["execute_sqlcom_select", "mysql_execute_command", "send_statement_status"]
    );
    assert_eq!(slow(gap), slow(by_hand));
    assert!((gap.value() - (0.005928 + 0.018912) / 2.0).abs() < 1e-12);
}

#[test]
fn the_papers_marks_are_assessed_as_in_the_paper() {
    let graph = Graph::from_text(MYSQL).unwrap();
    let threshold = Threshold::new(0.01);
    let shortest = dimmer_processor::units::Nanos::from_us(9);
    let assessment = Assessment { metric: Metric::L3MissRate, threshold, shortest };
    let (start, end) = (mark("do_command"), mark("send_statement_status"));
    assert_eq!(
        assessment.of(&graph, &Profile::of(&graph, Metric::L3MissRate)),
        [Finding::Unexpected { start: start.clone(), end: end.clone(), calls: 1, of: 62_743 }]
    );
    // At 3.6 GHz, the edges from mysql_execute_command are the shortest (§5.2.2).
    let mut timed = Graph::default();
    for (start, end, counts) in graph.edges() {
        let mut counts = *counts;
        counts.spent.time = counts
            .spent
            .cycles
            .map(|cycles| dimmer_processor::units::Nanos::rounded(cycles as f64 / 3.6));
        timed.add(start, end, &counts);
    }
    let findings = assessment.of(&timed, &Profile::of(&timed, Metric::L3MissRate));
    let is_short = |finding: &&Finding| matches!(finding, Finding::TooShort { start, .. } if start.name() == "mysql_execute_command");
    assert_eq!((findings.len(), findings.iter().filter(is_short).count()), (3, 2), "{findings:?}");
}

#[test]
fn marks_have_a_function_and_a_position() {
    let mark = Mark::at("do_command", "../sql/sql_parse.cc:943").unwrap();
    assert_eq!(mark, super::Mark::new("do_command [../sql/sql_parse.cc:943]").unwrap());
    assert_eq!((mark.function(), mark.position()), ("do_command", Some("../sql/sql_parse.cc:943")));
    let plain = self::mark("operator->(int)");
    assert_eq!((plain.function(), plain.position()), ("operator->(int)", None));
    for name in ["", " a", "a ", "a -> b", "a ->", "a\tb", "a\nb", "operator\"\"_s"] {
        let error = Mark::new(name).unwrap_err();
        assert_eq!(error.name, name);
        assert!(error.to_string().contains("accepted are names"), "{error}");
    }
}

#[test]
fn what_is_written_is_read_and_written_again_alike() {
    let mut any = Any::new(8);
    for round in 0..1000 {
        let graph = if round % 2 == 0 { any.graph() } else { any.flow().graph(&any.marks()) };
        let text = graph.to_text();
        let read = Graph::from_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        if round % 2 == 0 {
            assert_eq!(read.to_text(), text);
        }
        for (start, end, counts) in graph.edges() {
            let found = read.edge(start, end).unwrap();
            assert_eq!((found.calls, found.spent.time), (counts.calls, counts.spent.time));
            if Metric::L3MissRate.of(counts).is_some_and(|rate| rate < 1e9) {
                assert_eq!(found.spent.l3_misses, counts.spent.l3_misses);
                assert_eq!(found.spent.instructions, counts.spent.instructions);
            }
        }
        let profile = Profile::of(&graph, Metric::L3MissRate);
        let text = profile.to_text();
        let read = Profile::from_text(&text).unwrap();
        assert_eq!(read.to_text(), text);
        for ((mark, value), (read_mark, read_value)) in profile.values().zip(read.values()) {
            assert!(mark == read_mark && (value - read_value).abs() <= value * 5.1e-6);
        }
    }
}

/// Small graphs come back as they were: up to a million instructions, nothing is lost.
#[test]
fn counts_up_to_a_million_instructions_come_back_exactly() {
    let mut any = Any::new(9);
    for _ in 0..2000 {
        let instructions = 1 + any.below(1_000_000);
        let spent = Counters {
            time: None,
            instructions: Some(instructions),
            cycles: Some(any.below(50 * instructions)),
            l2_latency: Some(any.below(50 * instructions)),
            l3_misses: Some(any.below(instructions)),
        };
        let mut graph = Graph::default();
        graph.add(&mark("A"), &mark("B"), &Counts { calls: 1 + any.below(1000), spent });
        assert_eq!(Graph::from_text(&graph.to_text()), Ok(graph));
    }
}

#[track_caller]
fn refused(result: Result<impl std::fmt::Debug, FormatError>, line: usize, words: &str) {
    let error = result.expect_err(words);
    assert_eq!(error.line, line, "{error}");
    assert!(error.to_string().contains(words), "{error}");
}

#[test]
fn wrong_graphs_are_refused_with_the_line_and_the_reason() {
    let edge = "A -> B\n        calls = 1,234\n";
    let good =
        format!("{edge}        miss rate = 0.5 (l3miss = 1 / instr = 2)\n        CPI = 1.5\n");
    assert!(Graph::from_text(&good).is_ok() && Graph::from_text("\n \n").is_ok());
    let twice = format!("{edge}\n{edge}");
    let cases = [
        ("A B\n", 1, "found `A B`, expected `START -> END`"),
        ("  calls = 1\n", 1, "expected `START -> END`"),
        ("A -> \n", 1, "`START -> END`"),
        ("A -> B\n  calls 1\n", 2, "found `calls 1`, expected"),
        ("A -> B\n  cells = 1\n", 2, "found `cells = 1`, expected"),
        ("A -> B\n  calls = -1\n", 2, "`calls` is `-1`, expected a whole number from 1"),
        ("A -> B\n  calls = 0\n", 2, "expected a whole number from 1"),
        ("A -> B\n  calls = 1,23\n", 2, "such as 62,742"),
        ("A -> B\n  calls = ,\n", 2, "expected a whole number"),
        ("A -> B\n  calls = 18446744073709551616\n", 2, "to 18446744073709551615"),
        ("A -> B\n  calls = 1\n  calls = 1\n", 3, "`calls` occurs twice"),
        ("A -> B\nC -> D\n  calls = 1\n", 1, "the edge `A -> B` has no `calls`"),
        ("A -> B\n  calls = 1\n  CPI = 2\n", 1, "has no `miss rate`"),
        ("A -> B\n  calls = 1\n  miss rate = 0.1\n", 3, "expected `START -> END`"),
        ("A -> B\n  miss rate = 0.1 (l3miss = 1 / instr = 0)\n", 2, "`instr` is `0`"),
        ("A -> B\n  miss rate = nan (l3miss = 1 / instr = 9)\n", 2, "`miss rate` is `nan`"),
        ("A -> B\n  miss rate = 0.2 (l3miss = 1 / instr = 9)\n", 2, "its counts give 0.111111"),
        ("A -> B\n  CPI = inf\n", 2, "`CPI` is `inf`, expected a finite number"),
        ("A -> B\n  L2 rate = -0.5\n", 2, "`L2 rate` is `-0.5`"),
        ("A -> B\n  time = 5\n", 2, "`time = N ns`"),
        (&*twice, 4, "`A -> B` occurs twice"),
        ("A\" -> B\n", 1, "is no name of a mark"),
    ];
    for (text, line, words) in cases {
        refused(Graph::from_text(text), line, words);
    }
}

#[test]
fn wrong_profiles_are_refused_with_the_line_and_the_reason() {
    let read = Profile::from_text("\"execute [insert]\" 4.4e-3\r\n\n\"b\"\t0\n").unwrap();
    assert_eq!(read.value(&mark("execute [insert]")), Some(0.0044));
    let cases = [
        ("a 1\n", 1, "expected `\"MARK\" VALUE`"),
        ("\"a\" 1\n\"b\"1\n", 2, "expected `\"MARK\" VALUE`"),
        ("\"a\"\n", 1, "expected `\"MARK\" VALUE`"),
        ("\"a 1\n", 1, "expected `\"MARK\" VALUE`"),
        ("\"a\" one\n", 1, "`value` is `one`, expected a finite number"),
        ("\"a\" NaN\n", 1, "`value` is `NaN`"),
        ("\"a\" -1\n", 1, "`value` is `-1`"),
        ("\"a\" 1e999\n", 1, "`value` is `1e999`"),
        ("\"a\" 1\n\"a\" 1\n", 2, "`a` occurs twice"),
        ("\"a -> b\" 1\n", 1, "is no name of a mark"),
    ];
    for (text, line, words) in cases {
        refused(Profile::from_text(text), line, words);
    }
}

#[test]
fn damaged_text_is_read_or_refused() {
    let mut any = Any::new(10);
    for _ in 0..3000 {
        let mut bytes = if any.below(2) == 0 { MYSQL } else { LISTING }.as_bytes().to_vec();
        for _ in 0..=any.below(4) {
            let at = usize::try_from(any.below(bytes.len() as u64)).unwrap();
            let with = b" \n\t-,.0=\"[]()x/"[usize::try_from(any.below(15)).unwrap()];
            bytes[at] = with;
        }
        let text = String::from_utf8(bytes).unwrap();
        if let Ok(graph) = Graph::from_text(&text) {
            assert_eq!(
                Graph::from_text(&graph.to_text()).map(|graph| graph.to_text()),
                Ok(graph.to_text())
            );
        }
        if let Ok(profile) = Profile::from_text(&text) {
            assert!(profile.values().all(|(_, value)| value.is_finite() && value >= 0.0));
        }
    }
}

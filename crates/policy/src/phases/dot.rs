//! The control-flow graph for Graphviz (paper 004 §4.1, fig. 5.1).

use std::fmt::Write as _;

use super::{Counts, Graph, Mark, Metric, Scale, TimeShare};

/// The hue of the lowest value, blue, and the width of the longest edge.
const LOWEST_HUE: f64 = 0.7;
const WIDEST: f64 = 8.0;

/// The graph in the language DOT.
///
/// The color of an edge is its place on the [`Scale`] of `metric`, from blue (the lowest) to red
/// (the highest); edges without one are gray. Its width is its [`TimeShare`], in proportion to the
/// largest. Its label has the calls, and for each call instructions and microseconds, and the
/// rates, as in the paper.
#[must_use]
pub fn dot(graph: &Graph, metric: Metric) -> String {
    let mut text = String::from("digraph phases {\n    node [shape=box];\n");
    for mark in graph.marks() {
        // Writing to a string cannot fail.
        _ = writeln!(text, "    {};", quoted(mark));
    }
    let (scale, shares) = (Scale::of(graph, metric), TimeShare::of(graph));
    let share = |counts: &Counts| shares.map_or(0.0, |shares| shares.of_edge(counts));
    let largest = graph.edges().map(|edge| share(edge.2)).fold(f64::MIN_POSITIVE, f64::max);
    for (start, end, counts) in graph.edges() {
        let color = scale.and_then(|scale| scale.place(counts)).map_or_else(
            || "gray".to_owned(),
            |place| format!("{:.3} 1 0.9", LOWEST_HUE * (1.0 - place)),
        );
        let width = 1.0 + (WIDEST - 1.0) * share(counts) / largest;
        let (start, end, label) = (quoted(start), quoted(end), label(counts));
        _ = writeln!(
            text,
            "    {start} -> {end} [label=\"{label}\", color=\"{color}\", penwidth={width:.2}];"
        );
    }
    text.push_str("}\n");
    text
}

/// Lines of `key=value` that Graphviz aligns to the left.
fn label(counts: &Counts) -> String {
    let mut label = format!("c={}\\l", counts.calls);
    if let Some(instructions) = counts.spent.instructions {
        _ = write!(label, "i={}\\l", instructions / counts.calls.max(1));
    }
    if let Some(time) = counts.spent.time {
        _ = write!(label, "us={:.1}\\l", time.us() / counts.calls as f64);
    }
    for (key, metric) in [("cpi", Metric::Cpi), ("l2", Metric::L2Rate), ("l3", Metric::L3MissRate)]
    {
        if let Some(value) = metric.of(counts) {
            _ = write!(label, "{key}={value:.6}\\l");
        }
    }
    label
}

/// A mark's name as a string of DOT. No name has a quotation mark.
fn quoted(mark: &Mark) -> String {
    format!("\"{}\"", mark.name().replace('\\', "\\\\"))
}

#[cfg(test)]
mod tests {
    use dimmer_processor::units::Nanos;

    use super::*;
    use crate::phases::Counters;
    use crate::phases::any::Any;

    #[test]
    fn edges_have_color_width_and_numbers() {
        let mut graph = Graph::default();
        let mark = |name| Mark::new(name).unwrap();
        let edges = [("a\\n [x.c:1]", 1, 1_000_000, 3), ("b", 10, 500_000, 30_000), ("c", 1, 1, 0)];
        for (end, calls, ns, l3_misses) in edges {
            let spent = Counters {
                time: Some(Nanos::from_ns(ns)),
                instructions: Some(1_000_000),
                l3_misses: Some(l3_misses),
                ..Counters::default()
            };
            graph.add(&mark("b"), &mark(end), &Counts { calls, spent });
        }
        let expected = r#"digraph phases {
    node [shape=box];
    "a\\n [x.c:1]";
    "b";
    "c";
    "b" -> "a\\n [x.c:1]" [label="c=1\li=1000000\lus=1000.0\ll3=0.000003\l", color="0.700 1 0.9", penwidth=8.00];
    "b" -> "b" [label="c=10\li=100000\lus=50.0\ll3=0.030000\l", color="0.000 1 0.9", penwidth=4.50];
    "b" -> "c" [label="c=1\li=1000000\lus=0.0\ll3=0.000000\l", color="gray", penwidth=1.00];
}
"#;
        assert_eq!(dot(&graph, Metric::L3MissRate), expected);
        assert_eq!(
            dot(&Graph::default(), Metric::Cpi),
            "digraph phases {\n    node [shape=box];\n}\n"
        );
    }

    #[test]
    fn any_graph_is_drawn_with_finite_numbers() {
        let mut any = Any::new(7);
        for _ in 0..500 {
            let graph = any.flow().graph(&any.marks());
            let text = dot(&graph, Metric::L3MissRate);
            assert!(!text.contains("NaN") && !text.contains("inf"), "{text}");
            assert_eq!(text.matches("penwidth").count(), graph.edges().count());
        }
    }
}

//! The marks that were chosen, as text.

use dimmer_policy::phases::{Choice, Measure};

use super::words;
use crate::number::{grouped, percent, time};
use crate::screen::Screen;
use crate::shell;
use crate::table::{Cell, Table};

/// The marks that were chosen, why, and the option that names them.
pub fn chosen(choice: &Choice, screen: Screen) -> String {
    let Choice { measure, marks, unmeasured, short, alike, .. } = choice;
    let all = marks.len() + unmeasured + short + alike;
    let by = match measure {
        Measure::Metric(metric) => words::meaning(*metric),
        Measure::Time => "the time from one to the next, as nothing else was counted",
    };
    let mut text = screen.fill(&format!(
        "Marks chosen: {} of {all} functions that were called, by {by}. Left out: {unmeasured} called \
         too often to be measured, {short} soon followed by others, {alike} at which \
         little changes.",
        marks.len()
    ));
    if marks.is_empty() {
        return text;
    }
    let numbers = ["calls", "share of time", "before it", "after it"].map(Cell::right);
    let mut table = Table::new([Cell::from("mark")].into_iter().chain(numbers));
    let value = |value: Option<f64>| match (value, measure) {
        (None, _) => "–".to_owned(),
        (Some(ns), Measure::Time) => time(ns),
        (Some(rate), Measure::Metric(_)) => words::rate(rate),
    };
    for mark in marks {
        let calls = grouped(mark.passed as f64, 0);
        let numbers = [calls, percent(mark.share), value(mark.before), value(mark.after)];
        let name = Cell::from(mark.mark.name());
        table.row([name].into_iter().chain(numbers.map(Cell::right)));
    }
    let names: Vec<&str> = marks.iter().map(|one| one.mark.name()).collect();
    text.push_str(&format!(
        "\n{}\nThese alone: --marks={}\n",
        table.render(screen),
        shell::quoted(&names.join(","))
    ));
    text
}

#[cfg(test)]
mod tests {
    use dimmer_policy::phases::{ChosenMark, Graph, Mark, Metric};
    use expect_test::{Expect, expect};

    use super::*;

    fn mark(name: &str, before: Option<f64>, after: Option<f64>) -> ChosenMark {
        ChosenMark { mark: Mark::new(name).unwrap(), passed: 1200, share: 0.25, before, after }
    }

    #[track_caller]
    fn check(measure: Measure, marks: Vec<ChosenMark>, expected: &Expect) {
        let graph = Graph::default();
        let choice = Choice { measure, marks, graph, unmeasured: 1, short: 20, alike: 3 };
        expected.assert_eq(&chosen(&choice, Screen::file(100)));
    }

    #[test]
    fn the_choice_is_a_table_and_an_option_for_the_shell() {
        let marks = vec![mark("solve", Some(1e4), Some(2.5e6)), mark("ns::f<int>", None, None)];
        check(
            Measure::Time,
            marks,
            &expect![[r#"
                Marks chosen: 2 of 26 functions that were called, by the time from one to the next, as nothing else
                was counted. Left out: 1 called too often to be measured, 20 soon followed by others, 3 at which
                little changes.

                mark        calls  share of time  before it  after it
                solve        1200         25.0 %    10.0 µs   2.50 ms
                ns::f<int>   1200         25.0 %          –         –

                These alone: --marks='solve,ns::f<int>'
            "#]],
        );
        let marks = vec![mark("solve", Some(0.01), None)];
        check(
            Measure::Metric(Metric::L3MissRate),
            marks,
            &expect![[r#"
                Marks chosen: 1 of 25 functions that were called, by L3 misses per instruction. Left out: 1 called
                too often to be measured, 20 soon followed by others, 3 at which little changes.

                mark   calls  share of time  before it  after it
                solve   1200         25.0 %   0.010000         –

                These alone: --marks=solve
            "#]],
        );
        check(
            Measure::Time,
            Vec::new(),
            &expect![[r#"
                Marks chosen: 0 of 24 functions that were called, by the time from one to the next, as nothing else
                was counted. Left out: 1 called too often to be measured, 20 soon followed by others, 3 at which
                little changes.
            "#]],
        );
    }
}

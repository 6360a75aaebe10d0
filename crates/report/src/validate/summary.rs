//! Hits of rows by paper and class, as text.

use dimmer_validate::{Class, Recreated};

use crate::screen::Screen;
use crate::table::{Cell, Table};

/// How many rows are within their tolerance, by paper and class.
pub fn text(recreated: &[Recreated], screen: Screen) -> String {
    let mut header = vec![Cell::from("Rows within their tolerance")];
    header.extend(Class::ALL.map(|class| Cell::right(class.name())));
    header.push(Cell::right("all"));
    let mut table = Table::new(header);
    let row = |of: &[Recreated], name: &str| {
        let counted = Class::ALL.map(|class| {
            let counts = of.iter().map(|one| one.count(class));
            counts.fold((0, 0), |(rows, hits), (of, hit)| (rows + of, hits + hit))
        });
        let all = counted.iter().fold((0, 0), |(rows, hits), of| (rows + of.0, hits + of.1));
        let cells = counted.into_iter().chain([all]).map(|counts| Cell::right(told(counts)));
        [Cell::from(name)].into_iter().chain(cells).collect::<Vec<_>>()
    };
    for one in recreated {
        table.row(row(std::slice::from_ref(one), one.paper.name()));
    }
    table.row(row(recreated, "all papers"));
    let partial = recreated.iter().any(Recreated::is_partial);
    let partial = if partial { "PARTIAL: interrupted before the last experiment\n" } else { "" };
    format!("{}{partial}", table.render(screen))
}

fn told((rows, hits): (usize, usize)) -> String {
    if rows == 0 {
        return "none".to_owned();
    }
    format!("{hits} of {rows}, {:.0} %", 100.0 * hits as f64 / rows as f64)
}

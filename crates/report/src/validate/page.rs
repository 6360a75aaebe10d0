//! Papers' results beside the simulator's, as a page with plots.

use dimmer_validate::{Class, Recreated, Row, ways};
use maud::html;

use super::{Beside, turbo, verdict, wins};
use crate::machine::MachineDescription;
use crate::page::{Drawing as _, PageError, command, figure, page as render, prose};
use crate::plot::{self, DrawError, Figure, Pair};

/// Papers' results beside the simulator's as an HTML page.
///
/// # Errors
/// If a plot cannot be drawn.
pub fn page(
    recreated: &[Recreated],
    Beside { turbo: figures_002, ways: compared, wins: migrating, .. }: Beside<'_>,
    machine: &MachineDescription,
) -> Result<String, PageError> {
    let figures: Vec<Vec<Figure>> =
        recreated.iter().map(figures).collect::<Result<_, _>>().of("the papers")?;
    let of_ways = figures_of_ways(compared).of("specialised cores")?;
    let has_turbo = !figures_002.drawn.is_empty();
    let of_turbo = has_turbo.then(|| turbo::section(figures_002)).transpose()?;
    let main = html! {
        @for (recreated, figures) in recreated.iter().zip(&figures) {
            section {
                h2 { (recreated.paper.name()) }
                p { (verdict(recreated)) "." }
                div.figures { @for one in figures { (figure(one)) } }
            }
        }
        @if let Some(section) = &of_turbo { (section) }
        @if !of_ways.is_empty() {
            section {
                h2 { "Specialised cores and other ways out" }
                ul.skipped {
                    @for (name, meaning) in ways::MEANINGS {
                        li { code { (name) } ": " (prose(meaning)) "." }
                    }
                }
                div.figures { @for one in &of_ways { (figure(one)) } }
            }
        }
        @if !migrating.is_empty() { (wins::section(migrating)) }
        p.command { (command(&machine.command)) }
    };
    let sentences = [
        "Each bar is a value that a paper reports; the line is what the simulator gives for the same experiment, with the least and the most \
         of several runs. Shown are rows that could have come out otherwise: `predicted` and `mixed` ones. Rows in words, and those that only \
         show parameters again, are in the text."
            .to_owned(),
    ];
    let (rows, hits) = recreated
        .iter()
        .map(|one| one.count(Class::Predicted))
        .fold((0, 0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
    let title = format!("Of {rows} predictions, {hits} are within their tolerance.");
    let names: Vec<&str> = recreated.iter().map(|one| &one.paper.name()[..9]).collect();
    let about = ("Dimmer validate", names.join(", "));
    Ok(render((about.0, &about.1), &title, &sentences, &main, machine).into_string())
}

/// A figure for each unit.
fn figures(recreated: &Recreated) -> Result<Vec<Figure>, DrawError> {
    let is_shown = |row: &&Row| row.class != Class::SeenAgain && !row.numbers.1.is_empty();
    let rows: Vec<&Row> = recreated.rows.iter().filter(is_shown).collect();
    let mut units: Vec<&'static str> = rows.iter().map(|row| row.numbers.0).collect();
    units.sort_unstable();
    units.dedup();
    let of_unit = |unit: &'static str| {
        let pairs = rows.iter().filter(|row| row.numbers.0 == unit).flat_map(|row| {
            row.numbers.1.iter().map(|number| {
                let name = [row.id, number.name].join(" ");
                Pair {
                    name: name.trim_end().to_owned(),
                    told: row.what.to_owned(),
                    reported: number.paper,
                    ours: number.ours,
                    interval: number.interval,
                }
            })
        });
        let title = if unit.is_empty() { "Numbers".to_owned() } else { format!("In {unit}") };
        plot::pairs(
            &title,
            ("the paper's value", "the simulator's"),
            unit,
            &pairs.collect::<Vec<_>>(),
        )
    };
    units.into_iter().map(of_unit).collect()
}

/// What wide code costs under each way, beside what it costs without.
fn figures_of_ways(compared: &[ways::Compared]) -> Result<Vec<Figure>, DrawError> {
    let of_one = |one: &ways::Compared| {
        let pairs: Vec<Pair> = one
            .ways
            .iter()
            .map(|(name, way)| Pair {
                name: (*name).to_owned(),
                told: one.load.to_owned(),
                reported: one.loss,
                ours: way.loss,
                interval: None,
            })
            .collect();
        plot::pairs(one.load, ("what AVX-512 costs without", "and with it"), "%", &pairs)
    };
    compared.iter().map(of_one).collect()
}

#[cfg(test)]
mod tests {
    use dimmer_validate::Paper;

    #[test]
    fn the_names_of_papers_begin_with_their_numbers() {
        assert!(Paper::ALL.iter().all(|paper| paper.name()[..9].starts_with("paper 0")));
    }
}

//! Figures of several records side by side; `docs/machines-json.md` describes the document.

use dimmer_fleet::compare::{Group, Row};
use dimmer_fleet::database::Record;
use serde::Serialize;

use super::{ValueEntry, told};
use crate::number::counted;
use crate::screen::Screen;
use crate::table::{Cell, Table};

/// The document `dimmer/machines-compare/1`.
#[derive(Debug, Serialize)]
pub struct Compared {
    schema: &'static str,
    records: Vec<String>,
    kinds: Vec<KindEntry>,
    figures: Vec<RowEntry>,
}

/// Records of one kind: whether days and hosts agree.
#[derive(Debug, Serialize)]
pub(super) struct KindEntry {
    pub(super) kind: String,
    pub(super) records: Vec<String>,
    pub(super) agree: usize,
    pub(super) differ: usize,
    #[serde(skip)]
    pub(super) differing: Vec<Differing>,
}

/// A figure by which records of one kind differ.
#[derive(Debug)]
pub(super) struct Differing {
    pub(super) document: &'static str,
    pub(super) what: String,
    /// The figure in each record, if it has it.
    pub(super) values: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct RowEntry {
    document: &'static str,
    what: String,
    unit: &'static str,
    values: Vec<Option<ValueEntry>>,
    spreads: Vec<SpreadEntry>,
}

#[derive(Debug, Serialize)]
struct SpreadEntry {
    kind: String,
    least: f64,
    most: f64,
    agrees: Option<bool>,
}

impl Compared {
    /// These records.
    pub fn new(records: &[&Record]) -> Self {
        let rows = Row::all(records);
        let groups = Group::all(records);
        let entry = |row: &Row| RowEntry {
            document: row.document,
            what: row.what.clone(),
            unit: row.unit,
            values: row.values.iter().map(|value| value.map(Into::into)).collect(),
            spreads: groups
                .iter()
                .filter_map(|group| {
                    let [least, most] = row.spread(&group.places)?;
                    let agrees = row.agrees(&group.places);
                    Some(SpreadEntry { kind: group.kind.to_owned(), least, most, agrees })
                })
                .collect(),
        };
        Self {
            schema: "dimmer/machines-compare/1",
            records: records.iter().map(|record| record.name.clone()).collect(),
            kinds: kinds(records, &rows, &groups),
            figures: rows.iter().map(entry).collect(),
        }
    }

    /// As text: first whether days and hosts of one kind agree, then the table.
    pub fn text(&self, screen: Screen) -> String {
        let mut text = String::new();
        for kind in &self.kinds {
            text += &screen.fill(&kind.sentence());
            let mut table = Table::default();
            for Differing { document, what, values } in &kind.differing {
                let values = values.iter().map(|(record, value)| format!("{record}: {value}"));
                let values = Cell::lines(values);
                table.row([format!("  {document}").into(), what.clone().into(), values]);
            }
            text += &table.render(screen);
            text.push('\n');
        }
        // Columns have letters: the names are too long to stand above numbers.
        let letters = || {
            (0_u8..26)
                .map(|at| char::from(b'A' + at).to_string())
                .chain(std::iter::repeat_with(String::new))
        };
        for (letter, name) in letters().zip(&self.records) {
            text += &screen.fill(&format!("{letter}: {name}"));
        }
        let header = ["document".to_owned(), "figure".to_owned()];
        let columns = letters().take(self.records.len());
        let mut table = Table::new(header.into_iter().chain(columns));
        let mut last = "";
        for row in self.figures.iter().filter(|row| row.values.iter().flatten().count() > 1) {
            let document = if row.document == last { "" } else { row.document };
            last = row.document;
            let value = |value: &Option<ValueEntry>| match value {
                Some(value) => {
                    let (number, interval) = told(*value, row.unit);
                    Cell::lines([number, interval].into_iter().filter(|line| !line.is_empty()))
                        .aligned_right()
                }
                None => Cell::from(""),
            };
            let cells = [Cell::from(document), row.what.as_str().into()];
            table.row(cells.into_iter().chain(row.values.iter().map(value)));
        }
        text.push('\n');
        text += &table.render(screen);
        let alone = self.figures.iter().filter(|row| row.values.iter().flatten().count() == 1);
        match alone.count() {
            0 => {}
            alone => {
                let alone = counted(alone, "more figure");
                text += &screen.fill(&format!("{alone} in one record alone: `machines show`."));
            }
        }
        text
    }
}

/// The kinds of which there are several records.
pub(super) fn kinds(records: &[&Record], rows: &[Row], groups: &[Group<'_>]) -> Vec<KindEntry> {
    let several = groups.iter().filter(|group| group.places.len() > 1);
    let entry = |group: &Group<'_>| {
        let agree =
            |wanted| rows.iter().filter(move |row| row.agrees(&group.places) == Some(wanted));
        let differing = agree(false).map(|row| Differing {
            document: row.document,
            what: row.what.clone(),
            values: group
                .places
                .iter()
                .filter_map(|place| {
                    let (number, interval) = told(row.values[*place]?.into(), row.unit);
                    let record = &records[*place];
                    let host = record.machine.strip_prefix(group.kind).unwrap_or_default();
                    let name = format!("{} {}", host.trim_start_matches('-'), record.date);
                    let value = format!("{number} {interval}");
                    Some((name.trim_start().to_owned(), value))
                })
                .collect(),
        });
        KindEntry {
            kind: group.kind.to_owned(),
            records: group.places.iter().map(|place| records[*place].name.clone()).collect(),
            agree: agree(true).count(),
            differ: agree(false).count(),
            differing: differing.collect(),
        }
    };
    several.map(entry).collect()
}

impl KindEntry {
    /// Whether the records agree, in a sentence.
    pub(super) fn sentence(&self) -> String {
        let Self { kind, records, agree, differ, .. } = self;
        let several = records.len();
        match agree + differ {
            0 => format!("{kind}: {several} records have no figure with an interval in common."),
            all => format!(
                "{kind}: of {} in several of {several} records, {agree} agree (their 95 % \
                 intervals have a value in common) and {differ} {}",
                counted(all, "figure"),
                match differ {
                    0 => "differ.",
                    1 => "differs:",
                    _ => "differ:",
                },
            ),
        }
    }
}

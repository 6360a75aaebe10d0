//! Figures of several records side by side, and whether they agree.

use std::collections::BTreeMap;

use crate::database::Record;
use crate::names;
use crate::place::Quantity;

/// A figure of several records.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The document.
    pub document: &'static str,
    /// What it is.
    pub what: String,
    /// The unit.
    pub unit: &'static str,
    /// The number in each record.
    pub values: Vec<Option<Quantity>>,
}

/// Records of one kind of machine: days and hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct Group<'a> {
    /// The kind: the machine's name without the number of the host.
    pub kind: &'a str,
    /// The places of its records.
    pub places: Vec<usize>,
}

impl Row {
    /// The figures of records, in the order of the first that has each.
    #[must_use]
    pub fn all(records: &[&Record]) -> Vec<Self> {
        let mut rows: Vec<Self> = Vec::new();
        let mut places: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for (column, record) in records.iter().enumerate() {
            for entry in &record.documents {
                for figure in &entry.figures {
                    let place = *places.entry((entry.name, &figure.what)).or_insert_with(|| {
                        rows.push(Self {
                            document: entry.name,
                            what: figure.what.clone(),
                            unit: figure.unit,
                            values: vec![None; records.len()],
                        });
                        rows.len() - 1
                    });
                    // Several figures of one name cannot be told apart: the first stands for all.
                    rows[place].values[column].get_or_insert(figure.value);
                }
            }
        }
        rows
    }

    /// The quantities of these records that there are.
    fn of<'a>(&'a self, places: &'a [usize]) -> impl Iterator<Item = Quantity> + 'a {
        places.iter().filter_map(|place| self.values[*place])
    }

    /// The least and the highest median of these records; `None` unless at least two have one.
    #[must_use]
    pub fn spread(&self, places: &[usize]) -> Option<[f64; 2]> {
        let medians: Vec<f64> = self.of(places).map(|one| one.median).collect();
        let least = medians.iter().copied().reduce(f64::min)?;
        let most = medians.iter().copied().reduce(f64::max)?;
        (medians.len() > 1).then_some([least, most])
    }

    /// Whether the intervals of these records have a value in common. `None` unless at least two
    /// have an interval.
    #[must_use]
    pub fn agrees(&self, places: &[usize]) -> Option<bool> {
        let intervals: Vec<[f64; 2]> = self.of(places).filter_map(|one| one.interval).collect();
        let low = intervals.iter().map(|ends| ends[0]).fold(f64::NEG_INFINITY, f64::max);
        let high = intervals.iter().map(|ends| ends[1]).fold(f64::INFINITY, f64::min);
        (intervals.len() > 1).then_some(low <= high)
    }
}

impl<'a> Group<'a> {
    /// The kinds of machines among records, in the order of the first record of each.
    #[must_use]
    pub fn all(records: &[&'a Record]) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for (place, record) in records.iter().enumerate() {
            let kind = names::kind(&record.machine);
            match groups.iter_mut().find(|group| group.kind == kind) {
                Some(group) => group.places.push(place),
                None => groups.push(Self { kind, places: vec![place] }),
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::tests::{database, hook};

    #[test]
    fn intervals_with_a_value_in_common_agree() {
        let database = database(&[
            ("epyc-zen5-vm-linux-6.18-2026-11-26", hook([60.0, 59.0, 61.0])),
            ("epyc-zen5-vm-linux-6.18-2026-11-27", hook([62.0, 60.5, 64.0])),
            ("epyc-zen5-vm-linux-6.18-host2-2026-11-27", hook([66.0, 65.0, 67.0])),
        ]);
        let records: Vec<&Record> = database.records.iter().collect();
        let rows = Row::all(&records);
        let timed = rows.iter().find(|row| row.what.ends_with("if timed")).unwrap();
        assert_eq!(timed.agrees(&[0, 1]), Some(true));
        assert_eq!(timed.agrees(&[0, 1, 2]), Some(false));
        assert_eq!(timed.agrees(&[0]), None);
        assert_eq!(timed.spread(&[0, 1, 2]), Some([60.0, 66.0]));
        assert_eq!(timed.spread(&[1]), None);
        let groups = Group::all(&records);
        assert_eq!(groups.len(), 1);
        assert_eq!(groups[0].places, [0, 1, 2]);
    }
}

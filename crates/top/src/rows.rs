//! The policy server's state as sorted rows, one for each marked region.

use std::collections::BTreeMap;

use dimmer_watch::state::{Client, Site, State};

/// Identifies a region: the number of its program's connection (a process may have several), and
/// its index among the program's regions. A program without regions has one row.
pub(super) type Key = (u64, Option<usize>);

/// A marked region of a running program.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub(super) key: Key,
    /// The program's process.
    pub(super) pid: i32,
    /// The program's name, safe for a terminal.
    pub(super) program: String,
    pub(super) user: u32,
    /// How often the program reported impossible values.
    pub(super) lies: u64,
    /// The program's own metric, per second.
    pub(super) metric: Option<f64>,
    /// `None` if the program has entered no region yet.
    pub(super) region: Option<Region>,
}

/// What is known about a region.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Region {
    /// The region's name, safe for a terminal.
    pub(super) name: String,
    pub(super) line: u32,
    /// Since the program's start.
    pub(super) calls: u64,
    pub(super) moved: u64,
    pub(super) calls_per_s: f64,
    /// Time in the region, as a share of one CPU.
    pub(super) share: f64,
    pub(super) stayed_ns: Option<f64>,
    pub(super) moved_ns: Option<f64>,
    pub(super) clock: Option<f64>,
    /// The share of its calls that were moved; `None` without calls.
    pub(super) moved_ratio: Option<f64>,
    pub(super) is_moved: bool,
    pub(super) reason: String,
}

/// The sort key of rows: numbers in descending order, names in alphabetical order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Share,
    Calls,
    Moved,
    Program,
    Decision,
}

impl Sort {
    /// The next sort key.
    pub(super) const fn next(self) -> Self {
        match self {
            Self::Share => Self::Calls,
            Self::Calls => Self::Moved,
            Self::Moved => Self::Program,
            Self::Program => Self::Decision,
            Self::Decision => Self::Share,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Share => "CPU",
            Self::Calls => "calls/s",
            Self::Moved => "moved",
            Self::Program => "program",
            Self::Decision => "decision",
        }
    }

    /// Sorts rows; equal rows keep their order. With every key, programs that report impossible
    /// values come last, so that a thousand made-up regions cannot hide the others.
    pub(super) fn apply(self, rows: &mut [Row]) {
        let number = |row: &Row, of: fn(&Region) -> f64| row.region.as_ref().map_or(-1.0, of);
        let descending = |rows: &mut [Row], of: fn(&Region) -> f64| {
            rows.sort_by(|left, right| number(right, of).total_cmp(&number(left, of)));
        };
        match self {
            Self::Share => descending(rows, |region| region.share),
            Self::Calls => descending(rows, |region| region.calls_per_s),
            Self::Moved => descending(rows, |region| region.moved_ratio.unwrap_or(0.0)),
            Self::Program => rows
                .sort_by(|left, right| (&left.program, left.key).cmp(&(&right.program, right.key))),
            Self::Decision => rows.sort_by_key(|row| {
                let region = row.region.as_ref();
                region.map(|region| (!region.is_moved, region.reason.clone())).ok_or(())
            }),
        }
        rows.sort_by_key(|row| row.lies > 0);
    }
}

/// One row for each region, in the server's order. Rates and moved shares cover the time since
/// `before`, if that is a state of the same server with the same region. Otherwise the rate is the
/// server's own latest one, and the moved share covers the time since the program's start.
pub fn rows(state: &State, before: Option<&State>) -> Vec<Row> {
    let before = before.filter(|before| is_same_server(before, state));
    let seconds = before.map_or(0.0, |before| state.up_s - before.up_s);
    let known: BTreeMap<u64, &Client> = before
        .into_iter()
        .flat_map(|before| before.clients.iter().map(|client| (client.client, client)))
        .collect();
    let mut rows = Vec::new();
    for client in &state.clients {
        let row = |place: Option<usize>, region| Row {
            key: (client.client, place),
            pid: client.pid,
            program: clean(&client.name),
            user: client.uid,
            lies: client.lies,
            metric: client.metric,
            region,
        };
        if client.sites.is_empty() {
            rows.push(row(None, None));
        }
        let before = known.get(&client.client).map(|client| client.sites.as_slice());
        for (place, site) in client.sites.iter().enumerate() {
            let before = before.unwrap_or_default().get(place).filter(|before| {
                (&before.name, before.line) == (&site.name, site.line)
                    && before.calls <= site.calls
                    && before.moved <= site.moved
            });
            rows.push(row(Some(place), Some(region(site, before, seconds))));
        }
    }
    rows
}

/// Whether both states come from the same server, and the first is the earlier one.
pub(super) fn is_same_server(before: &State, state: &State) -> bool {
    before.pid == state.pid && before.up_s <= state.up_s
}

fn region(site: &Site, before: Option<&Site>, seconds: f64) -> Region {
    let calls = site.calls - before.map_or(0, |before| before.calls);
    let moved = site.moved - before.map_or(0, |before| before.moved);
    let is_rate_known = before.is_some() && seconds > 0.0;
    Region {
        name: clean(&site.name),
        line: site.line,
        calls: site.calls,
        moved: site.moved,
        calls_per_s: if is_rate_known { calls as f64 / seconds } else { site.calls_per_s },
        share: site.share,
        stayed_ns: site.stayed_ns,
        moved_ns: site.moved_ns,
        clock: site.clock,
        moved_ratio: (calls > 0).then(|| (moved as f64 / calls as f64).min(1.0)),
        is_moved: site.action != "stay",
        reason: clean(&site.reason),
    }
}

/// Replaces what a terminal would obey in a text from others: control characters, and those that
/// change the direction of writing.
pub(super) fn clean(text: &str) -> String {
    let is_plain = |letter: &char| {
        !letter.is_control()
            && !matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if is_plain(&letter) { letter } else { '\u{fffd}' }).collect()
}

//! Whether the lines of a recording make sense, one after the other.

use std::collections::BTreeSet;

use dimmer_policy::cost::CallCost;
use dimmer_policy::server::evidence::LEVELS;
use dimmer_policy::server::settings;

use super::{Begin, Line, SCHEMA, Seen, SeenEvidence, Step};

/// The most cores of a machine: the kernel's `NR_CPUS` is at most 8192 on x86
/// (`arch/x86/Kconfig`, `NR_CPUS_RANGE_END`).
const MOST_CORES: usize = 8192;

/// What the lines so far have introduced.
pub(super) struct Introduced {
    /// The clients that are connected.
    clients: BTreeSet<u64>,
    /// The number of cores that may be dedicated.
    cores: usize,
    /// Time of the last look (ns).
    now_ns: u64,
}

impl Introduced {
    /// Checks the first line.
    pub(super) fn new(begin: &Begin) -> Result<Self, String> {
        let Begin { schema, settings, now_ns, is_fresh: _, cores, clocks, prices } = begin;
        if schema != SCHEMA {
            return Err(format!("`schema` is `{schema}`, expected `{SCHEMA}`"));
        }
        settings.check().map_err(|error| format!("`settings`: {error}"))?;
        let (all, spare) = *cores;
        at_most("`cores`: the number of cores", all, MOST_CORES)?;
        at_most("`cores`: the number of cores that may be dedicated", spare, all)?;
        for clock in clocks {
            if !(*clock > 0.0 && *clock <= 1.0) {
                return Err(format!("`clocks` has {clock}, expected ratios above 0, at most 1"));
            }
        }
        let prices = prices.as_ref().map(settings::Prices::from);
        let price = |cost: &CallCost| {
            let long = cost.between_long.iter();
            let long = long.flat_map(|long| [long.call_ns, long.gap_ns, long.slower]);
            let usual = [cost.slower, cost.kept_below_ns, cost.episode_ns];
            usual.into_iter().chain(long).collect::<Vec<_>>()
        };
        let costs = prices.iter().flat_map(|prices| {
            std::iter::once(prices.hand_over_ns).chain(prices.calls.iter().flat_map(price))
        });
        for cost in costs {
            at_least_zero("`prices` has", cost)?;
        }
        Ok(Self { clients: BTreeSet::new(), cores: spare, now_ns: *now_ns })
    }

    /// Checks another line, and adds what it introduces.
    pub(super) fn add(&mut self, line: &Line) -> Result<(), String> {
        match line {
            Line::Begin(_) => Err("a second `begin`, expected one, in the first line".to_owned()),
            Line::Join { client, .. } if !self.clients.insert(*client) => {
                Err(format!("client {client} joins, but has joined before"))
            }
            Line::Leave { client } if !self.clients.remove(client) => Err(unknown(*client)),
            Line::Step(step) => self.step(step),
            Line::Join { .. } | Line::Leave { .. } | Line::Forget { .. } | Line::Site { .. } => {
                Ok(())
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let Step { now_ns, seen, metrics, wide, changes, cores, idle } = step;
        if *now_ns < self.now_ns {
            let before = self.now_ns;
            return Err(format!("`now_ns` is {now_ns}, expected at least {before}, as before"));
        }
        self.now_ns = *now_ns;
        let named = seen.iter().map(|(client, ..)| client);
        let named = named.chain(metrics.iter().map(|(client, _)| client));
        let named = named.chain(wide.iter().map(|(client, _)| client));
        let mut named = named.chain(changes.iter().map(|(client, ..)| client));
        if let Some(client) = named.find(|client| !self.clients.contains(client)) {
            return Err(unknown(*client));
        }
        seen.iter().try_for_each(|(.., seen)| seen.check())?;
        at_most("`cores`", *cores, self.cores)?;
        idle.map_or(Ok(()), |idle| at_least_zero("`idle` is", idle))
    }
}

impl Seen {
    fn check(&self) -> Result<(), String> {
        at_most("`moved_calls`", self.moved_calls, self.calls)?;
        match self.evidence {
            SeenEvidence::Clock(ratio) if ratio <= 0.0 => {
                Err(format!("`clock` is {ratio}, expected a ratio above 0"))
            }
            SeenEvidence::Class(level) => at_most("`class`", level as usize, LEVELS),
            _ => Ok(()),
        }
    }
}

fn at_most<N: PartialOrd + std::fmt::Display>(what: &str, value: N, most: N) -> Result<(), String> {
    if value > most { Err(format!("{what} is {value}, expected at most {most}")) } else { Ok(()) }
}

fn at_least_zero(what: &str, value: f64) -> Result<(), String> {
    if value < 0.0 { Err(format!("{what} {value}, expected at least 0")) } else { Ok(()) }
}

fn unknown(client: u64) -> String {
    format!("client {client} is not connected: no `join` introduces it, or it has left")
}

#[cfg(test)]
mod tests {
    use crate::record::replay;

    const BEGIN: &str = r#"{"begin":{"schema":"dimmer/record/1","settings":{},"now_ns":5,"is_fresh":true,"cores":[4,2],"clocks":[0.9],"prices":{"hand_over_ns":100.0,"calls":[{"slower_ratio":0.1,"kept_below_ns":1.0,"episode_ns":1.0}]}}}"#;
    const JOIN: &str = r#"{"join":{"client":1,"program":2,"name":"x"}}"#;
    const STEP: &str = r#"{"step":{"now_ns":9,"seen":[[1,0,{"span_ns":4,"calls":3,"in_region_ns":2,"moved_calls":1,"moved_ns":1,"evidence":{"class":4}}]],"metrics":[[1,2.0]],"wide":[[1,2]],"changes":[[1,null,true]],"cores":2,"idle":1.5}}"#;

    /// Replaces a piece of one of these lines.
    #[track_caller]
    fn refused(piece: &str, by: &str, expected: &str) {
        let text = [BEGIN, JOIN, STEP].join("\n");
        assert_eq!(text.matches(piece).count(), 1, "{piece}");
        replay(text.as_bytes(), None).unwrap();
        let text = text.replace(piece, by);
        assert_eq!(replay(text.as_bytes(), None).unwrap_err().to_string(), expected);
    }

    #[test]
    fn what_no_machine_has_is_refused_in_the_first_line() {
        refused(
            "[4,2]",
            "[1,2]",
            "line 1: `cores`: the number of cores that may be dedicated is 2, expected at most 1",
        );
        refused(
            "[4,2]",
            "[18446744073709551615,2]",
            "line 1: `cores`: the number of cores is 18446744073709551615, expected at most 8192",
        );
        refused("[0.9]", "[0.0]", "line 1: `clocks` has 0, expected ratios above 0, at most 1");
        refused("100.0", "-1", "line 1: `prices` has -1, expected at least 0");
        refused(
            "record/1",
            "record/9",
            "line 1: `schema` is `dimmer/record/9`, expected `dimmer/record/1`",
        );
        refused(
            r#""settings":{}"#,
            r#""settings":{"server":{"period_ms":0}}"#,
            "line 1: `settings`: `server.period_ms` is 0, accepted are 1 to 10000",
        );
    }

    #[test]
    fn what_cannot_follow_is_refused_with_its_line() {
        let unknown = "client 7 is not connected: no `join` introduces it, or it has left";
        for piece in ["[1,0,", "[1,2.0", "[1,2]", "[1,null"] {
            refused(piece, &piece.replacen('1', "7", 1), &format!("line 3: {unknown}"));
        }
        let leave = r#"{"leave":{"client":7}}"#;
        refused(JOIN, &format!("{JOIN}\n{leave}"), &format!("line 3: {unknown}"));
        let twice = "line 3: client 1 joins, but has joined before";
        refused(JOIN, &format!("{JOIN}\n{JOIN}"), twice);
        let again = "line 2: a second `begin`, expected one, in the first line";
        refused(JOIN, BEGIN, again);
        let back = "line 3: `now_ns` is 4, expected at least 5, as before";
        refused("\"now_ns\":9", "\"now_ns\":4", back);
        refused("\"cores\":2,", "\"cores\":3,", "line 3: `cores` is 3, expected at most 2");
        refused("{\"class\":4}", "{\"class\":255}", "line 3: `class` is 255, expected at most 4");
        refused("{\"class\":4}", "{\"clock\":0}", "line 3: `clock` is 0, expected a ratio above 0");
        refused(
            "\"moved_calls\":1",
            "\"moved_calls\":4",
            "line 3: `moved_calls` is 4, expected at most 3",
        );
        refused("1.5", "-1.5", "line 3: `idle` is -1.5, expected at least 0");
    }

    #[test]
    fn what_has_another_form_is_refused_with_its_line_and_column() {
        refused("[4,2]", "4", "line 1, column 87: found integer `4`, expected an array of 2");
        refused(
            "\"cores\":2,",
            "\"cores\":[2],",
            "line 3, column 197: found an array, expected an integer of at least 0",
        );
    }
}

//! Which documents a record may have, and the figures in each.
//!
//! A document is known by its file's name; its schema must fit. Figures are where the table says,
//! and something else there is an error with its place.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::place::{NoPlace, Place, Quantity, Unexpected, plain};

/// A kind of document.
#[derive(Debug)]
pub struct Kind {
    /// The name of its file, without `.json`.
    pub name: &'static str,
    /// Its schema, without the version.
    pub schema: &'static str,
    /// The versions that are read.
    pub versions: &'static [u32],
    /// Where its figures are.
    figures: &'static [Where],
}

/// Where figures of a document are.
#[derive(Debug)]
struct Where {
    /// The list whose entries have a figure each; empty for the document itself.
    list: &'static str,
    /// The quantity, in an entry.
    quantity: &'static str,
    /// What it is.
    what: &'static str,
    /// Keys of an entry whose values make the figure's name, beside what it is.
    by: &'static [&'static str],
    unit: &'static str,
    /// Whether of several figures of one name only the least is taken.
    least: bool,
}

const fn at(quantity: &'static str, what: &'static str, unit: &'static str) -> Where {
    Where { list: "", quantity, what, by: &[], unit, least: false }
}

const fn each(
    list: &'static str,
    quantity: &'static str,
    what: &'static str,
    by: &'static [&'static str],
    unit: &'static str,
) -> Where {
    Where { list, quantity, what, by, unit, least: false }
}

/// What the figures are that bound isolated bursts without an effect.
pub const BOUND: &str = "an isolated burst has no effect above";

/// Figures of `dimmer probe`.
const PROBE: &[Where] = &[
    each(
        "results[mode=episode]",
        "mean_extra_ns",
        "an isolated burst costs the code after it",
        &["kernel", "burst_instructions"],
        "ns",
    ),
    each(
        "results[mode=episode,effect=false]",
        "bound_ns",
        BOUND,
        &["kernel", "burst_instructions"],
        "ns",
    ),
    each(
        "results[mode=downclock]",
        "clock_ratio",
        "settled clock over nominal, of a long stretch",
        &["kernel", "threads"],
        "",
    ),
    each(
        "results[mode=recurrence]",
        "regime_change_us",
        "gap at which bursts become isolated ones",
        &["kernel", "burst_instructions"],
        "us",
    ),
    each(
        "results[mode=throttle]",
        "pre_throttle_ns",
        "time before throttling starts",
        &["kernel", "threads"],
        "ns",
    ),
    each("results[mode=throttle]", "throttled_ns", "throttled for", &["kernel", "threads"], "ns"),
    each(
        "results[mode=levels]",
        "clock_ratio",
        "settled clock over nominal, by active CPUs",
        &["kernel", "active"],
        "",
    ),
];

const MOVES: &[Where] = &[
    each("ways[]", "round_trip_ns.median", "there and back", &["way"], "ns"),
    each("ways[]", "ratio_to_pingpong", "there and back, in cache-line round trips", &["way"], ""),
];

const fn probe(name: &'static str) -> Kind {
    Kind { name, schema: "dimmer/probe", versions: &[1, 2], figures: PROBE }
}

const fn first(name: &'static str, schema: &'static str, figures: &'static [Where]) -> Kind {
    Kind { name, schema, versions: &[1], figures }
}

/// All kinds.
pub const ALL: &[Kind] = &[
    Kind { name: "doctor", schema: "dimmer/doctor", versions: &[1, 2], figures: &[] },
    probe("probe-quick"),
    probe("probe-episode"),
    probe("probe-recurrence"),
    probe("probe-pre-throttle"),
    probe("probe-levels"),
    probe("probe"),
    first(
        "probe-latency",
        "dimmer/probe-latency",
        &[each("latencies[]", "latency_ns", "latency", &["what", "relation"], "ns")],
    ),
    first(
        "validate-here",
        "dimmer/validate-here",
        &[at("median_absolute_error_points", "median error of the model's predictions", "points")],
    ),
    first(
        "bench-hook",
        "dimmer/bench-hook",
        &[
            at("plain_ns", "a call without a hook", "ns"),
            at("call_ns", "a hooked call more, as observed", "ns"),
            at("counted_ns", "a hooked call more, if only counted", "ns"),
            at("timed_ns", "a hooked call more, if timed", "ns"),
        ],
    ),
    first(
        "bench-hooked-moves",
        "dimmer/bench-hooked-moves",
        &[
            at("delegated_ns", "a hooked call, delegated", "ns"),
            at("migrated_ns", "a hooked call, migrated", "ns"),
        ],
    ),
    first("bench-migrate", "dimmer/bench-migrate", MOVES),
    first("bench-migrate-call", "dimmer/bench-migrate-call", MOVES),
    first("bench-delegate", "dimmer/bench-delegate", MOVES),
    first(
        "bench-region",
        "dimmer/bench-region",
        &[
            at("plain_ns", "a call without a region", "ns"),
            at("stay_ns", "a marked region that stays", "ns"),
            at("served_ns", "a marked region that a daemon may decide for", "ns"),
        ],
    ),
    first(
        "bench-phases",
        "dimmer/bench-phases",
        &[
            at("measuring_ns", "a mark that measures calls and time", "ns"),
            at("staying_ns", "a mark at which a thread stays", "ns"),
            at("line_ns", "a cache line there and back", "ns"),
            at("migration_ns", "a thread at marks, there and back", "ns"),
            each(
                "lengths[]",
                "ratio_to_staying",
                "time with migrations over without",
                &["phase_us"],
                "",
            ),
        ],
    ),
    first(
        "bench-primesieve",
        "dimmer/bench-primesieve",
        &[Where {
            least: true,
            ..each(
                "rows[]",
                "moved_over_direct_pct",
                "longer with moved bursts, at the best gap",
                &["mechanism", "kernel", "burst"],
                "%",
            )
        }],
    ),
    first(
        "bench-server",
        "dimmer/bench-server",
        &[each("ways[]", "gain_pct", "both programs, more than stay", &["name"], "%")],
    ),
    first(
        "bench-nginx",
        "dimmer/bench-nginx",
        &[each(
            "differences[]",
            "cpu_per_request_pct",
            "CPU time a request, more than plain",
            &["to"],
            "%",
        )],
    ),
    first(
        "evidence",
        "dimmer/evidence",
        &[
            each("commands[is_done=true]", "seconds", "the command takes", &["name"], "s"),
            at("others_cpu_pct", "other programs' share of the CPUs meanwhile", "%"),
            at("steal_pct", "the hypervisor's share of the CPUs meanwhile", "%"),
        ],
    ),
];

/// The kind of this name.
#[must_use]
pub fn of(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}

/// The names of all kinds, for messages.
#[must_use]
pub fn names() -> String {
    ALL.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ")
}

/// A figure of a document.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// What it is: equal names in documents of one kind are of the same quantity.
    pub what: String,
    /// The number.
    pub value: Quantity,
    /// The unit: `ns`, `us`, `s`, `%`, `points`, or empty for ratios.
    pub unit: &'static str,
}

/// Why a document is not as its kind has it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// Another schema or version.
    #[error("its `schema` is `{found}`, expected {expected}")]
    Schema {
        /// What it is.
        found: String,
        /// What is read.
        expected: String,
    },
    /// Something else at a place.
    #[error(transparent)]
    Unexpected(#[from] Unexpected),
    /// The table names no place.
    #[error(transparent)]
    Place(#[from] NoPlace),
}

impl Kind {
    /// Checks the schema of a document.
    ///
    /// # Errors
    /// It is of another kind, or of a version that is not known.
    pub fn check(&self, document: &Value) -> Result<(), Misfit> {
        let known: Vec<String> =
            self.versions.iter().map(|version| format!("{}/{version}", self.schema)).collect();
        let found = plain(&document["schema"]);
        if known.contains(&found) {
            return Ok(());
        }
        let known: Vec<String> = known.iter().map(|one| format!("`{one}`")).collect();
        Err(Misfit::Schema { found, expected: known.join(" or ") })
    }

    /// The figures of a document of this kind.
    ///
    /// # Errors
    /// Something else is at the place of a figure or of its name.
    pub fn figures(&self, document: &Value) -> Result<Vec<Figure>, Misfit> {
        let mut figures = Vec::new();
        for place in self.figures {
            figures.extend(place.figures(document)?);
        }
        Ok(figures)
    }
}

impl Where {
    fn figures(&self, document: &Value) -> Result<Vec<Figure>, Misfit> {
        let entries = if self.list.is_empty() {
            vec![(String::new(), document)]
        } else {
            self.list.parse::<Place>()?.of(document)?
        };
        let quantity: Place = self.quantity.parse()?;
        // Where only the least counts: the least so far, by the figure's name.
        let mut least: BTreeMap<String, Figure> = BTreeMap::new();
        let mut all = Vec::new();
        for (at, entry) in entries {
            let found = quantity.quantities(entry).map_err(|error| within(&at, error))?;
            let mut what = self.what.to_owned();
            for key in self.by {
                let place: Place = key.parse()?;
                for (_, value) in place.of(entry).map_err(|error| within(&at, error))? {
                    if !value.is_null() {
                        what += ", ";
                        what += &Self::name(key, value);
                    }
                }
            }
            for (_, value) in found {
                let figure = Figure { what: what.clone(), value, unit: self.unit };
                if !self.least {
                    all.push(figure);
                } else if least.get(&what).is_none_or(|old| value.median < old.value.median) {
                    least.insert(what.clone(), figure);
                }
            }
        }
        all.extend(least.into_values());
        Ok(all)
    }

    /// A value in a figure's name.
    fn name(key: &str, value: &Value) -> String {
        let value = plain(value);
        match key {
            "burst_instructions" | "burst" => format!("{value} instructions"),
            "threads" | "active" if value == "1" => "1 CPU".to_owned(),
            "threads" | "active" => format!("{value} CPUs"),
            "phase_us" => format!("phases of {value} us"),
            _ => value,
        }
    }
}

/// An error in an entry of a list.
fn within(entry: &str, mut error: Unexpected) -> Unexpected {
    if !entry.is_empty() {
        error.place = format!("{entry}.{}", error.place);
    }
    error
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn all_places_can_be_read() {
        for kind in ALL {
            for place in kind.figures {
                for text in [place.list, place.quantity].into_iter().chain(place.by.iter().copied())
                {
                    assert!(text.is_empty() || text.parse::<Place>().is_ok(), "{text}");
                }
            }
        }
        let names: std::collections::BTreeSet<_> = ALL.iter().map(|kind| kind.name).collect();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn figures_are_named_by_what_they_are_of() {
        let kind = of("bench-phases").unwrap();
        let lengths = json!([{ "phase_us": 10.0, "ratio_to_staying": 3.0 }]);
        let document = json!({
            "measuring_ns": 15.0, "staying_ns": null, "line_ns": 100.0,
            "migration_ns": { "median": 540.0, "ci95": [539.0, 544.0] }, "lengths": lengths,
        });
        let figures = kind.figures(&document).unwrap();
        let named: Vec<(&str, f64)> =
            figures.iter().map(|one| (one.what.as_str(), one.value.median)).collect();
        assert_eq!(
            named,
            [
                ("a mark that measures calls and time", 15.0),
                ("a cache line there and back", 100.0),
                ("a thread at marks, there and back", 540.0),
                ("time with migrations over without, phases of 10.0 us", 3.0),
            ]
        );
    }

    #[test]
    fn the_time_of_a_command_that_failed_is_no_figure() {
        let ran =
            |name: &str, is_done: bool| json!({ "name": name, "seconds": 7.0, "is_done": is_done });
        let commands = json!([ran("probe-quick", false), ran("doctor", true)]);
        let document = json!({ "commands": commands, "others_cpu_pct": null, "steal_pct": null });
        let figures = of("evidence").unwrap().figures(&document).unwrap();
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].what, "the command takes, doctor");
    }

    #[test]
    fn of_equal_names_the_least_is_taken_where_the_table_says_so() {
        let row = |pct: f64| {
            json!({
                "mechanism": "delegate", "kernel": "k", "burst": 800, "moved_over_direct_pct": pct,
            })
        };
        let document = json!({ "rows": [row(3.0), row(-1.0), row(2.0)] });
        let figures = of("bench-primesieve").unwrap().figures(&document).unwrap();
        assert_eq!(figures.len(), 1);
        assert_eq!(figures[0].value.median, -1.0);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let kind = of("bench-server").unwrap();
        let said = kind.check(&json!({ "schema": "dimmer/bench-server/9" })).unwrap_err();
        let expected = "its `schema` is `dimmer/bench-server/9`, expected `dimmer/bench-server/1`";
        assert_eq!(said.to_string(), expected);
        let said = kind.figures(&json!({ "ways": [{ "name": "stay" }] })).unwrap_err();
        assert_eq!(said.to_string(), "`ways[0].gain_pct` is missing, expected a value or null");
    }
}

//! The keys of the format: the content of a model file and the order in which it is written.

/// The version of the format.
pub(super) const SCHEMA: &str = "dimmer/model/1";

/// Every table of the format with its keys, in the order in which they are written.
pub const KEYS: &[(&str, &[&str])] = &[
    (
        "",
        &[
            "schema",
            "name",
            "vendor",
            "microarchitecture",
            "note",
            "topology",
            "cluster",
            "clock",
            "level",
            "rule",
            "request",
            "release",
            "long_recurrence",
            "pstate",
            "supply",
            "power",
            "transition",
            "cstate",
            "move",
        ],
    ),
    ("topology", &["packages", "cores", "threads_per_core", "l2_kib", "l3_kib"]),
    ("cluster", &["name", "cores", "max_mhz", "capacity_ratio", "power_ratio"]),
    (
        "clock",
        &[
            "domain",
            "tsc_mhz",
            "min_mhz",
            "base_mhz",
            "max_mhz",
            "tdp_mw",
            "raise_period_ns",
            "divisor_step",
            "divisor_most",
        ],
    ),
    ("level", &["name", "bins", "clock_ratio", "issue_ratio", "reduced_mhz"]),
    ("level.bins", &["from_cores", "cores", "mhz"]),
    (
        "rule",
        &[
            "class",
            "upper",
            "level",
            "instructions",
            "instructions_log_sd",
            "density_per_cycle",
            "grant_ns",
            "grant_log_sd",
        ],
    ),
    (
        "request",
        &[
            "throttle_factor",
            "chained_throttle_factor",
            "throttled_ns",
            "voltage_ns",
            "stall_ns",
            "slot_ns",
            "missed_share",
            "path",
        ],
    ),
    (
        "release",
        &[
            "hold_ns",
            "extended_share",
            "extended_share_beside",
            "extended_ns",
            "extended_level",
            "extended_class",
            "stall_ns",
            "recurrence_ns",
            "recurrence_after_ns",
            "recurrence_slowdown",
            "episode_ns",
        ],
    ),
    ("long_recurrence", &["level", "burst_ns", "gap_ns", "slowdown"]),
    ("pstate", &["name", "mhz", "mv", "needs_idle"]),
    ("supply", &["domain", "awake_mw", "core_mw", "stalled_ratio", "waiting_mw"]),
    ("power", &["load", "pstate", "busy_cores", "slow_cores", "slow_pstate", "package_mw"]),
    ("transition", &["from", "to", "request_ns", "total_ns"]),
    ("cstate", &["name", "exit_ns", "residency_ns"]),
    ("move", &["kind", "ns"]),
    ("a value", &["value", "source", "guess", "ci95"]),
];

/// Hint for a key that differs only in its unit: `hold_us` where `hold_ns` is accepted.
pub(super) fn unit_hint(found: &str, accepted: &[&str]) -> String {
    let stem = |key: &str| key.rsplit_once('_').map(|(stem, _)| stem.to_owned());
    let same = accepted.iter().find(|key| stem(key).is_some() && stem(key) == stem(found));
    same.map(|key| format!(" (the unit is part of the key: `{key}`)")).unwrap_or_default()
}

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
            "pstate",
            "power",
            "transition",
            "cstate",
            "move",
        ],
    ),
    ("topology", &["packages", "cores", "threads_per_core", "l2_kib", "l3_kib"]),
    ("cluster", &["name", "cores", "max_mhz", "capacity_ratio"]),
    (
        "clock",
        &["domain", "tsc_mhz", "min_mhz", "base_mhz", "max_mhz", "tdp_mw", "raise_period_ns"],
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
    ("pstate", &["name", "mhz", "mv"]),
    ("power", &["load", "pstate", "busy_cores", "slow_cores", "slow_pstate", "package_mw"]),
    ("transition", &["from", "to", "request_ns", "total_ns"]),
    ("cstate", &["name", "exit_ns", "residency_ns"]),
    ("move", &["kind", "ns"]),
    ("a value", &["value", "source", "guess", "ci95"]),
];

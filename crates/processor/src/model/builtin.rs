//! The built-in models of Dimmer.

/// Name and text of every file in `models/`, by name. A test compares the list with the folder.
pub const BUILTIN: &[(&str, &str)] = &[
    ("epyc-rome", include_str!("../../../../models/epyc-rome.toml")),
    ("fx-8120", include_str!("../../../../models/fx-8120.toml")),
    ("granite-rapids-sample", include_str!("../../../../models/granite-rapids-sample.toml")),
    ("hi3660", include_str!("../../../../models/hi3660.toml")),
    ("i5-1035g4", include_str!("../../../../models/i5-1035g4.toml")),
    ("i7-4770", include_str!("../../../../models/i7-4770.toml")),
    ("i9-12900k", include_str!("../../../../models/i9-12900k.toml")),
    ("i9-7940x", include_str!("../../../../models/i9-7940x.toml")),
    ("ryzen-1600x", include_str!("../../../../models/ryzen-1600x.toml")),
    ("ryzen-7950x", include_str!("../../../../models/ryzen-7950x.toml")),
    ("xeon-amx-vm", include_str!("../../../../models/xeon-amx-vm.toml")),
    ("xeon-emerald-rapids-vm", include_str!("../../../../models/xeon-emerald-rapids-vm.toml")),
    ("xeon-gold-6130", include_str!("../../../../models/xeon-gold-6130.toml")),
    ("xeon-silver-4116", include_str!("../../../../models/xeon-silver-4116.toml")),
    ("xeon-w-2104", include_str!("../../../../models/xeon-w-2104.toml")),
    ("zen-5", include_str!("../../../../models/zen-5.toml")),
];

/// The text of the model named `name`.
#[must_use]
pub fn builtin(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

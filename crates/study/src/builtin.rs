//! The scenarios that come with Dimmer, by name.

use std::path::Path;

use dimmer_processor::model::BUILTIN;
use dimmer_sim::scenario::{Scenario, ScenarioError};

/// Name and text of every file in `scenarios/`, by name. A test compares the list with the folder.
pub const SCENARIOS: &[(&str, &str)] = &[
    ("batch-beside-x265", include_str!("../../../scenarios/batch-beside-x265.toml")),
    ("boosted-section", include_str!("../../../scenarios/boosted-section.toml")),
    ("build-beside-x265", include_str!("../../../scenarios/build-beside-x265.toml")),
    ("bursts-before-short-gaps", include_str!("../../../scenarios/bursts-before-short-gaps.toml")),
    ("bursts-in-a-sieve", include_str!("../../../scenarios/bursts-in-a-sieve.toml")),
    ("c-build", include_str!("../../../scenarios/c-build.toml")),
    ("changing-habits", include_str!("../../../scenarios/changing-habits.toml")),
    ("lock-by-neighbour", include_str!("../../../scenarios/lock-by-neighbour.toml")),
    ("multiphase-worst-case", include_str!("../../../scenarios/multiphase-worst-case.toml")),
    ("nginx-and-video-encoder", include_str!("../../../scenarios/nginx-and-video-encoder.toml")),
    ("nginx-avx2", include_str!("../../../scenarios/nginx-avx2.toml")),
    ("nginx-avx512", include_str!("../../../scenarios/nginx-avx512.toml")),
    ("nginx-brotli", include_str!("../../../scenarios/nginx-brotli.toml")),
    ("nginx-brotli-page", include_str!("../../../scenarios/nginx-brotli-page.toml")),
    ("nginx-specialised", include_str!("../../../scenarios/nginx-specialised.toml")),
    ("nginx-specialised-avx2", include_str!("../../../scenarios/nginx-specialised-avx2.toml")),
    ("nginx-specialised-sse", include_str!("../../../scenarios/nginx-specialised-sse.toml")),
    ("nginx-sse", include_str!("../../../scenarios/nginx-sse.toml")),
    ("numpy", include_str!("../../../scenarios/numpy.toml")),
    ("openssl-speed", include_str!("../../../scenarios/openssl-speed.toml")),
    ("phases-chase", include_str!("../../../scenarios/phases-chase.toml")),
    ("phases-indirect", include_str!("../../../scenarios/phases-indirect.toml")),
    ("phases-mysql", include_str!("../../../scenarios/phases-mysql.toml")),
    ("pipeline-beside-x265", include_str!("../../../scenarios/pipeline-beside-x265.toml")),
    ("primesieve-moved", include_str!("../../../scenarios/primesieve-moved.toml")),
    ("video-encoder", include_str!("../../../scenarios/video-encoder.toml")),
    ("web-server", include_str!("../../../scenarios/web-server.toml")),
    ("x264", include_str!("../../../scenarios/x264.toml")),
    ("x265", include_str!("../../../scenarios/x265.toml")),
    ("x265-avx512", include_str!("../../../scenarios/x265-avx512.toml")),
];

/// Why there is no scenario of a name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuiltinError {
    /// No scenario that comes with Dimmer has this name.
    #[error("no scenario or file `{0}`; scenarios: {known}", known = names().join(", "))]
    Unknown(String),
    /// Its text is wrong, which a test rules out.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
}

/// The names of the scenarios that come with Dimmer.
#[must_use]
pub fn names() -> Vec<String> {
    SCENARIOS.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// The names of the models that come with Dimmer.
#[must_use]
pub fn models() -> Vec<String> {
    BUILTIN.iter().map(|(name, _)| (*name).to_owned()).collect()
}

/// The scenario of this name that comes with Dimmer.
///
/// # Errors
/// [`BuiltinError`].
pub fn scenario(name: &str) -> Result<Scenario, BuiltinError> {
    let own = text(name).ok_or_else(|| BuiltinError::Unknown(name.to_owned()))?;
    Ok(Scenario::parse_with(Path::new(&format!("{name}.toml")), own, &included)?)
}

/// A file that such a scenario includes: found by its name, whatever the directory.
pub(crate) fn included(path: &Path) -> Result<String, String> {
    let found = path.file_stem().and_then(|name| text(name.to_str()?));
    found.map(str::to_owned).ok_or_else(|| format!("no scenario {}", path.display()))
}

/// The text of the scenario of this name that comes with Dimmer.
pub(crate) fn text(name: &str) -> Option<&'static str> {
    SCENARIOS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_folder_is_built_in_and_right() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut found: Vec<String> = files
            .map(|name| name.to_str().unwrap().strip_suffix(".toml").unwrap().to_owned())
            .collect();
        found.sort_unstable();
        assert_eq!(names(), found);
        for (name, _) in SCENARIOS {
            assert!(!scenario(name).unwrap().name.is_empty());
        }
        let error = scenario("no-such").unwrap_err().to_string();
        assert!(error.contains("`no-such`; scenarios: batch-beside-x265, "), "{error}");
    }
}

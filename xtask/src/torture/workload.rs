//! What runs: workloads, and hostile surroundings.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;

/// The file with both.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Set {
    pub(super) workload: Vec<Workload>,
    pub(super) surrounding: Vec<Surrounding>,
}

/// A program to run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Workload {
    pub(super) name: String,
    /// Debian packages that contain it.
    #[serde(rename = "packages")]
    _packages: Vec<String>,
    /// `@` stands for the directory of the inputs.
    command: Vec<String>,
    /// A file that it writes, which is compared like its standard output.
    pub(super) output: Option<String>,
    /// Time limit of a run, in seconds.
    #[serde(default = "minute")]
    pub(super) seconds: u64,
}

/// The surroundings of a program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Surrounding {
    pub(super) name: String,
    /// A shell line. `{}` stands for Dimmer's command, and for nothing in the plain run.
    pub(super) line: String,
}

const fn minute() -> u64 {
    60
}

impl Set {
    /// # Errors
    /// If the file is missing or malformed.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        toml::from_str(&text).with_context(|| path.display().to_string())
    }
}

impl Workload {
    pub(super) fn command_with(&self, inputs: &Path) -> Vec<String> {
        let inputs = inputs.display().to_string();
        self.command.iter().map(|word| word.replace('@', &inputs)).collect()
    }
}

/// The part of an observation that is read.
#[derive(Debug, Deserialize)]
struct Observed {
    functions: Vec<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    file: String,
    address: u64,
    time_share: Option<f64>,
}

/// The functions that took most time, in the form that `dimmer run --migrate` takes.
pub(super) fn hottest(json: &Path, most: usize) -> Vec<String> {
    let text = fs::read_to_string(json).unwrap_or_default();
    let Ok(mut observed) = serde_json::from_str::<Observed>(&text) else { return Vec::new() };
    let share = |function: &Function| function.time_share.unwrap_or_default();
    observed.functions.sort_by(|one, other| share(other).total_cmp(&share(one)));
    let entry = |function: &Function| format!("{}:{:#x}", function.file, function.address);
    observed.functions.iter().take(most).map(entry).collect()
}

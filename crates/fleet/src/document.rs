//! What is read of the JSON of a probe (`docs/probe-json.md`).

use std::path::{Path, PathBuf};

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_processor::text::json_problem;
use serde::Deserialize;

use crate::measure::Measure;

/// The schemas that are read. The first has no verdict.
const SCHEMAS: [&str; 2] = ["dimmer/probe/1", "dimmer/probe/2"];

/// Size limit of a file (bytes): a full probe writes some megabytes.
const LONGEST: u64 = 256 << 20;

/// The results of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// The file that it comes from.
    pub file: PathBuf,
    /// The machine.
    pub machine: About,
    /// Whether wide SIMD code slows it down: `yes`, `no`, `open` or `not-measured`. In documents
    /// of the first version, which have no verdict, by their results: `yes` if one has an effect.
    pub effect: String,
    /// Whether the probe was ended before it was complete.
    pub interrupted: bool,
    /// The costs that it measured.
    pub measures: Vec<Measure>,
}

/// The machine of a probe.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct About {
    /// The processor's marketing name.
    pub brand: String,
    /// Its microarchitecture.
    pub microarchitecture: String,
    /// The microcode's version.
    pub microcode: Option<String>,
    /// The hypervisor.
    pub hypervisor: Option<String>,
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The number of CPUs that the probe could run on.
    pub cpus: u64,
    /// When it ran (RFC 3339).
    pub time: String,
}

/// The file is no result of a probe.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] BoundedFileError),
    /// It is no JSON, or lacks a key.
    #[error("{}: not the JSON of `dimmer probe`: {what}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its place.
        what: String,
    },
    /// It has another schema.
    #[error("{file}: its `schema` is `{found}`, expected `{}`, the JSON of `dimmer probe`", SCHEMAS.join("` or `"))]
    Schema {
        /// The file.
        file: PathBuf,
        /// Its schema.
        found: String,
    },
}

#[derive(Deserialize)]
struct Any {
    schema: String,
}

#[derive(Deserialize)]
struct Probe {
    verdict: Option<Verdict>,
    machine: About,
    results: Vec<serde_json::Value>,
    interrupted: bool,
}

#[derive(Deserialize)]
struct Verdict {
    effect: String,
}

impl Document {
    /// Reads a file that `dimmer probe --json=FILE` has written.
    ///
    /// # Errors
    /// [`DocumentError`]
    pub fn read(file: &Path) -> Result<Self, DocumentError> {
        Self::parse(file, &bounded_file::read_to_string(file, LONGEST)?)
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    /// [`DocumentError`]
    pub fn parse(file: &Path, text: &str) -> Result<Self, DocumentError> {
        let wrong = |error: serde_json::Error| DocumentError::Json {
            file: file.to_owned(),
            what: json_problem(&error, 0),
        };
        let Any { schema } = serde_json::from_str(text).map_err(wrong)?;
        if !SCHEMAS.contains(&&*schema) {
            return Err(DocumentError::Schema { file: file.to_owned(), found: schema });
        }
        let probe: Probe = serde_json::from_str(text).map_err(wrong)?;
        let by_results = || {
            let has_effect = probe.results.iter().any(|result| result["effect"] == true);
            if has_effect { "yes" } else { "no" }.to_owned()
        };
        let effect = match probe.verdict {
            _ if probe.results.is_empty() => "not-measured".to_owned(),
            Some(verdict) => verdict.effect,
            None if schema == SCHEMAS[0] => by_results(),
            None => return Err(wrong(serde::de::Error::missing_field("verdict"))),
        };
        Ok(Self {
            file: file.to_owned(),
            machine: probe.machine,
            effect,
            interrupted: probe.interrupted,
            measures: probe.results.iter().flat_map(Measure::of).collect(),
        })
    }
}

//! Results of runs, kept between studies.
//!
//! A file for each scenario on each model, named by a digest of what decides the results: the
//! scenario and the model as they were read, the program itself, and the format of the file. A line
//! for each run: a digest of the rest, and the rest as JSON. A line whose digest does not fit is as
//! if it were not there. Lines are only added. `docs/study-json.md` describes the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dimmer_launch::cache::{append, digest, keep_line, read_lines, studies};
use dimmer_processor::model::Model;
use dimmer_sim::scenario::Scenario;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

/// The first line of a file, and a part of its name's digest: changes whenever what follows changes
/// its meaning.
const FORMAT: &str = "dimmer/study-cache/1";

/// Where results of runs are kept.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The directory; `None`: nothing is kept.
    directory: Option<PathBuf>,
    /// Whether it is the usual one, whose size is limited.
    is_usual: bool,
    /// What identifies the program whose results these are.
    program: String,
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
struct Line<R> {
    /// The mechanism, and what differs from the scenario and the model.
    label: String,
    seed: u64,
    run: R,
}

impl Cache {
    /// The cache in a directory, or in the user's cache directory, for results of this program.
    /// Nothing is kept if there is neither, or if the program's own file cannot be read.
    #[must_use]
    pub fn new(directory: Option<&Path>) -> Self {
        let program = std::env::current_exe().and_then(std::fs::read).ok();
        let identity = program.as_ref().map(|bytes| format!("{:016x}", digest([&bytes[..]])));
        let is_usual = directory.is_none();
        let directory = directory.map(Path::to_path_buf).or_else(studies);
        let directory = directory.filter(|_| identity.is_some());
        Self { directory, is_usual, program: identity.unwrap_or_default() }
    }

    /// What is kept of a scenario on a model.
    pub(crate) fn open(&self, scenario: &Scenario, model: &Model) -> Kept {
        let (scenario, model) = (format!("{scenario:?}"), format!("{model:?}"));
        let parts = [FORMAT, &self.program, &scenario, &model];
        let name = format!("{:016x}", digest(parts.map(str::as_bytes)));
        let path = self.directory.as_ref().map(|directory| directory.join(name));
        let lines = path.as_deref().map(lines).unwrap_or_default();
        Kept { path, is_usual: self.is_usual, lines }
    }
}

/// What is kept of a scenario on a model: lines by mechanism and seed.
#[derive(Debug)]
pub(crate) struct Kept {
    path: Option<PathBuf>,
    is_usual: bool,
    lines: BTreeMap<(String, u64), String>,
}

impl Kept {
    /// The result of a run, if it is kept.
    pub(crate) fn run<R: DeserializeOwned>(&self, label: &str, seed: u64) -> Option<R> {
        let line = self.lines.get(&(label.to_owned(), seed))?;
        Some(parsed(line)?.run)
    }

    /// Keeps the result of a run, and returns it as it will be read again: so a study does not
    /// depend on what was kept. If the file cannot be written, the next study runs it again.
    pub(crate) fn keep<R>(&mut self, label: &str, seed: u64, run: &R) -> R
    where
        R: Clone + Serialize + DeserializeOwned,
    {
        let line = Line { label: label.to_owned(), seed, run: run.clone() };
        let Ok(json) = serde_json::to_string(&line) else { return line.run };
        let text = format!("{:016x} {json}", digest([json.as_bytes()]));
        let read_back = parsed(&text).map_or(line.run, |line| line.run);
        if let Some(path) = &self.path {
            if self.is_usual {
                keep_line(path, FORMAT, &text);
            } else {
                // As with the usual one, the next study computes what cannot be kept.
                let _ = append(path, FORMAT, &text);
            }
            self.lines.insert((line.label, seed), text);
        }
        read_back
    }
}

/// The lines of a file that are whole, the last one for each run; none if there is no such file.
fn lines(path: &Path) -> BTreeMap<(String, u64), String> {
    let line = |line: &str| {
        let Line::<IgnoredAny> { label, seed, .. } = parsed(line)?;
        Some(((label, seed), line.to_owned()))
    };
    read_lines(path).unwrap_or_default().lines().filter_map(line).collect()
}

/// A line whose digest fits.
fn parsed<R: DeserializeOwned>(line: &str) -> Option<Line<R>> {
    let (told, json) = line.split_once(' ')?;
    let is_whole = told == format!("{:016x}", digest([json.as_bytes()]));
    is_whole.then(|| serde_json::from_str(json).ok()).flatten()
}

#[cfg(test)]
mod tests;

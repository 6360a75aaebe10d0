//! Records of machines: a directory for each machine and day, with what commands wrote as JSON.
//!
//! The project's own records are in this library. A user's are in a directory.

use std::path::{Path, PathBuf};

use dimmer_host::bounded_file::{self, BoundedFileError};
use dimmer_processor::text::json_problem;
use serde::Deserialize;
use serde_json::Value;

use crate::claims::{self, Claim, ClaimsError};
use crate::document::{Document, DocumentError};
use crate::evidence::Evidence;
use crate::kinds::{self, Figure, Misfit};
use crate::measure::Measure;
use crate::names::{self, About};

/// The project's records: name, and the files with their text.
const BUILTIN: &[(&str, &[(&str, &str)])] = include!(concat!(env!("OUT_DIR"), "/builtin.rs"));

/// Size limit of a document (bytes).
pub(crate) const LONGEST: u64 = 64 << 20;

/// Records of machines.
#[derive(Debug, Default)]
pub struct Database {
    /// The records, by name.
    pub records: Vec<Record>,
    /// Files that are no documents of a record.
    pub problems: Vec<DatabaseError>,
}

/// What was measured on a machine on a day.
#[derive(Debug)]
pub struct Record {
    /// Its name, as `epyc-zen5-vm-linux-6.18-2026-11-27`.
    pub name: String,
    /// The machine's name, without the day.
    pub machine: String,
    /// The day.
    pub date: String,
    /// The machine, by the first document that describes it.
    pub about: About,
    /// The documents, by name.
    pub documents: Vec<Entry>,
}

/// The main result of a record.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding<'a> {
    /// Whether wide SIMD code slows the machine down, by the probes of isolated bursts and long
    /// stretches: `yes`, `no`, `open` or `not-measured`.
    pub effect: &'static str,
    /// Of each kind of cost, the highest that any probe found.
    pub costs: Vec<&'a Measure>,
    /// The highest bound above which isolated bursts have no effect (ns).
    pub bound_ns: Option<f64>,
}

/// The probes that answer whether there is an effect at all. The others measure how one behaves.
const MAIN: [&str; 3] = ["probe-quick", "probe-episode", "probe"];

/// A document of a record.
#[derive(Debug)]
pub struct Entry {
    /// The name of its kind, as `bench-server`.
    pub name: &'static str,
    /// Its file.
    pub file: PathBuf,
    /// The whole document.
    pub value: Value,
    /// Its figures.
    pub figures: Vec<Figure>,
    /// What else is read of it.
    pub read: Read,
}

/// What is read of a document beside its figures.
#[derive(Debug)]
pub enum Read {
    /// A survey: the machine.
    Doctor(About),
    /// A probe.
    Probe(Document),
    /// How the record was made.
    Evidence(Evidence),
    /// Figures alone.
    Figures,
}

/// What is wrong with a database. Other files are read all the same.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The directory cannot be read: nothing is.
    #[error("cannot read directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// It has no records.
    #[error("{} has no records: expected directories named {}", .0.display(), names::EXPECTED)]
    Empty(PathBuf),
    /// A directory's name is none of a record.
    #[error("{}: expected a directory named {}", .0.display(), names::EXPECTED)]
    Name(PathBuf),
    /// A file's name is none of a document.
    #[error("{}: expected one of {}, with `.json`", .0.display(), kinds::names())]
    Kind(PathBuf),
    /// A record without a document that describes the machine.
    #[error("{}: expected a doctor.json or the JSON of a probe, which describe the machine", .0.display())]
    Unknown(PathBuf),
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] BoundedFileError),
    /// A file is no JSON, or lacks a key.
    #[error("{}: {what}", file.display())]
    Json {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its place.
        what: String,
    },
    /// A document is not as its kind has it.
    #[error("{}: {misfit}", file.display())]
    Misfit {
        /// The file.
        file: PathBuf,
        /// What is wrong, with its place.
        misfit: Misfit,
    },
    /// A probe's document is wrong.
    #[error(transparent)]
    Probe(#[from] DocumentError),
    /// The claims are wrong.
    #[error(transparent)]
    Claims(#[from] ClaimsError),
    /// No record or machine has this name.
    #[error("no machine is named `{name}`: expected one of {accepted}")]
    Machine {
        /// The name.
        name: String,
        /// The names that there are.
        accepted: String,
    },
}

#[derive(Deserialize)]
struct Doctor {
    machine: DoctorMachine,
}

#[derive(Deserialize)]
struct DoctorMachine {
    brand: String,
    microarchitecture: String,
    microcode: Option<String>,
    hypervisor: Option<String>,
    kernel_release: Option<String>,
}

impl Database {
    /// The project's records.
    #[must_use]
    pub fn builtin() -> Self {
        let mut database = Self::default();
        for (name, files) in BUILTIN {
            let files = files
                .iter()
                .map(|(file, text)| (Path::new(name).join(file), Ok((*text).to_owned())));
            database.add(Path::new(name), files);
        }
        database
    }

    /// The records in a directory and the claims to check them by; without one, the project's. The
    /// claims of a directory that is a record itself are beside it.
    ///
    /// # Errors
    /// As [`Self::read`], or if the claims are wrong.
    pub fn open(directory: Option<&Path>) -> Result<(Self, Vec<Claim>), DatabaseError> {
        let Some(directory) = directory else {
            return Ok((Self::builtin(), claims::builtin()?));
        };
        let resolved = resolved(directory);
        let parent = resolved.parent().filter(|_| is_record(&resolved));
        Ok((Self::read(directory)?, claims::beside(parent.unwrap_or(directory))?))
    }

    /// Reads the records in a directory, or a directory that is a record itself. What is wrong in
    /// it is listed; hidden files, and Markdown and TOML beside the records, are passed over.
    ///
    /// # Errors
    /// If the directory cannot be read, or nothing in it is a record.
    pub fn read(directory: &Path) -> Result<Self, DatabaseError> {
        let mut database = Self::default();
        let resolved = resolved(directory);
        if is_record(&resolved) {
            database.read_record(directory, &resolved)?;
        } else {
            for path in entries(directory)? {
                let is_beside = path.extension().is_some_and(|end| end == "md" || end == "toml");
                match names::parts(&file_name(&path)) {
                    Some(_) => database.read_record(&path, &path)?,
                    None if is_beside => {}
                    None => database.problems.push(DatabaseError::Name(path)),
                }
            }
        }
        if database.records.is_empty() && database.problems.is_empty() {
            return Err(DatabaseError::Empty(directory.to_owned()));
        }
        Ok(database)
    }

    fn read_record(&mut self, directory: &Path, named: &Path) -> Result<(), DatabaseError> {
        let files = entries(directory)?.into_iter().map(|file| {
            let text = bounded_file::read_to_string(&file, LONGEST);
            (file, text)
        });
        self.add(named, files);
        Ok(())
    }

    /// Adds the record of a directory with these files.
    fn add(
        &mut self,
        directory: &Path,
        files: impl Iterator<Item = (PathBuf, Result<String, BoundedFileError>)>,
    ) {
        let mut documents = Vec::new();
        for (file, text) in files {
            let entry = text.map_err(Into::into).and_then(|text| Entry::new(&file, &text));
            match entry {
                Ok(entry) => documents.push(entry),
                Err(error) => self.problems.push(error),
            }
        }
        let name = file_name(directory);
        let Some((machine, date)) = names::parts(&name) else { return };
        let about = documents.iter().find_map(Entry::about);
        let Some(about) = about else {
            self.problems.push(DatabaseError::Unknown(directory.to_owned()));
            return;
        };
        let (machine, date) = (machine.to_owned(), date.to_owned());
        self.records.push(Record { name, machine, date, about, documents });
    }

    /// The records of these names, each that of a record or of a machine; of all, if there are
    /// none.
    ///
    /// # Errors
    /// If there is no record of a name.
    pub fn named(&self, names: &[String]) -> Result<Vec<&Record>, DatabaseError> {
        if names.is_empty() {
            return Ok(self.records.iter().collect());
        }
        let mut found: Vec<&Record> = Vec::new();
        for name in names {
            let is_it = |record: &&Record| record.name == *name || record.machine == *name;
            for record in self.records.iter().filter(is_it) {
                if !found.iter().any(|other| other.name == record.name) {
                    found.push(record);
                }
            }
            if !self.records.iter().any(|record| is_it(&record)) {
                let accepted: Vec<&str> =
                    self.records.iter().map(|record| record.name.as_str()).collect();
                let (name, accepted) = (name.clone(), accepted.join(", "));
                return Err(DatabaseError::Machine { name, accepted });
            }
        }
        Ok(found)
    }
}

impl Record {
    /// The document of a kind.
    #[must_use]
    pub fn document(&self, name: &str) -> Option<&Entry> {
        self.documents.iter().find(|entry| entry.name == name)
    }

    /// The probes among the documents.
    pub fn probes(&self) -> impl Iterator<Item = &Document> {
        self.documents.iter().filter_map(|entry| match &entry.read {
            Read::Probe(probe) => Some(probe),
            _ => None,
        })
    }

    /// What the probes of the record found about wide SIMD code.
    #[must_use]
    pub fn finding(&self) -> Finding<'_> {
        // A probe that sees an effect outweighs one that sees none, and this one that cannot say.
        let main = || self.documents.iter().filter(|entry| MAIN.contains(&entry.name));
        let has = |wanted: &str| {
            main().any(|entry| matches!(&entry.read, Read::Probe(probe) if probe.effect == wanted))
        };
        let effect = ["yes", "no", "open"].into_iter().find(|effect| has(effect));
        let mut costs: Vec<&Measure> =
            self.probes().flat_map(|probe| &probe.measures).filter(|one| one.has_effect).collect();
        costs.sort_by(|a, b| {
            (a.key.cost as u8).cmp(&(b.key.cost as u8)).then(b.median.total_cmp(&a.median))
        });
        costs.dedup_by_key(|one| one.key.cost);
        let bounds = main().flat_map(|entry| &entry.figures);
        let bounds = bounds.filter(|figure| figure.what.starts_with(kinds::BOUND));
        Finding {
            effect: effect.unwrap_or("not-measured"),
            costs,
            bound_ns: bounds.map(|figure| figure.value.median).reduce(f64::max),
        }
    }

    /// How the record was made, if that is known.
    #[must_use]
    pub fn evidence(&self) -> Option<&Evidence> {
        self.documents.iter().find_map(|entry| match &entry.read {
            Read::Evidence(evidence) => Some(evidence),
            _ => None,
        })
    }
}

impl Entry {
    /// Reads a document by its file's name.
    ///
    /// # Errors
    /// If the name is none of a document, or the text is none of that kind.
    pub fn new(file: &Path, text: &str) -> Result<Self, DatabaseError> {
        let kind = file_name(file).strip_suffix(".json").and_then(kinds::of);
        let Some(kind) = kind else { return Err(DatabaseError::Kind(file.to_owned())) };
        let json = |error: serde_json::Error| DatabaseError::Json {
            file: file.to_owned(),
            what: json_problem(&error, 0),
        };
        let misfit = |misfit| DatabaseError::Misfit { file: file.to_owned(), misfit };
        let value: Value = serde_json::from_str(text).map_err(json)?;
        kind.check(&value).map_err(misfit)?;
        let figures = kind.figures(&value).map_err(misfit)?;
        let read = match kind.schema {
            "dimmer/doctor" => {
                let Doctor { machine } = serde_json::from_str(text).map_err(json)?;
                Read::Doctor(About {
                    brand: machine.brand,
                    microarchitecture: machine.microarchitecture,
                    microcode: machine.microcode,
                    hypervisor: machine.hypervisor,
                    kernel: machine.kernel_release,
                })
            }
            "dimmer/probe" => Read::Probe(Document::parse(file, text)?),
            "dimmer/evidence" => Read::Evidence(serde_json::from_str(text).map_err(json)?),
            _ => Read::Figures,
        };
        Ok(Self { name: kind.name, file: file.to_owned(), value, figures, read })
    }

    /// The machine, as the document describes it.
    #[must_use]
    pub fn about(&self) -> Option<About> {
        match &self.read {
            Read::Doctor(about) => Some(about.clone()),
            Read::Probe(probe) => Some(About {
                brand: probe.machine.brand.clone(),
                microarchitecture: probe.machine.microarchitecture.clone(),
                microcode: probe.machine.microcode.clone(),
                hypervisor: probe.machine.hypervisor.clone(),
                kernel: probe.machine.kernel.clone(),
            }),
            Read::Evidence(_) | Read::Figures => None,
        }
    }
}

/// The entries of a directory, by name, without hidden ones.
fn entries(directory: &Path) -> Result<Vec<PathBuf>, DatabaseError> {
    let wrong = |source| DatabaseError::Directory { path: directory.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(wrong)? {
        let path = entry.map_err(wrong)?.path();
        if !file_name(&path).starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// A directory's own path: `.` and links have no name of a record.
fn resolved(directory: &Path) -> PathBuf {
    directory.canonicalize().unwrap_or_else(|_| directory.to_owned())
}

/// Whether a directory has the name of a record.
fn is_record(directory: &Path) -> bool {
    names::parts(&file_name(directory)).is_some()
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
pub(crate) mod tests;

//! Processor models as files: those that a user names, and the one that a probe of this machine has
//! stored. What a model says is [`dimmer_processor::model`]'s; this module only finds and reads it.

use std::path::{Path, PathBuf};

use dimmer_processor::model::{BUILTIN, Model, ModelError, builtin};

use crate::bounded_file::{self, BoundedFileError};
use crate::cache;
use crate::machine::Machine;
use crate::root::Root;

/// Size limit of a model's file (bytes). The longest one has some 20 kB.
const LONGEST: u64 = 16 << 20;

/// Why there is no model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelFileError {
    /// Neither a model nor a file has this name.
    #[error("no model or file `{0}`; models: {known}", known = names())]
    Unknown(String),
    /// The file cannot be read.
    #[error(transparent)]
    Read(#[from] BoundedFileError),
    /// The content is wrong.
    #[error(transparent)]
    Content(#[from] ModelError),
}

fn names() -> String {
    BUILTIN.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ")
}

/// A model, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// The model.
    pub model: Model,
    /// The name or the file of the model.
    pub from: String,
}

/// Reads a model from a file.
///
/// # Errors
/// [`ModelFileError`]: the file cannot be read, or its content is wrong.
pub fn read(path: &Path) -> Result<Model, ModelFileError> {
    Ok(Model::parse(path, &bounded_file::read_to_string(path, LONGEST)?)?)
}

/// The built-in model of this name, otherwise the model in the file of this name.
///
/// # Errors
/// [`ModelFileError`].
pub fn named(name: &str) -> Result<Model, ModelFileError> {
    if let Some(text) = builtin(name) {
        return Ok(Model::parse(Path::new(name), text)?);
    }
    let path = Path::new(name);
    if path.exists() { read(path) } else { Err(ModelFileError::Unknown(name.to_owned())) }
}

/// Where models of all users of a machine are: those that its administrator provides, and those
/// that a probe of the machine's own has stored (`dimmer-probe.service`).
const SHARED: [&str; 2] = ["/etc/dimmer/models", "/var/lib/dimmer"];

/// The file of the model that a probe has stored for this kind of machine: the user's own, or else
/// one for all users; of both the most thorough one that exists.
#[must_use]
pub fn measured(root: &Root, machine: &Machine) -> Option<PathBuf> {
    let of_effort = [false, true];
    let own = of_effort.into_iter().filter_map(|quick| cache::model(machine, quick));
    let shared = SHARED.into_iter().flat_map(|directory| {
        let file = |quick| root.path(&format!("{directory}/{}", cache::model_name(machine, quick)));
        of_effort.map(file)
    });
    own.chain(shared).find(|path| path.exists())
}

/// The model that a user has named, otherwise the one that a probe has stored for this kind of
/// machine. `None` if there is neither.
///
/// # Errors
/// [`ModelFileError`].
pub fn choose(
    asked: Option<&str>,
    root: &Root,
    machine: &Machine,
) -> Result<Option<Chosen>, ModelFileError> {
    if let Some(name) = asked {
        return Ok(Some(Chosen { model: named(name)?, from: name.to_owned() }));
    }
    let chosen =
        |path: PathBuf| Ok(Chosen { model: read(&path)?, from: path.display().to_string() });
    measured(root, machine).map(chosen).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds of machines differ by microcode and hypervisor too.
    #[test]
    fn models_for_all_users_are_found_by_the_kind_of_machine() {
        use crate::cpuid::Cpuid;

        let directory = tempfile::tempdir().unwrap();
        let root = Root::new(directory.path());
        let machine = Machine {
            microcode: Some("0x1".to_owned()),
            // No machine has such a name, so no model of the user's is found.
            hypervisor: Some("made/up".to_owned()),
            ..Machine::read(&root, &Cpuid::instruction())
        };
        let found = |machine: &Machine| measured(&root, machine);
        assert_eq!(found(&machine), None);
        let store = |directory: &str, quick| {
            let name = cache::model_name(&machine, quick);
            assert!(name.contains("-0x1-made_up-"), "{name}");
            let path = root.path(&format!("{directory}/{name}"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, BUILTIN[0].1).unwrap();
            path
        };
        let quick = store("/var/lib/dimmer", true);
        assert_eq!(found(&machine), Some(quick));
        let full = store("/var/lib/dimmer", false);
        assert_eq!(found(&machine), Some(full));
        let given = store("/etc/dimmer/models", true);
        assert_eq!(found(&machine), Some(given));
        let other = Machine { microcode: Some("0x2".to_owned()), ..machine.clone() };
        assert_eq!(found(&other), None);
        let chosen = choose(None, &root, &machine).unwrap().unwrap();
        assert_eq!(chosen.model, named(BUILTIN[0].0).unwrap());
    }

    #[test]
    fn a_name_means_a_model_or_else_a_file() {
        let (name, text) = BUILTIN[0];
        let model = named(name).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("model.toml");
        std::fs::write(&file, text).unwrap();
        assert_eq!(named(file.to_str().unwrap()).unwrap(), model);
        let error = named("no-such").unwrap_err();
        assert!(error.to_string().contains("no model or file `no-such`"), "{error}");
        assert!(error.to_string().contains(name), "{error}");
        std::fs::write(&file, "[cloc]\n").unwrap();
        assert!(matches!(read(&file), Err(ModelFileError::Content(_))));
        assert!(matches!(read(directory.path()), Err(ModelFileError::Read(_))));
    }
}

//! Processor models as files: those that a user names, and the one that a probe of this machine has
//! stored. What a model says is [`dimmer_processor::model`]'s; this module only finds and reads it.

use std::path::{Path, PathBuf};

use dimmer_processor::model::{BUILTIN, Model, ModelError, builtin};

use crate::bounded_file::{self, BoundedFileError};
use crate::cache;
use crate::cpuid::Identity;

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

/// The file of the model that a probe has stored for this kind of processor: the most thorough one
/// that exists.
#[must_use]
pub fn measured(identity: &Identity) -> Option<PathBuf> {
    let files = [false, true].into_iter().filter_map(|quick| cache::model(identity, quick));
    files.into_iter().find(|path| path.exists())
}

/// The model that a user has named, otherwise the one that a probe has stored for this kind of
/// processor. `None` if there is neither.
///
/// # Errors
/// [`ModelFileError`].
pub fn choose(asked: Option<&str>, identity: &Identity) -> Result<Option<Chosen>, ModelFileError> {
    if let Some(name) = asked {
        return Ok(Some(Chosen { model: named(name)?, from: name.to_owned() }));
    }
    let chosen =
        |path: PathBuf| Ok(Chosen { model: read(&path)?, from: path.display().to_string() });
    measured(identity).map(chosen).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

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

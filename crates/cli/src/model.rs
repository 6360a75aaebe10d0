//! `dimmer sim model`: lists, shows and checks processor models.

use std::path::Path;
use std::process::ExitCode;

use dimmer_processor::model::{BUILTIN, Model, builtin};
use dimmer_report::model;

use crate::{args, output};
use crate::{bad_input, input};

pub(crate) fn run(arguments: &args::Model) -> anyhow::Result<ExitCode> {
    match arguments {
        args::Model::List => list()?,
        args::Model::Show { model } => output::print(&model::summary(&read(model)?))?,
        args::Model::Check { file } => {
            let model = read_file(file)?;
            output::print(&format!(
                "{}: a model of {}, {} levels, {} rules\n",
                file.display(),
                model.identity.name,
                model.levels.len(),
                model.rules.len()
            ))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn list() -> anyhow::Result<()> {
    let mut text = String::new();
    for (name, source) in BUILTIN {
        let identity = Model::parse(Path::new(name), source)?.identity;
        text += &format!("{name:<24} {} ({})\n", identity.name, identity.microarchitecture);
    }
    output::print(&text)
}

/// A model by name, or by file if no model has that name.
pub(crate) fn read(name: &str) -> anyhow::Result<Model> {
    if let Some(text) = builtin(name) {
        return Ok(Model::parse(Path::new(name), text)?);
    }
    let path = Path::new(name);
    if path.exists() {
        return read_file(path);
    }
    let names: Vec<&str> = BUILTIN.iter().map(|(name, _)| *name).collect();
    Err(bad_input(format!("no model or file `{name}`; models: {}", names.join(", "))))
}

pub(crate) fn read_file(path: &Path) -> anyhow::Result<Model> {
    Model::parse(path, &input::text(path)?).map_err(bad_input)
}

//! `dimmer sim model`: lists, shows and checks processor models.

use std::path::Path;
use std::process::ExitCode;

use dimmer_host::machine::Machine;
use dimmer_host::models::{self, Chosen, ModelFileError};
use dimmer_host::root::Root;
use dimmer_processor::model::{BUILTIN, Model};
use dimmer_report::model;

use crate::{args, bad_input, input, output};

pub(crate) fn run(arguments: &args::Model) -> anyhow::Result<ExitCode> {
    match arguments {
        args::Model::List => list()?,
        args::Model::Show { model } => output::print(&model::summary(&read(model)?))?,
        args::Model::Check { file } => {
            let model = models::read(file).map_err(refused)?;
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
    models::named(name).map_err(refused)
}

/// The model that defines which code requests which level, and its origin: the requested model, or
/// the result of a probe of this machine.
pub(crate) fn choose(
    asked: Option<&str>,
    machine: &Machine,
) -> anyhow::Result<Option<(Model, String)>> {
    let chosen = models::choose(asked, &Root::live(), machine).map_err(refused)?;
    Ok(chosen.map(|Chosen { model, from }| (model, from)))
}

fn refused(error: ModelFileError) -> anyhow::Error {
    match error {
        ModelFileError::Read(error) => input::unread(error),
        error => bad_input(error),
    }
}

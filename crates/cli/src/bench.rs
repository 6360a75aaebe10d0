//! `dimmer bench`: what Dimmer itself costs, and what it brings.

mod hook;

use std::process::ExitCode;

use crate::args::Bench;

pub(crate) fn run(arguments: &Bench) -> anyhow::Result<ExitCode> {
    match arguments {
        Bench::Hook(arguments) => hook::run(arguments),
    }
}

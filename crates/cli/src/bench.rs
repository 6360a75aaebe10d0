//! `dimmer bench`: what Dimmer itself costs, and what it brings.

mod hook;
mod nginx;

use std::process::ExitCode;

use dimmer_host::root::Root;

use crate::args::Bench;

pub(crate) fn run(root: &Root, arguments: &Bench) -> anyhow::Result<ExitCode> {
    match arguments {
        Bench::Hook(arguments) => hook::run(arguments),
        Bench::Nginx(arguments) => nginx::run(root, arguments),
    }
}

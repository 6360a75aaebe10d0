//! `dimmer scan --perf`: the share of a profile's samples in wide SIMD code.

use std::io::Read as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use dimmer_host::bounded_file;
use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::root::Root;
use dimmer_profile::code::{self, Places};
use dimmer_report::profile::{self, Report};
use dimmer_report::scan;

use crate::args::Scan;
use crate::output::{self, Output};
use crate::{bad_input, input};

/// Longest profile (bytes).
const LONGEST: u64 = 4 << 30;

pub(super) fn run(root: &Root, arguments: &Scan, file: &Path) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let folded = arguments.folded.as_deref().map(Output::open).transpose()?;
    let machine = Machine::read(&Root::live(), &Cpuid::instruction());
    let model = crate::model::choose(arguments.model.name(), &machine)?;
    let model = model.as_ref().map(|(model, from)| (model, from.as_str()));
    let limit = arguments.fail_on.as_ref().map(|name| scan::Report::new(model).limit(name));
    let limit = limit.transpose().map_err(|error| bad_input(format!("--fail-on: {error}")))?;
    let name = file.display().to_string();
    let read = dimmer_profile::read(&bytes(file)?);
    let read = read.map_err(|error| bad_input(format!("{name}: {error}")))?;
    let progress = super::progress();
    let files = code::Machine { root: root.clone(), maps: arguments.perf_maps.clone() };
    let places = Places::of(&read, &files, |file| {
        progress.set_message(output::printable(file, false));
        progress.tick();
    });
    progress.finish_and_clear();
    let report = Report::new(name, &read, &places, model);
    if let Some(folded) = folded {
        folded.write(&profile::folded(&read, &places, model.map(|(model, _)| model)))?;
    }
    output::show(json, &report, &report.text(output::screen()))?;
    match limit {
        Some(limit) => super::answer(report.reaching(&limit), report.failed()),
        None => Ok(ExitCode::SUCCESS),
    }
}

fn bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    if file == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().lock().take(LONGEST + 1).read_to_end(&mut bytes);
        read.context("cannot read standard input")?;
        if bytes.len() as u64 > LONGEST {
            return Err(bad_input(format!("standard input is longer than {LONGEST} bytes")));
        }
        return Ok(bytes);
    }
    bounded_file::read(file, LONGEST).map_err(input::unread)
}

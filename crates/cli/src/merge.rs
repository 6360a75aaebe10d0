//! `dimmer merge`: the results of many probes side by side.

use std::process::ExitCode;

use dimmer_fleet::document::Document;
use dimmer_report::merge::Report;

use crate::args::Merge;
use crate::bad_input;
use crate::exit;
use crate::input::distinct;
use crate::output::{self, Output};

pub(crate) fn run(arguments: &Merge) -> anyhow::Result<ExitCode> {
    let json = arguments.json.open()?;
    let csv = arguments.csv.as_deref().map(Output::open).transpose()?;
    let parquet = arguments.parquet.as_deref().map(Output::open).transpose()?;
    let (mut probes, mut left_out) = (Vec::new(), 0);
    let files = distinct(&arguments.files);
    for file in &files {
        match Document::read(file) {
            Ok(probe) => probes.push(probe),
            Err(error) if files.len() == 1 => return Err(wrong(error)),
            Err(error) => {
                left_out += 1;
                eprintln!("warning: left out: {:#}", anyhow::Error::from(error));
            }
        }
    }
    if probes.is_empty() {
        return Err(bad_input("none of the files is the JSON of `dimmer probe`"));
    }
    let report = Report::new(&probes);
    if let Some(csv) = csv {
        csv.write(&report.csv()?)?;
    }
    if let Some(parquet) = parquet {
        parquet.write(&report.parquet()?)?;
    }
    output::show(json, &report, &report.text(output::screen()))?;
    Ok(if left_out == 0 { ExitCode::SUCCESS } else { ExitCode::from(exit::FAILED) })
}

/// The reason too, as a library's error leaves it to its source.
pub(crate) fn wrong(error: dimmer_fleet::document::DocumentError) -> anyhow::Error {
    bad_input(format!("{:#}", anyhow::Error::from(error)))
}

//! `dimmer study`: compares mechanisms on workloads and processor models, in the simulator.

use std::path::Path;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context;
use dimmer_host::{cpuid::Cpuid, interrupt::Interrupt, machine::Machine, root::Root};
use dimmer_report::study::{Document, auto};
use dimmer_study::auto::{Length, judge_all};
use dimmer_study::cache::Cache;
use dimmer_study::matrix::{Follower, Named, Plan};

use crate::input::distinct;
use crate::{args, bad_input, model, output, probe, progress, sim};

pub(crate) fn run(arguments: &args::Study) -> anyhow::Result<ExitCode> {
    let begin = SystemTime::now();
    let (json, page) = (arguments.json.open()?, arguments.page.open()?);
    arguments.cache.as_deref().map_or(Ok(()), output::directory)?;
    let plan = Plan {
        scenarios: Named::all(&distinct(&arguments.scenarios), |name| {
            sim::scenario(Path::new(name))
        })?,
        models: Named::all(&distinct(&arguments.models), |name| model::read(name))?,
        mechanisms: arguments.mechanisms.clone(),
        seeds: arguments.seeds,
        jobs: arguments.jobs.map_or(0, usize::from),
    };
    let cache = Cache::new(arguments.cache.as_deref());
    let interrupt = Interrupt::install().context("cannot handle signals")?;
    let bar = progress::bar(1000);
    let stops = || interrupt.is_set();
    let advances = |complete: usize, of: usize| {
        bar.set_position(progress::thousandths(complete as f64 / of as f64));
        bar.set_message(format!("{complete} of {of}"));
    };
    let followed = Follower { stops: &stops, advances: &advances };
    if let Some(seconds) = arguments.auto {
        let length = Length::of(seconds as usize);
        let cases = judge_all(&plan, length, &cache, &followed).map_err(bad_input)?;
        bar.finish_and_clear();
        let document = auto::Document::new(&plan, length, &cases);
        output::show(json, &document, &document.text(output::screen(), output::is_verbose()))?;
        return Ok(output::end(&interrupt));
    }
    let cases = plan.carry_out(&cache, &followed).map_err(bad_input)?;
    let turns = arguments.sensitivity.then(|| plan.sensitivity(&cases, &cache, &followed));
    let turns = turns.transpose().map_err(bad_input)?.unwrap_or_default();
    bar.finish_and_clear();
    let document = Document::new(&plan, &cases, &turns);
    if let Some(page) = page {
        let machine = Machine::read(&Root::live(), &Cpuid::instruction());
        page.write(&document.page(&probe::description(&machine, begin)))?;
    }
    output::show(json, &document, &document.text(output::screen(), output::is_verbose()))?;
    Ok(output::end(&interrupt))
}

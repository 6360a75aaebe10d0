//! `dimmer phases`: a program's control-flow graph, its profile, and an assessment of its marks.

mod energy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use dimmer_host::cpuid::Cpuid;
use dimmer_host::machine::Machine;
use dimmer_host::pstate::words::Cpus;
use dimmer_host::root::Root;
use dimmer_launch::trips;
use dimmer_policy::phases::{self, Assessment, Graph, Profile, Threshold};
use dimmer_processor::units::Nanos;
use dimmer_report::phase_graph::{By, Found, PhaseGraph, meaning};

use crate::args::{self, Chosen};
use crate::output::{self, Output};
use crate::run::cores;
use crate::{bad_input, input, probe};

pub(crate) fn run(root: &Root, arguments: &args::PhaseGraph) -> anyhow::Result<ExitCode> {
    let begin = SystemTime::now();
    let metric = arguments.metric.metric();
    let energy = &arguments.energy;
    let for_energy = [
        ("--model", energy.model.name().is_some()),
        ("--slow", energy.slow.is_some()),
        ("--slower", energy.slower.is_some()),
        ("--deadline", energy.deadline.is_some()),
        ("--miss", energy.miss.is_some()),
    ];
    let set = for_energy.iter().find(|(_, is_set)| *is_set);
    if let Some((option, _)) = set.filter(|_| arguments.threshold != Chosen::Energy) {
        return Err(bad_input(format!("{option} is for `--threshold energy`")));
    }
    let graph = read(&arguments.files)?;
    // By printed rates, as the paper's scripts make it: the same graph gives the same profile.
    let profile = Profile::weighted(&graph, |_, _, counts| metric.printed(counts));
    let migration = match arguments.migration {
        Some(migration) => Some(migration),
        None => measured(root, arguments.cpus.cpus.as_ref(), &graph)?,
    };
    let (threshold, by) = match arguments.threshold {
        Chosen::Gap => (Threshold::largest_gap(&profile), By::Gap),
        Chosen::ByHand(threshold) => (Some(threshold), By::Hand),
        Chosen::Energy => {
            let (solution, solved) = energy::solved(arguments, &graph, &profile, migration)?;
            (Some(solution.threshold), By::Energy(solved))
        }
    };
    let outputs = Outputs::open(arguments)?;
    let shortest = migration.unwrap_or(Nanos::ZERO);
    let findings = Assessment { metric, threshold, shortest }.of(&graph, &profile);
    let found = Found { graph, metric, profile, threshold, by, migration, findings };
    outputs.write(found, begin)?;
    Ok(ExitCode::SUCCESS)
}

/// The sum of the graphs in files.
fn read(files: &[PathBuf]) -> anyhow::Result<Graph> {
    let mut graph = Graph::default();
    for file in files {
        let (name, text) = if file == Path::new("-") {
            ("standard input".to_owned(), input::standard()?)
        } else {
            (file.display().to_string(), input::text(file)?)
        };
        let read =
            Graph::from_text(&text).map_err(|error| bad_input(format!("{name}: {error}")))?;
        if read.edges().next().is_none() {
            return Err(bad_input(format!(
                "{name} has no edge, expected some, each as `START -> END` and lines of counts: \
                 see docs/phases.md"
            )));
        }
        graph.merge(&read);
    }
    Ok(graph)
}

/// The time of a migration there and back on this machine, if an edge has a time to compare with
/// it.
///
/// # Errors
/// If it cannot be measured on the CPUs that the user asked for.
fn measured(root: &Root, asked: Option<&Cpus>, graph: &Graph) -> anyhow::Result<Option<Nanos>> {
    if graph.edges().all(|edge| edge.2.spent.time.is_none()) {
        return Ok(None);
    }
    let took = cores(root, asked)
        .and_then(|cpus| trips::round_trips(root, &cpus).map_err(anyhow::Error::from));
    match took {
        Ok(took) => Ok(took.migrated.quantile(0.5).map(Nanos::rounded)),
        Err(error) if asked.is_some() => Err(error),
        Err(error) => {
            eprintln!(
                "note: cannot measure how long a migration takes, so no edge is too short for one \
                 (--migration TIME): {error:#}"
            );
            Ok(None)
        }
    }
}

/// The outputs, opened before anything is measured.
struct Outputs {
    profile: Option<Output>,
    dot: Option<Output>,
    svg: Option<Output>,
    json: Option<Output>,
    page: Option<Output>,
}

impl Outputs {
    fn open(arguments: &args::PhaseGraph) -> anyhow::Result<Self> {
        let args::PhaseGraph { profile, dot, svg, json, page, .. } = arguments;
        let wanted = [profile, dot, svg, &json.json, &page.report];
        if wanted.into_iter().flatten().filter(|path| *path == Path::new("-")).count() > 1 {
            return Err(bad_input(
                "of --profile, --dot, --svg, --json and --page, at most one can go to standard \
                 output: name files for the others, as in --svg=FILE",
            ));
        }
        let open = |path: &Option<PathBuf>| path.as_deref().map(Output::open).transpose();
        Ok(Self {
            profile: open(profile)?,
            dot: open(dot)?,
            svg: open(svg)?,
            json: json.open()?,
            page: page.open()?,
        })
    }

    fn write(self, found: Found, begin: SystemTime) -> anyhow::Result<()> {
        let Self { profile, dot, svg, json, page } = self;
        let has_text =
            ![&profile, &dot, &svg, &json, &page].into_iter().flatten().any(Output::is_standard);
        if profile.is_some() && found.profile.values().next().is_none() {
            eprintln!(
                "dimmer: the profile is empty: the graph has no counts that give {}; a profile may \
                 also be written by hand (docs/phases.md)",
                meaning(found.metric)
            );
        }
        profile.map_or(Ok(()), |to| to.write(&found.profile.to_text()))?;
        dot.map_or(Ok(()), |to| to.write(&phases::dot(&found.graph, found.metric)))?;
        let graph = PhaseGraph::new(found);
        if has_text {
            output::print(&graph.text(output::screen()))?;
        }
        svg.map_or(Ok(()), |to| to.write(&graph.svg()))?;
        if let Some(page) = page {
            let machine = Machine::read(&Root::live(), &Cpuid::instruction());
            page.write(&graph.page(&probe::description(&machine, begin)))?;
        }
        json.map_or(Ok(()), |to| to.write_json(&graph.document()))
    }
}

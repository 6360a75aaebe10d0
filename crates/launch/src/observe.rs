//! Programs whose calls are observed: by hooks, from their start, or counted from outside.

mod plans;
mod uprobes;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dimmer_host::relay::Relay;
use dimmer_host::usage::Usage;
use dimmer_observe::{FunctionPlace, INTERVAL, Observed, Observer};
use dimmer_policy::phases::{Choice, Graph};
use dimmer_processor::class::InstructionClass;

use crate::follow::follow;
use crate::named::{self, Plans, Wanted};
use crate::program::{self, Program};
use crate::{LaunchError, cache, marks, preload};

pub use crate::marks::Marks;
pub use uprobes::{attach, start as start_counted};

/// What to observe of a program that is started.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// The program and its arguments.
    pub command: &'a [OsString],
    /// Classes whose functions are hooked, if none are named.
    pub classes: &'a [InstructionClass],
    /// Functions to hook instead.
    pub functions: &'a [Wanted],
    /// Functions whose entries are marks, and that are hooked instead, if any are.
    pub marks: Option<Marks<'a>>,
    /// After this time the program is ended.
    pub after: Option<Duration>,
    /// Whether all threads are traced, by timing all their calls.
    pub is_traced: bool,
    /// Functions whose calls start requests, if threads are traced.
    pub requests: &'a [Wanted],
}

impl Options<'_> {
    /// The deadline, if the preparations end now.
    fn deadline(&self) -> Option<Instant> {
        self.after.map(|after| Instant::now() + after)
    }
}

/// What was observed.
#[derive(Debug)]
pub struct Seen {
    /// The program and its arguments, or the process.
    pub command: Vec<String>,
    /// The exit status, if the program was started here.
    pub status: Option<ExitStatus>,
    /// What the program and its children used. If they were not started here, only the time on
    /// CPUs is known.
    pub usage: Usage,
    /// What its hooks or counters have counted.
    pub observed: Observed,
    /// What ran between marks, or why that is not known. Empty without marks.
    pub graph: Result<Graph, String>,
    /// The marks of the graph, if they were chosen.
    pub choice: Option<Choice>,
    /// Where plans for its files are that contain the number of functions of the classes.
    pub plans: Option<PathBuf>,
}

/// Starts a program with hooks in it, and follows it to its end.
///
/// # Errors
/// [`LaunchError`]: there is no such program, it takes no hooks, or it has no such functions.
pub fn start(options: &Options<'_>) -> Result<Seen, LaunchError> {
    let Options { command: words, classes, .. } = *options;
    let program = Program::find(words)?;
    program.check_preload()?;
    let mut observer = Observer::new();
    let mut command = program.command(words);
    let requests = requests(&program, options.requests)?;
    // Named functions have their own plans. For files that are loaded later there is no class to
    // make a plan for.
    let named = named_plans(&program, options)?;
    // Plans for classes are kept for the next run, unless functions that start requests are added.
    let plans = if named.is_none() && requests.is_none() { cache::plans(classes) } else { None };
    if let Ok(observer) = &mut observer {
        let environment = match (&named, &requests) {
            (Some(plans), _) => observer.environment(&[], Some(plans.directory.path())),
            (None, Some(plans)) => observer.environment(classes, Some(plans.directory.path())),
            (None, None) => observer.environment(classes, plans.as_deref()),
        };
        if named.is_none() {
            plans::prepare(&program, classes, &environment);
        }
        if options.is_traced {
            observer.trace(requests.as_ref().map(places).unwrap_or_default());
        }
        if let Some(requests) = &requests {
            let directory = named.as_ref().unwrap_or(requests).directory.path();
            for one in &requests.functions {
                dimmer_hook::add_to_plan(&one.file, &one.entries, directory)
                    .map_err(LaunchError::Plan)?;
            }
        }
        command.envs(environment);
        preload::preload(&mut command)?;
        match (options.marks, &named) {
            (Some(Marks::Named(_)), Some(plans)) => marks::set_environment(&mut command, plans),
            (Some(Marks::Chosen), Some(plans)) => marks::set_choosing(&mut command, plans),
            _ => {}
        }
    }
    let begun = Instant::now();
    let before = Usage::of_ended_children();
    let interval = observer.as_ref().map_or(INTERVAL, Observer::interval);
    let relay = Relay::begin().map_err(LaunchError::Signals)?;
    let mut child = program.spawn(&command, &relay)?;
    let look = |_| {
        observer.iter_mut().for_each(Observer::look);
        interval
    };
    let status = follow(&mut child, options.deadline(), &relay, look)?;
    drop(relay);
    let usage = Usage::of_ended_children().since(before);
    let observed = match observer {
        Ok(observer) => observer.finish(),
        Err(why) => {
            Observed::nothing(begun.elapsed(), format!("The program ran unobserved: {why}."))
        }
    };
    let graph = named.as_ref().map(|plans| marks::graph(plans.directory.path()));
    let mut graph = graph.unwrap_or_else(|| Ok(Graph::default()));
    let mut choice = None;
    if let (Some(Marks::Chosen), Some(plans), Ok(all)) = (options.marks, &named, &mut graph) {
        let chosen = marks::choose(all, plans, &observed);
        all.clone_from(&chosen.graph);
        choice = Some(chosen);
    }
    let command = program::shown(words);
    Ok(Seen { command, status: Some(status), usage, observed, graph, choice, plans })
}

/// The plans for functions that are named, if any are.
fn named_plans(program: &Program, options: &Options<'_>) -> Result<Option<Plans>, LaunchError> {
    if let Some(marks) = options.marks {
        return marks.plans(program).map(Some);
    }
    let functions = options.functions;
    (!functions.is_empty()).then(|| named::plans(program, functions)).transpose()
}

/// Where these functions of a program are, in a place for plans that has no plan yet. `None` if
/// there are none.
fn requests(program: &Program, wanted: &[Wanted]) -> Result<Option<Plans>, LaunchError> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let (functions, _) = named::find(program, wanted)?;
    Plans::write(std::iter::empty(), functions).map(Some)
}

/// The entries of planned functions.
fn places(plans: &Plans) -> BTreeSet<FunctionPlace> {
    let places = plans.functions.iter().flat_map(|one| {
        let file: Arc<Path> = one.file.as_path().into();
        let place = move |address| FunctionPlace { file: Arc::clone(&file), address };
        one.entries.iter().map(move |entry| place(entry.address))
    });
    places.collect()
}

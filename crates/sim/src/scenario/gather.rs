//! From what files contain to a scenario: what must be there, and what counts for all threads.

use std::path::Path;
use std::sync::Arc;

use super::document::{
    Key, LONGEST_NAME, MOST_CORES, MOST_STEPS, MOST_THREADS, MOST_WRITTEN, Part, Placed, SCHEMA,
    Table, ThreadDocument, within,
};
use super::steps::{Names, Numbered, StepError};
use super::{Scenario, ScenarioError, Thread};
use crate::{Moment, Picos, index};

impl Part {
    /// The scenario; `path` is the file that it was read from.
    pub(super) fn scenario(&self, path: &Path) -> Result<Scenario, ScenarioError> {
        let refused = |message: String| ScenarioError { path: path.to_owned(), message };
        let missing = |key: &str, what: &str| refused(format!("`{key}` is missing: {what}"));
        if self.schema.is_none() {
            return Err(missing("schema", &format!("expected \"{SCHEMA}\"")));
        }
        let name = of(&self.name).ok_or_else(|| missing("name", "the scenario's title"))?;
        let source = "the experiment that the scenario recreates";
        let source = of(&self.source).ok_or_else(|| missing("source", source))?;
        let model = "the processor model that the scenario is meant for";
        let model = self.model.as_ref().ok_or_else(|| missing("model", model))?;
        let cores = format!("expected 1 to {MOST_CORES}");
        let cores = of(&self.cores).ok_or_else(|| missing("cores", &cores))?;
        let threads_per_core = of(&self.threads_per_core).unwrap_or(1);
        let smt_share = of(&self.smt_share);
        if threads_per_core > 1 && smt_share.is_none() {
            let what = "what each of several busy hardware threads has of its core";
            return Err(missing("smt_share", what));
        }
        if let Some(wide) = self.wide_cores.as_ref().filter(|wide| wide.value >= cores) {
            let message =
                format!("`wide_cores` is {}, expected fewer than the {cores} `cores`", wide.value);
            return Err(wide.place.refuse(message));
        }
        if self.threads.is_empty() {
            return Err(refused("no `[[thread]]`: there is nothing to run".to_owned()));
        }
        let end = of(&self.end);
        let cpus = index(cores * threads_per_core);
        let mut gathered = Gathered {
            names: Names {
                code: self.code.iter().map(|code| (code.name.clone(), code.value)).collect(),
                distributions: self
                    .distributions
                    .iter()
                    .map(|one| (one.name.clone(), Arc::clone(&one.value)))
                    .collect(),
                pstates: Numbered::default(),
                regions: Numbered::default(),
                marks: Numbered::default(),
            },
            cpus,
            end,
            programs: Numbered::default(),
            steps: 0.0,
            written: 0,
            threads: Vec::new(),
        };
        for Table { name, place, value } in self.threads.iter().map(|thread| &**thread) {
            let added = gathered.add(value);
            added.map_err(|error| place.refuse(format!("thread `{name}`{error}")))?;
        }
        let marks = gathered.names.marks.names;
        if let Some(phases) = &self.phases {
            let checked = phases.value.fits(cpus, &marks);
            checked.map_err(|error| phases.place.refuse(error))?;
        }
        self.fit(cores)?;
        let region_kib = self.regions_entered(&gathered.names.regions)?;
        Ok(Scenario {
            name,
            source,
            model: model.value.clone(),
            model_place: model.place.clone(),
            cores,
            threads_per_core,
            smt_share: smt_share.unwrap_or(1.0),
            idle_states: of(&self.idle_states).unwrap_or(false),
            scheduler: of(&self.scheduler).unwrap_or_default(),
            pstate: of(&self.pstate),
            pstates: gathered.names.pstates.names,
            region_kib,
            end,
            hand_over_ns: of(&self.hand_over).map(Picos::ns),
            wide_cores: of(&self.wide_cores),
            core_pstates: of(&self.core_pstates).unwrap_or_default(),
            mwait_cores: of(&self.mwait_cores).unwrap_or_default(),
            phases: of(&self.phases),
            marks,
            usual_steps: gathered.steps,
            threads: gathered.threads,
        })
    }
}

impl Part {
    /// The regions whose data are known: their numbers and data (KiB).
    fn regions_entered(&self, entered: &Numbered) -> Result<Vec<(usize, u64)>, ScenarioError> {
        let of = |table: &Arc<Table<u64>>| {
            let number = entered.names.iter().position(|name| *name == table.name);
            let number = number.ok_or_else(|| {
                table.place.refuse(format!("region `{}` is entered by no thread", table.name))
            });
            Ok((number?, table.value))
        };
        self.regions.iter().map(of).collect()
    }

    /// Checks that what is said of each core fits their number.
    fn fit(&self, cores: u32) -> Result<(), ScenarioError> {
        if let Some(names) =
            self.core_pstates.as_ref().filter(|names| names.value.len() != index(cores))
        {
            let found = names.value.len();
            let message = format!(
                "`core_pstates` has {found} P-states, expected one for each of {cores} cores"
            );
            return Err(names.place.refuse(message));
        }
        let beyond = |waiting: &&Arc<Placed<Vec<usize>>>| {
            waiting.value.iter().any(|core| *core >= index(cores))
        };
        match self.mwait_cores.as_ref().filter(beyond) {
            None => Ok(()),
            Some(waiting) => {
                let message = format!("`mwait_cores`: expected cores from 0 to {}", cores - 1);
                Err(waiting.place.refuse(message))
            }
        }
    }
}

/// The value of a key, if it is there.
fn of<T: Clone>(key: &Key<T>) -> Option<T> {
    key.as_ref().map(|placed| placed.value.clone())
}

/// Threads that were checked so far, and what counts for all of them.
struct Gathered {
    names: Names,
    cpus: usize,
    end: Option<Moment>,
    programs: Numbered,
    /// How many steps they take at most, and how many they have as written.
    steps: f64,
    written: usize,
    threads: Vec<Thread>,
}

impl Gathered {
    /// Adds the threads of a table.
    fn add(&mut self, document: &ThreadDocument) -> Result<(), StepError> {
        let ThreadDocument { name, program, count, .. } = document;
        let count = count.map(|count| within("count", count, 1, MOST_THREADS)).transpose()?;
        let program = program.as_ref().unwrap_or(name);
        if program.len() > LONGEST_NAME {
            let length = program.len();
            return Err(
                format!("`program` has {length} bytes, expected at most {LONGEST_NAME}").into()
            );
        }
        let mut thread = document.check(&mut self.names, self.cpus, self.end.is_some())?;
        thread.program = (self.programs.number(program) as u64, program.clone());
        let number = count.unwrap_or(1);
        self.written += thread.steps.written * number;
        if self.written > MOST_WRITTEN {
            return Err(format!(
                "with it, the threads have {} steps as written, expected at most {MOST_WRITTEN}",
                self.written
            )
            .into());
        }
        self.steps += thread.steps_taken(self.end) * number as f64;
        if self.steps > MOST_STEPS {
            return Err(format!(
                "with it, the threads take up to {:.3e} steps, expected at most {MOST_STEPS}: with \
                 less in `times`, `repeat`, `count` or `end_us`, or with longer steps or \
                 `every_us`",
                self.steps
            )
            .into());
        }
        let all = self.threads.len() + number;
        if all > MOST_THREADS {
            return Err(format!(
                "with it, there are {all} threads or more, expected at most {MOST_THREADS}"
            )
            .into());
        }
        self.threads.extend(thread.equals(count, self.cpus)?);
        Ok(())
    }
}

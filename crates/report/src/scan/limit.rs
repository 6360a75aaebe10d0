//! What the functions of scanned files must not ask for: `dimmer scan --fail-on`.

use dimmer_processor::class::InstructionClass;

use super::{Report, WideFunction};
use crate::number::counted;

/// A class or a license level, from which on functions are too demanding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This class, and more demanding ones.
    Class(InstructionClass),
    /// This level of the model, and higher ones, by its place among them.
    Level(usize),
}

/// A text that is no limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown class or level `{found}`; expected {accepted}")]
pub struct UnknownLimit {
    found: String,
    accepted: String,
}

impl Limit {
    /// Whether code of this most demanding class and level reaches it.
    ///
    /// * `levels`: the names of the model's levels, the least demanding first.
    pub(crate) fn is_reached(
        &self,
        class: Option<InstructionClass>,
        level: Option<&str>,
        levels: &[String],
    ) -> bool {
        match self {
            Self::Class(limit) => class >= Some(*limit),
            Self::Level(limit) => {
                level.and_then(|level| levels.iter().position(|one| one == level)) >= Some(*limit)
            }
        }
    }
}

impl Report {
    /// The limit of this name: a class of more than 128 bits, or a level of the model.
    ///
    /// # Errors
    /// [`UnknownLimit`] has the accepted names.
    pub fn limit(&self, name: &str) -> Result<Limit, UnknownLimit> {
        let wide =
            || InstructionClass::ALL.into_iter().filter(|c| *c >= InstructionClass::Light256);
        // The first level is that of code that asks for nothing.
        let levels = self.model.as_ref().map_or(&[][..], |model| &model.levels);
        let level = levels.iter().position(|level| level == name).filter(|level| *level > 0);
        let class = wide().find(|class| class.name() == name).map(Limit::Class);
        class.or(level.map(Limit::Level)).ok_or_else(|| {
            let classes: Vec<&str> = wide().map(InstructionClass::name).collect();
            let levels = match levels.get(1..).filter(|levels| !levels.is_empty()) {
                Some(levels) => levels.join(", "),
                None if self.model.is_some() => "no level, as the model has one only".to_owned(),
                None => "with --model, a license level of its".to_owned(),
            };
            let accepted = format!("{}, or {levels}", classes.join(", "));
            UnknownLimit { found: name.to_owned(), accepted }
        })
    }

    /// What reaches the limit, in words; `None` if nothing does.
    pub fn reaching(&self, limit: &Limit) -> Option<String> {
        let levels = self.model.as_ref().map_or(&[][..], |model| &model.levels);
        let reaches = |function: &&WideFunction| {
            limit.is_reached(function.class.parse().ok(), function.level.as_deref(), levels)
        };
        let found = self.files.iter().filter_map(|file| {
            let functions = file.scan.wide_functions.iter().filter(reaches);
            let number = functions.clone().count();
            let first = functions.max_by_key(|function| function.wide_instructions)?;
            let first = dimmer_scan::title(first.name.as_deref(), first.address);
            Some(format!("{}: {}, as {first}", file.path, counted(number, "function")))
        });
        let found: Vec<String> = found.collect();
        (!found.is_empty()).then(|| found.join("\n"))
    }

    /// The number of files that could not be scanned.
    pub fn failed(&self) -> usize {
        self.failed.len()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use dimmer_processor::model::{Model, builtin};

    use super::*;
    use crate::scan::FileScan;

    /// A report of one file with functions of these classes.
    fn report(model: Option<&Model>, classes: &[&str]) -> Report {
        let mut scan = FileScan::of(&dimmer_scan::Scan::default(), |_| true);
        let function = |class: &&str| WideFunction {
            name: Some(format!("of_{class}")),
            class: (*class).to_owned(),
            instructions: [((*class).to_owned(), 1)].into(),
            wide_instructions: 1,
            ..WideFunction::default()
        };
        scan.wide_functions = classes.iter().map(function).collect();
        let mut report = Report::new(model.map(|model| (model, "a test")));
        report.add("/lib".to_owned(), scan, model);
        report
    }

    fn reaches(model: Option<&Model>, classes: &[&str], limit: &str) -> Option<String> {
        let report = report(model, classes);
        report.reaching(&report.limit(limit).unwrap())
    }

    #[test]
    fn functions_reach_classes_and_levels() {
        let classes = ["light-256", "heavy-256"];
        assert_eq!(reaches(None, &classes, "light-512"), None);
        assert_eq!(
            reaches(None, &classes, "heavy-256").unwrap(),
            "/lib: 1 function, as of_heavy-256"
        );
        assert!(reaches(None, &classes, "light-256").unwrap().starts_with("/lib: 2 functions"));
        let model = Model::parse(Path::new("m"), builtin("i9-7940x").unwrap()).unwrap();
        assert_eq!(reaches(Some(&model), &classes, "L2"), None);
        assert!(reaches(Some(&model), &classes, "L1").unwrap().contains("of_heavy-256"));
        assert!(reaches(Some(&model), &["heavy-512"], "L2").is_some());
        assert_eq!(reaches(Some(&model), &[], "L1"), None);
    }

    #[test]
    fn an_unknown_limit_says_what_is_accepted() {
        let model = Model::parse(Path::new("m"), builtin("i9-7940x").unwrap()).unwrap();
        let refused = |model, name: &str| report(model, &[]).limit(name).unwrap_err().to_string();
        let text = refused(Some(&model), "L0");
        let expected = "unknown class or level `L0`; expected light-256, heavy-256, light-512, heavy-512, tile, or L1, L2";
        assert_eq!(text, expected);
        assert!(refused(None, "L2").ends_with("or with --model, a license level of its"));
        assert!(refused(None, "scalar").contains("expected light-256"));
    }
}

//! Sections that begin and end with functions which the user names: what to hook for them.

use std::path::PathBuf;
use std::process::Command;

use dimmer_contention::ledger::Kind;
use dimmer_contention::sections::{self, MOST};
use dimmer_hook::PlannedEntry;
use dimmer_observe::{Observed, Observer};
use dimmer_scan::Code;

use crate::LaunchError;
use crate::named::{self, Plans, Wanted};
use crate::preload;
use crate::program::Program;

/// The words between the functions of a section.
const TO: &str = "..";

/// A section, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Section {
    /// The user's words.
    pub(crate) name: String,
    /// The file of its first function.
    pub(crate) file: PathBuf,
    /// Offset of that function in the file.
    pub(crate) offset: u64,
    /// Whether it has a last function.
    is_pair: bool,
}

impl Section {
    pub(crate) const fn kind(&self) -> Kind {
        if self.is_pair { Kind::Section } else { Kind::Function }
    }
}

/// The sections of a run, whose calls are watched.
#[derive(Debug)]
pub(crate) struct Sections {
    pub(crate) all: Vec<Section>,
    /// Follows the processes with hooks: what they could not hook is in its report.
    pub(crate) observer: Observer,
    /// What to hook; removed at the end of the run.
    _plans: Plans,
}

impl Sections {
    /// The sections, and what was not seen of them.
    pub(crate) fn finish(self) -> (Vec<Section>, Vec<String>) {
        let Observed { files, unreadable, .. } = self.observer.finish();
        let problems = files.into_iter().filter(|(_, problem)| !problem.is_empty());
        let problems = problems.map(|(file, why)| format!("{}: {why}", file.display()));
        (self.all, problems.chain(unreadable).collect())
    }
}

/// Splits `FIRST..LAST`. Three dots are part of a name in C++, as in `f(int, ...)`, and two of a
/// path, as in `../libx.so:0x10`.
fn split(text: &str) -> Result<(&str, Option<&str>), LaunchError> {
    let is_it = |at: &usize| {
        let (before, after) = (&text[..*at], &text[at + TO.len()..]);
        let is_of_path = (before.is_empty() || before.ends_with('/')) && after.starts_with('/');
        !before.ends_with('.') && !after.starts_with('.') && !is_of_path
    };
    let found: Vec<usize> = text.match_indices(TO).map(|(at, _)| at).filter(is_it).collect();
    let (first, last) = match *found {
        [] => (text, None),
        [at] => (&text[..at], Some(&text[at + TO.len()..])),
        _ => return Err(LaunchError::NoSection { section: text.to_owned() }),
    };
    if first.is_empty() || last == Some("") {
        return Err(LaunchError::NoSection { section: text.to_owned() });
    }
    Ok((first, last))
}

/// A function of a section, once.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Function {
    file: PathBuf,
    address: u64,
    entries: Vec<PlannedEntry>,
    title: String,
}

/// Prepares a program for sections that the user names, by what hooks its functions.
///
/// # Errors
/// [`LaunchError`]: what is named is no section, or a function is not there, is one of several, or
/// cannot be hooked.
pub(crate) fn prepare(
    program: &Program,
    command: &mut Command,
    asked: &[String],
) -> Result<Option<Sections>, LaunchError> {
    if asked.is_empty() {
        return Ok(None);
    }
    if asked.len() > MOST {
        return Err(LaunchError::TooManySections { found: asked.len(), most: MOST });
    }
    let pairs = asked.iter().map(|text| split(text)).collect::<Result<Vec<_>, _>>()?;
    let names = pairs.iter().flat_map(|(first, last)| [Some(*first), *last]).flatten();
    let wanted: Vec<Wanted> = names.map(Wanted::parse).collect();
    // Which section each of these is of.
    let of = pairs.iter().enumerate().flat_map(|(number, (_, last))| {
        std::iter::repeat_n(number, 1 + usize::from(last.is_some()))
    });
    let of: Vec<usize> = of.collect();
    let (found, files) = named::find_one_each(program, &wanted, planned).map_err(
        |named::NotFound { at, why, files }| {
            let section = asked[of[at]].clone();
            LaunchError::Section { section, why: Box::new(why), files }
        },
    )?;
    let (functions, numbers) = numbered(found);
    let mut numbers = numbers.into_iter();
    let mut all = Vec::new();
    let mut words = Vec::new();
    for (name, (_, last)) in asked.iter().zip(&pairs) {
        let (Some(first), last) = (numbers.next(), last.and_then(|_| numbers.next())) else {
            break;
        };
        words.push((first, last));
        let Function { file, address, .. } = &functions[first];
        all.push(Section {
            name: name.clone(),
            file: file.clone(),
            offset: offset(file, *address),
            is_pair: last.is_some(),
        });
    }
    let entries = functions.into_iter().enumerate().map(|(number, function)| named::Planned {
        file: function.file,
        title: function.title,
        entries: function
            .entries
            .into_iter()
            .map(|entry| PlannedEntry { mark: u32::try_from(number).ok(), ..entry })
            .collect(),
    });
    let plans = Plans::write(files.iter().map(PathBuf::as_path), entries.collect())?;
    let observer = Observer::new().map_err(LaunchError::LockPlace)?;
    preload::preload(command)?;
    command.envs(observer.environment(&[], Some(plans.directory.path())));
    command.env(dimmer_hook::SECTIONS, "1");
    command.env(dimmer_contention::SECTIONS, sections::text(&words));
    Ok(Some(Sections { all, observer, _plans: plans }))
}

/// The functions once each, and the number of each that was found.
fn numbered(found: Vec<Function>) -> (Vec<Function>, Vec<usize>) {
    let mut functions: Vec<Function> = Vec::new();
    let number = |function: Function| {
        let is_same =
            |known: &Function| (&known.file, known.address) == (&function.file, function.address);
        functions.iter().position(is_same).unwrap_or_else(|| {
            functions.push(function);
            functions.len() - 1
        })
    };
    let numbers = found.into_iter().map(number).collect();
    (functions, numbers)
}

/// A function, hooked at its entries, which must be all that calls come to: others would be missed.
/// Not the functions that lead into it: their calls need not go on there.
fn planned((file, function): named::Found<'_>) -> Result<Function, LaunchError> {
    let title = named::title(function);
    let called = function.entries.iter().filter(|entry| entry.is_called).map(|entry| entry.hook);
    if let Some(reason) = [function.hook].into_iter().chain(called).find_map(Result::err) {
        let what = format!("`{title}` of {}", file.display());
        return Err(LaunchError::CannotHook { what, why: reason.to_string() });
    }
    let entries: Vec<PlannedEntry> = named::planned_entries(function).collect();
    Ok(Function { file: file.to_path_buf(), address: function.addresses.start, entries, title })
}

/// Offset in its file of a function at this address; the address, if that is not known.
fn offset(file: &std::path::Path, address: u64) -> u64 {
    let bytes = dimmer_host::program::read(file);
    let offset = bytes.ok().and_then(|bytes| Code::read(&bytes).ok()?.file_offset(address));
    offset.unwrap_or(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_a_function_or_two_with_two_dots_between() {
        #[track_caller]
        fn check(text: &str, expected: (&str, Option<&str>)) {
            assert_eq!(split(text).unwrap(), expected);
        }
        check("take_gil..drop_gil", ("take_gil", Some("drop_gil")));
        check("work", ("work", None));
        check("f.part.0..g.cold", ("f.part.0", Some("g.cold")));
        check("libx.so.1:0x10..libx.so.1:0x20", ("libx.so.1:0x10", Some("libx.so.1:0x20")));
        check(
            "../libx.so:0x10../l/../liby.so:0x20",
            ("../libx.so:0x10", Some("/l/../liby.so:0x20")),
        );
        check("./../libx.so:0x10", ("./../libx.so:0x10", None));
        check("f(int, ...)..g(int, ...)", ("f(int, ...)", Some("g(int, ...)")));
        for wrong in ["", "..", "a..", "..b", "a..b..c"] {
            let refused = split(wrong).unwrap_err();
            assert!(refused.is_input());
            assert!(refused.to_string().contains("expected FUNCTION, or FIRST..LAST"), "{refused}");
        }
    }

    #[test]
    fn a_function_of_several_sections_is_hooked_once() {
        let function = |address| Function {
            file: "/l/x.so".into(),
            address,
            entries: Vec::new(),
            title: String::new(),
        };
        let (functions, numbers) = numbered([1, 2, 1, 3, 2].map(function).into());
        assert_eq!(functions.len(), 3);
        assert_eq!(numbers, [0, 1, 0, 2, 1]);
    }
}

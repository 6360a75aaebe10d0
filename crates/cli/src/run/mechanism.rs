//! The mechanisms of `dimmer run`: what the command line asks for, and which options belong to
//! which. [`dimmer_launch::mechanism::ALL`] is the table of them.

use dimmer_launch::mechanism::{ALL, Definition};

use crate::args::Run;
use crate::bad_input;

/// The mechanisms that are asked for.
///
/// # Errors
/// Bad input, with the mechanisms that there are: none is asked for, or an option without the
/// mechanism that it is for.
pub(super) fn asked(arguments: &Run) -> anyhow::Result<Vec<&'static Definition>> {
    let is_asked = |one: &&&Definition| arguments.functions_of(one.name).is_some();
    let asked: Vec<&Definition> = ALL.iter().filter(is_asked).copied().collect();
    if asked.is_empty() {
        let flags = ALL.map(flag);
        let width = flags.iter().map(String::len).max().unwrap_or(0);
        let lines = ALL.iter().zip(&flags);
        let lines = lines.map(|(one, flag)| format!("\n  {flag:<width$}  {}", one.summary));
        let lines: String = lines.collect();
        return Err(bad_input(format!("no mechanism; expected at least one of{lines}")));
    }
    let is_set = [
        ("--cpus", arguments.cpus.cpus.is_some(), false),
        ("--dedicate", arguments.dedicate, false),
        ("--model", arguments.model.model.is_some(), true),
        ("--json", arguments.json.json.is_some(), true),
    ];
    for (option, _, is_for_boost) in is_set.into_iter().filter(|(_, is_set, _)| *is_set) {
        let takes =
            |one: &&Definition| one.moves.is_some() || (is_for_boost && one.name == "boost");
        if asked.iter().any(takes) {
            continue;
        }
        let flags: Vec<String> = ALL.into_iter().filter(takes).map(flag).collect();
        return Err(bad_input(format!("{option} is for {}", flags.join(", "))));
    }
    let follows_phases = asked.iter().any(|one| one.moves.is_some_and(|how| how.follows_phases));
    if follows_phases && arguments.model.model.is_some() {
        return Err(bad_input("--model is not for --phases".to_owned()));
    }
    Ok(asked)
}

/// The functions that the user named for moving, by whichever flag. Empty: the processor model
/// chooses them.
pub(super) fn functions(arguments: &Run) -> impl Iterator<Item = &str> {
    ALL.iter().filter_map(|one| arguments.functions_of(one.name)).flatten().map(String::as_str)
}

/// A mechanism's flag, with what it takes.
fn flag(definition: &Definition) -> String {
    let functions = match definition.moves {
        Some(how) if how.follows_phases => "[=PROFILE]",
        Some(_) => "[=FN,...]",
        None if definition.name == "boost" => "[=STRATEGY]",
        None => "",
    };
    format!("--{}{functions}", definition.name)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, Command};

    fn parsed(line: &str) -> Run {
        let words = ["dimmer", "run"].into_iter().chain(line.split(' ')).chain(["--", "true"]);
        match Arguments::try_parse_from(words).unwrap().command {
            Command::Run(run) => run,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn each_mechanism_is_asked_for_by_its_flag_alone() {
        for one in ALL {
            let run = parsed(&format!("--{}", one.name));
            let names: Vec<&str> = asked(&run).unwrap().iter().map(|asked| asked.name).collect();
            assert_eq!(names, [one.name]);
            assert_eq!(functions(&run).count(), 0);
            let with_cpus = asked(&parsed(&format!("--{} --cpus 1", one.name)));
            assert_eq!(with_cpus.is_ok(), one.moves.is_some());
        }
    }

    #[test]
    fn without_a_mechanism_all_are_listed() {
        let error = asked(&parsed("--width 128")).unwrap_err().to_string();
        assert!(ALL.iter().all(|one| error.contains(&flag(one)) && error.contains(one.summary)));
    }

    #[test]
    fn functions_that_one_flag_names_are_for_all_flags() {
        let run = parsed("--migrate=a,b --delegate=lib.so:0x10 --delegate");
        assert!(functions(&run).eq(["a", "b", "lib.so:0x10"]));
        assert!(functions(&parsed("--delegate=a --migrate")).eq(["a"]));
    }
}

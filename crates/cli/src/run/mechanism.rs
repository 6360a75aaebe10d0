//! The mechanisms of `dimmer run`: what the command line asks for, and which options belong to
//! which.

use crate::args::Run;
use crate::bad_input;

/// A mechanism: a flag of `dimmer run`.
struct Mechanism {
    flag: &'static str,
    /// What it does, for the error that lists all of them.
    summary: &'static str,
    /// Whether calls move, to which most options belong.
    moves_calls: bool,
    is_asked: fn(&Run) -> bool,
}

/// All of them, in the order of `--help`.
const ALL: [Mechanism; 4] = [
    Mechanism {
        flag: "--narrow",
        summary: "the program chooses narrower vectors, by its libraries' switches and by CPUID",
        moves_calls: false,
        is_asked: |run| run.narrow,
    },
    Mechanism {
        flag: "--migrate[=FN,...]",
        summary: "calls run on a dedicated core, with their thread",
        moves_calls: true,
        is_asked: |run| run.migrate.is_some(),
    },
    Mechanism {
        flag: "--delegate[=FN,...]",
        summary: "calls of leaf functions run on a dedicated core while their thread waits",
        moves_calls: true,
        is_asked: |run| run.delegate.is_some(),
    },
    Mechanism {
        flag: "--auto[=FN,...]",
        summary: "any of these, as the policy daemon and earlier runs show that the program gains",
        moves_calls: true,
        is_asked: |run| run.auto.is_some(),
    },
];

/// Refuses a command line without a mechanism, and options without the mechanism that they are for.
///
/// # Errors
/// Bad input, with the mechanisms that there are.
pub(super) fn check(arguments: &Run) -> anyhow::Result<()> {
    let mut asked = ALL.iter().filter(|mechanism| (mechanism.is_asked)(arguments)).peekable();
    if asked.peek().is_none() {
        let width = ALL.iter().map(|mechanism| mechanism.flag.len()).max().unwrap_or(0);
        let lines =
            ALL.map(|Mechanism { flag, summary, .. }| format!("\n  {flag:<width$}  {summary}"));
        return Err(bad_input(format!("no mechanism; expected at least one of{}", lines.concat())));
    }
    let is_set = [
        ("--cpus", arguments.cpus.cpus.is_some()),
        ("--dedicate", arguments.dedicate),
        ("--model", arguments.model.model.is_some()),
        ("--json", arguments.json.is_some()),
    ];
    let set = is_set.iter().find(|(_, is_set)| *is_set);
    if let Some((option, _)) = set.filter(|_| !asked.any(|mechanism| mechanism.moves_calls)) {
        let flags: Vec<&str> =
            ALL.iter().filter(|one| one.moves_calls).map(|one| one.flag).collect();
        return Err(bad_input(format!("{option} is for {}", flags.join(", "))));
    }
    Ok(())
}

impl Run {
    /// The functions that the user named for moving, by whichever flag. Empty: the processor model
    /// chooses them.
    pub(super) fn functions(&self) -> impl Iterator<Item = &str> {
        let lists = [&self.migrate, &self.delegate, &self.auto];
        lists.into_iter().flatten().flatten().map(String::as_str)
    }
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
        for one in &ALL {
            let flag = one.flag.split('[').next().unwrap();
            let run = parsed(flag);
            let asked: Vec<&str> =
                ALL.iter().filter(|other| (other.is_asked)(&run)).map(|other| other.flag).collect();
            assert_eq!(asked, [one.flag]);
            assert!(check(&run).is_ok());
            assert_eq!(run.functions().count(), 0);
            assert_eq!(check(&parsed(&format!("{flag} --cpus 1"))).is_ok(), one.moves_calls);
        }
    }

    #[test]
    fn without_a_mechanism_all_are_listed() {
        let error = check(&parsed("--width 128")).unwrap_err().to_string();
        assert!(ALL.iter().all(|one| error.contains(one.flag) && error.contains(one.summary)));
    }

    #[test]
    fn functions_that_one_flag_names_are_for_all_flags() {
        let run = parsed("--migrate=a,b --delegate=lib.so:0x10 --delegate");
        assert!(run.functions().eq(["a", "b", "lib.so:0x10"]));
        assert!(parsed("--delegate=a --migrate").functions().eq(["a"]));
    }
}

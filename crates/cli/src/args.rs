//! The command line; its help texts are the reference.

mod bench;
pub(crate) mod common;
mod daemon;
mod find;
mod machines;
mod phase_graph;
mod pstate;
mod run;
mod sim;
mod specialise;
mod study;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ColorChoice, CommandFactory as _, Parser, Subcommand};

pub(crate) use bench::{
    Bench, BenchAuto, BenchDaemon, BenchDev, BenchHook, BenchHookedMoves, BenchLock, BenchMoves,
    BenchNginx, BenchOf, BenchProgram, BenchServer, Moves, Neighbour, Tls,
};
pub(crate) use daemon::{Daemon, Record, Replay, Top};
pub(crate) use find::{Doctor, Merge, Observe, PreThrottle, Probe, Ps, Scan, Stat, Use, Via};
pub(crate) use machines::{Action, Machines};
pub(crate) use phase_graph::{Chosen, PhaseGraph};
pub(crate) use pstate::{Pstate, PstateSet, PstateTune};
pub(crate) use run::Run;
pub(crate) use sim::{
    Compare, Fit, Governor, Model, Paper, Phases, PredictLock, Sim, SimRun, Validate,
};
pub(crate) use specialise::Specialise;
pub(crate) use study::Study;

/// Measure what AVX2, AVX-512 and AMX code costs on this machine, find the functions that cause the
/// cost, and avoid it.
#[derive(Debug, Parser)]
#[command(name = "dimmer", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_long_help = "\
Exit status: 0 done; 1 failed; 2 bad input; 3 done, and the answer is no (bench, daemon replay, doctor --require, machines check, probe --baseline, scan --fail-on); 141 the reader of the \
output has gone; 128 and the number of the signal that interrupted it. `observe`, `run`, `stat` and `pstate tune -- COMMAND` end with the program's own status, and with \
125 if they fail themselves, 126 if the program cannot be executed, 127 if there is no such program.")]
pub(crate) struct Arguments {
    /// Reads and changes the tree below DIR, laid out like `/`, instead of the machine.
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        help_heading = "All commands",
        hide_short_help = true
    )]
    pub(crate) root: Option<PathBuf>,

    /// Writes the report to FILE instead of the terminal.
    #[arg(short, long, value_name = "FILE", global = true, help_heading = "All commands")]
    pub(crate) output: Option<PathBuf>,

    /// Prints no notes and no progress on standard error, only errors.
    #[arg(short, long, global = true, help_heading = "All commands", conflicts_with = "verbose")]
    pub(crate) quiet: bool,

    /// Prints more: every table, and reasons.
    #[arg(short, long, global = true, help_heading = "All commands")]
    pub(crate) verbose: bool,

    /// Whether tables have colors; `auto` is on terminals, without NO_COLOR in the environment.
    #[arg(
        long,
        value_name = "WHEN",
        global = true,
        default_value_t,
        help_heading = "All commands"
    )]
    pub(crate) color: ColorChoice,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Shows which commands work on this machine, and what the others need.
    Doctor(Doctor),
    /// Measures what wide SIMD code costs on this machine; needs no privilege.
    Probe(Probe),
    /// Puts the results of many probes side by side: by kind of machine, those that differ first.
    Merge(Merge),
    /// Shows what was measured on machines, and which sentences of the documentation that confirms.
    Machines(Machines),
    /// Shows which processes of this host use wide SIMD code now; needs no privilege.
    Ps(Ps),
    /// Finds the wide SIMD functions of a program, a library or a process; runs nothing.
    Scan(Scan),
    /// Counts license levels, throttling and packed arithmetic of a program, a process or all CPUs.
    Stat(Stat),
    /// Runs a program and reports which wide SIMD functions it calls, how often, and what that
    /// costs.
    Observe(Observe),
    /// Runs a program with narrower vector code, or with calls moved to another core.
    Run(Run),
    /// Keeps wide SIMD code of all programs on some cores, by the kernel; needs root.
    Specialise(Specialise),
    /// Shows and sets P-states of AMD's and Intel's processors, by their registers; needs root.
    #[command(subcommand)]
    Pstate(Pstate),
    /// Shows a program's control-flow graph between its marks, their profile, and an assessment.
    Phases(PhaseGraph),
    /// Measures what observing and running under Dimmer costs and gains.
    Bench(Bench),
    /// Shows live what the policy daemon does (`dimmer daemon top`).
    Top(Top),
    /// Watches the policy daemon, records it, and replays recordings.
    #[command(subcommand)]
    Daemon(Daemon),
    /// Simulates workloads on processor models.
    #[command(subcommand)]
    Sim(Sim),
    /// Compares mechanisms on workloads and processor models, in the simulator.
    Study(Study),
    /// Undoes changes to the machine that a killed run left behind.
    Restore(Restore),
    /// Prints what a shell needs to complete commands and options.
    Completions(Completions),
    /// Writes the man pages into a directory.
    #[command(hide = true)]
    Manual(Manual),
}

impl Command {
    /// Whether the command runs a program of the user's and ends with its exit status.
    pub(crate) fn wraps(&self) -> bool {
        match self {
            Self::Run(_) => true,
            Self::Observe(observe) => observe.process.pid.is_none(),
            Self::Stat(stat) => !stat.command.is_empty(),
            Self::Pstate(Pstate::Tune(tune)) => !tune.command.is_empty(),
            _ => false,
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Restore {
    /// Also undoes changes of runs that are still alive.
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  dimmer completions bash >~/.local/share/bash-completion/completions/dimmer
  dimmer completions zsh >~/.zfunc/_dimmer                 # with `fpath+=~/.zfunc` before `compinit`
  dimmer completions fish >~/.config/fish/completions/dimmer.fish")]
pub(crate) struct Completions {
    /// The shell.
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Args, Debug)]
pub(crate) struct Manual {
    /// An existing directory.
    pub(crate) directory: PathBuf,
}

/// Whether a command line names a command that wraps a program, for errors in the command line
/// itself.
pub(crate) fn names_wrapper(arguments: impl IntoIterator<Item = OsString>) -> bool {
    let command = Arguments::command();
    let globals: Vec<&clap::Arg> = command
        .get_arguments()
        .filter(|option| option.is_global_set() && option.get_action().takes_values())
        .collect();
    let is_short = |letter| globals.iter().any(|option| option.get_short() == Some(letter));
    let takes_next = |word: &str| match word.strip_prefix("--") {
        Some(long) => globals.iter().any(|option| option.get_long() == Some(long)),
        // What comes after the letter, as in `-oFILE`, is its value.
        None => word.strip_prefix('-').is_some_and(|letters| {
            letters.find(is_short).is_some_and(|at| at + 1 == letters.len())
        }),
    };
    let mut arguments = arguments.into_iter().skip(1);
    let mut is_of_pstate = false;
    while let Some(argument) = arguments.next() {
        if argument.to_str().is_some_and(takes_next) {
            arguments.next();
        } else if is_of_pstate && argument == "tune" || !is_of_pstate && argument == "stat" {
            // A program comes after `--` alone.
            return arguments.any(|argument| argument == "--");
        } else if !argument.as_encoded_bytes().starts_with(b"-") {
            if argument != "pstate" {
                return !is_of_pstate && (argument == "run" || argument == "observe");
            }
            is_of_pstate = true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_agree_with_each_other() {
        Arguments::command().debug_assert();
    }

    /// The commands below a command, and itself.
    fn all(command: &clap::Command) -> Vec<&clap::Command> {
        std::iter::once(command).chain(command.get_subcommands().flat_map(all)).collect()
    }

    #[test]
    fn common_flags_are_the_same_everywhere() {
        let mut root = Arguments::command();
        root.build();
        for (flag, least) in
            [("json", 20), ("model", 6), ("duration", 5), ("cpu", 3), ("cpus", 2), ("pid", 2)]
        {
            let of = |command: &&clap::Command| {
                let mut arguments = command.get_arguments();
                let argument = arguments.find(|argument| argument.get_long() == Some(flag))?;
                let values =
                    format!("{:?} {:?}", argument.get_value_names(), argument.get_num_args());
                Some((argument.get_short(), argument.is_require_equals_set(), values))
            };
            let found: Vec<_> = all(&root).iter().filter_map(of).collect();
            assert!(found.len() >= least, "--{flag}: {found:?}");
            assert!(found.iter().all(|one| *one == found[0]), "--{flag}: {found:?}");
        }
    }

    /// What the command line answers to a value that is none, for each option of all commands.
    fn refusals(command: &clap::Command, words: &[String]) -> Vec<String> {
        let answer = |argument: &clap::Arg| {
            let option = format!("--{}=x", argument.get_long()?);
            let refused = Arguments::try_parse_from(words.iter().cloned().chain([option]));
            refused.err().map(|error| error.to_string())
        };
        let below = command
            .get_subcommands()
            .flat_map(|below| refusals(below, &[words, &[below.get_name().to_owned()]].concat()));
        command.get_arguments().filter_map(answer).chain(below).collect()
    }

    #[test]
    fn what_is_no_number_is_answered_without_words_of_rust() {
        let mut root = Arguments::command();
        root.build();
        let refusals = refusals(&root, &["dimmer".to_owned()]);
        let numbers = refusals.iter().filter(|said| said.contains("expected a whole number from"));
        assert!(numbers.count() >= 20, "{refusals:?}");
        for said in refusals {
            assert!(!said.contains("invalid digit") && !said.contains("invalid float"), "{said}");
        }
    }

    #[test]
    fn a_wrapper_is_named_by_the_first_word() {
        let check = |line: &str, expected: bool| {
            let words = line.split(' ').map(OsString::from);
            assert_eq!(names_wrapper(words), expected, "{line}");
        };
        check("dimmer run --wrong", true);
        check("dimmer --root /r -q observe", true);
        check("dimmer --color never run --wrong -- prog", true);
        check("dimmer --color=never run --wrong -- prog", true);
        check("dimmer --color run probe", false);
        check("dimmer -o run probe", false);
        check("dimmer -qo run probe", false);
        check("dimmer -orun probe", false);
        check("dimmer -oo run --wrong -- prog", true);
        check("dimmer pstate tune --wrong -- prog", true);
        check("dimmer pstate -o tune tune --list -- prog", true);
        check("dimmer pstate tune --wrong", false);
        check("dimmer pstate run -- prog", false);
        check("dimmer pstate set --wrong", false);
        check("dimmer stat --wrong -- prog", true);
        check("dimmer stat -a --wrong", false);
        check("dimmer --help", false);
    }
}

//! The ways in which `dimmer bench program` and `dimmer bench nginx` run a program.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use dimmer_bench::daemon::Server;
use dimmer_launch::{cache, mechanism};
use dimmer_processor::units::CpuId;
use dimmer_report::bench::{AUTO, Account, Turns};

use super::daemon::beside;
use crate::args::Moves;

/// A way to run a program.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    /// The words to put before the program's own command.
    pub(super) prefix: Vec<OsString>,
    /// Where `dimmer run` writes which calls were moved, if any may be.
    account: Option<PathBuf>,
}

/// The ways, and the policy server that one of them needs; the server ends when this is dropped.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) all: Vec<Way>,
    server: Option<Server>,
}

impl Ways {
    /// All requested ways. `observe` writes its observations to `directory`, and so does each way
    /// that moves calls its summary.
    ///
    /// `from`: the CPUs that the programs may use in ways that move calls, and which of these the
    /// calls are moved to. Without it, the program chooses.
    pub(super) fn new(
        directory: &Path,
        moves: &Moves,
        from: Option<([CpuId; 2], CpuId)>,
    ) -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let with = |arguments: &[&str]| -> Vec<OsString> {
            let arguments = arguments.iter().map(OsString::from);
            std::iter::once(own.clone().into_os_string()).chain(arguments).collect()
        };
        let mut observe = with(&["observe"]);
        observe.extend([json(&observed(directory)), "--".into()]);
        let narrow = with(&["run", "--narrow", "--"]);
        let still = |name, prefix| Way { name, prefix, account: None };
        let mut all =
            vec![still("plain", Vec::new()), still("observe", observe), still("narrow", narrow)];
        let asked = mechanism::ALL.iter();
        let asked = asked.filter_map(|one| Some((one, moves.functions_of(one.name)?)));
        let mut server = None;
        for (definition, functions) in asked {
            let name = definition.name;
            let mut prefix: Vec<OsString> = Vec::new();
            if name == AUTO {
                let settings = from.map(|(_, to)| format!("[cores]\nlist = \"{to}\"\n"));
                let started =
                    Server::start(&beside("dimmerd")?, &settings.unwrap_or_default(), true)?;
                let mut socket = OsString::from(format!("{}=", dimmer_protocol::SOCKET));
                socket.push(started.socket());
                prefix.extend(["env".into(), socket]);
                server = Some(started);
            }
            if let Some((cpus, _)) = from {
                let list = cpus.map(|cpu| cpu.to_string()).join(",");
                prefix.extend(["taskset", "-c", &list].map(OsString::from));
            }
            let named = if functions.is_empty() { "" } else { "=" };
            let mechanism = format!("--{name}{named}{}", functions.join(","));
            prefix.extend(with(&["run", &mechanism]));
            // A server itself names the CPUs for its calls.
            if let Some((_, to)) = from.filter(|_| name != AUTO && definition.moves.is_some()) {
                prefix.extend(["--cpus".into(), to.to_string().into()]);
            }
            // Where threads move, no calls are counted that moved.
            let moves_calls = definition.moves.is_some_and(|how| !how.moves_threads());
            let account = moves_calls.then(|| directory.join(name).with_extension("json"));
            prefix.extend(account.as_deref().map(json));
            prefix.push("--".into());
            all.push(Way { name, prefix, account });
        }
        Ok(Self { all, server })
    }

    /// Checks that the policy server is still there: without it, its way would be the plain one.
    ///
    /// # Errors
    /// If it has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        self.server.as_mut().map_or(Ok(()), Server::check)?;
        Ok(())
    }
}

/// `--json=FILE`.
fn json(file: &Path) -> OsString {
    let mut argument = OsString::from("--json=");
    argument.push(file);
    argument
}

/// The file that `observe` writes.
pub(super) fn observed(directory: &Path) -> PathBuf {
    directory.join("observe.json")
}

impl Way {
    /// No runs yet of this way.
    pub(super) fn turns<R>(&self) -> Turns<R> {
        Turns { way: self.name, runs: Vec::new(), accounts: Vec::new() }
    }

    /// Adds a run that has just ended.
    pub(super) fn add<R>(&self, run: R, turns: &mut Turns<R>) -> anyhow::Result<()> {
        turns.runs.push(run);
        if let Some(path) = &self.account {
            let read =
                || -> anyhow::Result<Account> { Ok(serde_json::from_str(&cache::read(path)?)?) };
            turns.accounts.push(read().context("cannot read which calls were moved")?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::{Arguments, BenchOf, Command};

    #[test]
    fn every_mechanism_that_moves_calls_is_a_way() {
        for one in mechanism::ALL.iter().filter(|one| one.moves.is_some()) {
            let flag = format!("--{}=f", one.name);
            let words = ["dimmer", "bench", "program", &flag, "--", "true"];
            let Command::Bench(bench) = Arguments::try_parse_from(words).unwrap().command else {
                unreachable!("{flag}")
            };
            let BenchOf::Program(bench) = bench.of else { unreachable!("{flag}") };
            let has = |mechanism: &str| bench.moves.functions_of(mechanism).is_some();
            let asked = mechanism::ALL.iter().map(|one| one.name).filter(|name| has(name));
            assert!(asked.eq([one.name]));
        }
    }
}

//! `dimmer run --specialise` beside `dimmerd`: threads go to the CPUs that the server gives, and to
//! the run's own without it.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::command;
use crate::migrate::away;
use crate::server::{Ends, Server};
use crate::specialise::{affinity_of, wait_for};
use crate::victims::{self, Victims};

/// A program that calls `kept` all the time, until its input ends.
struct Running {
    run: Ends,
    process: String,
    report: String,
}

impl Running {
    fn start(victims: &Victims, socket: &Path, number: usize, arguments: &[&str]) -> Self {
        victims::library();
        let report = victims.path(&format!("report{number}"));
        let json = format!("--json={report}");
        let home = victims.directory.path();
        let mut command = command(home, &["run", "--specialise=kept", &json]);
        command.args(arguments).args(["--", &victims.path("orphan")]);
        command.env("HOME", home).env("DIMMER_SOCKET", socket);
        command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = Ends(command.spawn().unwrap());
        let mut process = String::new();
        BufReader::new(run.0.stdout.take().unwrap()).read_line(&mut process).unwrap();
        Self { run, process: process.trim().to_owned(), report }
    }

    fn affinity(&self) -> String {
        affinity_of(&self.process)
    }

    /// Ends the program. Returns the report, and what was written to standard error.
    fn end(mut self) -> (Value, String) {
        drop(self.run.0.stdin.take());
        assert!(self.run.0.wait().unwrap().success());
        let mut told = String::new();
        let Child { stderr, .. } = &mut self.run.0;
        stderr.take().unwrap().read_to_string(&mut told).unwrap();
        (serde_json::from_slice(&std::fs::read(&self.report).unwrap()).unwrap(), told)
    }
}

/// The time for which CPUs of this kind were wide.
fn seconds(report: &Value, kind: &str) -> f64 {
    report["cpus_from"][kind].as_f64().unwrap()
}

/// A server that gives the first CPU, which is not what a run chooses by itself.
fn config() -> (String, String) {
    let first = dimmer_host::affinity::allowed().unwrap()[0].to_string();
    (format!("[cores]\nlist = \"{first}\"\n"), first)
}

/// Whether the server may dedicate the first CPU alone.
fn can_give(server: &Server) -> bool {
    let no_core = server.state().cores.no_core;
    if let Some(why) = &no_core {
        println!("SKIPPED: the server has no core: {why}");
    }
    no_core.is_none()
}

#[test]
fn two_programs_have_the_servers_cpus_and_give_them_back() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    let (config, first) = config();
    let server = Server::start_with(&config);
    if !can_give(&server) {
        return;
    }
    let running = [1, 2].map(|number| Running::start(&victims, &server.socket(), number, &[]));
    let are_there = || running.iter().all(|one| one.affinity() == first);
    assert!(wait_for(are_there), "{:?}", running.each_ref().map(Running::affinity));
    let is_told = || {
        let state = server.state();
        let is_wide = |client: &dimmer_watch::state::Client| {
            let site = client.sites.first();
            let asked =
                site.is_some_and(|site| site.action == "move" && site.reason == "asked for");
            asked && client.wide_threads > Some(0.0)
        };
        state.clients.len() == 2 && state.clients.iter().all(is_wide) && state.cores.dedicated == 1
    };
    assert!(wait_for(is_told), "{:?}", server.state());
    for (ended, running) in running.into_iter().enumerate() {
        let (report, told) = running.end();
        assert!(told.contains("The policy server (dimmerd) gives the CPUs"), "{told}");
        assert!(told.contains("  The policy server gave the CPUs for"), "{told}");
        assert!(seconds(&report, "server_s") > 0.0 && report["to_wide"].as_u64() > Some(0));
        assert_eq!(report["cpus"].to_string(), format!("[{first}]"));
        let dedicated = 1 - ended;
        assert!(wait_for(|| server.state().cores.dedicated == dedicated), "{:?}", server.state());
    }
}

#[test]
fn threads_follow_a_server_that_ends_and_starts_again() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    let (config, first) = config();
    let mut server = Server::start_with(&config);
    if !can_give(&server) {
        return;
    }
    let all = affinity_of("self");
    let running = Running::start(&victims, &server.socket(), 1, &[]);
    let goes_to_servers = || wait_for(|| running.affinity() == first);
    // The run chooses the last core.
    let goes_to_own = || {
        let is_own = |affinity: String| affinity != first && affinity != all;
        wait_for(|| is_own(running.affinity()))
    };
    assert!(goes_to_servers(), "{}", running.affinity());
    server.end();
    assert!(goes_to_own(), "{}", running.affinity());
    server.restart(&config);
    assert!(goes_to_servers(), "{}", running.affinity());
    // One that has no core to give.
    server.end();
    server.restart("[cores]\nmost = 0\n");
    assert!(goes_to_own(), "{}", running.affinity());
    let (report, told) = running.end();
    for kind in ["server_s", "none_s", "own_s"] {
        assert!(seconds(&report, kind) > 0.0, "{report}");
    }
    assert!(
        told.contains(
            "it was not there or had none for this program, and the CPUs were the run's own choice"
        ),
        "{told}"
    );
}

#[test]
fn without_cpus_of_a_server_they_are_the_runs_own() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["orphan"]) else { return };
    let last = dimmer_host::affinity::allowed().unwrap().last().unwrap().to_string();
    let none = Server::start_with("[cores]\nmost = 0\n");
    let full = Server::start_with("[server]\nclients_per_user = 0\n");
    let gives = Server::start();
    let no_server = "There is no policy server (dimmerd) that takes this program: the CPUs are";
    for (number, (socket, arguments, said)) in [
        (none.path().join("none"), &[][..], no_server),
        (full.socket(), &[], no_server),
        (none.socket(), &[], "The policy server (dimmerd) has no core to dedicate"),
        (gives.socket(), &["--cpus", &last], ""),
    ]
    .into_iter()
    .enumerate()
    {
        let running = Running::start(&victims, &socket, number, arguments);
        let is_there = || running.affinity() != affinity_of("self");
        assert!(wait_for(is_there), "{}", running.affinity());
        assert_eq!(gives.state().clients.len(), 0, "--cpus asks no server");
        let (report, told) = running.end();
        assert!(told.contains(said), "{told}");
        assert_eq!(told.contains("policy server"), !said.is_empty(), "{told}");
        assert_eq!(seconds(&report, "server_s") + seconds(&report, "none_s"), 0.0, "{report}");
        assert_eq!(report["cpus_from"]["is_named"], !arguments.is_empty(), "{report}");
        assert!(report["to_wide"].as_u64() > Some(0), "{report}");
    }
}

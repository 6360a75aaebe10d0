//! Real programs with and without Dimmer: output and end must be the same, and times are compared.
//!
//! `ci/torture/workloads.toml` names the programs and the hostile surroundings. Each runs plain,
//! and then twice in every way of using Dimmer. `target/torture/results.tsv` records each run under
//! the binaries that it was made with, so that an interrupted campaign goes on where it stopped.
//! Failed runs are kept with their commands in `target/torture/failures`.

mod child;
mod results;
mod surroundings;
mod workload;

use std::collections::BTreeSet;
use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use child::{Done, Run};
use results::{Entry, Results, Verdict};
use workload::{Set, Workload};

/// How often each way is run.
const TURNS: usize = 2;

/// How many functions are moved, those with most time first.
const HOTTEST: usize = 12;

/// A way of running a program with Dimmer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Observe,
    ObserveAll,
    Migrate,
    Delegate,
    Auto,
    Boost,
}

impl Way {
    const ALL: [Self; 6] =
        [Self::Observe, Self::ObserveAll, Self::Migrate, Self::Delegate, Self::Auto, Self::Boost];

    const fn name(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::ObserveAll => "observe-all",
            Self::Migrate => "migrate",
            Self::Delegate => "delegate",
            Self::Auto => "auto",
            Self::Boost => "boost",
        }
    }
}

/// Classes of instructions that every program has.
const CLASSES: &str = "scalar,light-128,heavy-128,light-256,heavy-256,light-512,heavy-512";

/// The paths of the campaign.
#[derive(Debug)]
struct Places {
    /// The directory of the binaries.
    binaries: PathBuf,
    /// The directory for what the campaign writes.
    own: PathBuf,
    inputs: PathBuf,
    /// The user's home directory, as Dimmer sees it.
    home: PathBuf,
}

/// Runs the campaign. `--binaries` names another directory of binaries. Each other argument selects
/// the workloads and surroundings whose names contain it; without any, all run.
///
/// # Errors
/// If something failed, or the campaign cannot start.
pub(crate) fn run(root: &Path, arguments: &[String]) -> Result<()> {
    let mut binaries = root.join("target/release");
    let mut wanted = Vec::new();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--binaries" => binaries = rest.next().context("--binaries needs a directory")?.into(),
            name => wanted.push(name),
        }
    }
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|part| name.contains(part));
    let set = Set::read(&root.join("ci/torture/workloads.toml"))?;
    let own = root.join("target/torture");
    let places = Places {
        binaries: fs::canonicalize(&binaries).with_context(|| {
            format!("{}: build the binaries first (make build)", binaries.display())
        })?,
        inputs: own.join("inputs"),
        home: own.join("home"),
        own,
    };
    fs::create_dir_all(&places.home)?;
    make_inputs(root, &places)?;
    make_machine(&places.machine())?;
    let mut results = Results::open(&places.own.join("results.tsv"), &places.stamp()?)?;
    let server = Server::start(&places)?;
    let workloads: Vec<&Workload> =
        set.workload.iter().filter(|workload| is_wanted(&workload.name)).collect();
    let surroundings: Vec<_> =
        set.surrounding.iter().filter(|surrounding| is_wanted(&surrounding.name)).collect();
    ensure!(!workloads.is_empty() || !surroundings.is_empty(), "nothing has a name like that");
    let mut progress = Progress::new(workloads.len() + surroundings.len());
    for workload in &workloads {
        progress.tell(&workload.name);
        torture(&places, &server, workload, &mut results)?;
    }
    for surrounding in &surroundings {
        progress.tell(&surrounding.name);
        surroundings::torture(&places, surrounding, &mut results)?;
    }
    progress.end();
    drop(server);
    let names: BTreeSet<&str> = workloads.iter().map(|workload| &*workload.name).collect();
    let around: BTreeSet<&str> =
        surroundings.iter().map(|surrounding| &*surrounding.name).collect();
    print!("{}", results.table(&names.union(&around).copied().collect()));
    if wanted.is_empty() {
        print!("{}", surroundings::starts(&places)?);
    }
    match results.failures(&names.union(&around).copied().collect()) {
        0 => Ok(()),
        failures => bail!("{failures} runs failed; see {}", places.own.join("failures").display()),
    }
}

impl Places {
    fn dimmer(&self) -> PathBuf {
        self.binaries.join("dimmer")
    }

    /// The directory of a made-up machine whose clocks can be requested.
    fn machine(&self) -> PathBuf {
        self.own.join("machine")
    }

    /// Identifies these binaries: their sizes and modification times.
    fn stamp(&self) -> Result<String> {
        let mut stamp = String::new();
        for name in ["dimmer", "dimmerd", "libdimmer_preload.so", "libdimmer_boost.so"] {
            let path = self.binaries.join(name);
            let file = fs::metadata(&path).with_context(|| path.display().to_string())?;
            let changed = file.modified()?.duration_since(std::time::UNIX_EPOCH)?;
            stamp += &format!("{}.{}-", file.len(), changed.as_secs());
        }
        Ok(stamp)
    }

    /// A command line of Dimmer, with the home directory of this campaign.
    fn command(&self, arguments: &[&str]) -> Vec<String> {
        let mut words = vec!["env".to_owned(), format!("HOME={}", self.home.display())];
        words.push(self.dimmer().display().to_string());
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        words
    }
}

/// Makes the inputs, unless the same script made them before.
fn make_inputs(root: &Path, places: &Places) -> Result<()> {
    let script = root.join("ci/torture/prepare.sh");
    let text = fs::read_to_string(&script)?;
    let made = places.own.join("inputs.made");
    if fs::read_to_string(&made).is_ok_and(|before| before == text) {
        return Ok(());
    }
    eprintln!("Making the inputs in {}", places.inputs.display());
    let _ = fs::remove_dir_all(&places.inputs);
    fs::create_dir_all(&places.inputs)?;
    let status = Command::new("sh").arg(&script).current_dir(&places.inputs).status()?;
    ensure!(status.success(), "{}: {status}", script.display());
    Ok(fs::write(made, text)?)
}

/// Makes up the machine: all CPUs have one policy of cpufreq.
fn make_machine(machine: &Path) -> Result<()> {
    let policy = machine.join("sys/devices/system/cpu/cpufreq/policy0");
    fs::create_dir_all(&policy)?;
    let cpus: Vec<String> = (0..8192).map(|cpu| cpu.to_string()).collect();
    for (name, content) in [
        ("affected_cpus", cpus.join(" ").as_str()),
        ("base_frequency", "3000000"),
        ("cpuinfo_max_freq", "4000000"),
        ("cpuinfo_min_freq", "800000"),
        ("cpuinfo_transition_latency", "10000"),
        ("scaling_governor", "schedutil"),
        ("scaling_max_freq", "4000000"),
        ("scaling_min_freq", "800000"),
    ] {
        fs::write(policy.join(name), content)?;
    }
    Ok(())
}

/// A policy server for the campaign alone.
#[derive(Debug)]
struct Server {
    process: std::process::Child,
    socket: PathBuf,
}

impl Server {
    fn start(places: &Places) -> Result<Self> {
        let socket = places.own.join("socket");
        let _ = fs::remove_file(&socket);
        let config = places.own.join("dimmerd.toml");
        fs::write(&config, "[cores]\nmost = 1\n")?;
        let mut command = Command::new(places.binaries.join("dimmerd"));
        command.arg("--socket").arg(&socket).arg("--config").arg(&config);
        let log = fs::File::create(places.own.join("dimmerd.log"))?;
        let process = command.stdout(log.try_clone()?).stderr(log).spawn()?;
        let mut server = Self { process, socket };
        for _ in 0..500 {
            if server.socket.exists() {
                return Ok(server);
            }
            ensure!(server.process.try_wait()?.is_none(), "the policy server ended: see its log");
            std::thread::sleep(Duration::from_millis(10));
        }
        bail!("the policy server does not come up")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The progress of the campaign, on standard error.
#[derive(Debug)]
struct Progress {
    all: usize,
    done: usize,
    begun: Instant,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { all, done: 0, begun: Instant::now() }
    }

    fn tell(&mut self, name: &str) {
        let gone = self.begun.elapsed().as_secs();
        let bar: String =
            (0..20).map(|part| if part * self.all < self.done * 20 { '#' } else { '.' }).collect();
        let left = (self.all - self.done) as u64;
        let left = gone.checked_div(self.done as u64).map_or_else(String::new, |each| {
            format!(", about {} min left", (each * left).div_ceil(60))
        });
        let line =
            format!("[{bar}] {}/{} after {} min{left}: {name}", self.done, self.all, gone / 60);
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K{line}");
            let _ = std::io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
        self.done += 1;
    }

    fn end(&self) {
        if std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
    }
}

/// Runs one workload in every way.
fn torture(
    places: &Places,
    server: &Server,
    workload: &Workload,
    results: &mut Results,
) -> Result<()> {
    if results.has_all(&workload.name) {
        return Ok(());
    }
    let name = &workload.name;
    let command = workload.command_with(&places.inputs);
    if child::find(&command[0]).is_none() {
        results.add(Entry::skipped(name, &format!("no {}", command[0])))?;
        return results.complete(name);
    }
    let plain = |turn: usize| {
        Run { command: &command, output: workload.output.as_deref(), seconds: workload.seconds }
            .make(&places.own.join(format!("work/{name}-plain-{turn}")))
    };
    let first = plain(0)?;
    let second = plain(1)?;
    if first.is_late || second.is_late {
        results.add(Entry::skipped(name, "too slow, or waits for something"))?;
        return results.complete(name);
    }
    let mut varies = !first.is_same(&second);
    let mut hottest = Vec::new();
    for way in Way::ALL {
        for turn in 0..TURNS {
            let json = places.own.join("observed.json");
            let Some(words) = words_of(way, places, server, &json, &hottest) else {
                let why = "no function was called that could be moved";
                results.add(Entry::left(name, way.name(), turn, why))?;
                continue;
            };
            let words: Vec<String> = words.into_iter().chain(command.iter().cloned()).collect();
            let run = Run {
                command: &words,
                output: workload.output.as_deref(),
                // Scanning libraries, and timing all calls, may take longer.
                seconds: workload.seconds * 4,
            };
            let directory = places.own.join(format!("work/{name}-{}-{turn}", way.name()));
            let done = run.make(&directory)?;
            if !varies && !done.is_late && done.end == first.end && !done.is_same(&first) {
                varies = (0..AGAIN).try_fold(false, |varies, _| -> Result<bool> {
                    Ok(varies || !plain_in_need(workload, &command, places)?.is_same(&first))
                })?;
            }
            let verdict = verdict(&first, &done, varies);
            let failed = matches!(verdict, Verdict::Failed(_));
            if failed {
                keep(places, &format!("{name}-{}-{turn}", way.name()), &words, &first, &done)?;
            }
            let slower = done.seconds / first.seconds.min(second.seconds).max(1e-3);
            results.add(Entry::new(name, way.name(), turn, verdict, done.seconds, slower))?;
            let _ = fs::remove_dir_all(&directory);
            if way == Way::ObserveAll && turn == 0 {
                hottest = workload::hottest(&json, HOTTEST);
            }
        }
    }
    for turn in 0..2 {
        let _ = fs::remove_dir_all(places.own.join(format!("work/{name}-plain-{turn}")));
    }
    results.complete(name)
}

/// How often a program whose output differs is run again without Dimmer, as its output may depend
/// on the timing of its threads.
const AGAIN: usize = 12;

/// A run without Dimmer at low priority, on one CPU that it shares with other programs.
fn plain_in_need(workload: &Workload, command: &[String], places: &Places) -> Result<Done> {
    let before = ["taskset", "-c", "0", "nice", "-n", "10"].map(str::to_owned);
    let words: Vec<String> = before.into_iter().chain(command.iter().cloned()).collect();
    let seconds = workload.seconds * 4;
    let run = Run { command: &words, output: workload.output.as_deref(), seconds };
    run.make(&places.own.join(format!("work/{}-again", workload.name)))
}

/// The words before the program's command; `None` if no function could be moved.
fn words_of(
    way: Way,
    places: &Places,
    server: &Server,
    json: &Path,
    hottest: &[String],
) -> Option<Vec<String>> {
    let moving = |mechanisms: &[&str]| {
        let named = hottest.join(",");
        let flags = mechanisms.iter().map(|mechanism| format!("--{mechanism}={named}"));
        let mut words = places.command(&["run"]);
        words.extend(flags.chain(["--".to_owned()]));
        (!hottest.is_empty()).then_some(words)
    };
    match way {
        Way::Observe => Some(places.command(&["observe", "--"])),
        Way::ObserveAll => {
            let json = format!("--json={}", json.display());
            Some(places.command(&["observe", "--classes", CLASSES, &json, "--"]))
        }
        Way::Migrate => moving(&["migrate"]),
        Way::Delegate => moving(&["delegate", "migrate"]),
        Way::Auto => {
            let mut words = moving(&["auto"])?;
            words.insert(1, format!("DIMMER_POLICY={}", server.socket.display()));
            Some(words)
        }
        Way::Boost => {
            let machine = places.machine().display().to_string();
            Some(places.command(&["--root", &machine, "run", "--boost=one", "--"]))
        }
    }
}

/// Compares a run with Dimmer to the plain run.
fn verdict(plain: &Done, done: &Done, varies: bool) -> Verdict {
    if done.is_late {
        return Verdict::Failed("does not end".to_owned());
    }
    // Dimmer prints what it cannot run, and why.
    let stderr = String::from_utf8_lossy(&done.stderr);
    let is_refused = ["125", "126", "127"].contains(&&*done.end) && done.end != plain.end;
    if let Some(why) = stderr.strip_prefix("error: ").filter(|_| is_refused) {
        return Verdict::Left(format!("refused: {}", why.lines().next().unwrap_or_default()));
    }
    if done.end != plain.end {
        return Verdict::Failed(format!("ended with {} instead of {}", done.end, plain.end));
    }
    if varies {
        return Verdict::EndSame;
    }
    if done.is_same(plain) { Verdict::Same } else { Verdict::Failed("other output".to_owned()) }
}

/// Keeps a failed run, with its command.
fn keep(places: &Places, name: &str, words: &[String], plain: &Done, done: &Done) -> Result<()> {
    let directory = places.own.join("failures").join(name);
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("command"), child::quoted(words) + "\n")?;
    fs::write(directory.join("ended"), format!("{}, plain: {}\n", done.end, plain.end))?;
    for (done, ending) in [(plain, "plain"), (done, "dimmer")] {
        fs::write(directory.join(format!("stdout.{ending}")), &done.stdout)?;
        fs::write(directory.join(format!("stderr.{ending}")), &done.stderr)?;
        if let Some(output) = &done.output {
            fs::write(directory.join(format!("output.{ending}")), output)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(end: &str, stderr: &str) -> Done {
        Done {
            stdout: Vec::new(),
            stderr: stderr.into(),
            output: None,
            end: end.to_owned(),
            is_late: false,
            seconds: 1.0,
        }
    }

    #[test]
    fn a_refusal_with_its_reason_is_no_failure_and_any_other_end_is() {
        let plain = done("0", "");
        let refused = verdict(&plain, &done("125", "error: it is static\nhint"), false);
        assert!(matches!(refused, Verdict::Left(why) if why == "refused: it is static"));
        for failed in [done("1", "error: it is static"), done("125", "")] {
            assert!(matches!(verdict(&plain, &failed, false), Verdict::Failed(_)));
        }
        assert!(matches!(verdict(&plain, &done("0", "error: "), false), Verdict::Same));
    }
}

//! The record of this machine, made by running the commands that measure it.
//!
//! Each command writes its own document. One that cannot work here is skipped, with its reason. How
//! busy the machine was meanwhile belongs to the record: `docs/machines-json.md` has the document.

use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use dimmer_host::machine::Machine;
use serde::Deserialize;
use serde_json::Value;

use crate::database::Entry;
use crate::names::{self, About};
use crate::privacy::Privacy;

/// The longest that all commands may take together.
const LONGEST: Duration = Duration::from_secs(20 * 60);

/// How much of a command's messages is read (bytes).
const MESSAGES: u64 = 1 << 20;

/// Above this share of the CPUs, other programs disturb measurements (%): several times what an
/// idle system's own services take. A guess.
const BUSY_PCT: f64 = 5.0;

/// A command of the record.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The name of its document.
    pub name: &'static str,
    /// Its arguments, without `--json`.
    pub arguments: &'static [&'static str],
    /// The longest that it may take (s): several times what it took on two quiet CPUs.
    pub longest_s: u64,
}

const fn step(name: &'static str, arguments: &'static [&'static str], longest_s: u64) -> Step {
    Step { name, arguments, longest_s }
}

/// The commands, the most important first: time may run out. The probe comes before what uses the
/// model that it stores.
pub const STEPS: &[Step] = &[
    step("doctor", &["doctor"], 30),
    step("probe-quick", &["probe", "--quick"], 60),
    step("validate-here", &["sim", "validate", "--here"], 90),
    step("bench-hook", &["bench", "dev", "hook"], 60),
    step("bench-hooked-moves", &["bench", "dev", "hooked-moves"], 60),
    step("bench-migrate", &["bench", "dev", "migrate"], 90),
    step("bench-region", &["bench", "dev", "region"], 60),
    step("probe-latency", &["probe", "--mode", "latency"], 90),
    step("bench-phases", &["bench", "phases"], 90),
    step(
        "probe-recurrence",
        &["probe", "--quick", "--mode", "recurrence", "--burst", "800,65536"],
        120,
    ),
    step(
        "probe-pre-throttle",
        &["probe", "--quick", "--mode", "throttle,downclock", "--pre-throttle", "vector"],
        90,
    ),
    step("probe-levels", &["probe", "--quick", "--mode", "levels", "--all-cpus"], 90),
    step("bench-server", &["bench", "server"], 240),
    step("bench-nginx", &["bench", "nginx"], 180),
    step("probe-episode", &["probe", "--mode", "episode"], 400),
    step("bench-primesieve", &["bench", "primesieve"], 240),
];

/// How a record was made.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Evidence {
    /// The version of Dimmer.
    pub dimmer_version: String,
    /// The begin (RFC 3339, UTC).
    pub begun: String,
    /// The end.
    pub ended: String,
    /// The load averages over 1, 5 and 15 minutes when it started.
    pub load_begin: [f64; 3],
    /// The same at the end, this record's own load included.
    pub load_end: [f64; 3],
    /// The number of CPUs that the process might run on.
    pub cpus: u64,
    /// The share of all CPUs that other programs took meanwhile (%).
    pub others_cpu_pct: f64,
    /// The share that the hypervisor withheld (%).
    pub steal_pct: f64,
    /// Whether a signal ended it before all commands had run.
    pub interrupted: bool,
    /// The commands, in the order in which they ran.
    pub commands: Vec<Ran>,
}

/// A command of a record.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Ran {
    /// The name of its document.
    pub name: String,
    /// The command line.
    pub command: String,
    /// How long it took (s).
    pub seconds: f64,
    /// Whether there is a document.
    pub is_done: bool,
    /// Otherwise why not.
    pub reason: Option<String>,
}

impl Evidence {
    /// Whether other programs or the hypervisor took so much that measurements suffer.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.others_cpu_pct + self.steal_pct > BUSY_PCT
    }
}

/// What the commands need of their surroundings.
struct Surroundings<'a> {
    program: &'a Path,
    /// An empty directory for what commands store between them, which is not part of the record.
    state: &'a Path,
    privacy: &'a Privacy,
    /// Whether a signal has arrived.
    stops: &'a dyn Fn() -> bool,
}

fn take(
    steps: &[Step],
    around: &Surroundings<'_>,
    directory: &Path,
    before: &mut dyn FnMut(&Step),
) -> io::Result<Evidence> {
    let (begin, begun) = (Instant::now(), SystemTime::now());
    let (load_begin, used) = (load()?, Used::now()?);
    let mut commands = Vec::new();
    for step in steps {
        before(step);
        let since = Instant::now();
        let left = LONGEST.saturating_sub(begin.elapsed());
        let document = if (around.stops)() {
            Err("interrupted before".to_owned())
        } else if left < Duration::from_secs(step.longest_s) {
            Err(format!("it may take {} s, and fewer are left", step.longest_s))
        } else {
            run(step, around)
        };
        let reason = match document {
            Ok(document) => {
                let path = directory.join(format!("{}.json", step.name));
                std::fs::write(path, serde_json::to_string_pretty(&document)? + "\n")?;
                None
            }
            Err(reason) => Some(around.privacy.cleaned(&reason)),
        };
        commands.push(Ran {
            name: step.name.to_owned(),
            command: command_line(step),
            seconds: (since.elapsed().as_secs_f64() * 10.0).round() / 10.0,
            is_done: reason.is_none(),
            reason,
        });
    }
    let [others, steal] = Used::now()?.since(&used);
    Ok(Evidence {
        dimmer_version: env!("CARGO_PKG_VERSION").to_owned(),
        begun: humantime::format_rfc3339_seconds(begun).to_string(),
        ended: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
        load_begin,
        load_end: load()?,
        cpus: std::thread::available_parallelism()?.get() as u64,
        others_cpu_pct: others,
        steal_pct: steal,
        interrupted: (around.stops)(),
        commands,
    })
}

/// A record that is being made, in a hidden directory of a database until it is complete.
#[derive(Debug)]
pub struct Making {
    hidden: tempfile::TempDir,
    target: PathBuf,
}

impl Making {
    /// Makes room for the record of this machine and day, without touching one that is there.
    /// `label` tells hosts of one kind or runs on one day apart. Makes the database, too.
    ///
    /// # Errors
    /// If there is such a record, the label is none, or the directory cannot be written.
    pub fn begin(database: &Path, machine: &Machine, label: Option<&str>) -> io::Result<Self> {
        Self::of(database, &About::of(machine), label)
    }

    fn of(database: &Path, about: &About, label: Option<&str>) -> io::Result<Self> {
        if let Some(label) = label.filter(|label| !names::is_label(label)) {
            let said = format!("`{label}` is no label: expected `host2`, `run2` and so on");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        let label = label.map(|label| format!("-{label}")).unwrap_or_default();
        let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let target = database.join(format!("{}{label}-{}", about.machine(), &now[..10]));
        if target.exists() {
            let said = format!(
                "{} is there already, and is not overwritten: --label host2 is for another host \
                 of this kind, --label run2 for another run on this day",
                target.display()
            );
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, said));
        }
        let cannot = |error: io::Error| {
            io::Error::new(error.kind(), format!("cannot write {}: {error}", database.display()))
        };
        std::fs::create_dir_all(database).map_err(cannot)?;
        let hidden = tempfile::Builder::new().prefix(".record-").tempdir_in(database);
        let hidden = hidden.map_err(cannot)?;
        Ok(Self { hidden, target })
    }

    /// Runs all commands of `dimmer`, which is `program`. `stops` is asked whether a signal has
    /// arrived; `before` is called before each command.
    ///
    /// # Errors
    /// If a document cannot be written, or the kernel does not say how busy the machine is. A
    /// command that fails is in the result.
    pub fn run(
        &self,
        program: &Path,
        privacy: &Privacy,
        stops: &dyn Fn() -> bool,
        before: &mut dyn FnMut(&Step),
    ) -> io::Result<Evidence> {
        let state = tempfile::tempdir()?;
        let around = Surroundings { program, state: state.path(), privacy, stops };
        take(STEPS, &around, self.hidden.path(), before)
    }

    /// Adds how it was made, and gives it its name, now that it is complete. Returns its directory.
    ///
    /// # Errors
    /// If it has no description of the machine, as after an early interrupt; if something of its
    /// name has come meanwhile, or the file system refuses.
    pub fn end(self, evidence: &str) -> io::Result<PathBuf> {
        if !self.hidden.path().join("doctor.json").exists() {
            return Err(io::Error::other("`dimmer doctor` did not complete: nothing is recorded"));
        }
        std::fs::write(self.hidden.path().join("evidence.json"), evidence)?;
        std::fs::set_permissions(self.hidden.path(), std::fs::Permissions::from_mode(0o755))?;
        std::fs::rename(self.hidden.path(), &self.target)?;
        // Nothing is left to remove.
        let _ = self.hidden.keep();
        Ok(self.target)
    }
}

fn command_line(step: &Step) -> String {
    format!("dimmer {} --json", step.arguments.join(" "))
}

/// The document of a command, or the reason why there is none.
fn run(step: &Step, around: &Surroundings<'_>) -> Result<Value, String> {
    let mut command = Command::new(around.program);
    // Its name is in the document, and must not have a path.
    command.arg0("dimmer").args(step.arguments).args(["--json", "--quiet"]);
    command.env("XDG_STATE_HOME", around.state).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    // Away from the terminal's signals: a second one would kill it, and `wait` passes them on.
    command.process_group(0);
    let mut child = command.spawn().map_err(|error| format!("cannot be started: {error}"))?;
    let (Some(output), Some(messages)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("its output is lost".to_owned());
    };
    let output = std::thread::spawn(move || whole(output, crate::database::LONGEST));
    let messages = std::thread::spawn(move || whole(messages, MESSAGES));
    let is_in_time = wait(&mut child, Duration::from_secs(step.longest_s), around.stops);
    let status = child.wait().map_err(|error| error.to_string())?;
    let lost = |_| "its output is lost".to_owned();
    let (output, messages) = (output.join().map_err(lost)?, messages.join().map_err(lost)?);
    if (around.stops)() {
        return Err("interrupted".to_owned());
    }
    if !is_in_time {
        return Err(format!("took more than {} s", step.longest_s));
    }
    // Status 3: it worked, and its answer is no.
    if !status.success() && status.code() != Some(3) {
        let said = messages.lines().map(str::trim).filter(|line| !line.is_empty());
        let said = said.collect::<Vec<_>>().join(" ");
        let said = said.trim_start_matches("error: ");
        let reason = if said.is_empty() { status.to_string() } else { said.to_owned() };
        return Err(reason);
    }
    let file = Path::new(step.name).with_extension("json");
    let checked = Entry::new(&file, &output).map_err(|error| error.to_string())?;
    let mut document = checked.value;
    around.privacy.clean(&mut document);
    Ok(document)
}

/// Reads to the end, so that the writer never waits; keeps at most `limit` bytes.
fn whole(mut from: impl io::Read, limit: u64) -> String {
    let mut bytes = Vec::new();
    let _ = (&mut from).take(limit).read_to_end(&mut bytes);
    let _ = io::copy(&mut from, &mut io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits for a command for this time, or until a signal arrives; then ends it by a signal, so that
/// it leaves the machine as it found it, and if that takes too long, at once. Returns whether it
/// ended in time.
fn wait(child: &mut Child, longest: Duration, stops: &dyn Fn() -> bool) -> bool {
    const GRACE: Duration = Duration::from_secs(20);
    let begin = Instant::now();
    let mut asked: Option<Instant> = None;
    while matches!(child.try_wait(), Ok(None)) {
        if asked.is_some_and(|since| since.elapsed() > GRACE) {
            let _ = child.kill();
        } else if asked.is_none() && (begin.elapsed() > longest || stops()) {
            asked = Some(Instant::now());
            let pid = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    asked.is_none()
}

/// The load averages.
fn load() -> io::Result<[f64; 3]> {
    let text = std::fs::read_to_string("/proc/loadavg")?;
    let numbers: Vec<f64> = text.split(' ').take(3).filter_map(|one| one.parse().ok()).collect();
    numbers.try_into().map_err(|_| io::Error::other("/proc/loadavg has no three numbers"))
}

/// CPU time used so far, in ticks.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    /// All of all CPUs, idle ones included.
    all: u64,
    /// By programs and the kernel.
    busy: u64,
    /// Withheld by the hypervisor.
    steal: u64,
    /// By this process and its children that ended.
    own: u64,
}

impl Used {
    fn now() -> io::Result<Self> {
        let stat = std::fs::read_to_string("/proc/stat")?;
        let own = std::fs::read_to_string("/proc/self/stat")?;
        Self::of(&stat, &own).ok_or_else(|| io::Error::other("/proc/stat has no CPU times"))
    }

    /// From `/proc/stat` and `/proc/self/stat`.
    fn of(stat: &str, own: &str) -> Option<Self> {
        let words = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let ticks: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are within user.
        let ticks: [u64; 8] = ticks.get(..8)?.try_into().ok()?;
        let [user, nice, system, .., irq, softirq, steal] = ticks;
        // Behind the name, which may have blanks: utime, stime, cutime and cstime.
        let own: Vec<&str> = own.rsplit_once(')')?.1.split_whitespace().collect();
        let own: Vec<u64> = own.get(11..15)?.iter().filter_map(|one| one.parse().ok()).collect();
        Some(Self {
            all: ticks.iter().sum(),
            busy: user + nice + system + irq + softirq,
            steal,
            own: own.iter().sum(),
        })
    }

    /// The shares of other programs and of the hypervisor since then (%).
    fn since(&self, before: &Self) -> [f64; 2] {
        let ticks = |later: u64, earlier: u64| later.saturating_sub(earlier);
        let busy = ticks(self.busy, before.busy);
        let others = ticks(busy, ticks(self.own, before.own));
        let all = ticks(self.all, before.all).max(1);
        [others, ticks(self.steal, before.steal)]
            .map(|part| (1000.0 * part as f64 / all as f64).round() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_have_what_is_neither_idle_nor_our_own() {
        let stat = |user: u64, idle: u64, steal: u64| {
            format!("cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 0\n")
        };
        let own = |ticks: u64| format!("7 (a ) b) S{} {ticks} 0 0 0 20", " 1".repeat(10));
        let before = Used::of(&stat(1000, 5000, 0), &own(100)).unwrap();
        let after = Used::of(&stat(1600, 5300, 100), &own(500)).unwrap();
        // Of 1000 ticks, 600 were used, 400 of these by us.
        assert_eq!(after.since(&before), [20.0, 10.0]);
        assert_eq!(before.since(&before), [0.0, 0.0]);
        assert!(Used::of("intr 1\n", &own(1)).is_none());
        assert!(Used::of("cpu  1 2 3\n", &own(1)).is_none());
    }

    #[test]
    fn a_record_appears_when_it_is_complete_and_is_never_overwritten() {
        let database = tempfile::tempdir().unwrap();
        let about = About { microarchitecture: "Zen 5".to_owned(), ..About::default() };
        let dropped = Making::of(database.path(), &about, None).unwrap();
        let hidden = dropped.hidden.path().to_owned();
        drop(dropped);
        assert!(!hidden.exists());
        let making = Making::of(database.path(), &about, None).unwrap();
        std::fs::write(making.hidden.path().join("doctor.json"), "{}").unwrap();
        let target = making.target.clone();
        assert!(!target.exists());
        let rival = Making::of(database.path(), &about, None).unwrap();
        std::fs::write(rival.hidden.path().join("doctor.json"), "{}").unwrap();
        let empty = Making::of(database.path(), &about, None).unwrap();
        assert!(empty.end("{}").unwrap_err().to_string().contains("nothing is recorded"));
        assert_eq!(making.end("{}").unwrap(), target);
        assert!(target.join("doctor.json").exists());
        assert!(rival.end("{}").is_err());
        let said = Making::of(database.path(), &about, None).unwrap_err().to_string();
        assert!(said.contains("is not overwritten"), "{said}");
        assert!(Making::of(database.path(), &about, Some("run2")).is_ok());
        let said = Making::of(database.path(), &about, Some("../x")).unwrap_err().to_string();
        assert_eq!(said, "`../x` is no label: expected `host2`, `run2` and so on");
        assert_eq!(std::fs::read_dir(database.path()).unwrap().count(), 1);
    }

    /// Runs a shell script in the place of `dimmer`.
    fn taken(script: &str, steps: &[Step], stops: bool) -> (tempfile::TempDir, Evidence) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        // By another process: what is open for writing cannot be executed.
        let write = format!("printf '%s' \"$1\" > {0} && chmod 755 {0}", program.display());
        let status = Command::new("sh").args(["-c", &write, "sh", script]).status().unwrap();
        assert!(status.success());
        let around = Surroundings {
            program: &program,
            state: directory.path(),
            privacy: &Privacy::new("build-7"),
            stops: &|| stops,
        };
        let evidence = take(steps, &around, directory.path(), &mut |_| {}).unwrap();
        (directory, evidence)
    }

    const HOOK: &str = r#"#!/bin/sh
if [ "$1" != bench ]; then echo "error: cannot measure in $XDG_STATE_HOME/x" >&2; exit 1; fi
if [ "$3" = region ]; then sleep 9; fi
if [ "$3" = migrate ]; then echo '{"schema": "dimmer/bench-hook/1"}'; exit 0; fi
echo '{"schema": "dimmer/bench-hook/1", "from": "/home/eve/x at build-7",'
echo '"plain_ns": 1.0, "call_ns": 2, "counted_ns": 3, "timed_ns": null}'
"#;

    #[test]
    fn commands_that_cannot_work_are_skipped_with_their_reason() {
        let steps = [
            step("bench-hook", &["bench", "dev", "hook"], 60),
            step("probe-quick", &["probe", "--quick"], 60),
            step("bench-migrate", &["bench", "dev", "migrate"], 60),
            step("bench-region", &["bench", "dev", "region"], 0),
            step("doctor", &["doctor"], 9999),
        ];
        let (directory, evidence) = taken(HOOK, &steps, false);
        let reasons: Vec<Option<&str>> =
            evidence.commands.iter().map(|ran| ran.reason.as_deref()).collect();
        assert_eq!(
            reasons,
            [
                None,
                Some("cannot measure in .../x"),
                Some(
                    "bench-migrate.json: its `schema` is `dimmer/bench-hook/1`, expected \
                 `dimmer/bench-migrate/1`"
                ),
                Some("took more than 0 s"),
                Some("it may take 9999 s, and fewer are left"),
            ]
        );
        let text = std::fs::read_to_string(directory.path().join("bench-hook.json")).unwrap();
        assert!(text.contains(".../x at ..."), "{text}");
        assert!(!directory.path().join("probe-quick.json").exists());
        assert!(!evidence.interrupted);
        assert_eq!(evidence.commands[0].command, "dimmer bench dev hook --json");
    }

    #[test]
    fn after_a_signal_nothing_more_is_run() {
        let steps = [step("bench-hook", &["bench", "dev", "hook"], 60)];
        let (directory, evidence) = taken(HOOK, &steps, true);
        assert!(evidence.interrupted);
        assert_eq!(evidence.commands[0].reason.as_deref(), Some("interrupted before"));
        assert!(!directory.path().join("bench-hook.json").exists());
    }

    #[test]
    fn all_commands_fit_the_time_and_have_a_kind() {
        for step in STEPS {
            assert!(crate::kinds::of(step.name).is_some(), "{}", step.name);
        }
        // The first ones, through `probe-levels`, are always reached.
        let first: u64 = STEPS.iter().take(12).map(|step| step.longest_s).sum();
        assert!(Duration::from_secs(first) < LONGEST);
    }
}

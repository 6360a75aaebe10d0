//! `dimmer top`, `dimmer daemon record` and `dimmer daemon replay` with a policy server of their
//! own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use dimmer_watch::state::State;
use dimmer_watch::watch::Watch;
use serde_json::Value;

use crate::migrate::away;
use crate::victims::{self, Victims};
use crate::{command, dimmer, stderr, stdout};

/// Moves every marked region from the first look on.
const MOVES: &str = "[policy]\nloop = \"thresholds\"\n";

/// Time limit for an event that will come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A program that is killed at the end of the test.
pub(crate) struct Ends(pub(crate) Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Also kills what the program has started, in a process group of its own.
struct EndsAll(Ends);

impl Drop for EndsAll {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// `dimmerd` in a directory of its own.
pub(crate) struct Server {
    child: Ends,
    directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(MOVES)
    }

    pub(crate) fn start_with(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = Self::launch(directory.path(), config);
        Self { child, directory }
    }

    /// Starts a server in that directory, and waits until it answers.
    fn launch(directory: &Path, config: &str) -> Ends {
        std::fs::write(directory.join("dimmerd.toml"), config).unwrap();
        let mut command = Command::new(built().join("dimmerd"));
        command.current_dir(directory).args(["--config", "dimmerd.toml", "--socket", "run/socket"]);
        // The tests must not depend on what a probe has left on this machine.
        command.env("XDG_STATE_HOME", directory).env_remove("NOTIFY_SOCKET");
        let child = Ends(command.stderr(Stdio::null()).spawn().unwrap());
        let begin = Instant::now();
        while Watch::new(Some(&directory.join("run/socket"))).is_err() {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(10));
        }
        child
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path().join("run/socket")
    }

    pub(crate) fn state(&self) -> State {
        Watch::new(Some(&self.socket())).unwrap().state().unwrap()
    }

    /// A program with a marked region that runs for `ms` milliseconds.
    fn client(&self, ms: u32) -> Child {
        let mut command = Command::new(built().join("examples/client"));
        command.arg(ms.to_string()).env("DIMMER_SOCKET", self.socket());
        command.env_remove("DIMMER_POLICY").env_remove("DIMMER_CORES");
        command.stdout(Stdio::null()).spawn().unwrap()
    }

    pub(crate) fn end(&mut self) {
        self.child.0.kill().unwrap();
        self.child.0.wait().unwrap();
    }

    /// Starts it again, once it has ended.
    pub(crate) fn restart(&mut self, config: &str) {
        self.child = Self::launch(self.path(), config);
    }
}

/// The directory of `dimmerd` and of the program with a marked region, built like `dimmer`.
fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        crate::built(&["--package", "dimmer-daemon", "--bin", "dimmerd"]);
        crate::built(&["--package", "dimmer-runtime", "--example", "client"])
    })
}

fn replayed(directory: &Path, arguments: &[&str]) -> (Output, Value) {
    let output = dimmer(directory, &[&["daemon", "replay", "--json"], arguments].concat());
    let found = serde_json::from_str(&stdout(&output)).unwrap();
    (output, found)
}

#[test]
fn a_recording_from_the_begin_is_replayed_the_same() {
    let server = Server::start();
    let arguments = ["daemon", "record", "r.jsonl", "--socket", "run/socket"];
    let recorder = crate::heeding("--default-signal=INT", server.path(), &arguments)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let file = server.path().join("r.jsonl");
    let begin = Instant::now();
    while std::fs::metadata(&file).map_or(0, |file| file.len()) == 0 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    for mut client in [server.client(1500), server.client(1000)] {
        assert!(client.wait().unwrap().success());
    }
    let pid = rustix::process::Pid::from_child(&recorder);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let recorded = recorder.wait_with_output().unwrap();
    let said = stderr(&recorded);
    assert_eq!(recorded.status.code(), Some(130), "{said}");
    assert!(said.contains(" steps, ") && said.contains("must decide the same"), "{said}");
    let steps = std::fs::read_to_string(&file).unwrap().matches("{\"step\":").count();
    assert!(steps > 5 && said.contains(&format!("{steps} steps, ")), "{said}");

    let (output, found) = replayed(server.path(), &["r.jsonl"]);
    assert_eq!(output.status.code(), Some(0), "{found}");
    assert_eq!(found["schema"], "dimmer/replay/1");
    assert_eq!((&found["steps"], &found["clients"]), (&steps.into(), &2.into()), "{found}");
    assert_eq!((&found["is_fresh"], &found["is_same_settings"]), (&true.into(), &true.into()));
    assert_eq!(found["different_steps"], 0);
    assert_eq!(found["recorded"], found["replayed"]);
    if server.state().cores.no_core.is_none() {
        assert!(found["recorded"]["moved_ratio"].as_f64().unwrap() > 0.0, "{found}");
    }

    // Another policy, as text; a difference is no fault then.
    std::fs::write(server.path().join("other.toml"), "[policy]\nloop = \"trials\"\n").unwrap();
    let other = dimmer(server.path(), &["daemon", "replay", "r.jsonl", "--config", "other.toml"]);
    assert!(other.status.success() && stdout(&other).contains("another policy"));
    assert!(stdout(&other).contains("the server's policy"), "{}", stdout(&other));
}

#[test]
fn a_replay_that_should_be_the_same_and_is_not_fails() {
    let server = Server::start();
    let recorder = command(server.path(), &["daemon", "record", "-", "--socket", "run/socket"])
        .args(["--duration", "1.5s"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut client = server.client(1000);
    client.wait().unwrap();
    let recorded = recorder.wait_with_output().unwrap();
    assert!(recorded.status.success(), "{}", stderr(&recorded));
    let mut text = stdout(&recorded);
    let file = server.path().join("r.jsonl");
    // Whether the client came before the start of the recording is a matter of chance.
    text = text.replace("\"is_fresh\":false", "\"is_fresh\":true");
    let (before, after) = text.split_once("{\"join\":{\"client\":").unwrap();
    let (client, _) = after.split_once(',').unwrap();
    let change = format!("\"changes\":[[{client},null,true]]");
    let forged = after.replacen("\"changes\":[]", &change, 1);
    assert_ne!(after, forged);
    let forged = format!("{before}{{\"join\":{{\"client\":{forged}");
    std::fs::write(&file, forged).unwrap();
    let output = dimmer(server.path(), &["daemon", "replay", "r.jsonl"]);
    assert_eq!(output.status.code(), Some(3), "{}", stdout(&output));
    assert!(stdout(&output).contains("fault"));
    let (_, found) = replayed(server.path(), &["r.jsonl"]);
    assert!(found["different_steps"].as_u64() > Some(0), "{found}");
    // If the recording is not marked as starting with the policy, it may differ.
    let later = std::fs::read_to_string(&file).unwrap().replace("_fresh\":true", "_fresh\":false");
    std::fs::write(&file, later).unwrap();
    assert_eq!(dimmer(server.path(), &["daemon", "replay", "r.jsonl"]).status.code(), Some(0));
}

#[test]
fn a_recording_ends_with_its_server() {
    let mut server = Server::start();
    let mut client = server.client(60_000);
    let recorder =
        command(server.path(), &["daemon", "record", "r.jsonl", "--socket", "run/socket"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    let file = server.path().join("r.jsonl");
    let begin = Instant::now();
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.contains("{\"step\":")) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    server.end();
    let recorded = recorder.wait_with_output().unwrap();
    client.kill().unwrap();
    client.wait().unwrap();
    let said = stderr(&recorded);
    assert!(recorded.status.success() && said.starts_with("The server has ended.\n"), "{said}");
    let (_, found) = replayed(server.path(), &["r.jsonl"]);
    assert!(found["steps"].as_u64() > Some(0));
}

#[test]
fn top_tells_what_the_server_does() {
    let server = Server::start();
    let mut client = server.client(60_000);
    let begin = Instant::now();
    while server.state().clients.iter().all(|client| client.sites.is_empty()) {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let top = |arguments: &[&str]| {
        let common = ["top", "--socket", "run/socket", "--interval", "300ms"];
        let output = dimmer(server.path(), &[&common, arguments].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let state: State = serde_json::from_str(&top(&["--json"])).unwrap();
    assert_eq!((state.schema.as_str(), state.clients.len()), ("dimmer/state/1", 1));
    // Standard output is not a terminal here.
    for arguments in [&["--once"][..], &["--json=state.json"]] {
        let table = top(arguments);
        let row = table.lines().find(|line| line.starts_with(&format!("client {}", client.id())));
        let row = row.unwrap_or_else(|| panic!("{table}"));
        // Milliseconds where the machine is busy.
        assert!(row.contains(" us") || row.contains(" ms"), "{table}");
        assert!(row.contains("work:"), "{table}");
        assert!(table.contains("thresholds: moves each region"), "{table}");
    }
    let kept = std::fs::read_to_string(server.path().join("state.json")).unwrap();
    assert_eq!(serde_json::from_str::<State>(&kept).unwrap().pid, state.pid);
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn top_shows_a_screen_on_a_terminal_and_leaves_it_as_it_was() {
    if Command::new("script").arg("--version").output().is_err() {
        println!("SKIPPED: `script`, which makes a terminal for the test, is not here");
        return;
    }
    let mut server = Server::start();
    let shell = format!(
        "stty rows 30 cols 120; stty -a; {} top --socket run/socket --interval 0.1; stty -a",
        env!("CARGO_BIN_EXE_dimmer")
    );
    let mut script = Command::new("script");
    script
        .current_dir(server.path())
        .args(["-qfec", &shell, "typescript"])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR");
    script.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut terminal = Ends(script.spawn().unwrap());
    let shown = || {
        let file = server.directory.path().join("typescript");
        String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned()
    };
    let wait = |what: &str| {
        let begin = Instant::now();
        while !shown().contains(what) {
            assert!(begin.elapsed() < PATIENCE, "{what}: {}", shown());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    wait("thresholds:");
    server.child.0.kill().unwrap();
    server.child.0.wait().unwrap();
    // Only changes are drawn, so words may lack letters. The message that the server is gone is the
    // only red text.
    wait("\x1b[38;5;1");
    terminal.0.stdin.as_mut().unwrap().write_all(b"q").unwrap();
    assert!(terminal.0.wait().unwrap().success());
    let shown = shown();
    // The terminal's alternate screen is entered and left, and the terminal's settings are
    // restored.
    assert!(shown.contains("\x1b[?1049h") && shown.contains("\x1b[?1049l"), "{shown}");
    let settings = shown.split("speed ").skip(1).map(|told| told.split("\x1b").next().unwrap());
    let settings: Vec<&str> =
        settings.map(|told| told.split("Script done").next().unwrap()).collect();
    assert_eq!(settings.len(), 2, "{shown}");
    assert_eq!(settings[0].trim(), settings[1].trim());
}

#[test]
fn top_ends_with_its_terminal() {
    if Command::new("script").arg("--version").output().is_err() {
        println!("SKIPPED: `script`, which makes a terminal for the test, is not here");
        return;
    }
    let server = Server::start();
    let shell = format!(
        "stty rows 30 cols 120; echo $$ >pid; exec {} top --socket run/socket --interval 0.1",
        env!("CARGO_BIN_EXE_dimmer")
    );
    let mut script = Command::new("script");
    script.current_dir(server.path()).args(["-qfec", &shell, "typescript"]).env("TERM", "xterm");
    script.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut terminal = Ends(script.spawn().unwrap());
    let begin = Instant::now();
    let file = |name: &str| std::fs::read(server.path().join(name)).unwrap_or_default();
    while !String::from_utf8_lossy(&file("typescript")).contains("thresholds:") {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = String::from_utf8(file("pid")).unwrap();
    terminal.0.kill().unwrap();
    terminal.0.wait().unwrap();
    // The process that inherits it may be slow to reap it.
    let status = format!("/proc/{}/stat", pid.trim());
    while std::fs::read_to_string(&status).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(begin.elapsed() < PATIENCE, "{pid}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn what_cannot_be_recorded_or_replayed_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], status: i32, said: &str| {
        let output = dimmer(directory.path(), arguments);
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
        assert_eq!(stdout(&output), "");
    };
    std::fs::write(directory.path().join("kept.jsonl"), "kept").unwrap();
    let no_server = ["daemon", "record", "kept.jsonl", "--socket", "no/socket"];
    refused(&no_server, 1, "no policy server at no/socket");
    refused(&["top", "--socket", "no/socket"], 1, "no policy server at no/socket");
    refused(&["top", "--interval", "0"], 2, "expected more than 0");
    // The old content of a file is lost only when new content comes.
    assert_eq!(std::fs::read_to_string(directory.path().join("kept.jsonl")).unwrap(), "kept");
    refused(&["daemon", "record", "no/file", "--socket", "no/socket"], 1, "cannot write no/file");
    refused(&["daemon", "replay", "kept.jsonl"], 2, "kept.jsonl: line 1, column 1: ");
    refused(&["daemon", "replay", "no.jsonl"], 2, "cannot read no.jsonl");
    std::fs::write(directory.path().join("wrong.toml"), "[policy]\nlop = 3\n").unwrap();
    let wrong = ["daemon", "replay", "kept.jsonl", "--config", "wrong.toml"];
    refused(&wrong, 2, "wrong.toml: line 2: unknown field `lop`");
}

#[test]
fn a_program_that_nobody_changed_is_a_client_too() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["migrated"]) else { return };
    victims::library();
    let server = Server::start();
    let no_cores = Server::start_with("[cores]\nmost = 0\n");
    let program = victims.path("migrated");
    let plain = Command::new(&program).output().unwrap();
    let auto = |socket: &Path| {
        let arguments = ["run", "--auto=integers,vector", "--", &program];
        let mut command = command(server.path(), &arguments);
        command.env("HOME", server.path()).env("DIMMER_SOCKET", socket);
        command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME").output().unwrap()
    };
    for (socket, told) in [
        (server.socket(), "The policy server decides which of them do."),
        (no_cores.socket(), "The policy server decides which of them do."),
        (server.path().join("none"), "There is no policy server (dimmerd): trials"),
    ] {
        let output = auto(&socket);
        assert_eq!(stdout(&output), stdout(&plain), "{}", stderr(&output));
        assert!(stderr(&output).contains(told), "{}", stderr(&output));
    }
}

#[test]
fn a_program_keeps_off_the_servers_core_as_long_as_that_is_dedicated() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["follows"]) else { return };
    victims::library();
    let mut server = Server::start();
    let program = victims.path("follows");
    let mut run = command(victims.directory.path(), &["run", "--auto=kept", "--", &program]);
    run.env("HOME", victims.directory.path()).env("DIMMER_SOCKET", server.socket());
    run.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME");
    let read = |lines: &mut dyn Iterator<Item = std::io::Result<String>>| -> Vec<usize> {
        let line = lines.next().unwrap().unwrap();
        line.split(' ').map(|number| number.parse().unwrap()).collect()
    };
    let mut running = Ends(run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap());
    let mut lines = BufReader::new(running.0.stdout.take().unwrap()).lines();
    let all = dimmer_host::affinity::allowed().unwrap().len();
    assert_eq!(read(&mut lines), [all; 2], "nothing has moved yet");
    let kept_off = read(&mut lines);
    assert!(kept_off.iter().all(|cpus| *cpus < all), "{kept_off:?}");
    server.end();
    assert_eq!(read(&mut lines), [all; 2], "nobody dedicates any more");
}

#[test]
fn a_program_that_cannot_go_to_the_servers_cores_is_told_of_both() {
    if away().is_none() {
        return;
    }
    let Some(victims) = Victims::compile(&["follows"]) else { return };
    victims::library();
    let allowed = dimmer_host::affinity::allowed().unwrap();
    let (first, last) = (allowed[0], allowed[allowed.len() - 1]);
    let on = |cpu| format!("{MOVES}[cores]\nlist = \"{cpu}\"\n");
    let program = victims.path("follows");
    let run = |socket: &Path, arguments: &[&str]| {
        let auto = ["run", "--auto=kept"];
        let arguments = [&auto, arguments, &["--", &program, "60"]].concat();
        let mut command = command(victims.directory.path(), &arguments);
        command.env("HOME", victims.directory.path()).env("DIMMER_SOCKET", socket);
        command.env_remove("XDG_CACHE_HOME").env_remove("XDG_STATE_HOME").process_group(0);
        let running = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        EndsAll(Ends(running))
    };
    let finds = |lines: &mut dyn Iterator<Item = std::io::Result<String>>, text: &str| {
        let mut said = lines.map_while(Result::ok);
        assert!(said.any(|line| line.contains(text)), "{text}");
    };
    let said = |running: &mut EndsAll| BufReader::new(running.0.0.stderr.take().unwrap()).lines();
    let mut server = Server::start_with(&on(last));
    let mut running = run(&server.socket(), &["--cpus", &first.to_string()]);
    finds(&mut said(&mut running), &format!("It dedicates cpu {last}, and --cpus"));
    let mut running = run(&server.socket(), &[]);
    let mut lines = said(&mut running);
    finds(&mut lines, "The policy server decides");
    server.end();
    server.restart(&on(first));
    let both =
        format!("dedicates cpu {first}, and calls of this program can move to cpu {last} alone");
    finds(&mut lines, &both);
    server.end();
    server.restart("[cores]\nmost = 0\n");
    let mut running = run(&server.socket(), &[]);
    finds(&mut said(&mut running), "the policy server has no core to dedicate");
}

//! Tests of the program itself, as users run it: with clients that behave, lie, die, or send
//! nonsense.

#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

mod auto;
mod metrics;
mod moderation;

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use dimmer_protocol::{Hello, Mapped, SITES, Sums, Table, Welcome};
use dimmer_watch::record;
use dimmer_watch::state::State;
use dimmer_watch::watch::Watch;

/// Moves every marked region from the first look on.
const MOVES: &str = "[policy]\nloop = \"thresholds\"\nunit = \"site\"\n";

/// How long to wait for something that will come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server, and a directory for it.
struct Server {
    child: Child,
    directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(directory: &Path) -> PathBuf {
    directory.join("run/socket")
}

fn command(directory: &Path, settings: &str) -> Command {
    let file = directory.join("dimmerd.toml");
    std::fs::write(&file, settings).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_dimmerd"));
    // The tests must not depend on a probe's results on this machine.
    command.env("XDG_STATE_HOME", directory).env_remove("NOTIFY_SOCKET");
    command.arg("--config").arg(file).arg("--socket").arg(socket(directory));
    command.stderr(std::fs::File::create(directory.join("log")).unwrap());
    command
}

impl Server {
    fn start(settings: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let child = command(directory.path(), settings).spawn().unwrap();
        let server = Self { child, directory };
        server.wait_until_it_listens();
        server
    }

    fn wait_until_it_listens(&self) {
        let begin = Instant::now();
        while Watch::new(Some(&self.socket())).is_err() {
            assert!(begin.elapsed() < PATIENCE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn socket(&self) -> PathBuf {
        socket(self.directory.path())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Waits until the log contains this.
    #[track_caller]
    fn wait_for_log(&self, text: &str) {
        let begin = Instant::now();
        while !self.log().contains(text) {
            assert!(begin.elapsed() < PATIENCE, "{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn state(&self) -> State {
        Watch::new(Some(&self.socket())).unwrap().state().unwrap()
    }

    /// Waits until the state satisfies a condition.
    #[track_caller]
    fn wait(&self, is_so: impl Fn(&State) -> bool) -> State {
        let begin = Instant::now();
        loop {
            let state = self.state();
            if is_so(&state) {
                return state;
            }
            assert!(begin.elapsed() < PATIENCE, "{state:#?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether a core can be dedicated here; prints the reason if not.
    fn can_move(&self) -> bool {
        let no_core = self.state().cores.no_core;
        if let Some(why) = &no_core {
            println!("SKIPPED: no core to dedicate: {why}");
        }
        no_core.is_none()
    }

    /// An honest client that runs for this long (ms).
    fn client(&self, ms: u32) -> Child {
        let mut command = Command::new(example());
        command.arg(ms.to_string()).env("DIMMER_SOCKET", self.socket());
        command.env_remove("DIMMER_POLICY").env_remove("DIMMER_CORES");
        command.stdout(Stdio::piped()).spawn().unwrap()
    }

    /// A client that does by hand what the library does otherwise.
    fn connect(&self, name: &str) -> (OwnedFd, Mapped<Table>) {
        let connected = dimmer_protocol::connect(&self.socket()).unwrap();
        let hello = Hello::Serve { name: name.to_owned() };
        dimmer_protocol::send(connected.as_fd(), &hello.to_bytes(), &[]).unwrap();
        let begin = Instant::now();
        loop {
            let mut bytes = [0; Welcome::BYTES];
            match dimmer_protocol::receive(&connected, &mut bytes).unwrap() {
                Some((_, [Some(_), Some(table)])) => {
                    return (connected, Mapped::new(table.as_fd()).unwrap());
                }
                Some(other) => panic!("{other:?}"),
                None => assert!(begin.elapsed() < PATIENCE),
            }
            std::thread::yield_now();
        }
    }
}

/// The program with a marked region: an example of `dimmer-runtime`.
fn example() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let directory = Path::new(env!("CARGO_BIN_EXE_dimmerd")).parent().unwrap();
        let is_release = directory.file_name().is_some_and(|name| name == "release");
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
        cargo.args(["build", "--quiet", "--offline", "--package", "dimmer-runtime"]);
        cargo.args([
            "--example",
            "client",
            "--profile",
            if is_release { "release" } else { "dev" },
        ]);
        cargo.arg("--target-dir").arg(directory.parent().unwrap());
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        directory.join("examples/client")
    })
}

fn said(client: Child) -> String {
    let output = client.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn regions_move_while_a_server_says_so_and_find_the_next_one() {
    let mut server = Server::start(MOVES);
    if !server.can_move() {
        return;
    }
    let client = server.client(4000);
    let is_moved = |state: &State| {
        state.clients.iter().any(|client| client.sites.iter().any(|site| site.moved > 0))
    };
    let state = server.wait(is_moved);
    let [client_state] = &state.clients[..] else { panic!("{state:#?}") };
    assert_eq!((client_state.name.as_str(), client_state.lies), ("client", 0));
    assert_eq!((&*client_state.sites[0].name, state.cores.dedicated), ("work", 1));
    assert!(client_state.sites[0].action == "move" && client_state.metric.is_some());
    // The server dies without notice; another one starts.
    server.child.kill().unwrap();
    server.child.wait().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    server.child = command(server.directory.path(), MOVES).spawn().unwrap();
    server.wait_until_it_listens();
    server.wait(is_moved);
    let said = said(client);
    let places: Vec<&str> = said.split(", ").skip(2).map(|place| &place[..4]).collect();
    assert!(places.starts_with(&["away", "home", "away"]), "{said}");
    server.wait(|state| state.clients.is_empty());
}

#[test]
fn a_server_that_only_observes_moves_nothing_until_it_acts() {
    let server = Server::start(&format!("{MOVES}acting_pct = 0\n"));
    if !server.can_move() {
        return;
    }
    let mut client = server.client(60_000);
    let sites = |state: &State| state.clients.iter().flat_map(|client| client.sites.clone()).next();
    let is_held = |state: &State| {
        sites(state).is_some_and(|site| site.reason.starts_with("only observed") && site.calls > 0)
    };
    let state = server.wait(is_held);
    let site = sites(&state).unwrap();
    assert_eq!((site.moved, &*site.action, state.cores.dedicated), (0, "stay", 0));
    std::fs::write(server.directory.path().join("dimmerd.toml"), MOVES).unwrap();
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    server.wait(|state| sites(state).is_some_and(|site| site.moved > 0));
    client.kill().and_then(|()| client.wait()).unwrap();
}

#[test]
fn one_that_lies_floods_or_dies_costs_the_others_nothing() {
    // For a longer run with other nonsense: `DIMMER_FUZZ_SECONDS=300 cargo test -p dimmer-daemon
    // one_that_lies -- --nocapture`.
    let seconds = std::env::var("DIMMER_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let seed = seconds.map_or(5, |_| fastrand::u64(..));
    println!("seed {seed}");
    let seconds: u32 = seconds.unwrap_or(3);
    let server = Server::start(MOVES);
    let honest = server.client(seconds * 1000);
    let end = Instant::now() + Duration::from_secs(seconds.into()) - Duration::from_millis(500);
    let mut chance = fastrand::Rng::with_seed(seed);
    let (_socket, table) = server.connect("liar");
    let mut dying = server.client(60_000);
    while Instant::now() < end {
        // Everything that a client may write, at any time, as any bytes.
        for _ in 0..100 {
            table.add(&[chance.u8(..), b'x'], chance.u32(..));
            let any = |chance: &mut fastrand::Rng| chance.u64(..) >> chance.u8(..64);
            table.sites[chance.usize(..SITES)].set(&Sums {
                calls: any(&mut chance),
                stayed: any(&mut chance),
                stayed_ticks: any(&mut chance),
                moved: any(&mut chance),
                moved_ticks: any(&mut chance),
                clocks: any(&mut chance),
                before_ticks: any(&mut chance),
                after_ticks: any(&mut chance),
            });
            table.head.client.add_done(any(&mut chance));
            table.decisions[chance.usize(..SITES)].store(chance.u32(..), Ordering::Relaxed);
        }
        // Invalid packets, and many connections that come and go.
        for _ in 0..10 {
            let Ok(stranger) = dimmer_protocol::connect(&server.socket()) else { continue };
            let mut bytes = Hello::Watch.to_bytes();
            bytes[chance.usize(..bytes.len())] = chance.u8(..);
            let length = chance.usize(1..=bytes.len());
            let _ = dimmer_protocol::send(stranger.as_fd(), &bytes[..length], &[]);
        }
        if chance.u8(..) == 0 {
            let _ = dying.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let _ = dying.kill();
    let _ = dying.wait();
    let state = server.wait(|state| state.clients.iter().any(|client| client.lies > 0));
    let liar = state.clients.iter().find(|client| client.name == "liar").unwrap();
    assert!(liar.sites.len() <= SITES);
    let mine = state.clients.iter().find(|client| client.name == "client");
    // The state shows what the honest client did.
    if let Some(mine) = mine {
        assert_eq!((mine.lies, mine.sites.len()), (0, 1));
        // Each call takes 50 us or more. The few samples on a busy machine measure their duration
        // badly.
        assert!(mine.sites[0].calls_per_s < 20_000.0, "{mine:#?}");
    }
    let said = said(honest);
    let numbers =
        said.split(|letter: char| !letter.is_ascii_digit()).filter(|part| !part.is_empty());
    let numbers: Vec<f64> = numbers.take(2).map(|number| number.parse().unwrap()).collect();
    assert!((numbers[1] / numbers[0] - 1.0).abs() < 0.2, "{said}");
    server.wait_for_log("reports impossible values");
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let server = Server::start("");
    let refused = |command: &mut Command, status: i32, said: &str| {
        let output = command.stderr(Stdio::piped()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(said), "{errors}");
        assert_eq!(output.status.code(), Some(status));
    };
    let with_settings = |settings: &str, said: &str| {
        let directory = tempfile::tempdir().unwrap();
        refused(&mut command(directory.path(), settings), 2, said);
    };
    let unknown = "[server]\nsocket_group = \"no-such-group\"\n";
    with_settings(unknown, "no group `no-such-group` (`server.socket_group`): expected a name");
    let directory = tempfile::tempdir().unwrap();
    let mut check = command(directory.path(), unknown);
    refused(check.arg("--check"), 2, "no group `no-such-group`");
    with_settings("[policy]\nlop = 3\n", "line 2: unknown field `lop`");
    with_settings("[trials]\nwindow_ms = -1\n", "accepted are 1 to");
    with_settings("[policy]\nacting_pct = -1\n", "accepted are 0 to 100");
    with_settings("[server]\nsocket_mode = \"0999\"\n", "in octal, as in \"0660\"");
    let at = |socket: &Path, said: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dimmerd"));
        refused(command.arg("--socket").arg(socket), 1, said);
    };
    at(Path::new("/proc/nowhere/socket"), "cannot listen at /proc/nowhere/socket");
    at(&server.socket(), "a policy server runs already at");
    assert!(Watch::new(Some(Path::new("/no/such"))).unwrap_err().to_string().contains("/no/such"));
    // The server must not remove a file that is not a socket.
    let file = server.directory.path().join("precious");
    std::fs::write(&file, "day").unwrap();
    at(&file, "Address already in use");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "day");
}

#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let child = command(directory.path(), "").stderr(full).spawn().unwrap();
    let server = Server { child, directory };
    server.wait_until_it_listens();
    drop(server.connect("test"));
    server.wait(|state| state.clients.is_empty());
}

#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let (_unread, full) = rustix::pipe::pipe().unwrap();
    // Fills the pipe to the last byte.
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while rustix::io::write(&full, &[b'x'; 4096]).is_ok() {}
    while rustix::io::write(&full, b"x").is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let child = command(directory.path(), "").stderr(full).spawn().unwrap();
    let mut server = Server { child, directory };
    server.wait_until_it_listens();
    (0..300).for_each(|_| drop(server.connect("test")));
    server.wait(|state| state.clients.is_empty());
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.child.wait().unwrap().success());
}

#[test]
fn signals_that_end_a_server_take_its_socket_away() {
    use rustix::process::Signal;
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let mut server = Server::start("");
        let pid = rustix::process::Pid::from_child(&server.child);
        rustix::process::kill_process(pid, signal).unwrap();
        let status = server.child.wait().unwrap();
        assert!(status.success(), "{signal:?}: {status}");
        assert!(!server.socket().exists(), "{signal:?}");
    }
}

#[test]
fn a_server_takes_its_own_socket_away_and_no_other() {
    let end = |server: &mut Server| {
        let pid = rustix::process::Pid::from_child(&server.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(server.child.wait().unwrap().success());
    };
    let mut one = Server::start("");
    std::fs::remove_file(one.socket()).unwrap();
    let mut two = Server::start("");
    std::fs::rename(two.socket(), one.socket()).unwrap();
    end(&mut one);
    assert!(one.socket().exists());
    std::fs::rename(one.socket(), two.socket()).unwrap();
    end(&mut two);
    assert!(!two.socket().exists());
    // A server that cannot start leaves no socket either.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let settings = format!("[metrics]\nlisten = \"{}\"\n", taken.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(command(directory.path(), &settings).status().unwrap().code(), Some(1));
    assert!(!socket(directory.path()).exists());
}

#[test]
fn roots_socket_is_found_by_others_whatever_its_umask() {
    use std::os::unix::fs::PermissionsExt as _;
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root's socket is for all users");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let server = command(directory.path(), "");
    let mut strict = Command::new("sh");
    strict.args(["-c", "umask 077; exec \"$0\" \"$@\""]).arg(server.get_program());
    strict.args(server.get_args()).env("XDG_STATE_HOME", directory.path());
    let server = Server { child: strict.stderr(Stdio::null()).spawn().unwrap(), directory };
    server.wait_until_it_listens();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&server.socket()), 0o666);
    assert_eq!(mode(server.socket().parent().unwrap()), 0o755);
}

#[test]
fn settings_are_read_anew_and_wrong_ones_change_nothing() {
    let server = Server::start("");
    assert_eq!(server.state().policy.decides, "trials");
    let file = server.directory.path().join("dimmerd.toml");
    let hang_up = |settings: &str| {
        std::fs::write(&file, settings).unwrap();
        let pid = rustix::process::Pid::from_child(&server.child);
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    };
    hang_up(MOVES);
    server.wait(|state| state.policy.decides == "thresholds");
    hang_up("[policy]\nloop = \"none\"\n");
    server.wait_for_log("stays as it was");
    assert_eq!(server.state().policy.decides, "thresholds");
    // The log reports settings that cannot change, and why a file cannot be read.
    hang_up("[metrics]\nlisten = \"127.0.0.1:1\"\n[clocks]\nmoderate = true\n");
    server.wait(|state| state.policy.decides == "trials");
    server.wait_for_log("`metrics` in the configuration takes effect");
    server.wait_for_log("`clocks` in the configuration takes effect when dimmerd is restarted");
    std::fs::remove_file(&file).unwrap();
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    server.wait_for_log("No such file");
}

#[test]
fn without_files_it_waits_and_says_so() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let server = Server::start("");
    let pid = Pid::from_child(&server.child);
    // The server has inherited this maximum.
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let limit = |current| {
        prlimit(Some(pid), Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    let path = format!("/proc/{}/stat", server.child.id());
    // User and system time (proc(5)), in ticks of 10 ms.
    let cpu_ticks = || {
        let text = std::fs::read_to_string(&path).unwrap();
        let parts: Vec<&str> = text.rsplit(')').next().unwrap().split_whitespace().collect();
        parts[11].parse::<u64>().unwrap() + parts[12].parse::<u64>().unwrap()
    };
    // Once the server works: the files that it has, and no more.
    server.state();
    limit(Some(3));
    let before = cpu_ticks();
    let waiting = Watch::new(Some(&server.socket())).unwrap();
    server.wait_for_log("cannot let clients in for now");
    std::thread::sleep(Duration::from_millis(1500));
    let ticks = cpu_ticks() - before;
    assert!(ticks < 50, "{ticks}");
    limit(Some(1000));
    assert_eq!(waiting.state().unwrap().pid, server.child.id());
    assert_eq!(server.log().matches("cannot let clients in").count(), 1);
}

#[test]
fn a_socket_that_was_passed_is_where_the_server_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = socket(directory.path());
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = dimmer_protocol::listen(&path).unwrap();
    let metrics = directory.path().join("metrics");
    let settings = format!("[metrics]\nlisten = \"unix:{}\"\n", metrics.display());
    let server = command(directory.path(), &settings);
    // As a service manager does, and without --socket: the default is another path.
    let mut activated = Command::new("sh");
    activated.args(["-c", "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\""]);
    activated.arg(server.get_program()).arg("--config").arg(directory.path().join("dimmerd.toml"));
    activated.stdin(listener).env("XDG_STATE_HOME", directory.path());
    activated.env("XDG_RUNTIME_DIR", directory.path().join("other")).env("DIMMER_SOCKET", "");
    activated.stderr(std::fs::File::create(directory.path().join("log")).unwrap());
    let server = Server { child: activated.spawn().unwrap(), directory };
    server.state();
    let mut stream = std::os::unix::net::UnixStream::connect(&metrics).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
    server.wait_for_log(path.to_str().unwrap());
}

#[test]
fn what_is_recorded_from_the_begin_is_the_same_again() {
    let server = Server::start(MOVES);
    let watch = Watch::new(Some(&server.socket())).unwrap();
    watch.record().unwrap();
    let mut text = watch.lines(PATIENCE).unwrap().unwrap();
    let clients = [server.client(1000), server.client(1500)];
    let end = Instant::now() + Duration::from_millis(2000);
    while Instant::now() < end {
        text.extend(watch.lines(Duration::from_millis(100)).unwrap());
    }
    clients.into_iter().for_each(|client| drop(said(client)));
    let (_, replayed) = record::replay(text.as_bytes(), None).unwrap();
    assert!(replayed.is_same_policy && replayed.steps > 5 && replayed.clients == 2, "{replayed:?}");
    assert_eq!((replayed.different, replayed.changes[0]), (0, replayed.changes[1]), "{text}");
    // Another policy decides differently, and the same each time.
    let paper = toml::from_str("[policy]\nloop = \"trials\"\n").unwrap();
    let (_, other) = record::replay(text.as_bytes(), Some(&paper)).unwrap();
    assert!(!other.is_same_policy);
    assert_eq!(record::replay(text.as_bytes(), Some(&paper)).unwrap().1, other);
    // Names of sites, for people.
    assert!(text.contains("\"name\":\"work\""));
}

#[test]
fn a_configuration_is_right_when_its_model_is() {
    let directory = tempfile::tempdir().unwrap();
    let model = directory.path().join("model.toml");
    let check = || {
        let settings = format!("[server]\nmodel = {:?}\n", model.to_str().unwrap());
        let status = command(directory.path(), &settings).arg("--check").status().unwrap();
        (status.code(), std::fs::read_to_string(directory.path().join("log")).unwrap())
    };
    let (code, told) = check();
    assert!(code == Some(2) && told.contains("`server.model`: cannot read"), "{told}");
    // The check neither waits for a FIFO without a writer nor reads a file without an end.
    let kind = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &model, kind).unwrap();
    let (code, told) = check();
    assert!(code == Some(2) && told.contains("is a FIFO; expected a regular file"), "{told}");
    std::fs::remove_file(&model).unwrap();
    std::os::unix::fs::symlink("/dev/zero", &model).unwrap();
    let (code, told) = check();
    assert!(code == Some(2) && told.contains("is a character device"), "{told}");
    std::fs::remove_file(&model).unwrap();
    std::fs::File::create(&model).unwrap().set_len(1 << 33).unwrap();
    let (code, told) = check();
    assert!(code == Some(2) && told.contains("is longer than"), "{told}");
    std::fs::remove_file(&model).unwrap();
    std::fs::write(&model, "schema = 7").unwrap();
    let (code, told) = check();
    assert!(code == Some(2) && told.contains("model.toml"), "{told}");
    let (_, text) = dimmer_processor::model::BUILTIN[0];
    std::fs::write(&model, text).unwrap();
    assert_eq!(check(), (Some(0), String::new()));
}

/// Programs ask for clocks all the time; most servers do not moderate them.
#[test]
fn a_program_that_asks_for_clocks_in_vain_fills_no_log() {
    let server = Server::start("");
    for _ in 0..3 {
        let client = dimmer_protocol::Client::connect(&server.socket()).unwrap();
        client.send(&Hello::Clocks { name: "asks".to_owned() }.to_bytes()).unwrap();
        let begin = Instant::now();
        let answer = loop {
            match client.text() {
                Ok(None) => {
                    assert!(begin.elapsed() < PATIENCE);
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => break other,
            }
        };
        assert!(matches!(answer, Err(dimmer_protocol::AnswerError::Closed)), "{answer:?}");
    }
    assert!(server.state().clocks.is_empty() && server.state().no_clocks.is_none());
    assert!(!server.log().contains("WARN") && !server.log().contains("clocks"), "{}", server.log());
}

//! Clocks that the server moderates, on a made-up machine with cpufreq: programs share, and the
//! machine is as before when programs or the server are killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dimmer_daemon::server::{Options, Server, Signals};
use dimmer_host::affinity;
use dimmer_host::journal::Journal;
use dimmer_host::root::Root;
use dimmer_pace::{Decision, Request, request};
use dimmer_processor::units::CpuId;
use dimmer_protocol::{BELL, CLOCKS, Client, Clocks, Hello, Mapped, OnBoard, send};
use dimmer_watch::settings::Settings;
use dimmer_watch::state::ClockRequests;
use dimmer_watch::watch::Watch;

/// How long to wait for something that will come.
const PATIENCE: Duration = Duration::from_secs(60);
/// Set for a process that a test starts: its machine, and what it does there.
const MACHINE: &str = "DIMMER_TEST_MACHINE";
const ROLE: &str = "DIMMER_TEST_ROLE";
/// A user who exists nowhere.
const STRANGER: u32 = 54_321;
const POLICIES: u32 = 3;

struct Machine(tempfile::TempDir);

impl Machine {
    /// The CPUs 0 and 1 have a policy each, all others the third. The server has this
    /// configuration.
    fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let machine = Self(directory);
        for policy in 0..POLICIES {
            let folder = machine.policy(policy);
            fs::create_dir_all(&folder).unwrap();
            let cpus: Vec<String> =
                (0..8192).filter(|cpu| policy == 2.min(*cpu)).map(|cpu| cpu.to_string()).collect();
            for (name, content) in [
                ("affected_cpus", cpus.join(" ").as_str()),
                ("base_frequency", "3000000"),
                ("cpuinfo_max_freq", "4000000"),
                ("cpuinfo_min_freq", "800000"),
                ("scaling_cur_freq", "3950000"),
                ("scaling_governor", "schedutil"),
                ("scaling_max_freq", "3600000"),
                ("scaling_min_freq", "1000000"),
            ] {
                fs::write(folder.join(name), format!("{content}\n")).unwrap();
            }
        }
        fs::write(machine.path("dimmerd.toml"), config).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn policy(&self, number: u32) -> PathBuf {
        self.path(&format!("sys/devices/system/cpu/cpufreq/policy{number}"))
    }

    /// A limit of a policy (kHz); `None` while it is being written: the files of a made-up machine
    /// are empty then.
    fn limit_of(&self, policy: u32, name: &str) -> Option<u64> {
        fs::read_to_string(self.policy(policy).join(name)).unwrap().trim().parse().ok()
    }

    /// The upper limit of a policy (kHz).
    fn limit(&self, policy: u32) -> Option<u64> {
        self.limit_of(policy, "scaling_max_freq")
    }

    /// The content of all files of all policies, as the kernel would show it.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        let policies = (0..POLICIES).flat_map(|policy| fs::read_dir(self.policy(policy)).unwrap());
        let path = policies.map(|entry| entry.unwrap().path());
        path.map(|path| (path.clone(), fs::read_to_string(&path).unwrap().trim().to_owned()))
            .collect()
    }

    #[track_caller]
    fn wait_until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_so(self) {
            assert!(begin.elapsed() < PATIENCE, "{what}: {:?}", self.files());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A process that does this, once it says that it does.
    fn start(&self, role: &str, user: Option<u32>) -> Killed {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["moderation::role", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(MACHINE, self.0.path()).env(ROLE, role);
        command.env("DIMMER_SOCKET", self.path("socket")).stdout(Stdio::piped());
        if let Some(user) = user {
            command.uid(user);
        }
        let mut child = Killed(command.spawn().unwrap());
        let lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        let is_ready = lines.map_while(Result::ok).any(|line| line.contains("is ready"));
        assert!(is_ready, "{role}");
        child
    }
}

/// Killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the processes do that tests start; no test by itself.
#[test]
fn role() {
    let (Some(machine), Ok(role)) = (std::env::var_os(MACHINE), std::env::var(ROLE)) else {
        return;
    };
    let machine = Path::new(&machine);
    let root = Root::new(machine);
    let ready = || println!("{role} is ready");
    let (what, cpu) = role.split_once(" on ").unwrap_or((&role, "0"));
    let cpu = CpuId::new(cpu.parse().unwrap());
    match what {
        "server" => {
            let settings = Settings::read(&machine.join("dimmerd.toml")).unwrap();
            let socket = machine.join("socket");
            let options = Options { root, socket, inherited: None, file: None, settings };
            let mut server = Server::new(options, Signals::install().unwrap()).unwrap();
            ready();
            server.run(&mut |_| ()).unwrap();
        }
        "lies" => {
            affinity::allow(&[cpu]).unwrap();
            lie(&machine.join("socket"), ready);
        }
        "dedicates" => {
            dimmer_pace::prepare_under(&root).unwrap();
            assert_eq!(dimmer_pace::back_end().unwrap(), "dimmerd");
            let dedicated = dimmer_pace::dedicate_fast(&[cpu]).unwrap();
            assert_eq!(dedicated.decision(), Decision::Requested);
            ready();
            std::thread::sleep(Duration::from_secs(3600));
        }
        what => {
            affinity::allow(&[cpu]).unwrap();
            dimmer_pace::prepare_under(&root).unwrap();
            let expected = if what == "goes alone" { "cpufreq" } else { "dimmerd" };
            assert_eq!(dimmer_pace::back_end().unwrap(), expected);
            let wanted = match what {
                "slows" => Request::SLOW,
                "wants 80 %" => Request::percent(80).unwrap(),
                _ => Request::TURBO,
            };
            request(wanted);
            ready();
            loop {
                std::thread::sleep(Duration::from_millis(5));
                if what == "asks" {
                    request(Request::BASE);
                }
                request(wanted);
                if dimmer_pace::back_end().unwrap() != expected {
                    fs::write(machine.join("left"), dimmer_pace::back_end().unwrap()).unwrap();
                }
            }
        }
    }
}

/// Writes random words on its board, most of them about its own threads, and rings. The requests of
/// a round are for one clock, or for all: a fast one would hide what the others do.
fn lie(socket: &Path, ready: impl Fn()) {
    let client = Client::connect(socket).unwrap();
    client.send(&Hello::Clocks { name: "lies".to_owned() }.to_bytes()).unwrap();
    let file = loop {
        match client.text().unwrap() {
            Some(file) => break file,
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    let board = Mapped::<Clocks>::new(file.as_fd()).unwrap();
    let threads = || -> Vec<u32> {
        let all = fs::read_dir("/proc/self/task").unwrap().map_while(Result::ok);
        all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    };
    let seed = fastrand::u64(..);
    println!("the liar's seed is {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    ready();
    loop {
        let own = threads();
        // Slow clocks and those between, which would lower limits.
        let number = [101, 102, 103, 80, 20, 0][chance.usize(..6)];
        for place in 0..CLOCKS {
            let cpu = if chance.u8(..8) > 0 { chance.u32(0..4) } else { chance.u32(..) };
            let thread = match chance.u8(..8) {
                0 => chance.u32(..),
                1 => u32::MAX - cpu,
                2 => rustix::process::getppid().map_or(1, |own| own.as_raw_pid().unsigned_abs()),
                _ => own[chance.usize(..own.len())],
            };
            let number = if number == 0 { chance.u8(..) } else { number };
            board.set(place, Some(OnBoard { thread, cpu, number }));
        }
        // It may be full.
        let _ = send(client.as_fd(), &BELL, &[]);
        std::thread::sleep(Duration::from_millis(chance.u64(0..50)));
    }
}

const MODERATES: &str = "[clocks]\nmoderate = true\n";
/// Both limits as they are without requests (kHz).
const LOWER: u64 = 1_000_000;
const UNTOUCHED: u64 = 3_600_000;
const TURBO: u64 = 4_000_000;

fn has_two_cpus() -> bool {
    let allowed = affinity::allowed().unwrap_or_default();
    let has = [0, 1].iter().all(|cpu| allowed.contains(&CpuId::new(*cpu)));
    if !has {
        println!("SKIPPED: this process may not use the CPUs 0 and 1");
    }
    has
}

/// Undoes what a server has left that was killed.
#[track_caller]
fn restore(machine: &Machine, before: &BTreeMap<PathBuf, String>) {
    let (journal, report) = Journal::open(&Root::new(machine.0.path())).unwrap();
    assert!(report.is_complete() && report.left.is_empty(), "{report:?}");
    drop(journal);
    assert_eq!(machine.files(), *before);
}

#[test]
fn what_a_program_requested_ends_when_it_or_the_server_is_killed() {
    if !has_two_cpus() {
        return;
    }
    let machine = Machine::new(MODERATES);
    let before = machine.files();
    let server = machine.start("server", None);
    let [one, other] = ["asks on 0", "asks on 1"].map(|role| machine.start(role, None));
    machine.wait_until("the first is granted", |own| own.limit(0) == Some(TURBO));
    machine.wait_until("the second is granted", |own| own.limit(1) == Some(TURBO));
    drop(one);
    machine.wait_until("the first is undone", |own| own.limit(0) == Some(UNTOUCHED));
    drop(other);
    machine.wait_until("all is undone", |own| own.files() == before);
    let mut chance = fastrand::Rng::with_seed(3);
    for count in 0..20 {
        let program = machine.start("asks on 0", None);
        if count % 2 == 0 {
            machine.wait_until("it is granted", |own| own.limit(0) == Some(TURBO));
        }
        std::thread::sleep(Duration::from_micros(chance.u64(0..20_000)));
        drop(program);
        machine.wait_until("a kill is undone", |own| own.files() == before);
    }
    let program = machine.start("keeps on 0", None);
    machine.wait_until("it is granted", |own| own.limit(0) == Some(TURBO));
    drop(server);
    drop(program);
    restore(&machine, &before);
}

/// It asks for the same all the time.
#[test]
fn a_program_goes_on_by_itself_when_the_server_ends() {
    if !has_two_cpus() {
        return;
    }
    for is_killed in [true, false] {
        let machine = Machine::new(MODERATES);
        let before = machine.files();
        let server = machine.start("server", None);
        let program = machine.start("keeps on 0", None);
        machine.wait_until("it is granted", |own| own.limit(0) == Some(TURBO));
        assert!(!machine.path("left").exists() && machine.path("socket.clocks").exists());
        if is_killed {
            drop(server);
        } else {
            let mut server = server;
            let number = rustix::process::Pid::from_child(&server.0);
            rustix::process::kill_process(number, rustix::process::Signal::TERM).unwrap();
            // Its standard output is closed, which the end of a test reports.
            let _ = server.0.wait().unwrap();
            assert!(!machine.path("socket.clocks").exists());
        }
        machine.wait_until("it has noticed", |own| {
            fs::read_to_string(own.path("left")).is_ok_and(|name| name == "cpufreq")
        });
        machine.wait_until("it requests", |own| own.limit(0) == Some(TURBO));
        assert_eq!(machine.limit(1), Some(UNTOUCHED));
        drop(program);
        restore(&machine, &before);
    }
}

/// An unprivileged user, if the test may have one, slows nothing and keeps no other user's program
/// from its clock.
#[test]
fn a_board_of_random_words_slows_nothing() {
    if !has_two_cpus() {
        return;
    }
    let stranger = rustix::process::geteuid().is_root().then_some(STRANGER);
    let machine = Machine::new(MODERATES);
    let before = machine.files();
    let _server = machine.start("server", None);
    let liar = machine.start("lies on 1", stranger);
    let begin = Instant::now();
    // Until fast clocks and those between had an effect often.
    let (mut fast, mut between) = (0, 0);
    while fast < 100 || between < 100 {
        assert!(begin.elapsed() < PATIENCE, "fast {fast}, between {between}");
        for policy in 0..POLICIES {
            let (lower, upper) =
                (machine.limit_of(policy, "scaling_min_freq"), machine.limit(policy));
            assert!(lower.is_none_or(|lower| lower >= LOWER), "policy {policy}: {lower:?}");
            assert!(upper.is_none_or(|upper| upper >= UNTOUCHED), "policy {policy}: {upper:?}");
            fast += u32::from(lower == Some(TURBO));
            between += u32::from(lower == Some(TURBO / 100 * 80));
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    let program = machine.start("keeps on 0", None);
    machine.wait_until("it is granted", |own| own.limit(0) == Some(TURBO));
    drop(liar);
    machine.wait_until("the liar's end", |own| own.limit(2) == Some(UNTOUCHED));
    machine.wait_until("it is granted still", |own| own.limit(0) == Some(TURBO));
    drop(program);
    machine.wait_until("all is undone", |own| own.files() == before);
}

#[test]
fn users_take_turns() {
    if !has_two_cpus() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: programs of two users take root");
        return;
    }
    let machine = Machine::new("[clocks]\nmoderate = true\nmost_boosted = 1\n");
    let before = machine.files();
    let _server = machine.start("server", None);
    let own = machine.start("keeps on 0", None);
    machine.wait_until("the first is granted", |own| own.limit(0) == Some(TURBO));
    // Both want theirs all the time, so without turns the first would keep it.
    let stranger = machine.start("keeps on 1", Some(STRANGER));
    for _ in 0..3 {
        for policy in [1, 0] {
            machine.wait_until("its turn comes", |own| {
                own.limit(policy) == Some(TURBO) && own.limit(1 - policy) == Some(UNTOUCHED)
            });
        }
    }
    drop(stranger);
    machine.wait_until("the first has it alone", |own| own.limit(0) == Some(TURBO));
    drop(own);
    machine.wait_until("all is undone", |own| own.files() == before);
}

#[test]
fn only_a_user_who_may_slow_others_lowers_a_clock() {
    if !has_two_cpus() {
        return;
    }
    let user = rustix::process::geteuid().as_raw();
    let may_slow = format!("{MODERATES}[clocks.users.{user}]\nmay_slow = true\n");
    for (config, slow, least) in [
        (MODERATES, [LOWER, UNTOUCHED], [3_200_000, UNTOUCHED]),
        (&may_slow, [800_000; 2], [3_200_000; 2]),
    ] {
        let machine = Machine::new(config);
        let before = machine.files();
        let _server = machine.start("server", None);
        let programs = ["slows on 0", "wants 80 % on 1"].map(|role| machine.start(role, None));
        let limits = |own: &Machine, policy| {
            ["scaling_min_freq", "scaling_max_freq"].map(|name| own.limit_of(policy, name))
        };
        // The first has asked before, so that is decided as well.
        machine.wait_until("80 % is granted", |own| limits(own, 1) == least.map(Some));
        machine.wait_until("as it may", |own| limits(own, 0) == slow.map(Some));
        drop(programs);
        machine.wait_until("all is undone", |own| own.files() == before);
    }
}

/// Two programs may dedicate the same CPU. It stays fast until both have ended.
#[test]
fn dedicated_cpus_are_fast_until_the_last_program_ends() {
    if !has_two_cpus() {
        return;
    }
    let machine = Machine::new(MODERATES);
    let before = machine.files();
    let _server = machine.start("server", None);
    let [one, other] = ["dedicates on 1"; 2].map(|role| machine.start(role, None));
    machine.wait_until("it is granted", |own| own.limit(1) == Some(TURBO));
    drop(one);
    // The server has noticed the end once it has made the next program's request.
    let third = machine.start("keeps on 0", None);
    machine.wait_until("the next is granted", |own| own.limit(0) == Some(TURBO));
    assert_eq!(machine.limit(1), Some(TURBO));
    drop((other, third));
    machine.wait_until("all is undone", |own| own.files() == before);
}

#[test]
fn a_server_that_does_not_moderate_is_left_alone() {
    if !has_two_cpus() {
        return;
    }
    let machine = Machine::new("");
    let before = machine.files();
    fs::write(machine.path("socket.clocks"), "of a server that was killed").unwrap();
    let _server = machine.start("server", None);
    assert!(!machine.path("socket.clocks").exists());
    let program = machine.start("goes alone on 0", None);
    machine.wait_until("it requests by itself", |own| own.limit(0) == Some(TURBO));
    drop(program);
    restore(&machine, &before);
}

/// What the machine does not take is refused, left alone, and costs other CPUs nothing.
#[test]
fn a_request_that_the_machine_does_not_take_is_refused() {
    if !has_two_cpus() {
        return;
    }
    let machine = Machine::new(MODERATES);
    let _server = machine.start("server", None);
    // Another program changes the policy.
    fs::write(machine.policy(0).join("scaling_governor"), "performance\n").unwrap();
    let before = machine.files();
    let failed = machine.start("keeps on 0", None);
    let granted = machine.start("keeps on 1", None);
    machine.wait_until("the other is granted", |own| own.limit(1) == Some(TURBO));
    let watch = Watch::new(Some(&machine.path("socket"))).unwrap();
    let of = |own: &Killed| {
        let state = watch.state().unwrap();
        let number = own.0.id().cast_signed();
        let found = state.clocks.into_iter().find(|client| client.pid == number);
        found.unwrap_or_default().requests
    };
    let (granted_one, refused_one) = (
        ClockRequests { requested: 1, granted: 1, ..ClockRequests::default() },
        ClockRequests { requested: 1, refused: 1, ..ClockRequests::default() },
    );
    machine.wait_until("both are in the state", |_| {
        (of(&granted), of(&failed)) == (granted_one.clone(), refused_one.clone())
    });
    drop((failed, granted));
    machine.wait_until("all is undone", |own| own.files() == before);
}

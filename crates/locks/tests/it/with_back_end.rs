//! `dlgt`, `mgrt` and the order of releases on a made-up machine with cpufreq, whose files change
//! as the strategies say. Each test is a process of its own, since a process has one back end.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use dimmer_locks::lock_api::Mutex;
use dimmer_locks::{Barrier, Decorated, Paced, RawMutex, Strategy};
use dimmer_pace::{Decision, Request, at, back_end, dedicate_fast, in_force, prepare_under};
use dimmer_processor::units::CpuId;
use dimmer_runtime::Root;

use crate::in_threads;
use crate::on_machine::{allow, allowed};

/// Set for the process that a test starts: the directory of its machine.
const CHILD_ROOT: &str = "DIMMER_TEST_CHILD_ROOT";

/// Both limits of a clock (kHz).
type Limits = [u64; 2];

const BEFORE: Limits = [1_000_000, 3_600_000];
const SLOW: Limits = [800_000, 800_000];
const BASE: Limits = [3_000_000, 3_000_000];
const TURBO: Limits = [4_000_000, 4_000_000];

/// CPUs whose numbers have this remainder by the number of policies have one of them.
struct Machine<'a>(&'a Path);

impl Machine<'_> {
    fn make(&self, policies: u32) {
        for policy in 0..policies {
            let folder = self.0.join(folder(policy));
            fs::create_dir_all(&folder).expect("a folder");
            let cpus: Vec<String> = (0..8192)
                .filter(|cpu| cpu % policies == policy)
                .map(|cpu| cpu.to_string())
                .collect();
            for (name, content) in [
                ("affected_cpus", cpus.join(" ").as_str()),
                ("base_frequency", "3000000"),
                ("cpuinfo_max_freq", "4000000"),
                ("cpuinfo_min_freq", "800000"),
                ("scaling_cur_freq", "3000000"),
                ("scaling_governor", "schedutil"),
                ("scaling_max_freq", "3600000"),
                ("scaling_min_freq", "1000000"),
            ] {
                fs::write(folder.join(name), format!("{content}\n")).expect("a file");
            }
        }
    }

    /// The limits of a policy, unless one is just being written.
    fn limits(&self, policy: u32) -> Option<Limits> {
        let limit = |name| {
            let text = fs::read_to_string(self.0.join(folder(policy)).join(name)).ok()?;
            text.trim().parse::<u64>().ok()
        };
        Some([limit("scaling_min_freq")?, limit("scaling_max_freq")?])
    }

    /// Waits for these limits: the agent takes a moment.
    #[track_caller]
    fn until(&self, policy: u32, expected: Limits) {
        let begin = Instant::now();
        while self.limits(policy) != Some(expected) {
            let found = self.limits(policy);
            assert!(begin.elapsed() < Duration::from_secs(60), "{found:?}, not {expected:?}");
            thread::yield_now();
        }
    }
}

fn folder(policy: u32) -> String {
    format!("sys/devices/system/cpu/cpufreq/policy{policy}")
}

/// Runs `work` in a process of its own, by the test of this name, on a machine with this
/// number of policies; afterwards all is as before.
#[track_caller]
fn check(test: &str, policies: u32, work: impl FnOnce(&Machine<'_>)) {
    if let Some(directory) = std::env::var_os(CHILD_ROOT) {
        let directory = Path::new(&directory);
        prepare_under(&Root::new(directory)).expect("a back end");
        assert_eq!(back_end(), Ok("cpufreq"));
        work(&Machine(directory));
        std::process::exit(17);
    }
    let directory = tempfile::tempdir().expect("a directory");
    let machine = Machine(directory.path());
    machine.make(policies);
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    let name = format!("with_back_end::{test}");
    child.args(["--exact", &name, "--nocapture", "--test-threads=1"]).stdout(Stdio::null());
    let status = child.env(CHILD_ROOT, directory.path()).status().expect("a process");
    assert_eq!(status.code(), Some(17));
    for policy in 0..policies {
        assert_eq!(machine.limits(policy), Some(BEFORE));
    }
    let left = fs::read_dir(directory.path().join("run/dimmer")).expect("the directory");
    let left: Vec<_> = left.map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(left, ["lock"]);
}

type Lock = Mutex<Decorated<RawMutex, Paced>, u32>;

fn lock(strategy: Strategy) -> Lock {
    Mutex::from_raw(Decorated::new(strategy, Paced), 0)
}

fn start(lock: &Lock) {
    // SAFETY: nothing is locked or unlocked by it.
    unsafe { lock.raw() }.start();
}

#[test]
fn with_dlgt_the_neighbour_writes_the_requests_and_they_end() {
    let test = "with_dlgt_the_neighbour_writes_the_requests_and_they_end";
    check(test, 1, |machine| {
        let sum = lock(Strategy::Delegate);
        thread::scope(|scope| {
            let used = scope.spawn(|| {
                start(&sum);
                machine.until(0, SLOW);
                for _ in 0..3 {
                    let mut guard = sum.lock();
                    machine.until(0, TURBO);
                    *guard += 1;
                    drop(guard);
                    machine.until(0, SLOW);
                }
                let panicked = catch_unwind(AssertUnwindSafe(|| {
                    let _guard = sum.lock();
                    machine.until(0, TURBO);
                    resume_unwind(Box::new(()));
                }));
                assert!(panicked.is_err());
                machine.until(0, SLOW);
            });
            used.join().expect("a thread");
        });
        assert_eq!(machine.limits(0), Some(BEFORE), "the thread has ended");
        assert_eq!(sum.into_inner(), 3);
    });
}

/// Two threads compete, each with some sections: the fastest of their requests is in force, and
/// none is left.
#[test]
fn with_dlgt_threads_that_compete_leave_nothing() {
    check("with_dlgt_threads_that_compete_leave_nothing", 1, |machine| {
        let sum = lock(Strategy::Delegate);
        // Joined one by one: the end of a scope does not wait for the end of a thread's variables.
        in_threads(2, |_| {
            start(&sum);
            for _ in 0..20 {
                let mut guard = sum.lock();
                machine.until(0, TURBO);
                *guard += 1;
            }
        });
        assert_eq!((machine.limits(0), sum.into_inner()), (Some(BEFORE), 40));
    });
}

#[test]
#[expect(clippy::print_stdout, reason = "a test that cannot run here says so")]
fn with_mgrt_the_dedicated_cpu_is_fast_and_the_owner_goes_there() {
    let all = allowed();
    let Some((home, fast)) = all.first().zip(all.iter().find(|cpu| cpu.index() % 2 != 0)) else {
        println!("SKIPPED: this process may use no CPU with an odd number");
        return;
    };
    if home.index() % 2 != 0 {
        println!("SKIPPED: this process may use no CPU with an even number before that");
        return;
    }
    let test = "with_mgrt_the_dedicated_cpu_is_fast_and_the_owner_goes_there";
    check(test, 2, |machine| {
        let (sum, other) = (lock(Strategy::Migrate), lock(Strategy::Migrate));
        let used = |home: CpuId, fast: CpuId| {
            allow(&[home]);
            start(&sum);
            machine.until(0, SLOW);
            for _ in 0..3 {
                let mut guard = sum.lock();
                assert_eq!((allowed(), machine.limits(1)), (vec![fast], Some(TURBO)));
                *guard += 1;
                drop(guard);
                assert_eq!((allowed(), machine.limits(0)), (vec![home], Some(SLOW)));
            }
            let (one, two) = (sum.lock(), other.lock());
            drop(one);
            assert_eq!(allowed(), [fast], "the other section is open");
            drop(two);
            assert_eq!(allowed(), [home]);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                let _guard = sum.lock();
                resume_unwind(Box::new(()));
            }));
            assert!(panicked.is_err());
            assert_eq!(allowed(), [home]);
        };
        let cores = dedicate_fast(&[*fast]).expect("it may run there");
        assert_eq!(cores.decision(), Decision::Requested);
        assert_eq!(machine.limits(1), Some(TURBO));
        thread::scope(|scope| {
            scope.spawn(|| used(*home, *fast)).join().expect("a thread");
        });
        assert_eq!(machine.limits(0), Some(BEFORE), "the thread has ended");
        drop(cores);
        assert_eq!(machine.limits(1), Some(BEFORE));
        assert_eq!(sum.into_inner(), 3);
    });
}

/// A section that was entered before CPUs were dedicated has no way home, and ends no other one's.
#[test]
fn a_section_ends_its_own_way_to_the_fast_core_alone() {
    check("a_section_ends_its_own_way_to_the_fast_core_alone", 1, |_| {
        let (early, later) = (lock(Strategy::Migrate), lock(Strategy::Migrate));
        let home = allowed();
        let fast = *home.last().expect("a CPU");
        let stayed = early.lock();
        let cores = dedicate_fast(&[fast]).expect("it may run there");
        let went = later.lock();
        drop(stayed);
        assert_eq!(allowed(), [fast]);
        drop(went);
        assert_eq!(allowed(), home);
        drop(cores);
    });
}

/// A barrier has no owner: what its threads request once they have passed counts on, outside of
/// scopes.
#[test]
fn a_barrier_leaves_no_section_open() {
    check("a_barrier_leaves_no_section_open", 1, |machine| {
        for strategy in [Strategy::Wait, Strategy::Owner] {
            let barrier = Decorated::around(Barrier::new(2), strategy, Paced);
            in_threads(2, |_| {
                for _ in 0..3 {
                    // The last one to arrive does not wait, and requests nothing.
                    if !barrier.wait_for_all() {
                        machine.until(0, TURBO);
                        let scope = at(Request::BASE);
                        assert_eq!(in_force(), Some(Request::BASE));
                        drop(scope);
                        dimmer_pace::withdraw();
                        assert_eq!(in_force(), None);
                    }
                }
            });
            assert_eq!(machine.limits(0), Some(BEFORE));
        }
    });
}

/// Locks of several strategies, a scope and the thread's own request, which end in any order.
#[test]
fn sections_scopes_and_requests_end_in_any_order() {
    check("sections_scopes_and_requests_end_in_any_order", 1, |machine| {
        let now = || machine.limits(0).expect("limits");
        let (first, second) = (lock(Strategy::Owner), lock(Strategy::Wait));
        start(&first);
        assert_eq!(now(), SLOW);
        let (one, two) = (first.lock(), second.lock());
        drop(one);
        assert_eq!(now(), TURBO, "the second section is open");
        drop(two);
        assert_eq!(now(), TURBO, "after a section, `wait` stays fast");
        dimmer_pace::withdraw();
        assert_eq!((now(), in_force()), (BEFORE, None));

        // A scope that ends within a section, and a section that ends within a scope.
        let scope = at(Request::BASE);
        let one = first.lock();
        assert_eq!(now(), TURBO);
        drop(scope);
        assert_eq!(now(), TURBO);
        let scope = at(Request::BASE);
        assert_eq!(now(), BASE);
        drop(one);
        assert_eq!(now(), BASE);
        drop(scope);
        assert_eq!(now(), SLOW, "that of `ownr` between sections");

        // What is requested in a section stays after it, until the lock's next request.
        let one = first.lock();
        dimmer_pace::request(Request::BASE);
        assert_eq!(now(), BASE);
        drop(one);
        assert_eq!(now(), SLOW);
        dimmer_pace::withdraw();
        assert_eq!(now(), BEFORE);

        // A panic drops guards and scopes in the order of a value's fields.
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _all = (at(Request::BASE), first.lock(), at(Request::SLOW));
            resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err());
        assert_eq!(now(), SLOW);

        // A thread that ends with all of it open.
        let ended = thread::scope(|scope| {
            let ends = || {
                std::mem::forget((at(Request::BASE), second.lock()));
                now()
            };
            scope.spawn(ends).join().expect("a thread")
        });
        assert_eq!(ended, TURBO);
        assert_eq!(now(), SLOW, "this thread's own");
    });
}

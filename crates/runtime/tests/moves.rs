//! Work that moves runs exactly once, with its result, its panic and its thread-local storage.
#![expect(clippy::print_stdout, reason = "tests that cannot run here say so")]

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use dimmer_host::affinity;
use dimmer_host::root::Root;
use dimmer_processor::units::CpuId;
use dimmer_runtime::{CannotMigrate, Cores, StartError};

/// A dedicated core; `None`, with a message, if there is only one CPU.
fn cores() -> Option<Cores> {
    let allowed = affinity::allowed().unwrap();
    let Some(last) = allowed.last().filter(|_| allowed.len() > 1) else {
        println!("SKIPPED: moving work takes two CPUs, and this process may run on one");
        return None;
    };
    Some(Cores::start(&Root::live(), &[*last]).unwrap())
}

/// The CPU that the calling kernel thread runs on, according to the kernel.
fn cpu() -> CpuId {
    let mut cpu: u32 = 0;
    let nobody = std::ptr::null_mut::<u32>();
    // SAFETY: the kernel writes one number.
    assert_eq!(unsafe { libc::syscall(libc::SYS_getcpu, &raw mut cpu, nobody, nobody) }, 0);
    CpuId::new(cpu)
}

fn kernel_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether threads can migrate here; prints the reason if not.
fn can_migrate(cores: &Cores) -> bool {
    match cores.begin_migration() {
        Ok(_) => true,
        Err(why) => {
            println!("SKIPPED: {why}");
            false
        }
    }
}

#[test]
fn a_closure_runs_on_the_dedicated_core_and_its_result_comes_back() {
    let Some(cores) = cores() else { return };
    let there = cores.cpus().next().unwrap();
    let home = kernel_thread();
    let (cpu, thread) = cores.delegate(|| (cpu(), kernel_thread()));
    assert_eq!(cpu, there);
    assert_ne!(thread, home);
}

#[test]
fn a_thread_that_holds_a_robust_mutex_stays() {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let mut kind = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let mut mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    // SAFETY: initializes `kind`.
    assert_eq!(unsafe { libc::pthread_mutexattr_init(kind.as_mut_ptr()) }, 0);
    let robust = libc::PTHREAD_MUTEX_ROBUST;
    // SAFETY: it was just initialized.
    assert_eq!(unsafe { libc::pthread_mutexattr_setrobust(kind.as_mut_ptr(), robust) }, 0);
    // SAFETY: initializes `mutex`; `kind` was initialized above.
    assert_eq!(unsafe { libc::pthread_mutex_init(&raw mut mutex, kind.as_ptr()) }, 0);
    for _ in 0..2 {
        // SAFETY: it was initialized, and is not moved.
        assert_eq!(unsafe { libc::pthread_mutex_lock(&raw mut mutex) }, 0);
        assert!(matches!(cores.begin_migration(), Err(CannotMigrate::RobustMutex)));
        let home = kernel_thread();
        assert_eq!(cores.migrate(kernel_thread), home);
        // SAFETY: this thread holds it.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(&raw mut mutex) }, 0);
        assert_ne!(cores.migrate(kernel_thread), home);
    }
}

#[test]
fn large_closures_and_results_come_back_whole() {
    let Some(cores) = cores() else { return };
    let much = [7_u64; 100];
    let mut here = vec![0];
    let doubled: [u64; 100] = cores.delegate(|| {
        here.push(1);
        much.map(|one| 2 * one)
    });
    assert_eq!(doubled, [14; 100]);
    assert_eq!(here, [0, 1]);
}

#[test]
fn a_panic_comes_back_and_the_worker_goes_on() {
    let Some(cores) = cores() else { return };
    let panic = catch_unwind(AssertUnwindSafe(|| cores.delegate(|| -> u8 { panic!("too small") })));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "too small");
    let large = [1_u8; 200];
    let panic = catch_unwind(AssertUnwindSafe(|| {
        cores.delegate(move || -> [u8; 200] { panic!("too large: {}", large[0]) })
    }));
    assert_eq!(*panic.unwrap_err().downcast::<String>().unwrap(), "too large: 1");
    assert_eq!(cores.delegate(|| 3), 3);
}

#[test]
fn what_runs_on_a_worker_does_not_move_again() {
    let Some(cores) = cores() else { return };
    let (outer, inner) = cores.delegate(|| (kernel_thread(), cores.delegate(kernel_thread)));
    assert_eq!(outer, inner);
}

#[test]
fn many_threads_have_each_piece_of_work_done_once() {
    let Some(cores) = cores() else { return };
    let done: Vec<AtomicUsize> = (0..16 * 2000).map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for chunk in done.chunks(2000) {
            scope.spawn(|| {
                for (index, one) in chunk.iter().enumerate() {
                    let before = cores.delegate(|| one.fetch_add(1, Ordering::Relaxed));
                    assert_eq!(before, 0);
                    if index % 500 == 0 {
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    assert!(done.iter().all(|one| one.load(Ordering::Relaxed) == 1));
}

#[test]
fn the_caller_may_go_on_meanwhile() {
    let Some(cores) = cores() else { return };
    let (tell, told) = std::sync::mpsc::channel();
    let first = cores.begin(move || told.recv().map(|()| "there".to_owned()));
    // The lane is in use: this one runs here, at once.
    let second = cores.begin(kernel_thread);
    assert_eq!(second.join(), kernel_thread());
    tell.send(()).unwrap();
    assert_eq!(first.join().unwrap(), "there");
    let panic = catch_unwind(AssertUnwindSafe(|| cores.begin(|| -> u8 { panic!("late") }).join()));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "late");
}

#[test]
fn a_worker_that_slept_wakes_up() {
    let Some(cores) = cores() else { return };
    for pause_us in [0, 10, 100, 1000, 20_000] {
        std::thread::sleep(std::time::Duration::from_micros(pause_us));
        assert_eq!(cores.delegate(|| pause_us), pause_us);
    }
}

thread_local! {
    static LOCAL: Cell<u32> = const { Cell::new(0) };
}

#[test]
fn a_migrated_call_has_the_threads_own_storage_and_comes_home() {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    LOCAL.set(1);
    let (home, name) = (kernel_thread(), std::thread::current().id());
    let (there, seen, who) = cores.migrate(|| {
        let seen = LOCAL.replace(2);
        // SAFETY: closing an invalid file only sets errno, which is thread-local.
        unsafe { libc::close(-1) };
        (cpu(), seen, std::thread::current().id())
    });
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
    assert_eq!(Some(there), cores.cpus().next());
    assert_eq!((seen, who), (1, name));
    assert_eq!((LOCAL.get(), kernel_thread()), (2, home));
}

#[test]
fn a_panic_in_a_migrated_call_comes_home_with_the_thread() {
    let Some(cores) = cores() else { return };
    let home = kernel_thread();
    let panic = catch_unwind(AssertUnwindSafe(|| cores.migrate(|| -> u8 { panic!("away") })));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "away");
    assert_eq!(kernel_thread(), home);
}

#[test]
fn a_thread_goes_there_and_back_as_often_as_it_likes() {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let there = cores.cpus().next().unwrap();
    let home = kernel_thread();
    let mut migration = cores.begin_migration().unwrap();
    for turn in 0..1000_u32 {
        let heap = vec![turn; 100];
        let away = migration.go(0);
        assert!(away.is_some());
        assert_eq!(cpu(), there);
        assert_ne!(kernel_thread(), home);
        let there = [turn; 50];
        drop(away);
        assert_eq!(kernel_thread(), home);
        assert_eq!((heap[99], there[49]), (turn, turn));
    }
    assert!(migration.go(1).is_none());
}

#[test]
fn what_a_migrated_thread_hands_over_runs_where_it_is() {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let (outer, inner, nested) = cores
        .migrate(|| (kernel_thread(), cores.delegate(kernel_thread), cores.migrate(kernel_thread)));
    assert_eq!([inner, nested], [outer; 2]);
}

#[test]
fn floating_point_control_migrates() {
    let Some(cores) = cores() else { return };
    let control = || {
        let mut control: u32 = 0;
        // SAFETY: stores four bytes.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut control) };
        control
    };
    let set = |control: u32| {
        // SAFETY: a control word that was read; only the rounding may differ.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control) };
    };
    const ROUNDING: u32 = 3 << 13;
    let before = control();
    set(before | ROUNDING);
    let there = cores.migrate(control);
    let after = control();
    set(before);
    assert_eq!([there & ROUNDING, after & ROUNDING], [ROUNDING; 2]);
    assert_eq!(cores.delegate(control) & ROUNDING, 0);
}

#[test]
fn many_threads_migrate_at_the_same_time() {
    let Some(cores) = cores() else { return };
    std::thread::scope(|scope| {
        for number in 0..8_u32 {
            let cores = &cores;
            scope.spawn(move || {
                for _ in 0..500 {
                    LOCAL.set(number);
                    let text = cores.migrate(|| format!("{}", LOCAL.get()));
                    assert_eq!(text, number.to_string());
                }
            });
        }
    });
}

#[test]
fn a_signal_waits_until_the_thread_is_home() {
    static CAME_ON: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn note(_: libc::c_int) {
        CAME_ON.store(kernel_thread().try_into().unwrap_or(0), Ordering::SeqCst);
    }
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let note: extern "C" fn(libc::c_int) = note;
    // SAFETY: the handler only stores a number.
    unsafe { libc::signal(libc::SIGUSR2, note as libc::sighandler_t) };
    let home = kernel_thread();
    let process = std::process::id();
    cores.migrate(|| {
        // SAFETY: the handler is installed.
        assert_eq!(unsafe { libc::syscall(libc::SYS_tgkill, process, home, libc::SIGUSR2) }, 0);
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert_eq!(CAME_ON.load(Ordering::SeqCst), 0);
    });
    assert_eq!(CAME_ON.load(Ordering::SeqCst), usize::try_from(home).unwrap());
}

/// Runs a closure in a child, which ends with 0 if it returns true.
fn in_child(check: impl FnOnce() -> bool) {
    // SAFETY: the child runs the closure and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = i32::from(!catch_unwind(AssertUnwindSafe(check)).unwrap_or(false));
        // SAFETY: ends the child without the exit handlers of its parent.
        unsafe { libc::_exit(status) };
    }
    let mut status = 0;
    // SAFETY: the child belongs to this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn in_a_child_work_runs_where_it_is() {
    let Some(cores) = cores() else { return };
    in_child(|| {
        let here = kernel_thread();
        cores.delegate(kernel_thread) == here
            && cores.migrate(kernel_thread) == here
            && cores.begin(kernel_thread).join() == here
    });
    assert_eq!(cores.delegate(|| 1), 1);
}

#[test]
fn a_thread_that_forks_away_from_home_has_a_child_that_goes_on() {
    let Some(cores) = cores() else { return };
    let home = kernel_thread();
    cores.migrate(|| {
        in_child(|| {
            // The child's only thread runs in place of a worker, with this thread's storage.
            let here = kernel_thread();
            cores.migrate(kernel_thread) == here && cores.delegate(kernel_thread) == here
        });
    });
    assert_eq!(kernel_thread(), home);
}

#[test]
fn a_child_of_a_thread_away_has_the_homes_cpus_and_signals() {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let home = (affinity::allowed().unwrap(), blocked(libc::SIGTERM));
    cores.migrate(|| in_child(|| (affinity::allowed().unwrap(), blocked(libc::SIGTERM)) == home));
    // There the C library sees the CPU change.
    let is_known = |own: &CpuId| {
        affinity::allow(&[*own]).unwrap();
        // SAFETY: returns a number.
        u32::try_from(unsafe { libc::sched_getcpu() }) == Ok(cpu().index())
    };
    cores.migrate(|| in_child(|| home.0.iter().all(is_known)));
}

/// Whether the calling kernel thread blocks a signal.
fn blocked(signal: libc::c_int) -> bool {
    let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: does not change the mask, and fills the set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), mask.as_mut_ptr()) };
    // SAFETY: it was filled.
    unsafe { libc::sigismember(mask.as_ptr(), signal) == 1 }
}

#[test]
fn a_child_that_a_worker_forks_ends_with_the_closure() {
    let Some(cores) = cores() else { return };
    let home = blocked(libc::SIGTERM);
    // SAFETY: the child continues the closure.
    let child = cores.delegate(|| match unsafe { libc::fork() } {
        // SAFETY: ends the child, with a distinct status.
        0 if blocked(libc::SIGTERM) != home => unsafe { libc::_exit(3) },
        child => child,
    });
    let mut status = 0;
    // SAFETY: the child belongs to this process.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 1);
}

#[test]
fn a_child_ends_its_cores_and_keeps_its_threads() {
    let Some(cores) = cores() else { return };
    in_child(move || {
        let (tell, told) = std::sync::mpsc::channel();
        // It gets the stack that was the worker's.
        let thread = std::thread::spawn(move || told.recv().is_ok());
        drop(cores);
        tell.send(()).is_ok() && thread.join().unwrap_or(false)
    });
}

#[test]
fn a_thread_that_forgets_its_migrated_guard_comes_home_with_its_migration() {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let home = kernel_thread();
    let mut migration = cores.begin_migration().unwrap();
    std::mem::forget(migration.go(0));
    assert_ne!(kernel_thread(), home);
    let away = migration.go(0);
    assert!(away.is_some());
    assert_ne!(kernel_thread(), home);
    drop(away);
    assert_eq!(kernel_thread(), home);
    std::mem::forget(migration.go(0));
    drop(migration);
    assert_eq!(kernel_thread(), home);
    assert_ne!(cores.migrate(kernel_thread), home);
}

#[test]
fn what_was_begun_and_forgotten_runs_before_the_cores_end() {
    static RAN: AtomicUsize = AtomicUsize::new(0);
    for _ in 0..200 {
        let Some(cores) = cores() else { return };
        std::mem::forget(cores.begin(|| RAN.fetch_add(1, Ordering::Relaxed)));
    }
    assert_eq!(RAN.load(Ordering::Relaxed), 200);
}

#[test]
fn a_handler_of_a_signal_may_hand_over_work_at_any_instruction() {
    // The processor's trap flag.
    const TRAP_FLAG: i32 = 0x100;
    static CORES: std::sync::OnceLock<Cores> = std::sync::OnceLock::new();
    static CAME: AtomicUsize = AtomicUsize::new(0);
    static WRONG: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn step(_: libc::c_int) {
        CAME.fetch_add(1, Ordering::Relaxed);
        let Some(cores) = CORES.get() else { return };
        if cores.delegate(|| [0x5A_u64; 6]) != [0x5A; 6] {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    }
    let Some(cores) = cores() else { return };
    let cores = CORES.get_or_init(|| cores);
    let step: extern "C" fn(libc::c_int) = step;
    // SAFETY: the handler counts, and delegates work that needs no memory.
    unsafe { libc::signal(libc::SIGTRAP, step as libc::sighandler_t) };
    cores.delegate(|| ());
    // The processor traps after each instruction until the flag is cleared.
    // SAFETY: the stack is restored, and there is a handler.
    unsafe {
        std::arch::asm!("pushfq", "or qword ptr [rsp], {}", "popfq", const TRAP_FLAG);
    }
    let sum = cores.delegate(|| [1_u64, 2, 3, 4, 5, 6]).iter().sum::<u64>();
    let pending = cores.begin(|| 7_u64).join();
    // SAFETY: the stack is restored.
    unsafe {
        std::arch::asm!("pushfq", "and qword ptr [rsp], {}", "popfq", const !TRAP_FLAG);
    }
    assert_eq!((sum, pending), (21, 7));
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
    assert!(CAME.load(Ordering::Relaxed) > 100);
}

/// Starts work that is done soon, and waits until its lane should be free for other work.
fn done_but_not_joined(cores: &Cores) -> dimmer_runtime::Pending<'_, u8> {
    let pending = cores.begin(|| 1);
    std::thread::sleep(std::time::Duration::from_millis(2));
    pending
}

#[test]
fn what_was_begun_may_be_joined_when_its_lane_serves_others() {
    let Some(cores) = cores() else { return };
    let first = done_but_not_joined(&cores);
    let second = cores.begin(|| -> u8 { panic!("the second") });
    assert_eq!(first.join(), 1);
    let panic = catch_unwind(AssertUnwindSafe(|| second.join()));
    assert_eq!(*panic.unwrap_err().downcast::<&str>().unwrap(), "the second");
    let first = done_but_not_joined(&cores);
    assert_eq!(cores.migrate(|| first.join()), 1);
    assert_eq!(cores.delegate(|| 2), 2);
}

/// Lets a thread that is away wait repeatedly for another thread, which hands over work meanwhile.
#[track_caller]
fn hand_over_to_who_waits(hand_over: impl Fn(&Cores) -> i32 + Sync) {
    let Some(cores) = cores() else { return };
    if !can_migrate(&cores) {
        return;
    }
    let (tell, told) = std::sync::mpsc::channel();
    let (answer, answered) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (cores, hand_over) = (&cores, &hand_over);
        let waits = scope.spawn(move || {
            cores.migrate(|| {
                tell.send(()).unwrap();
                answered.iter().for_each(|()| tell.send(()).unwrap_or(()));
            });
        });
        let hands_over = scope.spawn(move || {
            for _ in 0..100 {
                told.recv().unwrap();
                assert_eq!(hand_over(cores), kernel_thread());
                answer.send(()).unwrap();
            }
        });
        // The scope would wait for them too, but sanitizers would not see that.
        waits.join().unwrap();
        hands_over.join().unwrap();
    });
    assert_eq!(cores.delegate(|| 1), 1);
}

#[test]
fn who_waits_for_another_threads_work_does_not_hold_it_up() {
    hand_over_to_who_waits(|cores| cores.delegate(kernel_thread));
    hand_over_to_who_waits(|cores| cores.migrate(kernel_thread));
    hand_over_to_who_waits(|cores| cores.begin(kernel_thread).join());
}

#[test]
fn when_a_worker_has_died_work_runs_where_it_is() {
    let Some(cores) = cores() else { return };
    let lost = catch_unwind(AssertUnwindSafe(|| {
        cores.delegate(|| {
            // SAFETY: ends only the worker's kernel thread.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        });
    }));
    let why = lost.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(*why, "the worker ended in the middle of this work");
    let here = kernel_thread();
    assert_eq!(cores.delegate(kernel_thread), here);
    assert_eq!(cores.migrate(kernel_thread), here);
}

#[test]
fn other_threads_keep_off_a_dedicated_core() {
    let Some(cores) = cores() else { return };
    in_child(|| {
        let there = cores.cpus().next().unwrap();
        cores.keep_clear();
        let own = affinity::allowed().unwrap();
        let inherited = std::thread::spawn(|| affinity::allowed().unwrap()).join().unwrap();
        !own.is_empty() && !own.contains(&there) && inherited == own
    });
    assert!(affinity::allowed().unwrap().contains(&cores.cpus().next().unwrap()));
}

#[test]
fn cores_that_cannot_be_had_are_refused_with_the_reason() {
    let allowed = affinity::allowed().unwrap();
    let refuse = |cpus: &[CpuId]| Cores::start(&Root::live(), cpus).unwrap_err();
    assert!(matches!(refuse(&[]), StartError::NoCores));
    assert!(matches!(refuse(&[allowed[0], allowed[0]]), StartError::Twice(_)));
    assert!(matches!(refuse(&allowed), StartError::NoneLeft(_)));
    assert!(refuse(&[CpuId::new(1023)]).to_string().contains("allowed are"));
}

#[test]
fn delegated_work_runs_on_the_core_and_comes_back_with_its_result() {
    let Some(cores) = cores() else { return };
    let own = kernel_thread();
    let there = cores.delegate_leaf(move || (kernel_thread(), cpu(), 7_u64));
    let there = there.ok().expect("it is moved");
    assert_ne!(there.0, own);
    assert_eq!((Some(there.1), there.2), (cores.cpus().next(), 7));
    // The closure is returned if it does not fit, and within other work of the same thread.
    let large = [1_u64; 9];
    assert_eq!(cores.delegate_leaf(move || large.len()).map_err(|work| work()), Err(9));
    let within = cores.delegate(|| cores.delegate_leaf(|| 1).map_err(|work| work() + 1));
    assert_eq!(within, Err(2));
    // Faults of other closures are the program's again.
    assert_eq!(blocked_faults(&cores.delegate(status)), 0);
    assert_eq!(cores.delegate_leaf(|| blocked_faults(&status())).ok(), Some(FAULTS));
    assert_eq!(blocked_faults(&cores.delegate(status)), 0);
}

/// SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV and SIGSYS, in the kernel's format.
const FAULTS: u64 = 1 << 3 | 1 << 4 | 1 << 6 | 1 << 7 | 1 << 10 | 1 << 30;

fn status() -> String {
    std::fs::read_to_string("/proc/thread-self/status").unwrap()
}

fn blocked_faults(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(line.trim(), 16).unwrap() & FAULTS
}

#[test]
fn many_threads_delegate_at_once() {
    let Some(cores) = cores() else { return };
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let cores = &cores;
            scope.spawn(move || {
                for call in 0..1000 {
                    let got =
                        cores.delegate_leaf(move || thread * call).unwrap_or_else(|work| work());
                    assert_eq!(got, thread * call);
                }
            });
        }
    });
}

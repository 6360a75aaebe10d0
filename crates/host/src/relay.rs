//! Relays signals between their senders, this process, and the program that it runs for them.
//!
//! The program should receive signals as if this process were not in between:
//!
//! * A signal that was ignored or blocked when this process started is so in the program, and no
//!   other is. (The standard library ignores SIGPIPE here, and starts programs with no signal
//!   blocked.)
//! * A signal that another process sends to this one is passed on, because the sender may have only
//!   this process's id. A signal from the kernel (Ctrl-C, a terminal that hangs up) is not: the
//!   program has already received it, because both are in the terminal's foreground. But those of
//!   timers are: timers that ran when this process was started are for the program.
//! * A message that the program sends to its parent (SIGUSR1, SIGUSR2, a real-time signal) goes on
//!   to this process's parent. Other signals of the program may have been for its process group,
//!   which the parent need not be in.
//! * When both get SIGTSTP (Ctrl-Z) and the program stops, this process stops, too. If it alone is
//!   continued, so is the program.
//!
//! Likewise, standard input, output or error that was closed when this process started is closed in
//! the program. (The standard library opens `/dev/null` instead.) Its limit of open files is that
//! with which this process was started, even if [`crate::open_files`] has raised this process's.
//!
//! None of these signals ends this process while the [`Relay`] exists. So a command that
//! changes the machine begins one before that, and keeps it until the change is undone. What this
//! process does about signals itself is in [`crate::interrupt`].

use std::ffi::OsStr;
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use libc::c_int;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::environment::Environment;
use crate::open_files;
use crate::signals::with_all_blocked;

/// Signals that are passed on: those that programs use as messages, and those of timers, which a
/// process keeps when it executes another program (alarm(2)). Real-time signals are, too:
/// [`passed`].
const PASSED: [c_int; 12] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGPWR,
];

/// Signals of [`PASSED`] that are the program's also if the kernel sends them: its timers, and the
/// files of which it is notified, are this process's.
const ASKED_FOR: [c_int; 4] = [libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF, libc::SIGIO];

/// [`PASSED`] and the real-time signals that the C library leaves to programs.
fn passed() -> impl Iterator<Item = c_int> {
    PASSED.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX())
}

/// Whether a signal is used for messages alone, rather than for a whole process group, too.
fn is_message(signal: c_int) -> bool {
    [libc::SIGUSR1, libc::SIGUSR2].contains(&signal) || signal >= libc::SIGRTMIN()
}

/// The senders of the signals, at their numbers, that have arrived while there was no program: a
/// process, [`KERNEL`], or 0 if it has not arrived.
static CAME: [AtomicI32; 65] = [const { AtomicI32::new(0) }; 65];

/// What stands for the kernel as a sender.
const KERNEL: c_int = -1;

/// Whether SIGTSTP has arrived since the program stopped last.
static IS_TO_STOP: AtomicBool = AtomicBool::new(false);

/// Whether a signal has come that ends a program, or asks it to end, since the [`Relay`] began.
static ENDS_IT: AtomicBool = AtomicBool::new(false);

/// The program's process id; 0 while there is no program.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Signals that other code in this process handles or ignores before [`Relay::begin`]: Rust's
/// standard library takes SIGPIPE before `main`; the C library takes two for itself when it starts
/// the first thread; and while SIGCHLD is ignored, the kernel does not keep how a program ended, so
/// it is not from [`begin`] on.
const TAKEN: [c_int; 4] = [libc::SIGPIPE, 32, 33, libc::SIGCHLD];

/// Which signals of [`TAKEN`] were ignored when this process started.
static WERE_IGNORED: [AtomicBool; TAKEN.len()] = [const { AtomicBool::new(false) }; TAKEN.len()];

/// Which of the descriptors 0 to 2 were closed when this process started.
static WERE_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

unsafe extern "C" {
    /// The ELF header of the file that contains this code; the linker defines the symbol.
    static __ehdr_start: libc::Elf64_Ehdr;
}

/// Records the ignored signals and the closed descriptors, but not if this code is in a library:
/// then the process belongs to another program.
extern "C" fn begin() {
    // SAFETY: the call returns a value that the kernel passed at process start.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) };
    // In every program that a linker makes, the program headers follow the ELF header.
    let own = (&raw const __ehdr_start).addr() + size_of::<libc::Elf64_Ehdr>();
    if u64::try_from(own) != Ok(program) {
        return;
    }
    for (signal, was) in TAKEN.into_iter().zip(&WERE_IGNORED) {
        // Relaxed: there is only one thread.
        was.store(is_ignored(signal), Ordering::Relaxed);
    }
    for (number, was) in (0..).zip(&WERE_CLOSED) {
        // SAFETY: only asks.
        let is_closed = unsafe { libc::fcntl(number, libc::F_GETFD) } == -1;
        was.store(is_closed, Ordering::Relaxed);
    }
    if is_ignored(libc::SIGCHLD) {
        // If this is refused, which it never is, the program's end is not known.
        let _ = set(libc::SIGCHLD, &plain(libc::SIG_DFL));
    }
}

/// Closes the descriptors again that were closed when this process started.
fn close_again() {
    for (number, was) in (0..).zip(&WERE_CLOSED) {
        // Relaxed: it was stored before there was a second thread.
        if was.load(Ordering::Relaxed) {
            // SAFETY: a child executes another program next, and uses them no more.
            unsafe { libc::close(number) };
        }
    }
}

/// Whether a signal is ignored now.
pub(crate) fn is_ignored(signal: c_int) -> bool {
    let mut now = KernelAction::default();
    ask_kernel(signal, None, Some(&mut now)).is_ok() && now.handler == libc::SIG_IGN
}

/// A signal's disposition in the kernel's layout (Linux `include/uapi/asm-generic/signal.h`,
/// `struct sigaction`).
#[derive(Default)]
#[repr(C)]
struct KernelAction {
    handler: libc::sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// Calls rt_sigaction(2), also for signals that the C library reserves. Cannot set a handler.
fn ask_kernel(
    signal: c_int,
    new: Option<&KernelAction>,
    old: Option<&mut KernelAction>,
) -> io::Result<()> {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: the call reads and writes structures in the kernel's layout, which outlive the call;
    // the masks have the size that is passed.
    let asked =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size_of::<u64>()) };
    if asked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn disposition(signal: c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call reads the disposition of a signal into memory that outlives the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `sigaction`, so it is initialized whatever the call did.
    (asked == 0).then(|| unsafe { now.assume_init() })
}

fn set(signal: c_int, to: &libc::sigaction) -> io::Result<()> {
    // SAFETY: the disposition is complete, and its handler, if any, may run at any time.
    match unsafe { libc::sigaction(signal, to, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As [`set`] with a disposition that the kernel has no reason to refuse.
fn set_or_keep(signal: c_int, to: &libc::sigaction) {
    let _ = set(signal, to);
}

/// The disposition by which signals are relayed.
fn handled() -> libc::sigaction {
    let mut handled = plain(came as extern "C" fn(c_int, *const libc::siginfo_t, _) as usize);
    handled.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    handled
}

/// A disposition without a handler: `SIG_IGN` or `SIG_DFL`.
fn plain(what: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut plain: libc::sigaction = unsafe { std::mem::zeroed() };
    plain.sa_sigaction = what;
    plain
}

/// The signal state that this process started with.
#[derive(Clone, Copy)]
struct Inherited {
    /// One bit per signal, at its number minus 1, as in `/proc/self/status`.
    ignored: u64,
    blocked: libc::sigset_t,
}

/// All signal numbers of the kernel.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

impl Inherited {
    /// Reads the state. Call it before any handler is installed.
    fn read() -> io::Result<Self> {
        let mut ignored = 0;
        for signal in SIGNALS {
            let is_ignored = match TAKEN.iter().position(|taken| *taken == signal) {
                // Relaxed: stored before there was a second thread.
                Some(at) => WERE_IGNORED[at].load(Ordering::Relaxed),
                None => is_ignored(signal),
            };
            ignored |= u64::from(is_ignored) << (signal - 1);
        }
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: the call changes nothing, and writes into memory that outlives the call.
        let asked = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr())
        };
        if asked != 0 {
            return Err(io::Error::from_raw_os_error(asked));
        }
        // SAFETY: the call has initialized it.
        Ok(Self { ignored, blocked: unsafe { blocked.assume_init() } })
    }

    /// Applies the state to the calling process, which is about to execute a program. Makes only
    /// system calls.
    fn take(&self) -> io::Result<()> {
        for signal in passed().chain([libc::SIGPIPE]) {
            set(signal, &plain(libc::SIG_DFL))?;
        }
        for signal in SIGNALS.filter(|signal| self.ignored >> (signal - 1) & 1 == 1) {
            // Signals that cannot be ignored are not in the set.
            ask_kernel(
                signal,
                Some(&KernelAction { handler: libc::SIG_IGN, ..Default::default() }),
                None,
            )?;
        }
        // SAFETY: the call reads a set that outlives it.
        let masked = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, std::ptr::null_mut())
        };
        if masked == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(masked)) }
    }
}

/// While this value lives, signals are kept for the program. A process has at most one at a time.
pub struct Relay {
    inherited: Inherited,
    before: Vec<(c_int, libc::sigaction)>,
    /// The disposition of SIGTSTP while there is no program.
    stop: libc::sigaction,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ignored = format_args!("{:#x}", self.inherited.ignored).to_string();
        f.debug_struct("Relay").field("ignored", &ignored).finish_non_exhaustive()
    }
}

impl Relay {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The kernel refused a handler; the earlier dispositions are restored.
    pub fn begin() -> io::Result<Self> {
        let inherited = Inherited::read()?;
        // Ordering: Relaxed, because it publishes nothing else; the handlers are installed later.
        PROGRAM.store(0, Ordering::Relaxed);
        ENDS_IT.store(false, Ordering::Relaxed);
        let stop = disposition(libc::SIGTSTP).ok_or_else(io::Error::last_os_error)?;
        let mut relay = Self { inherited, before: Vec::new(), stop };
        for signal in passed() {
            let before = disposition(signal).ok_or_else(io::Error::last_os_error)?;
            set(signal, &handled())?;
            relay.before.push((signal, before));
        }
        Ok(relay)
    }

    /// A command that starts the program of `command`, with its arguments and its changes of the
    /// environment, as this process was started: under this name, with the same signal state, with
    /// the standard descriptors closed that were, and with the environment in its order.
    #[must_use]
    pub fn command(&self, command: &Command, name: &OsStr) -> Command {
        let mut started = Command::new(command.get_program());
        started.arg0(name).args(command.get_args());
        let inherited = self.inherited;
        let environment = Environment::changed_by(command);
        let open_files = open_files::before();
        let as_inherited = move || {
            close_again();
            open_files.map_or(Ok(()), open_files::set)?;
            // SAFETY: this process has one thread, and the closure lives until it executes the
            // program.
            unsafe { environment.set() };
            inherited.take()
        };
        // SAFETY: between fork and exec, the closure makes only system calls, and sets a variable.
        unsafe { started.pre_exec(as_inherited) };
        started
    }

    /// Starts the program of [`Self::command`]. Signals are passed to it from its first instruction
    /// on: those that come meanwhile wait.
    ///
    /// # Errors
    /// The system's: it cannot be started.
    pub fn spawn(&self, command: &Command, name: &OsStr) -> io::Result<Child> {
        let mut command = self.command(command, name);
        with_all_blocked(|| command.spawn().inspect(|program| self.started(program.id())))
    }

    /// Sets the program's process id: signals are passed to it from now on, first those that have
    /// come before. For programs that [`Self::spawn`] does not start; call it before they execute.
    pub fn started(&self, process: u32) {
        let program = c_int::try_from(process).unwrap_or(0);
        // Relaxed: only the number is shared.
        PROGRAM.store(program, Ordering::Relaxed);
        set_or_keep(libc::SIGTSTP, &handled());
        for signal in passed() {
            // Relaxed: only the number is shared.
            let sender = CAME[at(signal)].swap(0, Ordering::Relaxed);
            if let Some(to) = receiver(signal, sender, program).filter(|_| sender != 0) {
                // SAFETY: has no preconditions. The program is not waited for, so its id is its.
                unsafe { libc::kill(to, signal) };
            }
        }
    }

    /// The status of the program if it has ended; from then on, its signals are this process's
    /// again. If it has stopped by a signal that this process has got, too, this process stops
    /// likewise until it is continued.
    ///
    /// # Errors
    /// The system's: the program cannot be waited for.
    pub fn end(&self, program: &mut Child) -> io::Result<Option<ExitStatus>> {
        let Some(process) = Pid::from_raw(id(program)) else { return program.try_wait() };
        let ask = |what| waitid(WaitId::Pid(process), what | WaitIdOptions::NOHANG);
        // An error: it has ended.
        let stopped = ask(WaitIdOptions::STOPPED).ok().flatten();
        let is_stopped = stopped.is_some_and(|now| now.stopping_signal() == Some(libc::SIGTSTP));
        // Relaxed: a flag alone is shared.
        if is_stopped && IS_TO_STOP.swap(false, Ordering::Relaxed) {
            let is_continued = || ask(WaitIdOptions::CONTINUED).ok().flatten().is_some();
            if !is_continued() {
                stop();
                // A group is continued process by process: this one may be ahead.
                std::thread::sleep(Duration::from_millis(1));
                if !is_continued() {
                    // SAFETY: as in `started`.
                    unsafe { libc::kill(id(program), libc::SIGCONT) };
                }
            }
        }
        if ask(WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?.is_none() {
            return Ok(None);
        }
        // Another process may have its id as soon as it has been waited for. Relaxed: as above.
        PROGRAM.store(0, Ordering::Relaxed);
        set_or_keep(libc::SIGTSTP, &self.stop);
        program.try_wait()
    }
}

fn id(program: &Child) -> c_int {
    c_int::try_from(program.id()).unwrap_or(0)
}

/// Where a signal is in [`CAME`].
fn at(signal: c_int) -> usize {
    usize::try_from(signal).map_or(0, |signal| signal.min(CAME.len() - 1))
}

/// Stops this process as SIGTSTP does by default. Returns when it is continued.
fn stop() {
    set_or_keep(libc::SIGTSTP, &plain(libc::SIG_DFL));
    // SAFETY: has no preconditions.
    unsafe { libc::raise(libc::SIGTSTP) };
    set_or_keep(libc::SIGTSTP, &handled());
}

/// How often a program is looked at: seldom, as it may be one that is measured.
const LOOK: Duration = Duration::from_millis(20);

/// Signals of [`PASSED`] that end a process which does nothing about them, and are sent to end it.
const ENDING: [c_int; 7] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
];

/// Those of them that come from outside: the others are of the program's own timers.
const FROM_OUTSIDE: [c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

impl Relay {
    /// Whether a signal by which others end a program (Ctrl-C, kill(1)) has come while there was
    /// one: what it ends with need not be its own doing.
    #[must_use]
    pub fn was_asked_to_end(&self) -> bool {
        // Relaxed: a flag alone is shared.
        ENDS_IT.load(Ordering::Relaxed)
    }

    /// Runs a program to its end, with all signals relayed, also those that have come before. If
    /// one of these would have ended this process, the program is not started: `Err` with the exit
    /// status for that.
    ///
    /// # Errors
    /// The system's: it cannot be started.
    pub fn run(&self, command: &Command, name: &OsStr) -> io::Result<Result<ExitStatus, u8>> {
        if let Some(status) = self.exit_status() {
            return Ok(Err(status));
        }
        let mut program = self.spawn(command, name)?;
        loop {
            if let Some(status) = self.end(&mut program)? {
                return Ok(Ok(status));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The exit status for a signal that has come while there was no program, and would have ended
    /// this process: 128 plus its number. `None` if none has.
    #[must_use]
    pub fn exit_status(&self) -> Option<u8> {
        let is_ignored = |signal: c_int| self.inherited.ignored >> (signal - 1) & 1 == 1;
        // Relaxed: only the number is shared.
        let has_come = |signal| CAME[at(signal)].load(Ordering::Relaxed) != 0;
        let ended_by = ENDING.into_iter().find(|signal| !is_ignored(*signal) && has_come(*signal));
        u8::try_from(128 + ended_by?).ok()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            set_or_keep(*signal, before);
        }
        set_or_keep(libc::SIGTSTP, &self.stop);
    }
}

/// The handler.
extern "C" fn came(signal: c_int, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    // SAFETY: the handler was installed with `SA_SIGINFO`, so the kernel passes a valid pointer.
    let came = unsafe { &*info };
    // Relaxed: only the number is shared.
    let program = PROGRAM.load(Ordering::Relaxed);
    // Positive codes are the kernel's own (sigaction(2), "The si_code field").
    let is_from_kernel = came.si_code > 0;
    // SAFETY: a signal that a process sent carries that process's id.
    let sender = if is_from_kernel { KERNEL } else { unsafe { came.si_pid() } };
    if program == 0 {
        // Relaxed: a number that is read later. One without a number is of another namespace.
        CAME[at(signal)].store(if sender == 0 { KERNEL } else { sender }, Ordering::Relaxed);
        return;
    }
    if signal == libc::SIGTSTP {
        // Relaxed: a flag that is read later.
        IS_TO_STOP.store(true, Ordering::Relaxed);
    }
    if FROM_OUTSIDE.contains(&signal) {
        // Relaxed: as above.
        ENDS_IT.store(true, Ordering::Relaxed);
    }
    if is_from_kernel && !ASKED_FOR.contains(&signal) {
        return;
    }
    let Some(to) = receiver(signal, sender, program) else { return };
    // SAFETY: the address of a variable of this thread's.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above. What is interrupted may be about to read it.
    let before = unsafe { errno.read() };
    if came.si_code == libc::SI_QUEUE {
        // With its value, and with the id of its sender.
        // SAFETY: the kernel reads the information that it has written.
        unsafe { libc::syscall(libc::SYS_rt_sigqueueinfo, to, signal, info) };
    } else {
        // SAFETY: has no preconditions.
        unsafe { libc::kill(to, signal) };
    }
    // SAFETY: as above.
    unsafe { errno.write(before) };
}

/// The process that gets a signal for this one from this sender.
fn receiver(signal: c_int, sender: c_int, program: c_int) -> Option<c_int> {
    if sender != program {
        return Some(program);
    }
    // SAFETY: has no preconditions.
    let parent = unsafe { libc::getppid() };
    // 0: the parent is outside of this process's namespace; as an address, it is a whole group.
    // 1 may be what takes in processes whose parent has ended.
    (is_message(signal) && parent > 1).then_some(parent)
}

//! Signals between those who send them, this process, and the program that it runs for them.
//!
//! The program is to find signals as it would without this process in between:
//!
//! * what was ignored or blocked when this process was started is so in the program, and nothing
//!   else is (the standard library ignores SIGPIPE here, and has programs start with nothing
//!   blocked);
//! * what another process sends to this one is passed on, as it may know this one's number alone.
//!   What the kernel sends (Ctrl-C, a terminal that hangs up) the program has had already, as both
//!   are in the terminal's foreground.
//!
//! Of these signals none ends this process as long as the [`Relay`] is there. What this process
//! does about signals on its own account is [`crate::interrupt`].

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use libc::c_int;
use rustix::process::{Pid, Signal, kill_process};

/// Signals that are passed on: those that programs are told things by.
const PASSED: [Signal; 7] = [
    Signal::HUP,
    Signal::INT,
    Signal::QUIT,
    Signal::TERM,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
];

/// Which of [`PASSED`] have come and not been passed on yet.
static CAME: [AtomicBool; PASSED.len()] = [const { AtomicBool::new(false) }; PASSED.len()];

/// The program's process; 0 as long as there is none.
static PROGRAM: AtomicI32 = AtomicI32::new(0);

/// Signals that others in this process handle or ignore before [`Relay::begin`]: SIGPIPE Rust's
/// standard library, before `main`, and two that the C library keeps for itself that one, when it
/// starts the first thread.
const TAKEN: [c_int; 3] = [libc::SIGPIPE, 32, 33];

/// Which of them were ignored when this process was started.
static WERE_IGNORED: [AtomicBool; TAKEN.len()] = [const { AtomicBool::new(false) }; TAKEN.len()];

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;

unsafe extern "C" {
    /// The head of the file that this code is in, by the linker.
    static __ehdr_start: libc::Elf64_Ehdr;
}

/// Asks the kernel nothing where this code is part of a library: that is somebody else's process.
extern "C" fn begin() {
    // SAFETY: asks for a number that the kernel passed at the start.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) };
    // Of all programs that linkers make, the headers follow the head.
    let own = (&raw const __ehdr_start).addr() + size_of::<libc::Elf64_Ehdr>();
    if u64::try_from(own) != Ok(program) {
        return;
    }
    for (signal, was) in TAKEN.into_iter().zip(&WERE_IGNORED) {
        // Relaxed: there is one thread.
        was.store(is_ignored(signal), Ordering::Relaxed);
    }
}

/// Whether a signal is ignored now.
pub(crate) fn is_ignored(signal: c_int) -> bool {
    let mut now = KernelAction::default();
    ask_kernel(signal, None, Some(&mut now)).is_ok() && now.handler == libc::SIG_IGN
}

/// A disposition as the kernel has it (Linux `include/uapi/asm-generic/signal.h`, `struct
/// sigaction`).
#[derive(Default)]
#[repr(C)]
struct KernelAction {
    handler: libc::sighandler_t,
    flags: libc::c_ulong,
    restorer: usize,
    mask: u64,
}

/// rt_sigaction(2), also for signals that the C library keeps for itself; without a handler alone.
fn ask_kernel(
    signal: c_int,
    new: Option<&KernelAction>,
    old: Option<&mut KernelAction>,
) -> io::Result<()> {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let old = old.map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: reads and writes structures of the kernel's form, which outlive the call, as long as
    // it says that masks are.
    let asked =
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, old, size_of::<u64>()) };
    if asked == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn disposition(signal: c_int) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks for the disposition of a signal, into memory that outlives the call.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), now.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `sigaction`, so it is initialised in any case.
    (asked == 0).then(|| unsafe { now.assume_init() })
}

fn set(signal: c_int, to: &libc::sigaction) -> io::Result<()> {
    // SAFETY: the disposition is a whole one, whose handler, if any, may run at any time.
    match unsafe { libc::sigaction(signal, to, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A disposition without a handler: `SIG_IGN` or `SIG_DFL`.
fn plain(what: libc::sighandler_t) -> libc::sigaction {
    // SAFETY: all-zero bytes are a valid `sigaction`.
    let mut plain: libc::sigaction = unsafe { std::mem::zeroed() };
    plain.sa_sigaction = what;
    plain
}

/// How this process was started, as far as signals go.
#[derive(Clone, Copy)]
struct Inherited {
    /// A bit for each number less one, as the kernel has it in `/proc/self/status`.
    ignored: u64,
    blocked: libc::sigset_t,
}

/// The signals of the kernel's.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=64;

impl Inherited {
    /// Reads it, before any handler is installed.
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
        // SAFETY: changes nothing, and writes into memory that outlives the call.
        let asked = unsafe {
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), blocked.as_mut_ptr())
        };
        if asked != 0 {
            return Err(io::Error::from_raw_os_error(asked));
        }
        // SAFETY: the call has written it.
        Ok(Self { ignored, blocked: unsafe { blocked.assume_init() } })
    }

    /// Makes it so in the calling process, which is about to execute a program. System calls alone.
    fn take(&self) -> io::Result<()> {
        for signal in PASSED.map(Signal::as_raw).into_iter().chain([libc::SIGPIPE]) {
            set(signal, &plain(libc::SIG_DFL))?;
        }
        for signal in SIGNALS.filter(|signal| self.ignored >> (signal - 1) & 1 == 1) {
            // Of those that nobody may ignore, none was.
            ask_kernel(
                signal,
                Some(&KernelAction { handler: libc::SIG_IGN, ..Default::default() }),
                None,
            )?;
        }
        // SAFETY: reads a set that outlives the call.
        let masked = unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.blocked, std::ptr::null_mut())
        };
        if masked == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(masked)) }
    }
}

/// Signals are kept for the program from now on, until this is dropped. There is one in a process
/// at a time.
pub struct Relay {
    inherited: Inherited,
    before: Vec<(c_int, libc::sigaction)>,
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
    /// The kernel refused one; those that there are stay.
    pub fn begin() -> io::Result<Self> {
        let inherited = Inherited::read()?;
        // Ordering: Relaxed, as nothing else is published by it; handlers come later.
        PROGRAM.store(0, Ordering::Relaxed);
        let mut relay = Self { inherited, before: Vec::new() };
        let mut handler = plain(came as extern "C" fn(c_int, *const libc::siginfo_t, _) as usize);
        handler.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        for signal in PASSED.map(Signal::as_raw) {
            let before = disposition(signal).ok_or_else(io::Error::last_os_error)?;
            set(signal, &handler)?;
            relay.before.push((signal, before));
        }
        Ok(relay)
    }

    /// Has the program that `command` starts find signals as this process did.
    pub fn prepare(&self, command: &mut Command) {
        let inherited = self.inherited;
        // SAFETY: between fork and execution it makes system calls, and nothing else.
        unsafe { command.pre_exec(move || inherited.take()) };
    }

    /// Which process the program is: what it sends itself is not passed on.
    pub fn started(&self, process: u32) {
        // Relaxed: the number is all that is shared.
        PROGRAM.store(i32::try_from(process).unwrap_or(0), Ordering::Relaxed);
    }

    /// Passes on what has come since the last time.
    ///
    /// # Panics
    /// Never.
    pub fn pass_on(&self) {
        // Relaxed: as above.
        let Some(program) = Pid::from_raw(PROGRAM.load(Ordering::Relaxed)) else { return };
        for (signal, came) in PASSED.into_iter().zip(&CAME) {
            // Relaxed: one that comes right now is passed on now or the next time.
            if came.swap(false, Ordering::Relaxed) {
                // It may have ended just now.
                let _ = kill_process(program, signal);
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        for (signal, before) in &self.before {
            // As it was before: this cannot be refused.
            let _ = set(*signal, before);
        }
    }
}

/// The handler.
extern "C" fn came(signal: c_int, info: *const libc::siginfo_t, _context: *const libc::c_void) {
    // SAFETY: the kernel passes it, as the handler was installed with `SA_SIGINFO`.
    let info = unsafe { &*info };
    // Relaxed: the number is all that is shared.
    let program = PROGRAM.load(Ordering::Relaxed);
    // Codes above zero are the kernel's own (sigaction(2), "The si_code field").
    // SAFETY: what a process has sent has its number.
    let is_for_program = program == 0 || info.si_code <= 0 && unsafe { info.si_pid() } != program;
    if is_for_program && let Some(at) = PASSED.iter().position(|one| one.as_raw() == signal) {
        // Relaxed: a flag that is looked at later.
        CAME[at].store(true, Ordering::Relaxed);
    }
}

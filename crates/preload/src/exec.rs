//! Programs that the program executes. Those whose loader does not accept this library get an
//! environment without it.
//!
//! The loader of musl ends a program whose preloaded library it cannot use, the 32-bit loader
//! complains on standard error, and sanitizers refuse to start. If the program to execute is such a
//! one ([`dimmer_scan::start`]), its environment has `LD_PRELOAD` without this library, and the
//! observer gets a report of a process that it will not see. Likewise, without a report, if this
//! process has restricted its system calls: the filter, which the program inherits, may end it for
//! what this library does. Otherwise the C library's function gets the unchanged arguments.
//!
//! The caller may be a child of vfork, which shares its parent's memory, or a signal handler. So
//! this code does not allocate, takes no lock, and leaves nothing behind but a page in a vfork's
//! parent if an environment is very large. Programs that make the system call themselves bypass it.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::panic::catch_unwind;
use std::ptr::null;
use std::sync::OnceLock;

use dimmer_hook::{NoRoom, allow_migration, inhibit_migration};
use dimmer_runtime::calls::KeepErrno;
use dimmer_scan::{Refused, Start, start};
use rustix::fs::{Access, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::affinity;
use crate::arch::{forward, gather};
use crate::home::come_home_before;
use crate::marks;
use crate::next::Next;
use crate::parts::Parts;
use crate::readable::Readable;

type Strings = *const *const c_char;

const VARIABLE: &[u8] = b"LD_PRELOAD=";

/// How many times in turn a script's interpreter may be a script (Linux `fs/exec.c`).
const MOST_SCRIPTS: usize = 5;

/// The directories of programs if `PATH` is not set, confstr(3).
const USUAL_PATH: &[u8] = b"/bin:/usr/bin";

/// This library's name in `LD_PRELOAD`.
static OWN: OnceLock<&'static CStr> = OnceLock::new();

/// The directory that the observer reads; empty if there is no observer.
static DIRECTORY: OnceLock<CString> = OnceLock::new();

static EXECVE: Next = Next::new(c"execve");
static EXECV: Next = Next::new(c"execv");
static EXECVP: Next = Next::new(c"execvp");
static EXECVPE: Next = Next::new(c"execvpe");
static EXECL: Next = Next::new(c"execl");
static EXECLP: Next = Next::new(c"execlp");
static EXECLE: Next = Next::new(c"execle");
static FEXECVE: Next = Next::new(c"fexecve");
static EXECVEAT: Next = Next::new(c"execveat");
static POSIX_SPAWN: Next = Next::new(c"posix_spawn");
static POSIX_SPAWNP: Next = Next::new(c"posix_spawnp");

unsafe extern "C" {
    static environ: Strings;
}

/// Looks up the next functions and this library's own name.
pub(crate) fn begin() {
    for next in [
        &EXECVE,
        &EXECV,
        &EXECVP,
        &EXECVPE,
        &EXECL,
        &EXECLP,
        &EXECLE,
        &FEXECVE,
        &EXECVEAT,
        &POSIX_SPAWN,
        &POSIX_SPAWNP,
    ] {
        next.get();
    }
    if let Some(directory) = std::env::var_os(dimmer_hook::DIRECTORY)
        && let Ok(directory) = CString::new(directory.into_encoded_bytes())
    {
        let _ = DIRECTORY.set(directory);
    }
    let mut about = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: asks for the file that has this function, into memory that outlives the call.
    let found = unsafe { libc::dladdr(begin as *const c_void, about.as_mut_ptr()) };
    // SAFETY: all-zero bytes are a valid `Dl_info`.
    let about = unsafe { about.assume_init() };
    if found != 0 && !about.dli_fname.is_null() {
        // SAFETY: the loader keeps the name as long as the library is loaded, which is until the
        // process ends.
        let _ = OWN.set(unsafe { CStr::from_ptr(about.dli_fname) });
    }
}

/// The program's strings up to the null pointer; none for a null pointer.
fn strings<'a>(all: Strings) -> impl Iterator<Item = &'a CStr> {
    let mut at = all;
    std::iter::from_fn(move || {
        if at.is_null() {
            return None;
        }
        // SAFETY: the program passes an array of strings that ends with a null pointer, which was
        // not reached yet.
        let one = unsafe { *at };
        if one.is_null() {
            return None;
        }
        // SAFETY: the array goes on, since this element is not the null pointer.
        at = unsafe { at.add(1) };
        // SAFETY: the element is a string of the program's, which ends with a zero byte.
        Some(unsafe { CStr::from_ptr(one) })
    })
}

/// Whether a byte separates libraries in `LD_PRELOAD`, ld.so(8).
fn separates(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

fn is_preload(variable: &CStr) -> Option<&[u8]> {
    variable.to_bytes().strip_prefix(VARIABLE)
}

/// Whether an environment makes the loader preload this library.
fn has_library(environment: Strings) -> bool {
    let Some(own) = OWN.get() else { return false };
    let mut preloads = strings(environment).filter_map(is_preload);
    preloads.any(|value| value.split(separates).any(|library| library == own.to_bytes()))
}

/// Reason why this library does not fit the program; `None` if it fits, or nothing is known.
fn refusal(opened: rustix::io::Result<OwnedFd>) -> Option<Refused> {
    let mut opened = opened.ok()?;
    for _ in 0..=MOST_SCRIPTS {
        let interpreter = match look(opened.as_fd()) {
            Start::Refused(why) => return Some(why),
            Start::Script(interpreter) => interpreter,
            Start::Glibc | Start::Static | Start::Unknown => return None,
        };
        opened = open(interpreter.bytes()).ok()?;
    }
    None
}

/// Likewise, of an open file.
fn refusal_of_open(file: BorrowedFd<'_>) -> Option<Refused> {
    if !is_regular(rustix::fs::fstat(file)) {
        return None;
    }
    match look(file) {
        Start::Refused(why) => Some(why),
        Start::Script(interpreter) => refusal(open(interpreter.bytes())),
        _ => None,
    }
}

fn look(file: BorrowedFd<'_>) -> Start {
    let parts = RefCell::new(Parts::default());
    start(|offset, into| parts.borrow_mut().read(file, offset, into))
}

fn is_regular(about: rustix::io::Result<Stat>) -> bool {
    about.is_ok_and(|about| FileType::from_raw_mode(about.st_mode) == FileType::RegularFile)
}

/// Opens a regular file; anything else, such as a pipe, would notice that.
fn open_at(directory: BorrowedFd<'_>, path: &CStr) -> rustix::io::Result<OwnedFd> {
    if !is_regular(rustix::fs::statat(directory, path, AtFlags::empty())) {
        return Err(Errno::NOENT);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(directory, path, flags, Mode::empty())
}

/// Opens a path of less than 1024 bytes; longer ones are not looked at.
fn open(path: &[u8]) -> rustix::io::Result<OwnedFd> {
    let mut ended = [0; 1024];
    let room = ended.get_mut(..path.len() + 1).ok_or(Errno::NAMETOOLONG)?;
    room[..path.len()].copy_from_slice(path);
    let path = CStr::from_bytes_with_nul(room).map_err(|_| Errno::INVAL)?;
    open_at(CWD, path)
}

/// Opens the file that execvp(3) would execute.
fn open_in_path(name: &CStr) -> rustix::io::Result<OwnedFd> {
    let name = name.to_bytes();
    if name.contains(&b'/') {
        return open(name);
    }
    // SAFETY: the program's environment, which it does not change while it starts another program.
    let all = unsafe { environ };
    let path = strings(all).find_map(|variable| variable.to_bytes().strip_prefix(b"PATH="));
    for directory in path.unwrap_or(USUAL_PATH).split(|byte| *byte == b':') {
        let mut full = [0; 1024];
        let separator: &[u8] = if directory.is_empty() { b"" } else { b"/" };
        let mut length = 0;
        for part in [directory, separator, name] {
            let Some(room) = full.get_mut(length..length + part.len()) else { break };
            room.copy_from_slice(part);
            length += part.len();
        }
        let Some(full) = full.get(..=length) else { continue };
        let Ok(full) = CStr::from_bytes_with_nul(full) else { continue };
        if rustix::fs::access(full, Access::EXEC_OK).is_ok() {
            return open_at(CWD, full);
        }
    }
    Err(Errno::NOENT)
}

/// Reports to the observer that it will not see this process's next program.
fn tell(why: &Refused) {
    let Some(directory) = DIRECTORY.get() else { return };
    let ending = match why {
        Refused::Loader(_) => NoRoom::Loader,
        Refused::Sanitizer(_) => NoRoom::Sanitizer,
        _ => NoRoom::Machine,
    };
    let mut digits = [0; 10];
    let mut number = rustix::process::getpid().as_raw_nonzero().get().unsigned_abs();
    let mut first = digits.len();
    while number > 0 && first > 0 {
        first -= 1;
        digits[first] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
    }
    let mut path = [0; 512];
    let mut length = 0;
    let parts = [directory.to_bytes(), b"/", &digits[first..], b"-x.", ending.name().as_bytes()];
    for part in parts {
        let Some(room) = path.get_mut(length..length + part.len()) else { return };
        room.copy_from_slice(part);
        length += part.len();
    }
    let Some(Ok(path)) = path.get(..=length).map(CStr::from_bytes_with_nul) else { return };
    // A file that is there already reports the same.
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let _ = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
}

/// The program to execute, by what was passed.
#[derive(Clone, Copy)]
enum What<'a> {
    Path(*const c_char),
    InPath(*const c_char),
    /// With the flags of execveat(2).
    At(BorrowedFd<'a>, *const c_char, c_int),
    Open(BorrowedFd<'a>),
}

impl What<'_> {
    /// What was passed as a string, if anything.
    fn text(self) -> *const c_char {
        match self {
            Self::Path(text) | Self::InPath(text) | Self::At(_, text, _) => text,
            Self::Open(_) => null(),
        }
    }
}

/// Whether the loader can open this library now: the process may have changed its root directory or
/// rights. That is not reported: the observer's directory is mostly out of reach then, too.
fn can_be_loaded() -> bool {
    let found = OWN.get().map(|own| open_at(CWD, own));
    !matches!(found, Some(Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)))
}

/// Whether to take this library out of the environment: it is there, and must not be.
fn must_go(what: What<'_>, environment: Strings) -> bool {
    let _errno = KeepErrno::new();
    let must_go = || {
        // It may not look at files, nor may the program that it executes.
        if dimmer_hook::is_restricted() {
            return has_library(environment);
        }
        let mut memory = Readable::default();
        let is_readable = memory.has_strings(environment) && memory.has_string(what.text());
        if !is_readable || !has_library(environment) {
            return false;
        }
        if !can_be_loaded() {
            return true;
        }
        let why = match what {
            What::Path(path) => refusal(open(string(path).to_bytes())),
            What::InPath(name) => refusal(open_in_path(string(name))),
            What::At(directory, path, flags) => {
                let is_file = flags & AtFlags::EMPTY_PATH.bits().cast_signed() != 0;
                match string(path) {
                    path if path.is_empty() && is_file => refusal_of_open(directory),
                    path => refusal(open_at(directory, path)),
                }
            }
            What::Open(file) => refusal_of_open(file),
        };
        why.is_some_and(|why| {
            tell(&why);
            true
        })
    };
    // Only a panic would allocate, and nothing here panics.
    catch_unwind(must_go).unwrap_or(false)
}

/// The number of pointers and bytes of text that fit on the stack.
const POINTERS: usize = 384;
const TEXT: usize = 1024;

/// Calls `go` with an environment without this library.
#[inline(never)]
fn without_library(environment: Strings, go: impl FnOnce(Strings) -> c_int) -> c_int {
    let pointers = strings(environment).count() + 1;
    let preloads = strings(environment).filter(|variable| is_preload(variable).is_some());
    let text: usize = preloads.map(|variable| variable.to_bytes_with_nul().len()).sum();
    if pointers <= POINTERS && text <= TEXT {
        let (mut to, mut left) = ([null(); POINTERS], [0; TEXT]);
        fill(environment, &mut to, &mut left);
        return go(to.as_ptr());
    }
    let bytes = pointers * size_of::<*const c_char>() + text;
    // SAFETY: a new mapping.
    let memory = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )
    };
    let Ok(memory) = memory else { return go(environment) };
    // SAFETY: the first part of that memory. It is all zero, and zeros are null pointers.
    let to = unsafe { std::slice::from_raw_parts_mut(memory.cast::<*const c_char>(), pointers) };
    let rest = memory.wrapping_byte_add(size_of_val(to)).cast::<u8>();
    // SAFETY: the rest of that memory.
    let left = unsafe { std::slice::from_raw_parts_mut(rest, text) };
    fill(environment, to, left);
    let result = go(to.as_ptr());
    // Reached if the program was not executed, or is another process.
    // SAFETY: only this function uses the memory.
    let _ = unsafe { rustix::mm::munmap(memory, bytes) };
    result
}

/// Writes the environment without this library: its pointers, which end with a null pointer, and
/// the changed text of the variables that named the library.
fn fill(environment: Strings, to: &mut [*const c_char], text: &mut [u8]) {
    let own = OWN.get().map_or(&b""[..], |own| own.to_bytes());
    let (mut count, mut used) = (0, 0);
    for variable in strings(environment) {
        let mut kept = variable.as_ptr();
        if let Some(value) = is_preload(variable)
            && value.split(separates).any(|library| library == own)
        {
            let start = used;
            let mut put = |bytes: &[u8]| {
                if let Some(room) = text.get_mut(used..used + bytes.len()) {
                    room.copy_from_slice(bytes);
                    used += bytes.len();
                }
            };
            put(VARIABLE);
            let others = value.split(separates).filter(|library| !library.is_empty());
            let mut is_first = true;
            for library in others.filter(|library| *library != own) {
                put(if is_first { b"" } else { b":" });
                put(library);
                is_first = false;
            }
            put(&[0]);
            if is_first {
                continue;
            }
            kept = text[start..].as_ptr().cast();
        }
        if let Some(room) = to.get_mut(count) {
            *room = kept;
            count += 1;
        }
    }
    if let Some(end) = to.get_mut(count) {
        *end = null();
    }
}

/// A string of the program's, which is valid during the call.
fn string<'a>(text: *const c_char) -> &'a CStr {
    // SAFETY: the program passes a string; the C library would read it as well.
    if text.is_null() { c"" } else { unsafe { CStr::from_ptr(text) } }
}

fn file<'a>(number: c_int) -> BorrowedFd<'a> {
    // SAFETY: it is used only during the call; the kernel reports numbers that are not files. -1 is
    // not allowed here.
    unsafe { BorrowedFd::borrow_raw(if number == -1 { c_int::MAX } else { number }) }
}

/// Returns the address where to go on; null if this library is to be taken out first.
fn go_on(next: &Next, what: What<'_>, environment: Strings) -> *mut c_void {
    affinity::give_back_to_pass_on();
    let next = come_home_before(next);
    if must_go(what, environment) { std::ptr::null_mut() } else { next }
}

/// Likewise, where the program takes the place of this one.
fn replace(next: &Next, what: What<'_>, environment: Strings) -> *mut c_void {
    let _errno = KeepErrno::new();
    marks::write_so_far();
    go_on(next, what, environment)
}

fn own_environment() -> Strings {
    // SAFETY: the program's variable, read as the C library does.
    unsafe { environ }
}

// They go on in the second function if this library must be taken out.
forward!(execve, before_execve, execve_without);
forward!(execv, before_execv, execv_without);
forward!(execvp, before_execvp, execvp_without);
forward!(execvpe, before_execvpe, execvpe_without);
forward!(execl, before_execl, execl_without);
forward!(execlp, before_execlp, execlp_without);
forward!(fexecve, before_fexecve, fexecve_without);
forward!(execveat, before_execveat, execveat_without);

extern "C" fn before_execve(path: *const c_char, _: Strings, environment: Strings) -> *mut c_void {
    replace(&EXECVE, What::Path(path), environment)
}

extern "C" fn before_execv(path: *const c_char) -> *mut c_void {
    replace(&EXECV, What::Path(path), own_environment())
}

extern "C" fn before_execvp(name: *const c_char) -> *mut c_void {
    replace(&EXECVP, What::InPath(name), own_environment())
}

extern "C" fn before_execvpe(name: *const c_char, _: Strings, environment: Strings) -> *mut c_void {
    replace(&EXECVPE, What::InPath(name), environment)
}

extern "C" fn before_execl(path: *const c_char) -> *mut c_void {
    replace(&EXECL, What::Path(path), own_environment())
}

extern "C" fn before_execlp(name: *const c_char) -> *mut c_void {
    replace(&EXECLP, What::InPath(name), own_environment())
}

extern "C" fn before_fexecve(number: c_int, _: Strings, environment: Strings) -> *mut c_void {
    replace(&FEXECVE, What::Open(file(number)), environment)
}

extern "C" fn before_execveat(
    directory: c_int,
    path: *const c_char,
    _: Strings,
    environment: Strings,
    flags: c_int,
) -> *mut c_void {
    replace(&EXECVEAT, What::At(file(directory), path, flags), environment)
}

/// Calls the C library's function at `next`, of that type. If there is none, fails as if the kernel
/// lacked it.
macro_rules! call {
    ($next:expr, $type:ty, $($argument:expr),*) => {{
        let next = come_home_before($next);
        // SAFETY: the C library's function of that name, or one that takes no arguments and fails.
        let function: $type = unsafe { std::mem::transmute(next) };
        // SAFETY: the arguments are those of the program.
        unsafe { function($($argument),*) }
    }};
}

type Execute = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;

extern "C" fn execve_without(path: *const c_char, words: Strings, all: Strings) -> c_int {
    without_library(all, |all| call!(&EXECVE, Execute, path, words, all))
}

extern "C" fn execv_without(path: *const c_char, words: Strings) -> c_int {
    execve_without(path, words, own_environment())
}

extern "C" fn execvpe_without(name: *const c_char, words: Strings, all: Strings) -> c_int {
    without_library(all, |all| call!(&EXECVPE, Execute, name, words, all))
}

extern "C" fn execvp_without(name: *const c_char, words: Strings) -> c_int {
    execvpe_without(name, words, own_environment())
}

extern "C" fn fexecve_without(number: c_int, words: Strings, all: Strings) -> c_int {
    type Function = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
    without_library(all, |all| call!(&FEXECVE, Function, number, words, all))
}

extern "C" fn execveat_without(
    directory: c_int,
    path: *const c_char,
    words: Strings,
    all: Strings,
    flags: c_int,
) -> c_int {
    type Function = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
    without_library(all, |all| call!(&EXECVEAT, Function, directory, path, words, all, flags))
}

type Spawn = unsafe extern "C" fn(
    *mut c_void,
    *const c_char,
    *const c_void,
    *const c_void,
    Strings,
    Strings,
) -> c_int;

#[unsafe(no_mangle)]
extern "C" fn posix_spawn(
    process: *mut c_void,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Strings,
    all: Strings,
) -> c_int {
    // An action may change the child's directory first. Then the path may lead elsewhere, and
    // nothing is known.
    spawn_in_place(&POSIX_SPAWN, What::Path(path), all, |all| {
        call!(&POSIX_SPAWN, Spawn, process, path, actions, attributes, words, all)
    })
}

#[unsafe(no_mangle)]
extern "C" fn posix_spawnp(
    process: *mut c_void,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    words: Strings,
    all: Strings,
) -> c_int {
    spawn_in_place(&POSIX_SPAWNP, What::InPath(name), all, |all| {
        call!(&POSIX_SPAWNP, Spawn, process, name, actions, attributes, words, all)
    })
}

/// Starts a program by `call`, which gets the environment. Until that executes, it is a child with
/// this process's memory, in the middle of the C library: as in one of vfork(2), its calls stay.
fn spawn_in_place(
    next: &Next,
    what: What<'_>,
    all: Strings,
    call: impl FnOnce(Strings) -> c_int,
) -> c_int {
    let must_go = go_on(next, what, all).is_null();
    inhibit_migration();
    let status = if must_go { without_library(all, call) } else { call(all) };
    allow_migration();
    status
}

gather!(execl_without, execv_without);
gather!(execlp_without, execvp_without);
gather!(
    #[unsafe(no_mangle)]
    execle,
    execle_gathered
);

/// As execle(3), whose environment follows the null pointer.
extern "C" fn execle_gathered(path: *const c_char, words: Strings) -> c_int {
    let count = strings(words).count();
    // SAFETY: the program passes both, one after the other.
    let behind = unsafe { words.add(count + 1) };
    // SAFETY: the program passes the environment there.
    let environment = unsafe { *behind }.cast::<*const c_char>();
    let what = What::Path(path);
    if replace(&EXECLE, what, environment).is_null() {
        execve_without(path, words, environment)
    } else {
        call!(&EXECVE, Execute, path, words, environment)
    }
}
